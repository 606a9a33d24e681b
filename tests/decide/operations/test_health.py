from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from headgate.decide.operations.health import (
    DISCONNECTED,
    REASONS_MAX,
    STOPPING,
    RouterView,
    http_status,
    judged,
    log_status,
    of_cluster,
    of_router,
)
from headgate.model.api import (
    Health,
    LaneStatus,
    NodeStatus,
    PartitionHealth,
    PartitionVitals,
    Status,
    TopicInfo,
    TopicPartition,
)
from headgate.model.control.reports import GatewayLink
from headgate.model.event import PartitionRef


def vitals(*states: PartitionHealth) -> list[PartitionVitals]:
    return [PartitionVitals(at, "flights", state) for at, state in enumerate(states)]


def judge(
    *states: PartitionHealth, reasons: tuple[str, ...] = (), stopping: bool = False
) -> Health:
    return judged(
        role="router",
        version="1",
        uptime_s=1.23456,
        partitions=vitals(*states),
        reasons=reasons,
        stopping=stopping,
    )


@pytest.mark.parametrize(
    ("states", "reasons", "expected"),
    [
        pytest.param((), (), "healthy", id="nothing to look after"),
        pytest.param(("healthy",) * 4, (), "healthy", id="all well"),
        pytest.param(("healthy",) * 4, ("no coordinator",), "degraded", id="something else"),
        pytest.param(("healthy", "lagging"), (), "degraded", id="half is not more than half"),
        pytest.param(("healthy", "lagging", "stale"), (), "unhealthy", id="more than half"),
        pytest.param(("healthy", "healthy", "failed"), (), "degraded", id="less than half"),
        pytest.param(("failed",), (), "unhealthy", id="the only one"),
    ],
)
def test_status_follows_partitions_and_reasons(
    states: tuple[PartitionHealth, ...], reasons: tuple[str, ...], expected: str
) -> None:
    assert judge(*states, reasons=reasons).status == expected


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        pytest.param(judge(), 200, id="healthy"),
        pytest.param(judge("healthy", "failed"), 200, id="degraded"),
        pytest.param(judge("failed"), 503, id="unhealthy"),
        pytest.param(judge(stopping=True), 503, id="stopping"),
    ],
)
def test_only_the_unhealthy_are_taken_out(health: Health, expected: int) -> None:
    assert http_status(health) == expected


def test_everything_that_is_not_well_has_a_sentence_once() -> None:
    partitions = [PartitionVitals(3, "flights", "failed", reason="nobody reads it"), *vitals()]
    health = judged(
        role="r",
        version="1",
        uptime_s=0,
        partitions=partitions,
        reasons=["the store is away", "the store is away"],
        stopping=True,
    )
    assert health.reasons == [
        STOPPING,
        "the store is away",
        "flights:3 is failed: nobody reads it",
    ]


def test_a_router_says_what_its_lanes_wait_for() -> None:
    waiting = ("nobody reads flights:0: nobody knows the subscriptions",)
    view = RouterView("ready", connected=False, waiting=waiting)
    health = of_router(view, [], heard_ago_s=1.0, version="1", uptime_s=1.0)
    assert health.status == "degraded"
    assert health.reasons == [DISCONNECTED, *waiting]


def test_reasons_are_bounded_and_say_how_many_are_left_out() -> None:
    states: list[PartitionHealth] = ["failed"] * (REASONS_MAX + 7)
    health = judge(*states)
    assert len(health.reasons) == REASONS_MAX + 1
    assert health.reasons[-1] == "and 7 more"
    assert len(health.partitions) == REASONS_MAX + 7


@pytest.mark.parametrize(
    ("is_open", "lag_ms", "expected"),
    [
        pytest.param(True, 0, "healthy", id="settled"),
        pytest.param(True, 30_000, "healthy", id="at the threshold"),
        pytest.param(True, 30_001, "lagging", id="above it"),
        pytest.param(False, 0, "failed", id="can't be opened"),
    ],
)
def test_a_log_partition_at_its_ingest_node(is_open: bool, lag_ms: int, expected: str) -> None:
    status, reason = log_status(is_open=is_open, lag_ms=lag_ms)
    assert status == expected
    assert bool(reason) == (status != "healthy")


# --- a router ------------------------------------------------------------------------------------

MINE = frozenset({PartitionRef("flights", 0)})


