"""A log that is behind its own readers: its store was lost, failed over, or was restored.

A subscriber that has seen record 100 takes a new record 5 for one that it knows, so a log must
never give out a seq twice, not even one that it has forgotten. Settled positions are kept apart
from the log and tell how far it once was, and so does its owner, which remembers what it has
acknowledged; the owner moves it on behind everything that may have been given out. What was lost is
a hole then, like any other: it is said to gateways and subscribers, and skipped.

A log that has grown since it was lost may reach as far as before. Only a reader that remembers the
last record it read can tell then: it finds `another` in its place.

Invariant: where `lost` says None, no record of the log has a seq that a reader has settled already
or a producer was told, and it isn't that same record, as far as positions and the owner can tell.
"""

from __future__ import annotations

from headgate.errors import HistoryLost
from headgate.model.event import PartitionRef, Record

MARGIN = 1_000_000
"""Seqs that are left out behind the last one that is known, because lanes and subscribers may have
got further than that. Twice as many as a lane remembers without having settled them."""


def lost(
    ref: PartitionRef, *, head: int, settled: int, acknowledged: int = 0
) -> HistoryLost | None:
    """What is wrong with a log that ends at `head`, when its readers have settled `settled`, and
    its owner has acknowledged everything up to `acknowledged`."""
    known = max(settled, acknowledged)
    if head >= known:
        return None
    done = "delivered" if settled == known else "acknowledged"
    return HistoryLost(
        f"the log of {ref} ends at {head}, but it was {done} up to {known}: its store was lost, "
        "restored or failed over; its ingest node goes on behind that as soon as it can read the "
        "positions, and what it took before can be delivered with "
        f"`headgate partition reset {ref} --to earliest`",
        topic=ref.topic,
        partition=ref.partition,
        head=head,
        settled=known,
    )


def another(ref: PartitionRef, *, known: Record, found: Record | None) -> HistoryLost | None:
    """What is wrong with a log in which `found` is the first record from `known` on, where `known`
    was read before. That it isn't there any more tells nothing: retention takes records."""
    if found is None or found.seq != known.seq or found == known:
        return None
    return HistoryLost(
        f"record {known.seq} of {ref} is not the one that was delivered: its store was lost, "
        "restored or failed over, and has taken new records since; those up to there can be "
        f"delivered with `headgate partition reset {ref} --to earliest`",
        topic=ref.topic,
        partition=ref.partition,
        settled=known.seq,
    )


def next_head(known: int) -> int:
    """Where a log whose history is lost goes on, which is known to have reached `known`: nothing up
    to there is given out again."""
    return known + MARGIN
