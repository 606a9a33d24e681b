"""What pages that show the whole system draw, from its status."""

from __future__ import annotations

import msgspec
import pytest

from headgate.decide.console import overview
from headgate.decide.console.overview import attention, overview_of, paths, topic_flow
from headgate.decide.operations.diagnosis import Finding
from headgate.model import api
from headgate.model.control.reports import LATENCY_BUCKETS_S, GatewayLink, Latencies
from headgate.model.overview_api import Overview, PathFlow
from headgate.model.subscription import SlowSubscriber
from tests.decide.operations.test_diagnosis import DETAIL, HEALTHY, LANE, but


def detail(partition: int, **fields: object) -> api.TopicPartition:
    return msgspec.structs.replace(DETAIL, partition=partition, **fields)


def test_it_is_what_the_status_says_and_what_the_doctor_does() -> None:
    made = overview_of(HEALTHY, [])
    assert (made.health, made.attention, made.left_out) == ("healthy", [], {})
    assert [one.id for one in made.nodes] == [one.id for one in HEALTHY.nodes]
    assert msgspec.json.decode(msgspec.json.encode(made), type=Overview) == made


def test_what_is_worst_comes_first() -> None:
    findings = [
        Finding("a", "advice", "could be better", "do"),
        Finding("b", "ok", "fine"),
        Finding("c", "warn", "look", "wait"),
        Finding("d", "bad", "broken", "mend"),
        Finding("e", "bad", "broken, too", "mend"),
    ]
    assert [one.subject for one in attention(findings)] == ["d", "e", "c", "a"]


def test_a_missing_role_needs_attention() -> None:
    status = but(nodes=[node for node in HEALTHY.nodes if node.role != "router"])
    made = overview_of(status, [])
    assert (made.health, made.attention[0].subject) == ("degraded", "router")


def test_a_topic_is_the_sum_of_its_partitions_and_as_late_as_the_worst() -> None:
    details = [
        detail(0, rate=1.5, lag=3, lag_ms=10, state="lagging"),
        detail(1, rate=2.0, lag=4, lag_ms=50, lag_known=False),
    ]
    flow = topic_flow(api.TopicInfo("flights", 2, "keyed", 1, details))
    assert (flow.rate, flow.lag, flow.lag_ms, flow.lag_known) == (3.5, 7, 50, False)
    assert flow.states == {"lagging": 1, "healthy": 1}


def test_ways_lead_from_who_takes_records_to_who_reads_them() -> None:
    details = [
        detail(0, rate=1.0),
        detail(1, rate=3.0, owner="ingest-2"),
        detail(2, rate=2.0, owner="ingest-2"),
        detail(3, owner=None, router=None),
        detail(4),
    ]
    lanes = [
        msgspec.structs.replace(LANE, partitions=["flights:0"]),
        msgspec.structs.replace(LANE, lane=1, partitions=["flights:1", "flights:2"]),
    ]
    status = but(topics=[api.TopicInfo("flights", 5, "keyed", 1, details)], lanes=lanes)
    assert paths(status) == [
        PathFlow("ingest-2", "flights", "router-1", 1, partitions=2, rate=5.0, lag=0),
        PathFlow("ingest-1", "flights", "router-1", 0, partitions=1, rate=1.0, lag=0),
        PathFlow("", "flights", "", -1, partitions=1, rate=0.0, lag=0),
        PathFlow("ingest-1", "flights", "router-1", -1, partitions=1, rate=0.0, lag=0),
    ]


def test_latencies_of_all_routers_are_one_count() -> None:
    counts = tuple(range(len(LATENCY_BUCKETS_S) + 1))
    made = overview_of(HEALTHY, [Latencies(counts, 1.0), Latencies(counts, 2.0)])
    assert made.routing == Latencies(tuple(2 * one for one in counts), 3.0)
    assert made.routing_bounds_s == LATENCY_BUCKETS_S


def test_only_a_node_that_is_away_says_since_when() -> None:
    nodes = [
        api.NodeStatus("a", "ingest", "ready", last_seen_ms_ago=7),
        api.NodeStatus("b", "ingest", "lost", last_seen_ms_ago=7),
    ]
    assert [one.last_seen_ms_ago for one in overview_of(but(nodes=nodes), []).nodes] == [0, 7]


def test_a_lane_says_what_keeps_it_from_going_on() -> None:
    lanes = [msgspec.structs.replace(LANE, checkpoints="no disk", links=[GatewayLink("g-1")])]
    [lane] = overview_of(but(lanes=lanes), []).lanes
    assert (lane.trouble, lane.partitions, [one.gateway for one in lane.links]) == (
        "no disk",
        1,
        ["g-1"],
    )


def test_the_slowest_subscribers_of_all_gateways_are_one_list() -> None:
    told = [
        SlowSubscriber("a", "flights", 1, catching_up=False),
        SlowSubscriber("b", "flights", 900, catching_up=False),
        SlowSubscriber("c", "flights", 3, catching_up=True),
    ]
    gateways = [
        api.GatewayStatus("g-1", 4, 0, 9, slowest=told[:2]),
        api.GatewayStatus("g-2", 4, 0, 9, slowest=told[2:]),
    ]
    made = overview_of(but(gateways=gateways), [])
    assert [(one.gateway, one.subscription) for one in made.slowest] == [
        ("g-2", "c"),
        ("g-1", "b"),
        ("g-1", "a"),
    ]
    assert [one.slowest for one in made.gateways] == [[], []]


def test_lists_are_bounded_and_say_what_they_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [api.TopicInfo(f"t{n}", 1, "keyed", 1, [DETAIL]) for n in range(5)]
    monkeypatch.setitem(overview.LISTED_MAX, "topics", 2)
    made = overview_of(but(topics=topics), [])
    assert ([one.name for one in made.topics], made.left_out) == (["t0", "t1"], {"topics": 3})
