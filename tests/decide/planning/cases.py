"""Clusters to plan for, and the rule of evenness written down a second time, by hand.

`fewest_moves` tries every assignment there is. It shares nothing with the planner but the words:
fractions instead of whole numbers, all levels that could matter instead of a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from itertools import product

from headgate.decide.planning.plan import Plan, Strategy, plan
from headgate.decide.planning.starting_point import Candidate
from headgate.model.event import PartitionRef

STRATEGIES: tuple[Strategy, ...] = ("balanced", "ring")
Owners = dict[PartitionRef, str]


def refs(count: int, topic: str = "flights") -> list[PartitionRef]:
    return [PartitionRef(topic, number) for number in range(count)]


def candidates(count: int) -> list[Candidate]:
    return [Candidate(f"node-{number:03}") for number in range(count)]


def dealt(*loads: int, topic: str = "flights") -> Owners:
    """Owners with the given number of partitions for node-000, node-001 and so on."""
    node_ids = [f"node-{number:03}" for number, load in enumerate(loads) for _ in range(load)]
    return dict(zip(refs(sum(loads), topic), node_ids, strict=True))


def carried_out(made: Plan, owners: Mapping[PartitionRef, str]) -> Owners:
    return {**owners, **{move.ref: move.to_id for move in made.moves}}


def planned(
    owners: Owners, nodes: Sequence[Candidate], strategy: Strategy, imbalance: int = 0
) -> tuple[Plan, Owners]:
    """The plan for the partitions that `owners` names, and the owners after it."""
    made = plan(list(owners), owners, nodes, strategy=strategy, imbalance=imbalance)
    return made, carried_out(made, owners)


def loads_of(owners: Mapping[PartitionRef, str], nodes: Sequence[Candidate]) -> list[int]:
    counted = Counter(owners.values())
    return [counted[node.node_id] for node in nodes]


def even(loads: Sequence[int], weights: Sequence[Fraction], imbalance: int) -> bool:
    """Whether one level explains all loads, each give or take half of 1 + imbalance."""
    half = Fraction(1 + imbalance, 2)
    lowest = max((load - half) / weight for load, weight in zip(loads, weights, strict=True))
    highest = min((load + half) / weight for load, weight in zip(loads, weights, strict=True))
    return lowest <= highest


def as_even_as_can_be(
    loads: Sequence[int], fixed: Sequence[int], weights: Sequence[Fraction], imbalance: int
) -> bool:
    """The same where `fixed` partitions stay put: a load may be above its bounds by those alone,
    and never has to be below them."""
    half = Fraction(1 + imbalance, 2)
    total = sum(loads)
    edges = {
        (step + sign * half) / weight
        for weight in weights
        for step in range(total + 2 + imbalance)
        for sign in (-1, 1)
    }
    return any(
        all(
            level * weight - half <= load and (load <= level * weight + half or load == stuck)
            for load, stuck, weight in zip(loads, fixed, weights, strict=True)
        )
        for level in edges | {Fraction(0)}
        if level >= 0
    )


def fewest_moves(
    partitions: Sequence[PartitionRef],
    owners: Mapping[PartitionRef, str],
    nodes: Sequence[Candidate],
    imbalance: int,
    moving: Collection[PartitionRef] = (),
) -> int:
    """By trying everything. Draining nodes and nodes that are gone hold nothing afterwards."""
    live = [node for node in nodes if not node.draining]
    if not live:
        return 0
    weights = [Fraction(str(node.weight)) for node in live]
    names = [node.node_id for node in live]
    loose = [ref for ref in partitions if ref not in moving]
    stuck = Counter(owners.get(ref, "") for ref in partitions if ref in moving)
    fixed = [stuck[name] for name in names]
    verdicts: dict[tuple[int, ...], bool] = {}
    best = len(loose) + 1
    for assignment in product(range(len(names)), repeat=len(loose)):
        moved = sum(
            owners.get(ref) != names[node] for ref, node in zip(loose, assignment, strict=True)
        )
        if moved >= best:
            continue
        loads = tuple(fixed[node] + assignment.count(node) for node in range(len(names)))
        if loads not in verdicts:
            verdicts[loads] = as_even_as_can_be(loads, fixed, weights, imbalance)
        if verdicts[loads]:
            best = moved
    assert best <= len(loose), "no assignment is even: the rule itself is wrong"
    return best
