"""A whole cluster with a cluster token: everything works, and the token stands nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.system.cluster import PLAIN_ROUTER, Cluster

TOKEN = "planted-token-of-this-cluster-7c2e"
OTHER = "another-token-of-nobody-here-91ab"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    file = folder / "cluster-token"
    file.write_text(f"{TOKEN}\n")
    settings = {"HEADGATE_SECURITY__CLUSTER__TOKENS": f"file:{file}"}
    with Cluster(
        folder / "data",
        ingest_nodes=2,
        routers=1,
        settings=settings,
        router_program=PLAIN_ROUTER,
    ) as running:
        yield running


def test_events_take_every_way_between_roles(cluster: Cluster, tmp_path: Path) -> None:
    """Through the gateway to a node that hands on to the other, through a lane to a subscriber."""
    created = cluster.command("topic", "create", "flights", "--partitions", "4")
    assert created.wait(30.0) == 0, created.err.finish()
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps({"icao": f"a{n}"}) + "\n" for n in range(40)))
    subscriber = cluster.subscribe("flights", "--count", "40")
    produced = cluster.command("produce", "flights", "--key", "icao", str(events))
    assert produced.wait(60.0) == 0, produced.err.finish()
    assert subscriber.wait(60.0) == 0, subscriber.err.finish()
    found = [json.loads(line)["document"]["icao"] for line in subscriber.out.finish()]
    assert sorted(found) == sorted(f"a{n}" for n in range(40))


def test_a_node_of_another_cluster_is_let_in_nowhere_and_says_why(cluster: Cluster) -> None:
    stranger = cluster.begin("ingest", "ingest-9", {"HEADGATE_SECURITY__CLUSTER__TOKENS": OTHER})
    stranger.until_said("pass_refused", 60.0)
    assert "ingest-9" not in cluster.nodes()
    cluster.stop("ingest-9")


def test_the_token_stands_in_no_argument_environment_log_or_file(cluster: Cluster) -> None:
    planted, passes = TOKEN.encode(), b"lane."
    for node_id in ("coordinator-1", "gateway-1", "router-1", *cluster.ingest_ids):
        process = psutil.Process(cluster.pid(node_id))
        for one in (process, *process.children(recursive=True)):
            arguments = Path(f"/proc/{one.pid}/cmdline").read_bytes()
            environment = Path(f"/proc/{one.pid}/environ").read_bytes()
            assert planted not in arguments + environment
            assert passes not in arguments + environment
        said = "\n".join(cluster._running[node_id].err.lines)
        assert TOKEN not in said
    for file in cluster.data.rglob("*"):
        if file.is_file():
            assert planted not in file.read_bytes(), file
    status = cluster.command("status", "--json")
    assert status.wait(30.0) == 0
    assert TOKEN not in "".join(status.out.finish())
    shown = cluster.command("config", "show")
    assert shown.wait(30.0) == 0
    assert TOKEN not in "".join(shown.out.finish())


def test_what_an_operator_did_is_in_the_audit_trail(cluster: Cluster) -> None:
    created = cluster.command("topic", "create", "audited", "--partitions", "1")
    assert created.wait(30.0) == 0, created.err.finish()
    trail = (cluster.data / "audit" / "gateway-1.jsonl").read_text().splitlines()
    last = json.loads(trail[-1])
    assert (last["what"], last["outcome"], last["from"]) == ("POST /v1/topics", "done", "127.0.0.1")
