"""Processes killed and paused in the middle: nothing is lost, repeated or out of order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.system.accounting import accounted_for
from tests.system.flights import LOW, check_exact, flights, selected
from tests.system.harness import System, stopped, until
from tests.waiting import arguments

SETTINGS = {
    "HEADGATE_ROUTER__WINDOW": "8s",
    "HEADGATE_COORDINATOR__TIMEOUT": "30s",
    # Rarely saved positions leave much to repeat after a kill.
    "HEADGATE_RELIABILITY__CHECKPOINT__INTERVAL": "60s",
    "HEADGATE_RELIABILITY__CHECKPOINT__EVENT_COUNT": "700",
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("fragile") / "data", SETTINGS) as running:
        yield running


@pytest.fixture
def fragile(started: System) -> System:
    """One for all tests here, started again after one that ended it."""
    if not started.runs:
        started.start()
    return started


def kill_lane_worker(system: System) -> None:
    os.kill(system.until_lanes(4)[0]["pid"], signal.SIGKILL)


def kill_jvm(system: System) -> None:
    os.kill(system.jvm_pid(), signal.SIGKILL)


def kill_driver(system: System) -> None:
    os.kill(system.role_pid("router"), signal.SIGKILL)


def kill_ingest(system: System) -> None:
    os.kill(system.role_pid("ingest"), signal.SIGKILL)


def kill_gateway(system: System) -> None:
    """The public address is gone with it, so the next produce has to wait for its return."""
    os.kill(system.role_pid("gateway"), signal.SIGKILL)
    until(lambda: any("gateway is back" in line for line in system.said), "it is back")


def kill_coordinator(system: System) -> None:
    os.kill(system.role_pid("coordinator"), signal.SIGKILL)


@pytest.mark.parametrize(
    "fault",
    [kill_lane_worker, kill_jvm, kill_driver, kill_ingest, kill_gateway, kill_coordinator],
    ids=lambda fault: fault.__name__,
)
@pytest.mark.timeout(240)
def test_a_kill_in_the_middle_loses_nothing(
    fragile: System, fault: Callable[[System], None]
) -> None:
    documents = flights(6_000, seed=7)
    expected = selected(documents, LOW[1])
    topic = fault.__name__.replace("_", "-")
    fragile.run("topic", "create", topic, "--partitions", "4")
    reader = fragile.subscribe(topic, "--where", LOW[0], "--count", str(len(expected)))
    fragile.produce(topic, documents[:2_000])
    fault(fragile)
    fragile.produce(topic, documents[2_000:4_000])
    fragile.produce(topic, documents[4_000:])
    assert reader.wait(120) == 0
    check_exact(reader.out.lines, expected)
    accounted_for(fragile, topic, len(documents))
    fragile.run("topic", "delete", topic, "--yes")
    until(lambda: not fragile.status()["lanes"], "the deleted topic's lanes end", 60)


@pytest.mark.timeout(240)
def test_a_paused_router_delivers_nothing_and_then_everything(fragile: System) -> None:
    documents = flights(500, seed=8)
    fragile.run("topic", "create", "paused", "--partitions", "2")
    reader = fragile.subscribe("paused", "--count", "500")
    fragile.until_lanes(2)
    with stopped(fragile.router_tree()):
        fragile.produce("paused", documents)
        with pytest.raises(AssertionError, match="something arrives"):
            until(lambda: bool(reader.out.lines), "something arrives", 3.0)
    assert reader.wait(90) == 0
    check_exact(reader.out.lines, documents)
    fragile.run("topic", "delete", "paused", "--yes")
    until(lambda: not fragile.status()["lanes"], "the deleted topic's lanes end", 60)


@pytest.mark.timeout(240)
def test_a_frozen_lane_holds_nobody_for_long(fragile: System) -> None:
    documents = flights(2_000, seed=9)
    fragile.run("topic", "create", "frozen", "--partitions", "2")
    reader = fragile.subscribe("frozen", "--count", "2000")
    worker = psutil.Process(next(n["pid"] for n in fragile.until_lanes(2)))
    fragile.produce("frozen", documents[:500])
    with stopped([worker]):
        fragile.produce("frozen", documents[500:])
        assert reader.wait(150) == 0, "the frozen worker was not worked around"
    check_exact(reader.out.lines, documents)
    fragile.run("topic", "delete", "frozen", "--yes")
    until(lambda: not fragile.status()["lanes"], "the deleted topic's lanes end", 60)


def test_a_role_that_died_is_said_to_be_started_again(fragile: System) -> None:
    before = len(fragile.said)  # tests that ran here before may have killed it, too
    kill_ingest(fragile)

    def says(words: str) -> bool:
        return any(words in line for line in fragile.said[before:])

    until(lambda: says("ingest was killed by SIGKILL"), "the supervisor says that it died")
    until(lambda: says("ingest is back"), "and that it is back", 60)


@pytest.mark.timeout(240)
def test_ctrl_c_ends_every_process_and_the_next_ones_are_ready_when_they_say_so(
    fragile: System,
) -> None:
    """What SIGTERM does, the fixture `system` shows whenever it ends."""
    fragile.run("topic", "create", "until-ctrl-c", "--partitions", "2")
    until(lambda: bool(fragile.status()["lanes"]), "a lane runs", 60)
    fragile.stops_whole(signal.SIGINT)
    fragile.start()
    read = [ref for lane in fragile.status()["lanes"] for ref in lane["partitions"]]
    assert sorted(read) == ["until-ctrl-c:0", "until-ctrl-c:1"]


@pytest.mark.timeout(240)
def test_a_second_signal_ends_everything_now(fragile: System) -> None:
    family = psutil.Process(fragile.pid).children(recursive=True)
    router = next(one for one in family if "router" in arguments(one))
    router.suspend()  # it can't stop in order any more
    os.kill(fragile.pid, signal.SIGTERM)
    until(lambda: any("stopping" in line for line in fragile.said), "it stops")
    began_s = time.monotonic()
    fragile.stop()
    assert time.monotonic() - began_s < 15
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert len(gone) == len(family)
