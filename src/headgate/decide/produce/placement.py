"""Which partition takes an event, or a whole request.

Keyed topics: FNV-1a 64 over `collection + "/" + key`, modulo the partition count, so that every
record of one key lands in one partition, in order. Producers, ingest nodes and Spark writers all
compute the same number; the function is part of the stored format and must never change.

Opportunistic topics: a request goes, whole, to the partition with the fewest records waiting; ties
go to the lowest number, and each request counts for the ones placed after it.

Never trusts a partition number that another process computed, never splits an opportunistic
request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from headgate.model.event import Event

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def fnv1a_64(data: bytes, begun: int = _FNV_OFFSET) -> int:
    """The 64-bit FNV-1a hash of `data`, or of what has `begun` as its hash followed by `data`."""
    value = begun
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK_64
    return value


@lru_cache(maxsize=65_536)
def _hash_of(collection: str, key: str) -> int:
    """A hash costs as much as storing the event; most keys come again and again."""
    return fnv1a_64(key.encode(), _begun(collection))


@lru_cache(maxsize=1_024)
def _begun(collection: str) -> int:
    """What the hashes of all its keys begin with: half of what they cost where keys are new."""
    return fnv1a_64(f"{collection}/".encode())


def partition_of(key: str, *, collection: str, count: int) -> int:
    """The partition of `key`; the only partition there is needs no hash."""
    return 0 if count == 1 else _hash_of(collection, key) % count


def routing_key(event: Event) -> str:
    """What a keyed topic places `event` by: its key, or its id when it has none.

    Events without a key promise no order among each other, and their ids spread them evenly; a
    retry carries the same id, so it meets its first attempt in the same partition.
    """
    return event.event_id if event.key is None else event.key


def split_keyed(events: Sequence[Event], count: int) -> dict[int, list[int]]:
    """The indexes of `events` by partition, each list in the order of the request."""
    if count == 1:
        return {0: list(range(len(events)))} if events else {}
    parts: dict[int, list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        key = event.key
        partition = _hash_of(event.collection, event.event_id if key is None else key) % count
        parts[partition].append(index)
    return parts


def place(sizes: Sequence[int], waiting: Mapping[int, int]) -> list[int]:
    """The partition of each request, in order, given how many records wait in each partition.

    `waiting` names the partitions that may be chosen; it has at least one, and isn't changed.
    """
    counts = dict(waiting)
    chosen: list[int] = []
    for size in sizes:
        partition = min(counts, key=lambda number: (counts[number], number))
        counts[partition] += size
        chosen.append(partition)
    return chosen
