"""What the ring adds: where partitions are at home doesn't depend on what happened before."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.planning.plan import plan
from headgate.decide.planning.ring import MAX_POINTS, POINTS_PER_WEIGHT, Ring, position
from headgate.decide.planning.starting_point import WEIGHT_STEPS, Candidate, Participant
from headgate.model.event import PartitionRef
from tests.decide.planning.cases import candidates, carried_out, planned, refs

FOREVER = {"flights:0": 13724294243496241836, "a.b-c:1023": 1626428926407198500}
"""As `b2sum -l 64` has them, the lowest byte first."""


def ring(**weights: float) -> Ring:
    return Ring([Participant(name, round(w * WEIGHT_STEPS)) for name, w in weights.items()])


def homes(of: Ring, count: int) -> list[int]:
    return [of.home(position(ref)) for ref in refs(count)]


@pytest.mark.parametrize("name", FOREVER)
def test_positions_are_the_same_in_every_process_and_version(name: str) -> None:
    topic, _, partition = name.rpartition(":")
    assert position(PartitionRef(topic, int(partition))) == FOREVER[name]


def test_a_joining_node_only_takes_homes_and_changes_no_other() -> None:
    before, after = homes(ring(a=1, b=1, c=1), 1_000), homes(ring(a=1, b=1, c=1, d=1), 1_000)
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(changed) == {3}
    assert 150 <= len(changed) <= 350


def test_a_heavier_node_is_home_to_more_and_takes_them_from_the_others_alone() -> None:
    before, after = homes(ring(a=1, b=1, c=1), 2_000), homes(ring(a=3, b=1, c=1), 2_000)
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {0}
    counted = Counter(after)
    assert counted[0] > 2 * max(counted[1], counted[2])


def test_the_points_of_a_node_are_bounded() -> None:
    heavy, light = ring(a=1_000), ring(a=0.001)
    assert len(heavy.positions) == MAX_POINTS < 1_000 * POINTS_PER_WEIGHT
    assert len(light.positions) == 1


@settings(max_examples=50, deadline=None)
@given(
    at=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20),
    order=st.permutations(range(6)),
)
def test_a_walk_finds_the_first_open_node_whatever_was_closed_before(
    at: list[int], order: list[int]
) -> None:
    walked = ring(a=0.05, b=0.1, c=0.2, d=0.1, e=0.05, f=0.02)
    points = list(zip(walked.positions, walked.nodes, strict=True))
    assert all(a < b for a, b in pairwise(points))
    closed: set[int] = set()
    for node in order:
        for place in at:
            onward = [p for p in points if p[0] >= place] + [p for p in points if p[0] < place]
            by_hand = next(owner for _, owner in onward if owner not in closed)
            assert walked.first_open(place) == by_hand
        walked.close([node])
        closed.add(node)


def test_with_room_enough_everybody_is_at_home() -> None:
    nodes = candidates(5)
    made = plan(refs(100), {}, nodes, strategy="ring", imbalance=100)
    at_home = Ring([Participant(node.node_id, WEIGHT_STEPS) for node in nodes])
    for move in made.moves:
        assert move.to_id == nodes[at_home.home(position(move.ref))].node_id


def test_a_node_that_was_away_for_long_gets_back_mostly_what_it_had() -> None:
    nodes = candidates(8)
    first = plan(refs(400), {}, nodes, strategy="ring", imbalance=0)
    owners = carried_out(first, {})
    had = {ref for ref, node_id in owners.items() if node_id == "node-003"}
    _, without = planned(owners, [n for n in nodes if n.node_id != "node-003"], "ring")
    made, back = planned(without, nodes, "ring")
    has = {ref for ref, node_id in back.items() if node_id == "node-003"}
    assert len(made.moves) == len(had) == len(has) == 50
    by_chance = 400 / 8 * 50 / 400
    assert len(had & has) > 4 * by_chance


def test_no_topic_is_more_at_home_than_another_because_of_its_name() -> None:
    nodes = candidates(5)
    partitions = [*refs(300, "a"), *refs(300, "z")]
    made = plan(partitions, {}, nodes, strategy="ring", imbalance=0)
    at_home = Ring([Participant(node.node_id, WEIGHT_STEPS) for node in nodes])
    counted = Counter(
        move.ref.topic
        for move in made.moves
        if move.to_id == nodes[at_home.home(position(move.ref))].node_id
    )
    assert counted["a"] + counted["z"] > 400
    assert abs(counted["a"] - counted["z"]) < 40


def test_a_partition_away_from_home_is_not_moved_for_that_alone() -> None:
    nodes = candidates(2)
    at_home = Ring([Participant(node.node_id, WEIGHT_STEPS) for node in nodes])
    abroad = {ref: nodes[1 - at_home.home(position(ref))].node_id for ref in refs(40)}
    made, _ = planned(abroad, nodes, "ring", imbalance=40)
    assert made.moves == ()


def test_a_draining_node_has_no_points() -> None:
    nodes = [Candidate("node-000", draining=True), *candidates(3)[1:]]
    made = plan(refs(30), {}, nodes, strategy="ring", imbalance=0)
    assert made.after == {"node-000": 0, "node-001": 15, "node-002": 15}
