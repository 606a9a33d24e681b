"""The planning part of `bench rebalance`: how long a plan takes when one more node joins, and
whether it moves more than it must.

The minimum is counted here, from the loads alone, and not asked of the planner.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from headgate.decide.planning.plan import Strategy, plan
from headgate.decide.planning.starting_point import Candidate
from headgate.model.event import PartitionRef

PARTITIONS = 10_000
NODES = 100
TOPICS = 20
RUNS = 5


@dataclass(frozen=True, slots=True)
class Planned:
    """`plan_s` is the median of several runs."""

    plan_s: float
    moved: int
    minimum: int

    @property
    def moved_over_minimum(self) -> float:
        return self.moved / self.minimum


def measure_plan(
    *, partitions: int = PARTITIONS, nodes: int = NODES, strategy: Strategy = "balanced"
) -> Planned:
    """Spread `partitions` evenly over `nodes`, then time the plan that lets another one join."""
    refs = [PartitionRef(f"topic-{n % TOPICS:02}", n // TOPICS) for n in range(partitions)]
    members = [Candidate(f"node-{number:04}") for number in range(nodes + 1)]
    first = plan(refs, {}, members[:-1], strategy=strategy, imbalance=0)
    owners = {move.ref: move.to_id for move in first.moves}

    times_s, moved = [], set()
    for _ in range(RUNS):
        began = time.perf_counter()
        joined = plan(refs, owners, members, strategy=strategy, imbalance=0)
        times_s.append(time.perf_counter() - began)
        moved.add(len(joined.moves))
    assert len(moved) == 1  # one question, one answer
    return Planned(median(times_s), moved.pop(), fewest_moves(joined.before.values()))


def fewest_moves(loads: Collection[int]) -> int:
    """Until the loads differ by 1 at most: the largest may keep the odd ones."""
    each, odd = divmod(sum(loads), len(loads))
    return sum(
        max(load - each - (rank < odd), 0) for rank, load in enumerate(sorted(loads, reverse=True))
    )
