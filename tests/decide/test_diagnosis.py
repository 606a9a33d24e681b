"""What the doctor says about a running system."""

from __future__ import annotations

import msgspec
import pytest

from headgate.decide.diagnosis import Finding, judge_status
from headgate.model import api

DETAIL = api.TopicPartition(0, 10, 10, 0, 0, "ingest-1", "router-1", 1)
LANE = api.LaneStatus("router-1", 0, 1, 0, 4242, ["flights:0"], 1, 1, 1, 0, 1)
HEALTHY = api.Status(
    version="0",
    generation=1,
    revision=1,
    nodes=[
        api.NodeStatus(f"{r}-1", r, "ready") for r in ("coordinator", "ingest", "router", "gateway")
    ],
    topics=[api.TopicInfo("flights", 1, "keyed", 1, [DETAIL])],
    lanes=[LANE],
    gateways=[],
    windows=[],
    subscriptions=0,
)


def verdict(status: api.Status, subject: str) -> Finding:
    [finding] = [f for f in judge_status(status) if f.subject == subject]
    return finding


def test_a_healthy_system_gets_no_advice() -> None:
    assert all(f.verdict == "ok" and not f.advice for f in judge_status(HEALTHY))


@pytest.mark.parametrize("role", ["coordinator", "ingest", "router", "gateway"])
def test_a_missing_role_is_bad_and_named(role: str) -> None:
    nodes = [n for n in HEALTHY.nodes if n.role != role]
    finding = verdict(msgspec.structs.replace(HEALTHY, nodes=nodes), role)
    assert finding.verdict == "bad"
    assert f"headgate {role}" in finding.advice


@pytest.mark.parametrize(
    ("detail", "lanes", "expected"),
    [
        pytest.param({"owner": None}, [LANE], "bad", id="nobody takes produces"),
        pytest.param({}, [], "warn", id="no lane reads it"),
        pytest.param({"lag": 5, "lag_ms": 31_000}, [LANE], "warn", id="far behind"),
        pytest.param({"lag": 5, "lag_ms": 29_000}, [LANE], "ok", id="a little behind"),
    ],
)
def test_a_partition_in_trouble_is_named(
    detail: dict[str, object], lanes: list[api.LaneStatus], expected: str
) -> None:
    changed = msgspec.structs.replace(DETAIL, **detail)
    topic = api.TopicInfo("flights", 1, "keyed", 1, [changed])
    status = msgspec.structs.replace(HEALTHY, topics=[topic], lanes=lanes)
    assert verdict(status, "topic flights").verdict == expected


@pytest.mark.parametrize("state", ["lost", "starting"])
def test_a_node_that_is_not_ready_is_a_warning(state: str) -> None:
    nodes = [*HEALTHY.nodes, api.NodeStatus("router-2", "router", state)]  # type: ignore[arg-type]
    finding = verdict(msgspec.structs.replace(HEALTHY, nodes=nodes), "router")
    assert finding.verdict == "warn"
    assert "router-2" in finding.what
