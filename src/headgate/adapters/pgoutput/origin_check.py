"""What a connector needs of PostgreSQL, tried before it begins, and what to do where it isn't so.

Changes nothing at the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import psycopg

from headgate.adapters.pgoutput.database import Database, Row
from headgate.adapters.pgoutput.errors import WAL_LEVEL
from headgate.adapters.pgoutput.publication import KINDS, SCHEMAS_SINCE, Publication
from headgate.adapters.pgoutput.slot import Slot
from headgate.adapters.pgoutput.standing import warning_of, written
from headgate.decide.connectors.postgres_settings import ALL_OF_SCHEMA
from headgate.errors import HeadgateError
from headgate.ports.origin import Finding

MOST_NAMED = 5
OLDEST = 140_000
_SERVER = """
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
  current_setting('wal_level'), current_setting('server_encoding'),
  current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
  current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication),
  current_setting('max_slot_wal_keep_size'),
  rolreplication OR rolsuper, rolsuper, has_database_privilege(current_database(), 'CREATE'),
  current_user
FROM pg_roles WHERE rolname = current_user
"""
_TABLES = """
SELECT n.nspname || '.' || c.relname, c.relreplident::text,
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary
    AND (i.indimmediate OR c.relreplident = 'f')),
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident),
  pg_has_role(c.relowner, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), c.relispartition,
  ARRAY(SELECT m.nspname || '.' || k.relname
    FROM pg_inherits h JOIN pg_class k ON k.oid = h.inhrelid JOIN pg_namespace m
      ON m.oid = k.relnamespace
    WHERE h.inhparent = c.oid AND NOT k.relispartition ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 1
"""


class OriginCheck:
    def __init__(self, database: Database, slot: Slot, publication: Publication) -> None:
        self._database = database
        self._slot = slot
        self._publication = publication

    async def run(self) -> list[Finding]:
        """In the order in which they depend on each other: what is behind a failure isn't tried."""
        found: list[Finding] = []
        try:
            async for finding in self._findings():
                found.append(finding)
                if finding.verdict == "failed" and finding.what in ("version", "primary"):
                    break
        except (psycopg.Error, HeadgateError) as error:
            found.append(Finding("connection", "failed", str(self._database.error(error))))
        return found

    async def _findings(self) -> AsyncIterator[Finding]:
        [row] = await self._database.rows(_SERVER)
        version, is_standby, level, encoding, slots, used, senders, sending, keeps = row[:9]
        may_replicate, is_super, may_create, user = row[9:]
        yield Finding("connection", "ok")
        yield _judged(
            "version",
            version >= OLDEST,
            f"PostgreSQL {version // 10_000}",
            f"PostgreSQL {version // 10_000} is too old: it takes 14 or newer",
        )
        yield _judged(
            "primary",
            not is_standby,
            "",
            "this server is a standby, and connectors read the primary: name all servers in the "
            "setting dsn",
        )
        yield _judged("wal_level", level == "logical", "logical", WAL_LEVEL)
        yield _judged(
            "rights",
            may_replicate,
            "",
            f"the user {user} may not replicate: ALTER ROLE {user} REPLICATION",
        )
        if encoding == "SQL_ASCII":
            yield Finding(
                "encoding",
                "warning",
                "the database's encoding is SQL_ASCII, which is none: a text that isn't UTF-8 "
                "stops the connector",
            )
        yield await self._slot_finding(slots - used, senders - sending, keeps)
        tables = await self._tables(version)
        yield await self._publication_finding(
            tables, version, is_super=is_super, may_create=may_create
        )
        for finding in _keys(tables):
            yield finding
        names = {row[0] for row in tables}
        if heirs := sorted({name for row in tables for name in row[7]} - names):
            sentence = (
                f"{_named(heirs)} inherit from a table that is read, and are tables of their own: "
                "name them, too, where their rows matter"
            )
            yield Finding("tables", "warning", sentence)
        if unreadable := [row[0] for row in tables if not row[5]]:
            sentence = (
                f"{_named(unreadable)} can't be read by {user}, which a snapshot takes: GRANT "
                f"SELECT ON {unreadable[0]} TO {user}"
            )
            yield Finding("snapshot", "warning", sentence)

    async def _slot_finding(self, free: int, senders: int, keeps: str) -> Finding:
        info = await self._slot.find()
        if info is None and not self._slot.own:
            sentence = (
                f"there is no replication slot {self._slot.name}: create it with "
                f"pg_create_logical_replication_slot('{self._slot.name}', 'pgoutput'), or leave "
                "the setting slot out"
            )
            return Finding("slot", "failed", sentence)
        if info is None and free <= 0:
            sentence = (
                "the server has no free replication slot: raise max_replication_slots, or drop one "
                "that nobody reads"
            )
            return Finding("slot", "failed", sentence)
        if senders <= 0:
            return Finding("slot", "failed", "the server has no free sender: raise max_wal_senders")
        if info is not None:
            self._slot.check(info)
            if warning := warning_of(info):
                return Finding("slot", "warning", warning)
        if keeps == "-1":
            sentence = (
                "nothing bounds what the server keeps for a connector that is away, which may fill "
                "the disk: set max_slot_wal_keep_size; one that is away for longer then says that "
                "its history is lost"
            )
            return Finding("slot", "warning", sentence)
        held = f", {written(info.held_bytes or 0)} held back" if info is not None else ""
        return Finding("slot", "ok", f"{free} free{held}; at most {keeps} are kept for one")

    async def _tables(self, version: int) -> list[Row]:
        """The tables that the connector reads: those of its publication, or those that it would
        have."""
        rows = await self._database.rows(_TABLES)
        if not self._publication.own:
            published = {f"{schema}.{table}" for schema, table in await self._publication.tables()}
            return [row for row in rows if row[0] in published]
        wanted = self._database.settings.tables
        names = {str(one) for one in wanted}
        schemas = {one.schema for one in wanted if one.table == ALL_OF_SCHEMA}
        # Partitions are told as their table, but for those that are named by themselves.
        return [
            row
            for row in rows
            if row[0] in names
            or (not row[6] and (not wanted or row[0].partition(".")[0] in schemas))
        ]

    async def _publication_finding(
        self, tables: Sequence[Row], version: int, *, is_super: bool, may_create: bool
    ) -> Finding:
        what = "publication"
        found = await self._database.rows(
            "SELECT 1 FROM pg_publication WHERE pubname = %s", (self._publication.name,)
        )
        if not self._publication.own:
            if kinds := await self._publication.untold():
                name = self._publication.name
                sentence = (
                    f"{name} leaves out every {' and '.join(kinds)}; if the log is to have them, "
                    f"ALTER PUBLICATION {name} SET (publish = '{', '.join(KINDS)}')"
                )
                return Finding(what, "warning", sentence)
            return _judged(
                what,
                bool(found),
                f"{self._publication.name}, {_counted(len(tables))}",
                f"there is no publication {self._publication.name}: create it, or leave the "
                "setting publication out",
            )
        wanted = self._database.settings.tables
        there = {row[0] for row in tables}
        missing = [
            str(one) for one in wanted if one.table != ALL_OF_SCHEMA and str(one) not in there
        ]
        if missing:
            return Finding(what, "failed", f"there is no table {_named(missing)}: correct tables")
        whole = not wanted or any(one.table == ALL_OF_SCHEMA for one in wanted)
        if whole and not is_super:
            sentence = (
                "only a superuser may publish all tables of a database or a schema: name tables, "
                f"or let one say CREATE PUBLICATION {self._publication.name} FOR ALL TABLES, and "
                f"set publication to {self._publication.name}"
            )
            return Finding(what, "failed", sentence)
        if wanted and whole and version < SCHEMAS_SINCE:
            sentence = "publishing all tables of a schema came with PostgreSQL 15: name the tables"
            return Finding(what, "failed", sentence)
        others = [row[0] for row in tables if not row[4]]
        if not is_super and (others or not may_create):
            sentence = (
                f"to publish {_named(others) or 'tables'} takes their owner and the right CREATE "
                "of the database: let the owner create a publication, and name it in the setting "
                "publication"
            )
            return Finding(what, "failed", sentence)
        return Finding(what, "ok", _counted(len(tables)))


def _keys(tables: Sequence[Row]) -> list[Finding]:
    """Which tables have no key, and which tell nothing of the state before a change."""
    without = [
        name
        for name, identity, has_key, has_index, *_ in tables
        if not _has_identity(identity, has_key=has_key, has_index=has_index)
    ]
    if without:
        sentence = (
            f"{_named(without)} have no key for the changes of a row, and the server would refuse "
            "updates and deletes of what is published without one: give each a primary key (one "
            "that isn't DEFERRABLE), or REPLICA IDENTITY USING INDEX with a unique index, or leave "
            "it out (tables)"
        )
        return [Finding("keys", "failed", sentence)]
    partial = [name for name, identity, *_ in tables if identity != "f"]
    if partial:
        sentence = (
            f"{_named(partial)} tell the key alone of the state before a change, and nothing of "
            "large values that didn't change; `left` and deletes that filters see need ALTER "
            f"TABLE {partial[0]} REPLICA IDENTITY FULL"
        )
        return [Finding("keys", "ok"), Finding("identity", "warning", sentence)]
    return [Finding("keys", "ok"), Finding("identity", "ok")]


def _has_identity(identity: str, *, has_key: bool, has_index: bool) -> bool:
    return has_index if identity == "i" else has_key and identity in ("d", "f")


def _counted(tables: int) -> str:
    return "1 table" if tables == 1 else f"{tables} tables"


def _judged(what: str, is_ok: bool, note: str, sentence: str) -> Finding:
    return Finding(what, "ok", note) if is_ok else Finding(what, "failed", sentence)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
