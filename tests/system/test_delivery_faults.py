"""A gateway in trouble, stores away, a router that stops: all is accounted for, nobody else waits.

One cluster: a coordinator, an ingest node and a Spark router as processes, a gateway that is well
and one that misbehaves on request. Each test leaves the cluster whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.lane.letters.writing import CAPACITY as LETTERS_IN_MEMORY
from tests.contracts.faulty_disk import fill_up, mount_tiny_disk
from tests.servers.nats import Nats
from tests.system.accounting import (
    accounted_for,
    bad,
    complains,
    letters,
    metric,
    nothing_left_parked,
    takes_its_leave,
    totals,
    unaffected,
    wait_s,
)
from tests.system.cluster import PLAIN_ROUTER, Cluster, own_port, same_port
from tests.system.harness import environment, until
from tests.system.link import Cut, Link
from tests.system.traffic import AT_ONCE, Printed, Traffic
from tests.system.wicked import Trouble, WickedGateway

TROUBLE_S = 3.0
SAVED_EVERY_S = 1.0
A_FEW = 30
BURST = 400
MORE_THAN_A_LANE_HOLDS = LETTERS_IN_MEMORY + 5_000
TROUBLES: list[Trouble] = [
    "hangs",
    "answers 500",
    "answers garbage",
    "accepts half a batch",
    "is 100 times slower",
]
CUTS: list[Cut] = ["both ways", "towards the gateway", "back from the gateway"]
SETTINGS = {
    "HEADGATE_ROUTING__DELIVERY__TIMEOUT": "500ms",
    "HEADGATE_RELIABILITY__CIRCUIT_BREAKER__TIMEOUT": "1s",
    "HEADGATE_ROUTER__FLUSH_EVERY": "500ms",
    "HEADGATE_ROUTING__BACKPRESSURE__QUEUE_SIZE": "200",
    "HEADGATE_RELIABILITY__CHECKPOINT__INTERVAL": f"{SAVED_EVERY_S:g}s",
    "HEADGATE_COORDINATOR__TIMEOUT": "10s",
    "HEADGATE_COORDINATOR__CHECK_IN": "2s",
}


@pytest.fixture(scope="module")
def nats() -> Iterator[Nats]:
    with Nats() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    return DataFolder.open(tmp_path_factory.mktemp("delivery") / "data")


@pytest.fixture(scope="module")
def letters_disk(folder: DataFolder) -> Iterator[Path | None]:
    """A disk of their own for parked and dead letters, if one can be mounted here."""
    place = folder.root.parent / "letters"
    try:
        for disk in mount_tiny_disk(place, "32m"):
            folder.letters_file.symlink_to(disk / "letters.db")
            yield disk
    except pytest.skip.Exception:
        yield None


@pytest.fixture(scope="module")
def cluster(folder: DataFolder, letters_disk: Path | None, nats: Nats) -> Iterator[Cluster]:
    settings = {**SETTINGS, "HEADGATE_TRANSPORT__NATS": nats.url}
    data = folder.root
    with Cluster(data, routers=1, settings=settings, router_program=PLAIN_ROUTER) as running:
        yield running


@pytest.fixture(scope="module")
def wicked(cluster: Cluster) -> Iterator[WickedGateway]:
    settings = environment({**cluster.settings, "HEADGATE_CLIENT_ID": "gateway-2"})
    gateway = WickedGateway(settings, cluster.data.parent)
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    with Link() as standing:
        yield standing


@pytest.fixture(scope="module")
def linked(cluster: Cluster, link: Link) -> Iterator[str]:
    """The address of a gateway that routers reach over a link that can be cut."""
    cluster.begin("gateway", "gateway-4", link.settings, program=link.program)
    yield cluster.await_ready("gateway-4")
    cluster.stop("gateway-4")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_gateway_in_trouble_gets_everything_later_and_slows_nobody(
    cluster: Cluster, wicked: WickedGateway, trouble: Trouble
) -> None:
    with Traffic(cluster) as traffic:
        traffic.also_at(wicked.url)
        with unaffected(traffic), wicked.in_trouble(trouble):
            wait_s(TROUBLE_S)
        delivered_in_the_end(cluster, traffic)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("cut", CUTS)
def test_a_gateway_whose_link_is_cut_gets_everything_later_and_slows_nobody(
    cluster: Cluster, link: Link, linked: str, cut: Cut
) -> None:
    with Traffic(cluster) as traffic:
        other = traffic.also_at(linked)
        until(lambda: bool(other.out.lines), "it gets something")
        repeats = metric(linked, "headgate_deliveries_received_total", verdict="duplicate")
        with unaffected(traffic), link.cut(cut):
            cut_s = time.monotonic()
            wait_s(TROUBLE_S)
            healed_s = time.monotonic()
        came = [
            number
            for number, at_s in Printed(other).arrivals
            if cut_s < traffic.sent_at_s[number] and at_s < healed_s
        ]
        again = metric(linked, "headgate_deliveries_received_total", verdict="duplicate") - repeats
        if cut == "back from the gateway":
            assert again, "what arrived wasn't sent again"
        else:
            assert not came, "something came through"
        delivered_in_the_end(cluster, traffic)


def delivered_in_the_end(cluster: Cluster, traffic: Traffic) -> None:
    """To everybody, in order: what the traffic checks when it ends. Nothing is left to do."""
    traffic.end()
    assert accounted_for(cluster, traffic.topic, len(traffic.acknowledged))["dead"] == 0
    nothing_left_parked(cluster.url)


@pytest.mark.timeout(180)
def test_what_a_gateway_refuses_is_dead_until_an_operator_retries_it(
    cluster: Cluster, wicked: WickedGateway
) -> None:
    with Traffic(cluster) as traffic:
        other = traffic.also_at(wicked.url)
        with unaffected(traffic), wicked.in_trouble("answers 400"):
            until(lambda: bool(letters(cluster.url, "dead")), "something is refused")
            traffic.goes_on(A_FEW)
        traffic.end()
        ends = accounted_for(cluster, traffic.topic, len(traffic.acknowledged))
        dead = letters(cluster.url, "dead")
        assert ends["dead"] == len(dead) > 0
        assert {letter["reason"] for letter in dead} == {"rejected"}
        missing = {letter["event_id"] for letter in dead}
        assert missing.isdisjoint(json.loads(line)["event_id"] for line in other.out.lines)
        assert cluster.command("dlq", "retry", "--topic", traffic.topic).wait() == 0

        def redelivered() -> set[str]:
            events = [json.loads(line) for line in other.out.lines]
            return {event["event_id"] for event in events if event.get("redelivery")}

        until(lambda: redelivered() == missing, "all that was dead came, and is marked", 60.0)
        until(lambda: not letters(cluster.url, "dead"), "no letter is left")


@pytest.mark.timeout(180)
def test_nats_restarted_in_the_middle_loses_nothing(cluster: Cluster, nats: Nats) -> None:
    settings = {"HEADGATE_ROUTING__DELIVERY__PROTOCOL": "nats"}
    url = cluster.start("gateway", "gateway-3", settings)
    try:
        with Traffic(cluster) as traffic:
            traffic.also_at(url)
            with unaffected(traffic):
                nats.kill()
                wait_s(2.0)
                nats.start()
            delivered_in_the_end(cluster, traffic)
    finally:
        cluster.stop("gateway-3")


@pytest.mark.timeout(180)
def test_a_gateway_killed_in_the_middle_of_a_batch_loses_nothing(cluster: Cluster) -> None:
    url = cluster.start("gateway", "gateway-3", own_port())
    with Traffic(cluster) as traffic:
        traffic.also_at(url)
        with unaffected(traffic):
            with cluster.paused("gateway-3"):
                wait_s(0.2)  # It has got batches that it hasn't answered.
                cluster.kill("gateway-3")
            wait_s(1.0)
            assert cluster.start("gateway", "gateway-3", same_port(url)) == url
        delivered_in_the_end(cluster, traffic)
    cluster.stop("gateway-3")


@pytest.mark.timeout(180)
def test_letters_that_cannot_be_written_lose_nothing(
    cluster: Cluster, wicked: WickedGateway
) -> None:
    with Traffic(cluster) as traffic:
        traffic.also_at(wicked.url)
        with wicked.in_trouble("answers 500"), locked(DataFolder(cluster.data).letters_file):
            until(lambda: complains_of_letters(cluster, "has locked the file"), "health says it")
            wait_s(1.0)
        delivered_in_the_end(cluster, traffic)
        until(lambda: not complains_of_letters(cluster), "health is content")


@pytest.mark.timeout(180)
def test_a_full_disk_for_letters_stops_the_source_until_there_is_room(
    cluster: Cluster, wicked: WickedGateway, letters_disk: Path | None
) -> None:
    if letters_disk is None:
        pytest.skip("no file system can be mounted here")
    with Traffic(cluster, partitions=1) as traffic:
        traffic.also_at(wicked.url)
        with full(letters_disk, cluster), wicked.in_trouble("answers 500"):
            until(lambda: complains_of_letters(cluster, "the disk is full"), "health says it")
            assert "the disk is full" in bad(cluster.command("doctor", "--json"))["letters"]
            traffic.at_once = BURST
            until(lambda: len(traffic.acknowledged) > MORE_THAN_A_LANE_HOLDS, "it is produced")
            traffic.at_once = AT_ONCE
            assert came_to_rest(traffic) < LETTERS_IN_MEMORY + 2_000 < len(traffic.acknowledged)
            assert totals(cluster, traffic.topic)["waiting"] > LETTERS_IN_MEMORY
            assert not letters(cluster.url, "parked")
        delivered_in_the_end(cluster, traffic)
        until(lambda: not complains_of_letters(cluster), "health is content")


@pytest.mark.timeout(180)
def test_positions_that_cannot_be_saved_for_a_dozen_times_stop_nothing(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        with locked(DataFolder(cluster.data).checkpoints_file):
            until_s = time.monotonic() + 12 * SAVED_EVERY_S
            while time.monotonic() < until_s:
                traffic.flows()
            assert complains(cluster.coordinator_url("coordinator-1"), "positions", "saved")
        delivered_in_the_end(cluster, traffic)


@pytest.mark.timeout(240)
def test_a_router_told_to_stop_under_load_settles_what_it_has_and_leaves(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        assert cluster.stop("router-1") == 0
        takes_its_leave(cluster, "router-1")
        cluster.start("router", "router-1")
        traffic.flows()
        delivered_in_the_end(cluster, traffic)


def complains_of_letters(cluster: Cluster, why: str = "") -> bool:
    said = "letters: parked and dead letters can't be kept"
    return complains(cluster.coordinator_url("coordinator-1"), said, why)


def came_to_rest(traffic: Traffic) -> int:
    """How many had come when for a while no more did."""
    seen = [-1]

    def nothing_new() -> bool:
        seen.append(len(traffic.delivered))
        wait_s(0.5)
        return seen[-2] == seen[-1]

    until(nothing_new, "nothing more is read")
    return seen[-1]


@contextmanager
def full(disk: Path, cluster: Cluster) -> Iterator[None]:
    """No room on the disk of the letters, not even in files that are there already."""
    connection = apsw.Connection(str(DataFolder(cluster.data).letters_file))
    connection.set_busy_timeout(10_000)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    ballast = fill_up(disk)
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of an embedded store, so that nobody else can write."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()
