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
_NO_TABLE = "42P01"


class Publication:
    """`own`: made by the connector, and named by it."""

    def __init__(self, database: Database, name: str, *, own: bool) -> None:
        self._database = database
        self.name = name
        self.own = own

    async def ensure(self, version: int) -> None:
        """It is there, with the tables of the settings. Raises psycopg's errors, and
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
        if found == wanted:
            return
        statement = self._statement(wanted, version, is_new=found is None)
        try:
            if found is not None and not (found and wanted):
                # One for all tables can't become one for some.
                await self._database.rows(
                    sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self.name))
                )
                statement = self._statement(wanted, version, is_new=True)
            await self._database.rows(statement)
        except psycopg.Error as error:
            if error.sqlstate == DUPLICATE:
                return  # somebody was faster, with the same
            if error.sqlstate in (_NO_TABLE, "3F000"):
                raise OriginRefused(
                    f"{error.diag.message_primary}: correct the setting tables, or create it"
                ) from error
            if error.sqlstate == _NOT_OWNER:
                raise OriginRefused(
                    f"the user of the setting dsn may not publish these tables "
                    f"({error.diag.message_primary}): let their owner say {statement.as_string()} "
                    f"and set publication to {self.name}",
                ) from error
            raise

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
        return frozenset(found) or frozenset({TableName("", "")})

    def _statement(
        self, wanted: frozenset[TableName], version: int, *, is_new: bool
    ) -> sql.Composed:
        parts = []
        for one in sorted(wanted, key=str):
            if one.table == ALL_OF_SCHEMA:
                parts.append(sql.SQL("TABLES IN SCHEMA {}").format(sql.Identifier(one.schema)))
            else:
                table = sql.Identifier(one.schema, one.table)
                parts.append(sql.SQL("TABLE {}").format(table))
        what: sql.Composable = sql.SQL(", ").join(parts)
        name = sql.Identifier(self.name)
        if not is_new:
            return sql.SQL("ALTER PUBLICATION {} SET {}").format(name, what)
        options = "publish_via_partition_root = true"
        if version >= GENERATED_SINCE:
            options += ", publish_generated_columns = stored"
        return sql.SQL("CREATE PUBLICATION {} FOR {} WITH ({})").format(
            name, what if wanted else sql.SQL("ALL TABLES"), sql.SQL(options)
        )
