"""Lanes and gateways, both real, with every feature of the one beside every feature of the other:
nothing is lost in silence, nothing comes out of order, nothing hangs and nothing is left behind.

The worlds are made in meeting.py and judged in judging.py; a few fixed seeds run here, and
`python -m tests.lane.meeting FIRST LAST` runs others.

What happens (rows) is tried in every state of affairs (columns), a state being so when it begins.
P: asserted below to have met; a dot: too rarely for these few seeds to assert it.

                  repartitioned parked catching up dead gateway away put back in hand broadcast
    append            P           P        P        P        P          P        P        P
    come back         P           P        P        P        P          P        P        P
    consume           P           P        P        P        P          P        P        P
    repartition       P           P        P        .        P          P        P        P
    reset             P           P        P        .        .          P        P        P
    hand over         P           P        P        .        .          .        P        P
    kill a lane       .           .        .        .        .          .        P        .
    next window       P           P        P        .        P          P        P        P
    gateway restarts  P           P        P        .        .          P        P        P
    whole collection  P           P        P        P        .          P        P        P
    marker            P           P        P        .        .          P        P        P

The next window begins while the lane of the former one goes on; a gateway that restarts has lost
all that waited in it, and whoever was there comes again.

With them go lost answers, batches that arrive when their senders have given them up, gateways that
hang, are slow, full, refuse an event or are forgotten, lanes that are cut off from the coordinator,
lanes whose successors keep dead letters where they didn't, subscribers who are placed by a hash,
stores that fail, hang, or do as they are told and fail all the same, bounds in number and in bytes
so low that they are met, retention, holes in the log, quotas, subscribers who are sent away for
being slow, documents larger than what may wait, soft deletes, records that leave what somebody
watches, subscribers whose filters exclude a collection, subscribers and groups whose grants have a
filter of their own, records that are corrupt until they are restored or skipped, parked letters
that are damaged until they are brought back or given up, logs that lose their history, or what is
newest of it, until they are moved on, and topics without keys whose events are in the log twice.
Not here: topics that are deleted and made again, and consumers that fail (tests/groups).
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache
from itertools import product

import pytest
import structlog

from tests.lane.meeting import lived

SEEDS = range(24)
OFTEN = ("append", "come_back", "consume")
STATES = (
    *("repartitioned", "parked", "catching up", "dead", "gateway away"),
    *("put back", "in hand", "broadcast"),
)
MUST_MEET = {
    *product(OFTEN, STATES),
    *product(("repartition", "reset"), ("repartitioned", "parked", "catching up", "put back")),
    *product(("repartition", "reset", "hand_over"), ("in hand", "broadcast")),
    *product(("hand_over",), ("repartitioned", "parked", "catching up")),
    *product(("next_window", "restart"), ("repartitioned", "parked", "catching up", "put back")),
    *product(("next_window", "restart"), ("in hand", "broadcast")),
    ("next_window", "gateway away"),
    *product(("about", "mark"), ("repartitioned", "parked", "catching up", "put back")),
    *product(("about", "mark"), ("in hand", "broadcast")),
    ("about", "dead"),
    ("repartition", "gateway away"),
    ("kill_lane", "in hand"),
    *product(OFTEN, ("corrupt", "lost", "without keys", "granted")),
    *product(("repartition", "reset", "retry", "restart", "about"), ("granted",)),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_out_of_order_or_left_behind_whatever_meets(seed: int) -> None:
    found, _ = what_came_of(seed)
    assert found == []


def test_what_has_to_meet_has_met() -> None:
    met = sum((what_came_of(seed)[1] for seed in SEEDS), Counter[tuple[str, str]]())
    assert sorted(pair for pair in MUST_MEET if not met[pair]) == []


@cache
def what_came_of(seed: int) -> tuple[list[str], Counter[tuple[str, str]]]:
    """What was found to be wrong, and what has met; each world is lived once in a process."""
    former = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        meeting = lived(seed).meeting
    finally:
        structlog.configure(**former)
    return list(meeting.judge.found), meeting.met
