"""How a bounded read of a topic is cut up: into ranges for parallel tasks, into batches over time.

Positions here are next seqs: the first one that has not been read. Invariants: the ranges of a read
cover every seq of it once, in order per partition; a batch goes on exactly where the last one
ended, never back, and takes from every partition in turn, so that a long one starves nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.model.event import FIRST_SEQ


class SeqRange(NamedTuple):
    """The records of one partition in (after_seq, up_to_seq]."""

    partition: int
    after_seq: int
    up_to_seq: int


def split(start: Mapping[int, int], end: Mapping[int, int], *, rows: int) -> list[SeqRange]:
    """Ranges of at most `rows` seqs from the positions `start` to the positions `end`.

    A partition that `start` doesn't know is a new one, so it begins at its first seq.
    """
    return [
        SeqRange(partition, seq - 1, min(seq - 1 + rows, end[partition] - 1))
        for partition in sorted(end)
        for seq in range(start.get(partition, FIRST_SEQ), end[partition], rows)
    ]


def advance(
    start: Mapping[int, int], available: Mapping[int, int], *, limit: int | None
) -> dict[int, int]:
    """Where a batch that begins at `start` ends: at `available`, or after `limit` records.

    Where nothing is available beyond `start` (or less than that), a partition stays.
    """
    begin = dict.fromkeys(available, FIRST_SEQ) | dict(start)
    waiting = {
        partition: max(available.get(partition, seq) - seq, 0) for partition, seq in begin.items()
    }
    # The sum moves on by `limit` with every full batch, so odd records go round.
    turn = sum(begin.values())
    granted = waiting if limit is None else share(waiting, limit=limit, turn=turn)
    return {partition: seq + granted[partition] for partition, seq in begin.items()}


def share(waiting: Mapping[int, int], *, limit: int, turn: int) -> dict[int, int]:
    """At most `limit` of the waiting records, as evenly as it can be; `turn` says which partition
    gets an odd one."""
    granted = dict.fromkeys(waiting, 0)
    left = limit
    # Every round but the last serves a partition in full, so there are no more than partitions.
    while hungry := sorted(one for one in waiting if waiting[one] > granted[one]):
        each = left // len(hungry)
        if each == 0:
            for place in range(left):
                granted[hungry[(turn + place) % len(hungry)]] += 1
            break
        for one in hungry:
            portion = min(each, waiting[one] - granted[one])
            granted[one] += portion
            left -= portion
    return granted
