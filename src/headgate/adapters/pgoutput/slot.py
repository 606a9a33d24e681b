"""The replication slot of a connector: what keeps the server's history for it.

Invariant: a reader goes on from a position only where the slot still has everything behind it, of
the same database system and history; anything else is a history that is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from headgate.adapters.pgoutput.database import ANSWER_TIMEOUT_S, Database, Row
from headgate.adapters.pgoutput.errors import history_lost
from headgate.adapters.pgoutput.identity import Position, Timelines, lsn_from, written
from headgate.errors import HeadgateError, OriginRefused, OriginUnavailable

PLUGIN = "pgoutput"
CREATE_WAIT_S = 30.0
"""A new slot waits for the transactions that are open."""
DEAD_AFTER_S = 15
"""A reader that has said nothing for so long has lost its connection: readers speak every 5 s."""
LEAVES_WITHIN_S = 5.0
"""The server notices only a while after a reader has closed its connection that it is gone."""
LOOK_AGAIN_S = 0.05
FAILOVER_SINCE = 170_000
_CREATE = "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)"
_CREATE_WITH_FAILOVER = (
    "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s, false, false, true)"
)
_GIVE_UP_AFTER = "SELECT set_config('statement_timeout', %s, false)"
_OLDEST = """
SELECT 'of process ' || pid, date_trunc('second', xact_start)::text, age(backend_xid)
FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
UNION ALL
SELECT format('prepared as %L in the database %s', gid, database),
  date_trunc('second', prepared)::text, age(transaction)
FROM pg_prepared_xacts ORDER BY 3 DESC LIMIT 1
"""
"""No process has one that was prepared, and it outlives restarts."""
_FIND = (
    "SELECT to_jsonb(s), pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN "
    "pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn)::bigint "
    "FROM pg_replication_slots s WHERE slot_name = {}"
)
_DROP = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
_BOUNDS = {"idle_timeout": "idle_replication_slot_timeout"}
"""By why a slot was given up, what does it, where that isn't the WAL that it holds back."""
Ask = Callable[[sql.Composed], Awaitable[list[Row]]]


class SlotInfo(msgspec.Struct, frozen=True):
    """`held_bytes` is what the server keeps for it; `safe_bytes` how much more it may become before
    the server gives it up (None: no bound)."""

    name: str
    plugin: str
    database: str
    confirmed: int
    wal_status: str
    invalidated: str = ""
    active: bool = False
    failover: bool = False
    held_bytes: int | None = None
    safe_bytes: int | None = None

    @property
    def is_lost(self) -> bool:
        return bool(self.invalidated) or self.wal_status == "lost"


class Slot:
    def __init__(self, database: Database, name: str, *, own: bool) -> None:
        self._database = database
        self.name = name
        self.own = own

    async def find(self, ask: Ask | None = None) -> SlotInfo | None:
        """`ask`: at that connection's server, and not at the one that is reached otherwise."""
        rows = await (ask or self._database.rows)(sql.SQL(_FIND).format(sql.Literal(self.name)))
        return _info(rows[0][0], rows[0][1]) if rows else None

    async def create(self, version: int) -> int:
        """Make it anew, and say from where on it has everything. Raises psycopg's errors."""
        await self.drop()
        wanted = self._database.settings.failover
        fails_over = wanted == "on" or (wanted == "auto" and version >= FAILOVER_SINCE)
        if fails_over and version < FAILOVER_SINCE:
            raise OriginRefused(
                "slots that go on at a standby came with PostgreSQL 17: set failover to auto"
            )
        statement = _CREATE_WITH_FAILOVER if fails_over else _CREATE
        # The server gives up waiting by itself: whose connection is cut waits on, with the slot.
        await self._database.rows(_GIVE_UP_AFTER, (f"{CREATE_WAIT_S * 1000:.0f}",))
        try:
            rows = await self._database.rows(
                statement, (self.name, PLUGIN), timeout_s=CREATE_WAIT_S + ANSWER_TIMEOUT_S
            )
        except psycopg.errors.QueryCanceled as error:
            raise OriginUnavailable(
                "a new replication slot waits for the transactions that are open, the oldest of "
                f"them {await self._oldest()}: end it, or wait"
            ) from error
        finally:
            with contextlib.suppress(psycopg.Error, HeadgateError):
                await self._database.rows("RESET statement_timeout")
        return lsn_from(rows[0][0]) or 0

    async def _oldest(self) -> str:
        rows = await self._database.rows(_OLDEST)
        return f"{rows[0][0]}, open since {rows[0][1]}" if rows else "of another session"

    async def drop(self) -> None:
        """Nothing happens where there is no slot. Raises psycopg's errors, also where another
        session goes on reading it."""
        await self.free()
        until = time.monotonic() + LEAVES_WITHIN_S
        while True:
            try:
                await self._database.rows(_DROP, (self.name,))
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)
            else:
                return

    async def free(self) -> None:
        """End a reader of it that is gone without a word: the server would wait for it."""
        await self._database.rows(
            "SELECT pg_terminate_backend(r.pid) FROM pg_replication_slots s "
            "JOIN pg_stat_replication r ON r.pid = s.active_pid "
            "WHERE s.slot_name = %s "
            "AND r.reply_time < clock_timestamp() - make_interval(secs => %s)",
            (self.name, DEAD_AFTER_S),
        )

    def going_on(
        self, info: SlotInfo | None, position: Position, timelines: Timelines, end: int
    ) -> None:
        """Raises OriginHistoryLost, or OriginRefused, where `info` doesn't lead on from there.
        `end` is where the server's WAL ends."""
        if info is None:
            raise history_lost(f"its replication slot {self.name} is gone")
        self.check(info)
        if info.is_lost:
            raise history_lost(
                f"the server has given up the replication slot {self.name} "
                f"({info.invalidated or 'wal_status lost'}): let "
                f"{_BOUNDS.get(info.invalidated, 'max_slot_wal_keep_size')} be larger"
            )
        self.check_history(position, timelines, end)
        if info.confirmed > position.lsn:
            raise history_lost(
                f"the replication slot {self.name} begins at {written(info.confirmed)}, behind "
                f"what is in the log ({written(position.lsn)}): it was made anew, or somebody else "
                "has read it"
            )

    def check_history(self, position: Position, timelines: Timelines, end: int) -> None:
        """Raises OriginHistoryLost where the server doesn't have all up to there."""
        if position.system != timelines.system:
            raise history_lost("it is another database system than before, as after a restore")
        if not timelines.has(position) or position.reach > end:
            raise history_lost(
                "it doesn't have all that was read from it before: it is a standby that lacked "
                "that when it was promoted, or was put back to an earlier state"
            )

    def check(self, info: SlotInfo) -> None:
        """Raises OriginRefused for a slot of another kind."""
        if info.plugin != PLUGIN:
            raise OriginRefused(
                f"the replication slot {self.name} is for {info.plugin or 'standbys'}, and not for "
                f"{PLUGIN}: name another one in the setting slot"
            )


def _info(found: Mapping[str, Any], held_bytes: int | None) -> SlotInfo:
    return SlotInfo(
        found["slot_name"],
        found["plugin"] or "",
        found["database"] or "",
        lsn_from(found["confirmed_flush_lsn"] or "0/0") or 0,
        found.get("wal_status") or "",
        found.get("invalidation_reason") or "",
        bool(found["active"]),
        bool(found.get("failover")),
        held_bytes,
        found.get("safe_wal_size"),
    )
