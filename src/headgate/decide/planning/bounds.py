"""How many partitions each node may hold, so that as few as possible have to move.

The rule: there is one level x, in partitions per unit of weight, and every node holds x * weight
give or take (1 + imbalance) / 2. With equal weights this says max - min <= 1 + imbalance; with
unequal ones and no imbalance it is the fair rounding of the proportional shares (Webster's).
Partitions on the move can't be given away: a node with more of them than its bound keeps those,
and nothing else.

Many levels may be possible. A higher one makes nodes below it want more, a lower one makes nodes
above it give more; the number of moves is least where the two meet, and that is the level taken.
The search looks only at levels where some node's upper bound steps up: between two of them a
higher level has no advantage. All arithmetic is in whole numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import NamedTuple


class Load(NamedTuple):
    """What a node holds now, how much of it can't be given away, and its weight."""

    held: int
    fixed: int
    weight: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """A node's part in the plan: it gives `gives` away, then ends between `low` and `high`."""

    low: int
    high: int
    gives: int


class _Level(NamedTuple):
    """x = halves / (2 * weight)."""

    halves: int
    weight: int


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What a level means: the bounds of each node, what is above them (`excess`), what is missing
    below them (`deficit`), and what all nodes together could hold."""

    bands: list[tuple[int, int]]
    excess: int
    deficit: int
    capacity: int


def shares(loads: Sequence[Load], *, unowned: int, imbalance: int) -> list[Bounds]:
    """The shares of at least one node, in the order of `loads`, for the fewest moves.

    `unowned` partitions wait for a place, and move anyway. A plan that lets every node give its
    `gives`, then fills each up to `low` and none beyond `high`, comes out even.
    """
    best = min(
        (_outlook(level, loads, imbalance) for level in _levels(loads, unowned, imbalance)),
        key=lambda outlook: _given(outlook, loads, unowned),
    )
    gives = [max(load.held - high, 0) for load, (_, high) in zip(loads, best.bands, strict=True)]
    more = best.deficit - best.excess - unowned
    if more > 0:
        _give_more(gives, loads, best.bands, more)
    return [Bounds(low, high, give) for (low, high), give in zip(best.bands, gives, strict=True)]


def pressure(held: int, weight: int) -> float:
    """How loaded a node is halfway through its next partition: the least loaded takes the next one,
    and the most loaded, counted before its last one, gives first."""
    return (2 * held + 1) / weight


def _outlook(level: _Level, loads: Sequence[Load], imbalance: int) -> _Outlook:
    halves, unit = level
    slack = (1 + imbalance) * unit
    bands = []
    excess = deficit = capacity = 0
    for held, fixed, weight in loads:
        middle = halves * weight
        low = max(-((slack - middle) // (2 * unit)), fixed)
        high = max((middle + slack) // (2 * unit), fixed)
        bands.append((low, high))
        capacity += high
        if held > high:
            excess += held - high
        elif held < low:
            deficit += low - held
    return _Outlook(bands, excess, deficit, capacity)


def _levels(loads: Sequence[Load], unowned: int, imbalance: int) -> list[_Level]:
    """The few levels of which one is best.

    Going up, excess falls and deficit grows. So, from where there is room for all, the moves become
    fewer until the deficit that `unowned` doesn't fill outgrows the excess, and more from there
    on: the best level is the first one beyond that point or the last one before it. Each weight has
    its own ladder of levels, which ends where the nodes would have to hold more than there is.
    """
    total = unowned + sum(load.held for load in loads)
    total_weight = sum(load.weight for load in loads)
    slack = 1 + imbalance

    def beyond(level: _Level) -> bool:
        outlook = _outlook(level, loads, imbalance)
        enough_room = outlook.capacity >= total
        return enough_room and outlook.excess <= max(0, outlook.deficit - unowned)

    # Where several are equally good: the level at which every load would be exactly its share.
    found = [_Level(2 * total, total_weight)]
    for weight in sorted({load.weight for load in loads}):
        top = weight * (2 * total + len(loads) * slack) // total_weight
        # A bound steps up at every other half; below the first half nobody has to hold anything.
        ladder = range(slack % 2, top + 4, 2)
        step = bisect_left(ladder, True, key=lambda halves: beyond(_Level(halves, weight)))
        found += [_Level(halves, weight) for halves in ladder[max(step - 1, 0) : step + 1]]
    return found


def _given(outlook: _Outlook, loads: Sequence[Load], unowned: int) -> float:
    """How many partitions leave a node that could keep them; infinite at an impossible level."""
    total = unowned + sum(load.held for load in loads)
    required = sum(low for low, _ in outlook.bands)
    if not required <= total <= outlook.capacity:
        return float("inf")
    return max(outlook.excess, outlook.deficit - unowned)


def _give_more(
    gives: list[int], loads: Sequence[Load], bands: Sequence[tuple[int, int]], more: int
) -> None:
    """Let the most loaded nodes give `more` beyond their excess, none below its lower bound."""

    def entry(node: int) -> tuple[float, int]:
        rest = loads[node].held - gives[node]
        if rest <= bands[node][0]:
            return 0.0, node  # has nothing to give: behind everybody who has
        return -pressure(rest - 1, loads[node].weight), node

    heap = [entry(node) for node in range(len(loads))]
    heapify(heap)
    for _ in range(more):
        node = heap[0][1]
        gives[node] += 1
        heapreplace(heap, entry(node))
