"""Which tables' changes are sent: the publication of a connector, made and kept by itself or given.

Invariant: a publication that somebody else made is never changed.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from headgate.adapters.pgoutput.database import Database
from headgate.adapters.pgoutput.errors import DUPLICATE, NO_SUCH_OBJECT
from headgate.decide.connectors.postgres_settings import ALL_OF_SCHEMA, TableName
from headgate.errors import OriginRefused

GENERATED_SINCE = 180_000
SCHEMAS_SINCE = 150_000
"""Versions from which on a publication can have stored generated columns, and whole schemas."""
_NOT_OWNER = "42501"
_GONE = frozenset({"42P01", "3F000"})
"""No such table, or schema."""
KINDS = ("insert", "update", "delete", "truncate")
"""What a publication may tell of a table, and all of which a connector's own does."""
NOTHING = TableName("", "")
"""The entry of a publication that has lost all its tables."""


class Publication:
    """`own`: made by the connector, and named by it."""

    def __init__(self, database: Database, name: str, *, own: bool) -> None:
        self._database = database
        self.name = name
        self.own = own

    async def ensure(self, version: int, *, anew: bool) -> None:
        """It is there; who begins `anew` has the tables of the settings, and no others. Who goes on
        keeps what is published, as a table is that was renamed: to publish one that isn't there
        any more would pass over what was written in the meantime. Raises psycopg's errors, and
        OriginRefused."""
        wanted = frozenset(self._database.settings.tables)
        found = await self._found()
        if not self.own:
            if found is None:
                raise OriginRefused(
                    f"there is no publication {self.name}: create it, or leave the setting "
                    "publication out"
                )
            return
        if found is not None and not anew:
            return
        name = sql.Identifier(self.name)
        if await self.untold():
            await self._run(
                sql.SQL("ALTER PUBLICATION {} SET (publish = {})").format(name, ", ".join(KINDS))
            )
        if found == wanted:
            return
        if found is not None and not (found and wanted):
            # One for all tables can't become one for some.
            await self._run(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(name))
            found = None
        if found is None:
            await self._run(self._creation(wanted, version), also=f"set publication to {self.name}")
            return
        if others := found - wanted - {NOTHING}:
            await self._run(sql.SQL("ALTER PUBLICATION {} DROP {}").format(name, _listed(others)))
        await self.publish(wanted - found)

    async def lacking_for(self, collection: str) -> frozenset[TableName]:
        """What of the settings has to be published for that table to be told again; empty: it is,
        or nothing of the settings names it."""
        schema, _, table = collection.partition(".")
        either = {TableName(schema, table), TableName(schema, ALL_OF_SCHEMA)}
        return frozenset(either.intersection(await self.lacking()))

    async def publish(self, tables: frozenset[TableName]) -> None:
        """Those of them that are there. What was written before isn't told. Raises like
        `ensure`."""
        if found := await self._there(tables):
            name = sql.Identifier(self.name)
            await self._run(sql.SQL("ALTER PUBLICATION {} ADD {}").format(name, _listed(found)))

    async def _run(self, statement: sql.Composed, *, also: str = "") -> None:
        """`also`: what else is to be done where the table's owner has to run the statement."""
        try:
            await self._database.rows(statement)
        except psycopg.Error as error:
            if error.sqlstate == DUPLICATE:
                return  # somebody was faster, with the same
            if error.sqlstate in _GONE:
                raise OriginRefused(
                    f"{error.diag.message_primary}: correct the setting tables, or create it"
                ) from error
            if error.sqlstate == _NOT_OWNER:
                raise OriginRefused(
                    f"the user of the setting dsn may not publish these tables "
                    f"({error.diag.message_primary}): let their owner say {statement.as_string()}"
                    + (f" and {also}" if also else ""),
                ) from error
            raise

    async def lacking(self) -> list[TableName]:
        """The tables of the settings that the publication lacks: dropping a table takes it out, and
        a table that is made anew by its name is another one."""
        found = await self._found() if self.own else None
        return sorted(frozenset(self._database.settings.tables) - found, key=str) if found else []

    async def untold(self) -> list[str]:
        """The kinds of changes that the publication is set to leave out."""
        rows = await self._database.rows(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication "
            "WHERE pubname = %s",
            (self.name,),
        )
        return [
            kind for row in rows for kind, is_told in zip(KINDS, row, strict=True) if not is_told
        ]

    async def is_there(self) -> bool:
        return await self._found() is not None

    async def tables(self) -> list[tuple[str, str]]:
        """Schema and name of each that it has now."""
        return [
            (schema, table)
            for schema, table in await self._database.rows(
                "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s "
                "ORDER BY 1, 2",
                (self.name,),
            )
        ]

    async def drop(self) -> None:
        try:
            await self._database.rows(
                sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self.name))
            )
        except psycopg.Error as error:
            if error.sqlstate != NO_SUCH_OBJECT:
                raise

    async def _found(self) -> frozenset[TableName] | None:
        """The tables that it was made for; empty: all. None: there is no such publication."""
        rows = await self._database.rows(
            "SELECT puballtables FROM pg_publication WHERE pubname = %s", (self.name,)
        )
        if not rows or rows[0][0]:
            return frozenset() if rows else None
        tables = await self._database.rows(
            "SELECT n.nspname, c.relname FROM pg_publication p "
            "JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s",
            (self.name,),
        )
        found = {TableName(schema, table) for schema, table in tables}
        [(has_schemas,)] = await self._database.rows(
            "SELECT to_regclass('pg_catalog.pg_publication_namespace') IS NOT NULL"
        )
        if has_schemas:
            schemas = await self._database.rows(
                "SELECT n.nspname FROM pg_publication p "
                "JOIN pg_publication_namespace s ON s.pnpubid = p.oid "
                "JOIN pg_namespace n ON n.oid = s.pnnspid WHERE p.pubname = %s",
                (self.name,),
            )
            found |= {TableName(schema, ALL_OF_SCHEMA) for (schema,) in schemas}
        return frozenset(found) or frozenset({NOTHING})

    async def _there(self, wanted: frozenset[TableName]) -> frozenset[TableName]:
        """The tables of `wanted` that can be published now."""
        rows = await self._database.rows(
            "SELECT n.nspname, c.relname FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relname = ANY(%s) "
            "UNION ALL SELECT nspname, %s FROM pg_namespace",
            ([one.table for one in wanted], ALL_OF_SCHEMA),
        )
        return wanted & {TableName(schema, table) for schema, table in rows}

    def _creation(self, wanted: frozenset[TableName], version: int) -> sql.Composed:
        options = "publish_via_partition_root = true"
        if version >= GENERATED_SINCE:
            options += ", publish_generated_columns = stored"
        return sql.SQL("CREATE PUBLICATION {} FOR {} WITH ({})").format(
            sql.Identifier(self.name),
            _listed(wanted) if wanted else sql.SQL("ALL TABLES"),
            sql.SQL(options),
        )


def _listed(tables: frozenset[TableName]) -> sql.Composed:
    """As a statement has them; PostgreSQL 14 takes the word TABLE once. A table that others inherit
    from comes without these, which are tables of their own: those that lack a key would refuse
    every update from then on."""
    named = [one for one in sorted(tables, key=str) if one.table != ALL_OF_SCHEMA]
    schemas = [one.schema for one in sorted(tables, key=str) if one.table == ALL_OF_SCHEMA]
    comma, parts = sql.SQL(", "), []
    if named:
        names = comma.join(
            sql.SQL("ONLY {}").format(sql.Identifier(one.schema, one.table)) for one in named
        )
        parts.append(sql.SQL("TABLE {}").format(names))
    if schemas:
        parts.append(
            sql.SQL("TABLES IN SCHEMA {}").format(comma.join(map(sql.Identifier, schemas)))
        )
    return comma.join(parts)
