"""Lanes on Spark executors of their own: no event passes through the driver, partitions go to
another router and come back, and an executor that is killed costs nothing but time, also while
there is no coordinator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest

from headgate.decide.operations.health import DISCONNECTED
from tests.system import hasty_router
from tests.system.accounting import accounted_for
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import until
from tests.system.moving import drained_and_back, shared
from tests.system.traffic import Traffic
from tests.waiting import arguments

EXECUTOR = "CoarseGrainedExecutorBackend"
WINDOW_S = 6.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        "HEADGATE_ROUTER__MASTER": "local-cluster[2,1,1024]",
        "HEADGATE_ROUTER__SLOTS": "2",
        "HEADGATE_ROUTER__WINDOW": f"{WINDOW_S:g}s",
        "HEADGATE_COORDINATOR__REBALANCE": "2s",
    }
    data = tmp_path_factory.mktemp("executors") / "data"
    program = (sys.executable, hasty_router.__file__)
    with Cluster(
        data, routers=1, recording=True, settings=settings, router_program=program
    ) as running:
        yield running
        assert running.gateway is not None
        running.gateway.check_fences()


def is_executor(process: psutil.Process) -> bool:
    return EXECUTOR in " ".join(arguments(process))


def executor_of(lane: psutil.Process) -> psutil.Process | None:
    """The executor that a lane's Python worker belongs to."""
    return next(filter(is_executor, lane.parents()), None)


def lanes(cluster: Cluster) -> list[psutil.Process]:
    return [psutil.Process(lane["pid"]) for lane in cluster.status()["lanes"]]


def family(cluster: Cluster) -> list[psutil.Process]:
    """The driver's own processes: its Python, its JVM and their helpers, without executors."""
    driver = psutil.Process(cluster.pid("router-1"))
    found = []
    for process in [driver, *driver.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # Spark's Python helpers come and go
            if not is_executor(process) and executor_of(process) is None:
                found.append(process)
    return found


def touches_events(process: psutil.Process, cluster: Cluster, gateway_port: int) -> bool:
    """Has it a file of the log open, or a connection to where gateways take deliveries?"""
    log = str(cluster.data / "log")
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(file.path.startswith(log) for file in process.open_files()) or any(
            connection.raddr[1:] == (gateway_port,) for connection in process.net_connections("tcp")
        )
    return False


@pytest.mark.timeout(240)
def test_no_event_passes_through_the_driver(cluster: Cluster) -> None:
    with Traffic(cluster, partitions=2) as traffic:
        traffic.flows()
        port = urlsplit(cluster.address("gateway-1")).port
        assert port is not None
        workers = lanes(cluster)
        assert len({executor_of(worker) for worker in workers}) == 2, "one lane per executor"
        assert all(touches_events(worker, cluster, port) for worker in workers)
        assert not [p for p in family(cluster) if touches_events(p, cluster, port)]


@pytest.mark.timeout(240)
def test_a_drained_router_hands_everything_over_and_takes_it_back(cluster: Cluster) -> None:
    cluster.begin("router", "router-2", program=PLAIN_ROUTER)
    try:
        cluster.await_ready("router-2")
        with Traffic(cluster) as traffic:
            shared(cluster, traffic.topic, "router-1", "router-2")
            drained_and_back(cluster, traffic, "router-1", "router-2")
    finally:
        cluster.stop("router-2")


@pytest.mark.timeout(240)
def test_an_executor_killed_under_load_costs_nothing_but_time(cluster: Cluster) -> None:
    with Traffic(cluster, partitions=2) as traffic:
        traffic.flows()
        executor = executor_of(lanes(cluster)[0])
        assert executor is not None
        os.kill(executor.pid, signal.SIGKILL)
        traffic.flows(120.0)
        until(lambda: len(cluster.status()["lanes"]) == 2, "both lanes run", 120.0)
        traffic.flows()
        traffic.end()
        accounted_for(cluster, traffic.topic, len(traffic.acknowledged))


def every_partition_flows(traffic: Traffic, timeout_s: float) -> None:
    """Wait until something that is sent from now on has arrived of each partition."""
    sent = traffic.next_number

    def arrived() -> set[int]:
        return {one["partition"] for one in traffic.own.events if one["document"]["n"] > sent}

    until(lambda: arrived() == {0, 1}, "both partitions flow", timeout_s)


def query_restarts(router: str) -> list[str]:
    with urlopen(f"{router}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("headgate_query_restarts_total")]
    assert found
    return found


@pytest.mark.timeout(240)
def test_events_flow_for_as_long_as_the_coordinator_is_away(cluster: Cluster) -> None:
    """For longer than a window and a router's patience with it; then an executor dies as well."""
    with Traffic(cluster, partitions=2) as traffic:
        until(lambda: len(cluster.status()["lanes"]) == 2, "both lanes run", 60.0)
        router, executor = cluster.address("router-1"), executor_of(lanes(cluster)[0])
        assert executor is not None
        restarts = query_restarts(router)
        cluster.kill("coordinator-1")
        since_s = time.monotonic()
        while time.monotonic() - since_s < WINDOW_S + hasty_router.START_S + 2.0:
            every_partition_flows(traffic, 60.0)
        assert query_restarts(router) == restarts, "nothing is overdue"
        with urlopen(f"{router}/health", timeout=10) as answer:
            assert DISCONNECTED in json.load(answer)["reasons"]
        os.kill(executor.pid, signal.SIGKILL)
        every_partition_flows(traffic, 120.0)
        cluster.start("coordinator", "coordinator-1")
        until(lambda: len(cluster.status()["lanes"]) == 2, "both lanes run", 120.0)
        every_partition_flows(traffic, 60.0)
        traffic.end()
        accounted_for(cluster, traffic.topic, len(traffic.acknowledged))
