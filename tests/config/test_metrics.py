"""The metrics, the page that lists them and the dashboard that shows them say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.decide.operations.health import judged
from headgate.decide.operations.latencies import Stopwatch
from headgate.metrics.exposing import Described, Metrics, NodeMetrics
from headgate.metrics.roles import ROLES, CoordinatorMetrics, IngestMetrics
from headgate.model.control.reports import Latencies

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text("utf-8"))
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| (.+) \| (.+) \|")
COMMON = {one.name for one in Metrics().described}
OF_NODES = {one.name for one in NodeMetrics().described} - COMMON


def listed(heading: str) -> list[Described]:
    """The rows of the table below `heading`."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = []
    for name, kind, labels, text in ROW.findall(section):
        assert kind in ("counter", "gauge", "histogram")
        found.append(Described(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text))
    return found


@pytest.mark.parametrize("role", ROLES)
def test_the_page_lists_what_a_role_has(role: str) -> None:
    common = listed("Every role")
    if role != "coordinator":
        common += listed("Ingest, gateway and router")
    assert common + listed(role.capitalize()) == ROLES[role]().described


def test_the_page_names_nothing_else() -> None:
    known = {one.name for kind in ROLES.values() for one in kind().described}
    assert set(re.findall(r"\bheadgate_\w+", PAGE)) <= known


@pytest.mark.parametrize("role", ROLES)
def test_names_say_what_they_are(role: str) -> None:
    described = ROLES[role]().described
    assert len({one.name for one in described}) == len(described)
    for one in described:
        assert re.fullmatch(r"headgate_[a-z_]+", one.name)
        assert one.name.endswith("_total") == (one.kind == "counter")
        assert one.kind != "histogram" or one.name.endswith("_seconds")
        assert one.text.endswith(".")


def test_no_two_roles_mean_different_things_by_one_name() -> None:
    by_name: dict[str, Described] = {}
    for role in ROLES.values():
        for one in role().described:
            assert by_name.setdefault(one.name, one) == one


@pytest.mark.parametrize("role", ROLES)
def test_everything_can_be_read_back(role: str) -> None:
    metrics = ROLES[role]()
    metrics.show(judged(role=role, version="1", uptime_s=2.0), {"log": 3})
    found = {one.name: one for one in text_string_to_metric_families(metrics.exposed().decode())}
    for described in metrics.described:
        family = found[described.name.removesuffix("_total")]
        assert family.type == described.kind
        assert family.documentation == described.text
    assert [s.value for s in found["headgate_uptime_seconds"].samples] == [2.0]
    assert {s.labels["status"]: s.value for s in found["headgate_health"].samples} == {
        "healthy": 1.0,
        "degraded": 0.0,
        "unhealthy": 0.0,
    }
    assert [(s.labels, s.value) for s in found["headgate_task_deaths"].samples] == [
        ({"task": "log"}, 3.0)
    ]


def test_latencies_told_are_a_histogram_like_any_other() -> None:
    watch = Stopwatch()
    for seconds in (0.004, 0.005, 0.2, 1_000.0):
        watch.took(seconds)
    metrics = CoordinatorMetrics()
    metrics.routing.tell(watch.so_far(), "router-1")
    metrics.saving.tell(Latencies(), "router-1")
    text = metrics.exposed().decode()
    assert 'headgate_routing_seconds_bucket{le="0.005",router="router-1"} 2.0' in text
    assert 'headgate_routing_seconds_bucket{le="300.0",router="router-1"} 3.0' in text
    assert 'headgate_routing_seconds_bucket{le="+Inf",router="router-1"} 4.0' in text
    assert 'headgate_routing_seconds_count{router="router-1"} 4.0' in text
    assert 'headgate_routing_seconds_sum{router="router-1"} 1000.209' in text
    assert 'headgate_checkpoint_seconds_count{router="router-1"} 0.0' in text


def test_what_is_forgotten_shows_no_more() -> None:
    metrics = CoordinatorMetrics()
    metrics.lag.tell(3, "flights", "0")
    metrics.lag.forget()
    metrics.lag.tell(4, "flights", "1")
    text = metrics.exposed().decode()
    assert 'headgate_partition_lag{partition="1",topic="flights"} 4.0' in text
    assert 'partition="0"' not in text


def test_two_sets_of_metrics_do_not_share_anything() -> None:
    one, other = IngestMetrics(), IngestMetrics()
    one.appends.labels("flights").inc(3)
    assert b'headgate_appends_total{topic="flights"} 3.0' in one.exposed()
    assert b"flights" not in other.exposed()


# --- the dashboard -------------------------------------------------------------------------------


def expressions() -> Iterator[tuple[str, str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def series() -> dict[str, set[str]]:
    """Every series that Prometheus would have, with its labels."""
    found: dict[str, set[str]] = {}
    for kind in ROLES.values():
        for one in kind().described:
            labels = {*one.labels, "instance", "job"}
            if one.kind == "histogram":
                found |= {f"{one.name}_bucket": labels | {"le"}}
                found |= {f"{one.name}_sum": labels, f"{one.name}_count": labels}
            else:
                found[one.name] = labels
    return found


@pytest.mark.parametrize(("title", "expression", "legend"), list(expressions()))
def test_the_dashboard_shows_what_there_is(title: str, expression: str, legend: str) -> None:
    known, names = series(), re.findall(r"\bheadgate_\w+", expression)
    assert names
    assert set(names) <= known.keys(), title
    grouped = {
        label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")
    }
    selected = set(re.findall(r"[{,]\s*(\w+)\s*[=!]", expression))
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    for name in names:
        assert grouped | selected | shown <= known[name], title
    assert shown <= grouped, title
    assert expression.count("(") == expression.count(")")
    assert all(
        name.endswith(("_total", "_bucket")) for name in re.findall(r"rate\((\w+)", expression)
    )


def test_the_dashboard_can_be_imported() -> None:
    panels = DASHBOARD["panels"]
    assert DASHBOARD["__inputs"][0]["pluginId"] == "prometheus"
    assert DASHBOARD["schemaVersion"] >= 36
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