@pytest.mark.parametrize(
    ("view", "heard_ago_s", "status", "said"),
    [
        pytest.param(RouterView("ready", True, MINE), 0.5, "healthy", "", id="well"),
        pytest.param(RouterView("ready", True), None, "healthy", "", id="nothing to read"),
        pytest.param(RouterView("starting", True), None, "degraded", "starting", id="starts"),
        pytest.param(
            RouterView("ready", False, MINE), 0.5, "degraded", DISCONNECTED, id="disconnected"
        ),
        pytest.param(RouterView("ready", True, MINE), None, "degraded", "told", id="unheard of"),
        pytest.param(RouterView("ready", True, MINE), 42.0, "degraded", "42 s ago", id="old news"),
        pytest.param(
            RouterView("ready", True, MINE, trouble="its query failed"),
            0.5,
            "degraded",
            "its query failed",
            id="query failed",
        ),
        pytest.param(RouterView("stopping", True, MINE), 0.5, "unhealthy", STOPPING, id="stops"),
    ],
)
def test_a_router_says_what_it_sees(
    view: RouterView, heard_ago_s: float | None, status: str, said: str
) -> None:
    health = of_router(view, vitals("healthy"), heard_ago_s=heard_ago_s, version="1", uptime_s=1)
    assert health.status == status
    assert any(said in reason for reason in health.reasons) if said else not health.reasons


def test_a_router_answers_for_its_own_partitions_alone() -> None:
    known = vitals("healthy", "failed", "failed")
    view = RouterView("ready", True, MINE)
    health = of_router(view, known, heard_ago_s=0, version="1", uptime_s=1)
    assert (health.status, [one.id for one in health.partitions]) == ("healthy", [0])


# --- the cluster ---------------------------------------------------------------------------------


def cluster(**changes: object) -> Status:
    roles = ("coordinator", "ingest", "router", "gateway")
    partition = TopicPartition(0, 10, 4, 6, 900, "i", "r", 1, rate=2.5, last_event_ms=1_000)
    status = Status(
        version="1",
        generation=1,
        revision=1,
        nodes=[NodeStatus(f"{role}-1", role, "ready") for role in roles],
        topics=[TopicInfo("flights", 1, "keyed", 1, [partition])],
        lanes=[LaneStatus("r", 0, 1, 0, 1, ["flights:0"], 4, 4, 4, 0, 1)],
        gateways=[],
        windows=[],
        subscriptions=0,
    )
    return msgspec.structs.replace(status, **changes)


def test_an_age_that_nobody_knows_is_said() -> None:
    detail = TopicPartition(0, 10, 4, 6, 0, "i", "r", 1, lag_known=False)
    given = cluster(topics=[TopicInfo("flights", 1, "keyed", 1, [detail])])
    [partition], reasons = of_cluster(given)
    assert not partition.lag_known
    assert reasons == ["nobody can tell for how long records wait in flights:0"]


def test_partitions_carry_what_the_status_knows() -> None:
    [partition], reasons = of_cluster(cluster())
    assert reasons == []
    assert (partition.topic, partition.id, partition.status) == ("flights", 0, "healthy")
    assert (partition.lag, partition.lag_ms, partition.event_rate) == (6, 900, 2.5)
    assert partition.last_event == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        pytest.param(
            cluster(nodes=[NodeStatus("g", "gateway", "lost")]), "gateway: cut off", id="node lost"
        ),
        pytest.param(
            cluster(checkpoints_error="no answer"), "positions: they can't be read", id="positions"
        ),
        pytest.param(
            cluster(
                lanes=[LaneStatus("r", 0, 1, 0, 1, [], 0, 0, 0, 0, 1, letters="the disk is full")]
            ),
            "the disk is full",
            id="letters",
        ),
        pytest.param(
            cluster(lanes=[LaneStatus("r", 3, 1, 1, 1, [], 0, 0, 0, 0, 1)]),
            "lanes: failed and started again within their window: 3 of r",
            id="a lane failed",
        ),
        pytest.param(
            cluster(
                lanes=[
                    LaneStatus(
                        *("r", 0, 1, 0, 1, [], 0, 0, 0, 0, 1),
                        links=[GatewayLink("g", breaker="open", error="no answer")],
                    )
                ]
            ),
            "gateway g: routers have stopped sending",
            id="breaker",
        ),
    ],
)
def test_what_is_wrong_in_the_cluster_is_a_reason(status: Status, said: str) -> None:
    _, reasons = of_cluster(status)
    assert any(said in reason for reason in reasons), reasons
