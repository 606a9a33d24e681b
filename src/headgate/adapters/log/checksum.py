"""Whether a record is still what was appended: a checksum beside each, compared at every read.

It covers every field of the record and where it stands (topic, partition, version, seq), so that a
flipped bit, a half-written page and a row of another partition are all found. XXH3 with 64 bits,
over the record as MessagePack: a fifth of a microsecond for a small one, and nearly all of that in
C. It tells accidents, not attackers.

Invariants: a record whose checksum differs is handed to nobody; one without (from before there were
any) is handed out as it is. What is handed out is in order, each once, whatever the store's index
says. Which fields are covered, and how, is part of the stored format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from headgate.errors import CorruptRecord, StorageFailed
from headgate.model.event import PartitionRef
from headgate.ports.log import Verified

CHECKSUM = 11
"""Where a stored row has it: behind seq, version, event_id, key, collection, op, document, earlier,
source, time_ms and headers."""
BEFORE_CHECKSUMS = 10
"""So many columns has a row of a store from before there were headers and checksums."""

MAX_SEQ = 2**63 - 1

Row = tuple[Any, ...]
"""A record as it is stored, in the order of the columns."""

_encode = msgspec.msgpack.Encoder().encode
_checksum_of = itemgetter(CHECKSUM)
_seq_of = itemgetter(0)
_version_of = itemgetter(1)
_covered = itemgetter(2, 6, 3, 5, 4, 7, 8, 10, 9)
"""The fields of Event, in its order, and the time."""
_TEXT, _BYTES = str | None, bytes | None
_KINDS: tuple[Any, ...] = (int, str, _TEXT, str, str, bytes, _BYTES, _TEXT, int, _BYTES)
"""What the fields of a record are, behind its seq."""
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


def intact(
    ref: PartitionRef, rows: list[Row], *, after_seq: int, up_to_seq: int = MAX_SEQ
) -> list[Row]:
    """Of `rows`, as a store has found them, those in that range up to the first corrupt one; raises
    CorruptRecord where that is the first. Those of a store from before there were checksums get the
    columns they lack."""
    if rows and len(rows[0]) == BEFORE_CHECKSUMS:
        rows = [(*row, None, None) for row in rows]
    if _are_as_made(ref, rows, after_seq=after_seq, up_to_seq=up_to_seq):
        return rows
    found: list[Row] = []
    for seq, row in _judged(ref, rows, after_seq=after_seq, up_to_seq=up_to_seq):
        if row is not None:
            found.append(row)
        elif found:
            break
        else:
            raise corrupt_record(ref, seq)
    return found


def verified(ref: PartitionRef, rows: Sequence[Row], *, after_seq: int) -> Verified:
    """What is to be said of `rows`, as they are stored; there is one at least."""
    rows = [(*row, *[None] * (CHECKSUM + 1 - len(row))) for row in rows]
    last_seq, unverified, corrupt = after_seq, 0, list[int]()
    judged = list(_judged(ref, rows, after_seq=after_seq, up_to_seq=MAX_SEQ))
    for last_seq, row in judged:
        if row is None:
            corrupt.append(last_seq)
        elif row[CHECKSUM] is None:
            unverified += 1
    return Verified(last_seq, len(judged) - unverified - len(corrupt), unverified, tuple(corrupt))


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


def _are_as_made(ref: PartitionRef, rows: list[Row], *, after_seq: int, up_to_seq: int) -> bool:
    """A glance, like `made` without a line per record: dense, in order and of one version, as
    nearly all are, and none is corrupt."""
    if not rows:
        return True
    seqs = list(map(_seq_of, rows))
    first_seq, version = seqs[0], rows[0][1]
    if first_seq <= after_seq or seqs[-1] > up_to_seq or len(set(map(_version_of, rows))) > 1:
        return False
    if seqs != list(range(first_seq, first_seq + len(rows))):
        return False
    seed = _seed(ref.topic, ref.partition, version) + first_seq
    contents = map(_encode, map(_covered, rows))
    return list(map(xxh3_64_digest, contents, _upwards(seed))) == list(map(_checksum_of, rows))


def _judged(
    ref: PartitionRef, rows: Sequence[Row], *, after_seq: int, up_to_seq: int
) -> list[tuple[int, Row | None]]:
    """The seqs in that range, upwards, with their records; None for a corrupt one.

    A store finds a row by its seq, which may be what is damaged: the row then stands elsewhere
    than it says. It is known by its checksum, or by the row before it, as seqs are dense; where its
    place is taken, it was found by accident. Raises StorageFailed where all were.
    """
    sound = {row[0]: row for at, row in enumerate(rows) if _is_sound(ref, *rows[at : at + 2])}
    missing = {seq + 1 for seq in (after_seq, *sound)} - sound.keys()
    judged: dict[int, Row | None] = dict(sound)
    last_seq = after_seq
    for at, row in enumerate(rows):
        if row is sound.get(row[0]):
            last_seq = row[0]
            continue
        behind = (one[0] for one in rows[at + 1 :] if one is sound.get(one[0]))
        next_seq = next(behind, MAX_SEQ)
        seq = next((one for one in missing if _is_of(ref, row, one)), row[0])
        if seq not in missing and not last_seq < seq < next_seq:
            seq = last_seq + 1
        if seq not in judged and (seq in missing or seq < next_seq):
            judged[seq] = None
            last_seq = seq
    told = sorted(seq for seq in judged if after_seq < seq)
    if rows and not told:
        raise out_of_order(ref, after_seq)
    return [(seq, judged[seq]) for seq in told if seq <= up_to_seq]


def out_of_order(ref: PartitionRef, after_seq: int) -> StorageFailed:
    """The error for a partition whose records can't be found by their seq."""
    return StorageFailed(
        f"reading {ref} behind {after_seq} failed: its store is damaged, and what is there isn't "
        "found in its place; bring it back from a copy"
    )


def _is_sound(ref: PartitionRef, row: Row, following: Row | None = None) -> bool:
    """Is it what its checksum was made for? One without any has to look like a record, and to come
    before the next."""
    if row[CHECKSUM] is not None:
        return not _differs(ref, row)
    in_order = following is None or row[0] < following[0]
    kinds = zip(row[1:CHECKSUM], _KINDS, strict=True)
    return in_order and all(isinstance(value, kind) for value, kind in kinds)


def _differs(ref: PartitionRef, row: Row) -> bool:
    stored = row[CHECKSUM]
    return stored is not None and stored != _made_of(ref, row)


def _is_of(ref: PartitionRef, row: Row, seq: int) -> bool:
    """Was its checksum made for a record of that seq?"""
    return row[CHECKSUM] is not None and not _differs(ref, (seq, *row[1:]))


def _made_of(ref: PartitionRef, row: Row) -> bytes:
    seed = _seed(ref.topic, ref.partition, row[1]) + row[0]
    return xxh3_64_digest(_encode(_covered(row)), seed & _SEEDS)


def _upwards(seed: int) -> range:
    return range(seed, _SEEDS)


@lru_cache(maxsize=4096)
def _seed(topic: str, partition: int, version: int) -> int:
    """62 bits, so that with a seq it has 64 at most."""
    return xxh3_64_intdigest(f"{topic}/{partition}/{version}".encode()) >> 2
