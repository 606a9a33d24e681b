"""Which records at the front of a partition are not kept any longer.

Invariant: what goes is a prefix, so what is left stays dense. A record behind one that has to stay
stays too, also when it is older: clocks jump, seqs don't.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from headgate.adapters.log.appending import record_bytes
from headgate.decide.portions import Portion
from headgate.ports.log import Retention

R = TypeVar("R", bound=Sequence[Any])

DROP_BYTES = 64 * 1024 * 1024
"""What is dropped in one turn: appends that come meanwhile wait for one turn."""


def droppable_seq(retention: Retention, *, settled: int, head: int) -> int:
    """The last seq that may be dropped at all."""
    return head if retention.past_settled else min(settled, head)


def at_once(front: Sequence[R], portion: Portion) -> Sequence[R]:
    """The first records of `front`, which is as below: those that are dropped in one turn."""
    return front[: portion.fits(record_bytes(one[2], one[3]) for one in front)]


def expired_prefix(
    front: Iterable[tuple[int, int, int, int]],
    retention: Retention,
    *,
    size_bytes: int,
    now_ms: int,
) -> tuple[int, int]:
    """How many records of `front` go, and the bytes they counted.

    `front` are the first records in order, all of which may be dropped: (seq, time_ms, bytes of the
    document, bytes of the earlier one). `size_bytes` is what the whole partition counts.
    """
    count = freed_bytes = 0
    for _, time_ms, document_bytes, earlier_bytes in front:
        too_old = retention.max_age_ms is not None and time_ms < now_ms - retention.max_age_ms
        too_much = (
            retention.max_bytes is not None and size_bytes - freed_bytes > retention.max_bytes
        )
        if not too_old and not too_much:
            break
        count += 1
        freed_bytes += record_bytes(document_bytes, earlier_bytes)
    return count, freed_bytes
