"""Which target partition of a consumer group a record belongs to, and how many a group has.

The same hash as for the partitions of a topic: FNV-1a 64 over `collection + "/" + key`, modulo the
count. A record without a key goes by its event id. Positions are kept per target, so the function
must never change. A record about a whole collection is about keys of every target, and belongs to
all of them.
"""

from __future__ import annotations

import math
from typing import Protocol

from headgate.decide.produce.placement import partition_of
from headgate.model.event import WHOLE_COLLECTION, Op
from headgate.model.groups import MAX_TARGETS

DEFAULT_KEYS = 1_000
"""Keys that a group is made for when nobody says how many there will be."""

Shard = tuple[int, int]
"""How many targets there are, and which one."""


class Keyed(Protocol):
    """What a record is told apart by; model.event.Record is one."""

    @property
    def key(self) -> str | None: ...

    @property
    def collection(self) -> str: ...

    @property
    def event_id(self) -> str: ...


class Placed(Keyed, Protocol):
    """With what happened to it."""

    @property
    def op(self) -> Op: ...


def targets_for(keys: int, *, shard_size: int) -> int:
    """One target per `shard_size` keys, at least one and at most MAX_TARGETS."""
    return min(MAX_TARGETS, max(1, math.ceil(keys / shard_size)))


def target_of(record: Keyed, count: int) -> int:
    key = record.event_id if record.key is None else record.key
    return partition_of(key, collection=record.collection, count=count)


def belongs(record: Placed, shard: Shard | None) -> bool:
    """Whether a subscription to `shard` (None: to everything) is asked about `record` at all."""
    if shard is None or record.op in WHOLE_COLLECTION:
        return True
    return target_of(record, shard[0]) == shard[1]
