"""What a plan does in the situations that everybody meets, with either strategy."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headgate.decide.planning.plan import Plan, Strategy, plan
from headgate.decide.planning.starting_point import Candidate
from headgate.errors import InvalidRequest
from headgate.model.event import PartitionRef
from headgate.model.topology import Move
from tests.decide.planning.cases import (
    STRATEGIES,
    candidates,
    carried_out,
    dealt,
    loads_of,
    planned,
    refs,
)


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    chosen: Strategy = request.param
    return chosen


@pytest.mark.parametrize(
    ("before", "imbalance", "after"),
    [
        pytest.param([4, 2, 2], 0, [2, 3, 3], id="4,2,2 is fixed"),
        pytest.param([4, 2, 2], 1, [2, 2, 4], id="4,2,2 is within an imbalance of 1"),
        pytest.param([5, 2, 2], 1, [2, 3, 4], id="5,2,2 is not, and one move is enough"),
        pytest.param([3, 3, 0], 0, [2, 2, 2], id="an empty node gets its share"),
        pytest.param([2, 0, 0, 0], 0, [0, 0, 1, 1], id="more nodes than partitions"),
        pytest.param([1, 1, 0, 0], 0, [0, 0, 1, 1], id="more nodes than partitions, even"),
        pytest.param([9, 0, 0], 100, [0, 0, 9], id="an imbalance that allows everything"),
        pytest.param([0, 0, 0], 0, [0, 0, 0], id="nothing to plan"),
        pytest.param([7], 0, [7], id="one node"),
    ],
)
def test_loads_become_even_with_as_few_moves_as_that_takes(
    strategy: Strategy, before: list[int], imbalance: int, after: list[int]
) -> None:
    nodes = candidates(len(before))
    made, owners = planned(dealt(*before), nodes, strategy, imbalance)
    assert sorted(loads_of(owners, nodes)) == after
    kept = sum(min(pair) for pair in zip(before, loads_of(owners, nodes), strict=True))
    assert len(made.moves) == sum(before) - kept


def test_a_join_and_a_leave_among_ten_nodes_move_only_what_must_move(strategy: Strategy) -> None:
    eleven = candidates(11)
    new = eleven[-1].node_id
    joined, owners = planned(dealt(*[100] * 10, 0), eleven, strategy)
    assert len(joined.moves) in (90, 91)
    assert {move.to_id for move in joined.moves} == {new}
    assert all(move.from_id != new for move in joined.moves)

    left, owners_after = planned(owners, eleven[:-1], strategy)
    assert {move.ref for move in left.moves} == {ref for ref, at in owners.items() if at == new}
    assert len(left.moves) in (90, 91)
    assert all(move.from_id == "" for move in left.moves)
    assert set(loads_of(owners_after, eleven[:-1])) == {100}


def test_a_node_that_is_back_before_anybody_planned_without_it_keeps_what_it_had(
    strategy: Strategy,
) -> None:
    nodes = candidates(5)
    _, owners = planned(dealt(40, 0, 0, 0, 0), nodes, strategy)
    again, _ = planned(owners, [*nodes[1:], nodes[0]], strategy)
    assert again.moves == ()


def test_a_coordinator_that_learned_of_one_node_after_the_other_ends_where_it_would_anyway(
    strategy: Strategy,
) -> None:
    nodes = candidates(7)
    owners: dict[PartitionRef, str] = {}
    for count in range(1, 8):
        made = plan(refs(50), owners, nodes[:count], strategy=strategy, imbalance=0)
        owners = carried_out(made, owners)
    assert sorted(loads_of(owners, nodes)) == [7, 7, 7, 7, 7, 7, 8]


def test_a_draining_node_gives_everything_away_and_gets_nothing(strategy: Strategy) -> None:
    nodes = [Candidate("node-000", draining=True), *candidates(3)[1:]]
    owners = dealt(4, 2, 0)
    owners[PartitionRef("flights", 6)] = "gone"
    made, after = planned(owners, nodes, strategy)
    assert loads_of(after, nodes) in ([0, 4, 3], [0, 3, 4])
    assert Counter(move.from_id for move in made.moves) == {"node-000": 4, "": 1}
    assert made.before == {"node-000": 4, "node-001": 2, "node-002": 0}


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([], id="no nodes"),
        pytest.param([Candidate("node-000", draining=True)], id="only draining ones"),
    ],
)
def test_without_a_node_to_take_them_partitions_stay(
    strategy: Strategy, nodes: list[Candidate]
) -> None:
    made, _ = planned(dealt(3), nodes, strategy)
    assert made.moves == ()


def test_partitions_that_are_not_asked_about_do_not_count(strategy: Strategy) -> None:
    owners = {**dealt(2, 2), **dealt(9, topic="deleted")}
    made = plan(refs(4), owners, candidates(2), strategy=strategy, imbalance=0)
    assert made == Plan((), {"node-000": 2, "node-001": 2}, {"node-000": 2, "node-001": 2})


@pytest.mark.parametrize(
    ("imbalance", "givers"), [(0, ["node-001", "node-002"]), (1, ["node-001"]), (2, [])]
)
def test_a_moving_partition_counts_where_it_goes_and_is_left_alone(
    strategy: Strategy, imbalance: int, givers: list[str]
) -> None:
    # Three are on their way to node-000: only the others can give node-003 its share.
    owners = dealt(3, 3, 3, 0)
    nodes, moving = candidates(4), refs(3)
    made = plan(list(owners), owners, nodes, strategy=strategy, imbalance=imbalance, moving=moving)
    assert [move.from_id for move in made.moves] == givers
    assert made.after["node-000"] == 3


def test_more_on_the_move_to_a_node_than_its_share_is_no_reason_to_disturb_it(
    strategy: Strategy,
) -> None:
    owners = dealt(5, 1, 0)
    made = plan(list(owners), owners, candidates(3), strategy=strategy, imbalance=0, moving=refs(5))
    assert made.moves == ()


@pytest.mark.parametrize("recipient", ["gone", "node-001", None], ids=["gone", "draining", "none"])
def test_a_moving_partition_is_left_alone_whatever_became_of_its_recipient(
    strategy: Strategy, recipient: str | None
) -> None:
    ref = PartitionRef("flights", 0)
    owners = {} if recipient is None else {ref: recipient}
    nodes = [Candidate("node-000"), Candidate("node-001", draining=True)]
    made = plan([ref], owners, nodes, strategy=strategy, imbalance=0, moving=[ref])
    assert made.moves == ()


@pytest.mark.parametrize(
    ("weights", "partitions", "loads"),
    [
        pytest.param([1, 2, 1], 8, [2, 4, 2], id="twice the weight, twice the load"),
        pytest.param([0.5, 1, 1.5], 12, [2, 4, 6], id="fractions"),
        pytest.param([10, 10, 10], 6, [2, 2, 2], id="only the proportions count"),
        pytest.param([10, 1], 11, [10, 1], id="a light node gets its share"),
        pytest.param([100, 1], 10, [10, 0], id="a share below a half is none"),
        pytest.param([1, 4], 2, [0, 2], id="what can't be split goes to the heavier"),
    ],
)
def test_weights_decide_the_share(
    strategy: Strategy, weights: list[float], partitions: int, loads: list[int]
) -> None:
    nodes = [Candidate(f"node-{number:03}", weight) for number, weight in enumerate(weights)]
    made = plan(refs(partitions), {}, nodes, strategy=strategy, imbalance=0)
    assert list(made.after.values()) == loads


def test_a_change_of_weight_moves_the_difference(strategy: Strategy) -> None:
    nodes = candidates(4)
    _, owners = planned(dealt(100, 0, 0, 0), nodes, strategy)
    heavier = [Candidate(nodes[0].node_id, weight=2.0), *nodes[1:]]
    made, after = planned(owners, heavier, strategy)
    assert loads_of(after, nodes) == [40, 20, 20, 20]
    assert len(made.moves) == 15


@pytest.mark.parametrize("weight", [0.0, -1.0, 0.0001, 1001.0, float("inf"), float("nan")])
def test_an_impossible_weight_is_refused_with_what_to_do(strategy: Strategy, weight: float) -> None:
    with pytest.raises(InvalidRequest, match=r"Give node a a weight from .* or drain it"):
        plan(refs(1), {}, [Candidate("a", weight)], strategy=strategy, imbalance=0)


def test_a_negative_imbalance_is_refused(strategy: Strategy) -> None:
    with pytest.raises(InvalidRequest, match=r"imbalance to a number from 0 to .*, not -1"):
        plan(refs(1), {}, candidates(1), strategy=strategy, imbalance=-1)


def test_moves_name_the_partition_the_giver_and_the_taker(strategy: Strategy) -> None:
    owners = {PartitionRef("a", 0): "x", PartitionRef("a", 1): "x"}
    gone = PartitionRef("b", 0)
    nodes = [Candidate("x", draining=True), Candidate("y")]
    made = plan([*owners, gone], {**owners, gone: "z"}, nodes, strategy=strategy, imbalance=0)
    assert made.moves == (
        Move(PartitionRef("a", 0), "x", "y"),
        Move(PartitionRef("a", 1), "x", "y"),
        Move(gone, "", "y"),
    )


def test_a_large_cluster_through_a_long_life_stays_even_and_moves_little(
    strategy: Strategy,
) -> None:
    chance = random.Random(7)
    partitions = refs(500)
    nodes = candidates(12)
    present = nodes[:6]
    owners: dict[PartitionRef, str] = {}
    for _ in range(40):
        away = [node for node in nodes if node not in present]
        if away and (len(present) == 1 or chance.random() < 0.5):
            present.append(chance.choice(away))
        else:
            present.remove(chance.choice(present))
        had = loads_of(owners, present)
        made = plan(partitions, owners, present, strategy=strategy, imbalance=0)
        owners = carried_out(made, owners)
        has = loads_of(owners, present)
        assert max(has) - min(has) <= 1
        # What arrives somewhere is what left or had no place: nobody gives and takes at once.
        assert len(made.moves) == sum(max(b - a, 0) for a, b in zip(had, has, strict=True))
