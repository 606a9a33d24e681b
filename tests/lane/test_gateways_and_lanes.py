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

With them go lost answers, gateways that hang, are slow, full, refuse an event or are forgotten,
lanes that are cut off from the coordinator, subscribers who are placed by a hash,
stores that fail, hang, or do as they are told and fail all the same, bounds so low that they are
met, retention, holes in the log, quotas, subscribers who are sent away for being slow,
documents larger than what may wait, soft deletes, records that leave what somebody watches, and
subscribers whose filters exclude a collection. Not
here: topics that are deleted and made again, and consumers that fail (tests/groups).
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import product

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
}


def test_nothing_is_lost_out_of_order_or_left_behind_whatever_meets() -> None:
    former = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    met: Counter[tuple[str, str]] = Counter()
    try:
        for seed in SEEDS:
            life = lived(seed)
            assert life.meeting.judge.found == [], f"seed {seed}"
            met += life.meeting.met
    finally:
        structlog.configure(**former)
    assert sorted(pair for pair in MUST_MEET if not met[pair]) == []
