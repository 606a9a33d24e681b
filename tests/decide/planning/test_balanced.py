"""What the balanced strategy adds: each topic is spread, at no cost in moves."""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.decide.planning.plan import plan
from headgate.decide.planning.starting_point import Candidate
from headgate.model.event import PartitionRef
from tests.decide.planning.cases import Owners, candidates, dealt, planned, refs


def topics_at(owners: Owners) -> dict[str, Counter[str]]:
    at: dict[str, Counter[str]] = {}
    for ref, node_id in owners.items():
        at.setdefault(node_id, Counter())[ref.topic] += 1
    return at


@pytest.mark.parametrize("nodes", [2, 4, 7])
def test_new_topics_are_spread_over_all_nodes(nodes: int) -> None:
    topics = ["a", "b", "c"]
    partitions = [ref for topic in topics for ref in refs(4 * nodes, topic)]
    made = plan(partitions, {}, candidates(nodes), strategy="balanced", imbalance=0)
    owners = {move.ref: move.to_id for move in made.moves}
    assert topics_at(owners) == {
        node.node_id: {"a": 4, "b": 4, "c": 4} for node in candidates(nodes)
    }


def test_topics_of_one_partition_are_spread_over_all_nodes() -> None:
    partitions = [PartitionRef(f"topic-{number}", 0) for number in range(9)]
    made = plan(partitions, {}, candidates(3), strategy="balanced", imbalance=0)
    assert set(made.after.values()) == {3}


def test_a_joining_node_gets_some_of_every_topic() -> None:
    partitions = [ref for topic in "abcdefghij" for ref in refs(100, topic)]
    first = plan(partitions, {}, candidates(10), strategy="balanced", imbalance=0)
    owners = {move.ref: move.to_id for move in first.moves}
    made, after = planned(owners, candidates(11), "balanced")
    assert len(made.moves) == 90
    for topics in topics_at(after).values():
        assert set(topics) == set("abcdefghij")
        assert max(topics.values()) - min(topics.values()) <= 1


def test_what_a_lost_node_had_goes_to_those_with_fewest_of_the_topic() -> None:
    # node-000 has all of a, node-001 all of b; the lost one had two of each.
    owners = {**dealt(4, topic="a"), **dealt(0, 4, topic="b")}
    owners |= {PartitionRef("a", 4): "lost", PartitionRef("a", 5): "lost"}
    owners |= {PartitionRef("b", 4): "lost", PartitionRef("b", 5): "lost"}
    _, after = planned(owners, candidates(2), "balanced")
    assert topics_at(after) == {"node-000": {"a": 4, "b": 2}, "node-001": {"a": 2, "b": 4}}


def test_a_node_gives_from_the_topic_it_has_too_much_of() -> None:
    # Topics a and c are on one node each, b is spread; the third node lacks them all.
    owners = {**dealt(4, topic="a"), **dealt(1, 1, topic="b"), **dealt(0, 3, topic="c")}
    made, _ = planned(owners, candidates(3), "balanced")
    given = [(move.from_id, move.ref.topic) for move in made.moves]
    assert given == [("node-000", "a"), ("node-000", "a"), ("node-001", "c")]


def test_a_node_that_lacks_a_topic_comes_before_one_that_lacks_more_partitions() -> None:
    # node-000 takes two and node-001 one of what the lost node had.
    owners = {**dealt(1, topic="a"), **dealt(0, 2, topic="c")}
    unowned = {PartitionRef("a", 1): "lost", **dict.fromkeys(refs(2, "b"), "lost")}
    _, after = planned({**owners, **unowned}, candidates(2), "balanced")
    assert after[PartitionRef("a", 1)] == "node-001"


def test_shares_follow_the_weights_also_where_the_imbalance_allows_other_ones() -> None:
    nodes = [Candidate("heavy", weight=7.0), Candidate("light", weight=0.3)]
    made = plan(refs(20), {}, nodes, strategy="balanced", imbalance=5)
    assert made.after == {"heavy": 19, "light": 1}


def test_an_uneven_topic_alone_is_no_reason_to_move_anything() -> None:
    owners = {**dealt(4, topic="a"), **dealt(0, 4, topic="b")}
    made, _ = planned(owners, candidates(2), "balanced")
    assert made.moves == ()
