"""The replication slot of a connector: what keeps the server's history for it.

Invariant: whoever goes on from a position does so only where the slot still has everything behind
it, of the same database system and history; whatever else it is, is a history that is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import psycopg

from headgate.adapters.pgoutput.database import Database
from headgate.adapters.pgoutput.errors import SLOT_IN_USE, history_lost
from headgate.adapters.pgoutput.identity import Position, Timelines, lsn_from, written
from headgate.errors import OriginRefused, OriginUnavailable

PLUGIN = "pgoutput"
CREATE_TIMEOUT_S = 30.0
"""A new slot waits for the transactions that are open."""
DEAD_AFTER_S = 15
"""A reader that has said nothing for so long has lost its connection: readers speak every 5 s."""
FAILOVER_SINCE = 170_000
_CREATE = "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)"
_CREATE_WITH_FAILOVER = (
    "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s, false, false, true)"
)


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

    async def find(self) -> SlotInfo | None:
        rows = await self._database.rows(
            "SELECT to_jsonb(s), pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN "
            "pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn)::bigint "
            "FROM pg_replication_slots s WHERE slot_name = %s",
            (self.name,),
        )
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
        rows = await self._database.rows(
            _CREATE_WITH_FAILOVER if fails_over else _CREATE,
            (self.name, PLUGIN),
            timeout_s=CREATE_TIMEOUT_S,
        )
        return lsn_from(rows[0][0]) or 0

    async def drop(self) -> None:
        """Nothing where it isn't there."""
        await self.free()
        await self._database.rows(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE slot_name = %s",
            (self.name,),
        )

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
                f"({info.invalidated or 'wal_status lost'}): let max_slot_wal_keep_size be larger"
            )
        if position.system != timelines.system:
            raise history_lost("it is another database system than before, as after a restore")
        if not timelines.has(position) or position.lsn > end:
            raise history_lost(
                "it doesn't have all that was read from it before: it is a standby that lacked "
                "that when it was promoted, or was put back to an earlier state"
            )
        if info.confirmed > position.lsn:
            raise history_lost(
                f"the replication slot {self.name} begins at {written(info.confirmed)}, behind "
                f"what is in the log ({written(position.lsn)}): it was made anew, or somebody else "
                "has read it"
            )

    def check(self, info: SlotInfo) -> None:
        """Raises OriginRefused for one that is something else."""
        if info.plugin != PLUGIN:
            raise OriginRefused(
                f"the replication slot {self.name} is for {info.plugin or 'standbys'}, and not for "
                f"{PLUGIN}: name another one in the setting slot"
            )


def in_use(error: psycopg.Error) -> OriginUnavailable | None:
    if error.sqlstate != SLOT_IN_USE:
        return None
    return OriginUnavailable(
        "somebody else reads the replication slot: another connector with the same slot, or a "
        "former reader that the server hasn't missed yet",
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
