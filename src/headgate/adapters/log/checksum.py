"""Whether a record is still what was appended: a checksum beside each, compared at every read.

It covers every field of the record and where it stands (topic, partition, version, seq), so that a
flipped bit, a half-written page and a row of another partition are all found. XXH3 with 64 bits,
over the record as MessagePack: a fifth of a microsecond for a small one, and nearly all of that in
C. It tells accidents, not attackers.

Invariants: a record whose checksum differs is handed to nobody; one without (from before there were
any) is handed out as it is. Which fields are covered, and how, is part of the stored format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from headgate.errors import CorruptRecord
from headgate.model.event import PartitionRef
from headgate.ports.log import Verified

CHECKSUM = 11
"""Where a stored row has it: behind seq, version, event_id, key, collection, op, document, earlier,
source, time_ms and headers."""
BEFORE_CHECKSUMS = 10
"""So many columns has a row of a store from before there were headers and checksums."""

_encode = msgspec.msgpack.Encoder().encode
_checksum_of = itemgetter(CHECKSUM)
_version_of = itemgetter(1)
_covered = itemgetter(2, 6, 3, 5, 4, 7, 8, 10, 9)
"""The fields of Event, in its order, and the time."""
_SEEDS = (1 << 64) - 1


def made(
    ref: PartitionRef, contents: Iterable[tuple[Any, ...]], *, version: int, first_seq: int
) -> Iterator[bytes]:
    """The checksums of new records whose seqs follow each other; `contents` are the fields of each
    Event, in its order, and the time. No line of Python runs per record: every append waits."""
    seed = _seed(ref.topic, ref.partition, version) + first_seq
    return map(xxh3_64_digest, map(_encode, contents), _upwards(seed))


def with_checksum(ref: PartitionRef, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """`row`, which has all columns before it, with its checksum."""
    return (*row, _made_of(ref, row))


def intact(ref: PartitionRef, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """`rows`, as they are stored, up to the first corrupt one; raises CorruptRecord where that is
    the first. Those of a store from before there were checksums get the columns they lack."""
    if not rows:
        return rows
    if len(rows[0]) == BEFORE_CHECKSUMS:
        return [(*row, None, None) for row in rows]
    at = _first_corrupt(ref, rows)
    if at is None:
        return rows
    if at == 0:
        raise corrupt_record(ref, rows[0][0])
    return rows[:at]


def verified(ref: PartitionRef, rows: Sequence[tuple[Any, ...]]) -> Verified:
    """What is to be said of `rows`, as they are stored; there is one at least."""
    unverified, corrupt = 0, []
    for row in rows:
        stored = row[CHECKSUM] if len(row) > CHECKSUM else None
        if stored is None:
            unverified += 1
        elif _differs(ref, row):
            corrupt.append(row[0])
    return Verified(rows[-1][0], len(rows) - unverified - len(corrupt), unverified, tuple(corrupt))


def corrupt_record(
    ref: PartitionRef, seq: int, why: str = "it isn't what its checksum was made for"
) -> CorruptRecord:
    return CorruptRecord(
        f"record {seq} of {ref} is corrupt: {why}; nobody gets it, and the partition stops there: "
        "bring its store back from a copy, or go on behind it with "
        f"`headgate partition reset {ref} --to {seq + 1} --resync`",
        topic=ref.topic,
        partition=ref.partition,
        seq=seq,
    )


def _first_corrupt(ref: PartitionRef, rows: Sequence[tuple[Any, ...]]) -> int | None:
    first, last = rows[0], rows[-1]
    if last[0] - first[0] == len(rows) - 1 and len(set(map(_version_of, rows))) == 1:
        # Dense and of one version, as nearly all are: like `made`, without a line per record.
        seed = _seed(ref.topic, ref.partition, first[1]) + first[0]
        contents = map(_encode, map(_covered, rows))
        mine = list(map(xxh3_64_digest, contents, _upwards(seed)))
        if mine == list(map(_checksum_of, rows)):
            return None
    return next((at for at, row in enumerate(rows) if _differs(ref, row)), None)


def _differs(ref: PartitionRef, row: tuple[Any, ...]) -> bool:
    stored = row[CHECKSUM]
    return stored is not None and stored != _made_of(ref, row)


def _made_of(ref: PartitionRef, row: tuple[Any, ...]) -> bytes:
    seed = _seed(ref.topic, ref.partition, row[1]) + row[0]
    return xxh3_64_digest(_encode(_covered(row)), seed & _SEEDS)


def _upwards(seed: int) -> range:
    return range(seed, _SEEDS)


@lru_cache(maxsize=4096)
def _seed(topic: str, partition: int, version: int) -> int:
    """62 bits, so that with a seq it has 64 at most."""
    return xxh3_64_intdigest(f"{topic}/{partition}/{version}".encode()) >> 2
