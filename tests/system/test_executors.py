"""Lanes on Spark executors of their own: no event passes through the driver, and an executor that
is killed costs nothing but time."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pytest

from tests.system.accounting import accounted_for
from tests.system.cluster import Cluster
from tests.system.harness import until
from tests.system.traffic import Traffic

EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        "HEADGATE_ROUTER__MASTER": "local-cluster[2,1,1024]",
        "HEADGATE_ROUTER__SLOTS": "2",
    }
    data = tmp_path_factory.mktemp("executors") / "data"
    with Cluster(data, routers=1, settings=settings) as running:
        yield running


def is_executor(process: psutil.Process) -> bool:
    return EXECUTOR in " ".join(process.cmdline())


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
