"""The planner against trying everything, and its promises on clusters too large for that."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.planning.plan import Plan, Strategy, plan
from headgate.decide.planning.starting_point import Candidate
from headgate.model.event import PartitionRef
from tests.decide.planning.cases import (
    STRATEGIES,
    Owners,
    carried_out,
    even,
    fewest_moves,
    loads_of,
)

WEIGHTS = (0.3, 0.5, 1.0, 1.5, 2.0, 7.0)


@dataclass(frozen=True)
class Cluster:
    partitions: list[PartitionRef]
    owners: Owners
    nodes: list[Candidate]
    moving: frozenset[PartitionRef]
    imbalance: int

    def plan(self, strategy: Strategy) -> Plan:
        return plan(
            self.partitions,
            self.owners,
            self.nodes,
            strategy=strategy,
            imbalance=self.imbalance,
            moving=self.moving,
        )

    def fewest_moves(self) -> int:
        return fewest_moves(self.partitions, self.owners, self.nodes, self.imbalance, self.moving)


@st.composite
def clusters(
    draw: st.DrawFn,
    *,
    partitions: int,
    nodes: int,
    weighted: bool = True,
    draining: bool = True,
    moving: bool = True,
) -> Cluster:
    """Up to so many partitions of three topics, with owners that are there, gone or nobody."""
    names = [f"n{number}" for number in range(draw(st.integers(0 if draining else 1, nodes)))]
    members = [
        Candidate(
            name,
            weight=draw(st.sampled_from(WEIGHTS)) if weighted else 1.0,
            draining=draining and draw(st.integers(0, 3)) == 0,
        )
        for name in names
    ]
    # One load per node and not one owner per partition, so that lopsided clusters come up often.
    whereabouts = draw(
        st.lists(
            st.tuples(st.sampled_from([*names, "gone", ""]), st.integers(0, partitions)),
            max_size=2 * nodes,
        )
    )
    owner_ids = [name for name, count in whereabouts for _ in range(count)][:partitions]
    all_refs = [PartitionRef("abc"[number % 3], number) for number in range(len(owner_ids))]
    owners = {ref: name for ref, name in zip(all_refs, owner_ids, strict=True) if name}
    chosen = draw(st.sets(st.sampled_from(all_refs), max_size=4)) if moving and all_refs else ()
    return Cluster(
        partitions=all_refs,
        owners=owners,
        nodes=draw(st.permutations(members)),
        moving=frozenset(chosen),
        imbalance=draw(st.integers(0, 3)),
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=300, deadline=None)
@given(cluster=clusters(partitions=5, nodes=4))
def test_no_plan_needs_fewer_moves(strategy: Strategy, cluster: Cluster) -> None:
    assert len(cluster.plan(strategy).moves) == cluster.fewest_moves()


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=100, deadline=None)
@given(cluster=clusters(partitions=8, nodes=3, weighted=False, moving=False))
def test_no_plan_needs_fewer_moves_where_more_partitions_share_fewer_nodes(
    strategy: Strategy, cluster: Cluster
) -> None:
    assert len(cluster.plan(strategy).moves) == cluster.fewest_moves()


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=150, deadline=None)
@given(cluster=clusters(partitions=200, nodes=20))
def test_what_every_plan_keeps_to(strategy: Strategy, cluster: Cluster) -> None:
    made = cluster.plan(strategy)
    owners = carried_out(made, cluster.owners)
    live = {node.node_id for node in cluster.nodes if not node.draining}
    members = {node.node_id for node in cluster.nodes}

    assert [move.ref for move in made.moves] == sorted({move.ref for move in made.moves})
    for move in made.moves:
        was = cluster.owners.get(move.ref, "")
        assert move.from_id == (was if was in members else "")
        assert move.to_id in live
        assert move.to_id != move.from_id
        assert move.ref not in cluster.moving
    if live:
        assert all(owners[ref] in live for ref in cluster.partitions if ref not in cluster.moving)
    else:
        assert not made.moves
    nodes = sorted(cluster.nodes, key=lambda node: node.node_id)
    assert list(made.before.items()) == [
        (node.node_id, load)
        for node, load in zip(nodes, loads_of(cluster.owners, nodes), strict=True)
    ]
    assert list(made.after.values()) == loads_of(owners, nodes)
    again = plan(
        list(reversed(cluster.partitions)),
        dict(reversed(owners.items())),
        list(reversed(cluster.nodes)),
        strategy=strategy,
        imbalance=cluster.imbalance,
        moving=cluster.moving,
    )
    assert again.moves == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=150, deadline=None)
@given(cluster=clusters(partitions=200, nodes=20, moving=False))
def test_afterwards_one_level_explains_every_load(strategy: Strategy, cluster: Cluster) -> None:
    made = cluster.plan(strategy)
    live = [node for node in cluster.nodes if not node.draining]
    if live:
        weights = [Fraction(str(node.weight)) for node in live]
        loads = [made.after[node.node_id] for node in live]
        assert sum(loads) == len(cluster.partitions)
        assert even(loads, weights, cluster.imbalance)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=150, deadline=None)
@given(
    cluster=clusters(partitions=300, nodes=20, weighted=False, draining=False, moving=False),
)
def test_with_equal_weights_the_largest_exceeds_the_smallest_by_no_more_than_allowed(
    strategy: Strategy, cluster: Cluster
) -> None:
    made = cluster.plan(strategy)
    assert max(made.after.values()) - min(made.after.values()) <= 1 + cluster.imbalance


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=50, deadline=None)
@given(cluster=clusters(partitions=60, nodes=8))
def test_the_order_in_which_things_are_told_changes_nothing(
    strategy: Strategy, cluster: Cluster
) -> None:
    told = cluster.plan(strategy)
    told_otherwise = plan(
        frozenset(cluster.partitions),
        dict(reversed(cluster.owners.items())),
        list(reversed(cluster.nodes)),
        strategy=strategy,
        imbalance=cluster.imbalance,
        moving=sorted(cluster.moving),
    )
    assert told == told_otherwise
