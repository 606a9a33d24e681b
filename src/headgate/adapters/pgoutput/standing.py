"""How the server stands to a connector: what its slot holds back, and for how long it will last."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.adapters.pgoutput.slot import Slot, SlotInfo
from headgate.decide.connectors.postgres_settings import ALL_OF_SCHEMA, TableName
from headgate.ports.origin import Standing

_GIB = 1024**3
HELD_MUCH_BYTES = 10 * _GIB
"""What is held back for a connector is worth a word from here on, where nothing bounds it."""

NAMED = 5
"""So many tables are named in a sentence."""


async def standing_of(slot: Slot) -> Standing:
    """Raises psycopg's errors."""
    info = await slot.find()
    if info is None:
        return Standing(warning=f"its replication slot {slot.name} is gone; reset the connector")
    return Standing(held_bytes=info.held_bytes, warning=warning_of(info))


def warning_of(info: SlotInfo) -> str:
    """What will go wrong with the slot if nothing is done; empty: nothing."""
    if info.is_lost:
        return f"the server has given up the replication slot {info.name}; reset the connector"
    held = written(info.held_bytes or 0)
    if info.wal_status == "unreserved" or (info.safe_bytes is not None and info.safe_bytes <= 0):
        return (
            f"the server is about to give up the replication slot {info.name}, which holds back "
            f"{held} of WAL; let max_slot_wal_keep_size be larger now, and see what it waits for"
        )
    if info.safe_bytes is not None and (info.held_bytes or 0) > info.safe_bytes:
        return (
            f"the replication slot {info.name} holds back {held} of WAL, and the server gives it "
            f"up after {written(info.safe_bytes)} more; see what it waits for, or let "
            "max_slot_wal_keep_size be larger"
        )
    if info.safe_bytes is None and (info.held_bytes or 0) > HELD_MUCH_BYTES:
        return (
            f"the replication slot {info.name} holds back {held} of WAL, and nothing keeps it from "
            "filling the disk; see what it waits for, or set max_slot_wal_keep_size"
        )
    return ""


def without_publication(name: str) -> str:
    return (
        f"its publication {name} was dropped, and what is changed without it is lost; create it "
        "again if that may still come first, and reset the connector otherwise"
    )


def untold(publication: str, connector: str, kinds: Sequence[str]) -> str:
    """That changes of these kinds are missing, and what brings them back."""
    return (
        f"its publication {publication} leaves out every {' and '.join(kinds)}, since somebody has "
        f"set it so; let it publish them again and catch up with `headgate connector reset "
        f"{connector} --to snapshot`"
    )


def unpublished(connector: str, tables: Sequence[TableName]) -> str:
    """That the connector isn't told of these any more, and what to do."""
    named = ", ".join(map(str, tables[:NAMED]))
    is_schema = any(one.table == ALL_OF_SCHEMA for one in tables)
    options = "" if is_schema else "".join(f" --table {one}" for one in tables[:NAMED])
    more = f" and {len(tables) - NAMED} more" if len(tables) > NAMED else ""
    return (
        f"its publication has no table {named}{more}, which was dropped or renamed since; once it "
        f"is there, publish and read it with `headgate connector snapshot {connector}{options}`"
    )


def written(size_bytes: int) -> str:
    if size_bytes < 1024**2:
        return f"{size_bytes / 1024:.0f} KiB"
    if size_bytes < _GIB:
        return f"{size_bytes / 1024**2:.0f} MiB"
    return f"{size_bytes / _GIB:.1f} GiB"
