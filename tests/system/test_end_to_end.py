"""The first path, end to end on Spark: subscribers get what was produced, live and replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from headgate.spark.starting.java import find_java
from tests.system.flights import EMERGENCY, LOW, check_exact, flights, selected
from tests.system.harness import System, environment, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 10_000
JSON = {"content-type": "application/json"}


def test_two_filters_get_exactly_their_documents_live_and_replayed(
    system: System, spark: SparkSession
) -> None:
    from headgate.spark.table.source import register

    documents = flights(EVENTS, seed=1)
    wanted = {where: selected(documents, keep) for where, keep in (LOW, EMERGENCY)}
    system.run("topic", "create", "flights", "--partitions", "4")
    live = {
        where: system.subscribe(
            "flights", "--where", where, "--from", "now", "--count", str(len(expected))
        )
        for where, expected in wanted.items()
    }
    system.produce("flights", documents)
    for where, command in live.items():
        assert command.wait() == 0
        check_exact(command.out.lines, wanted[where])

    for where, expected in wanted.items():
        replay = system.run(
            "subscribe", "flights", "--where", where, "--from", "earliest",
            "--count", str(len(expected)),
        )  # fmt: skip
        check_exact(replay.out.lines, expected)

    register(spark)
    table = (
        spark.read.format("headgate_log")
        .option("data", str(system.data))
        .option("topic", "flights")
        .load()
    )
    assert table.count() == EVENTS
    assert {row.partition for row in table.select("partition").distinct().collect()} == {0, 1, 2, 3}


def test_a_replay_goes_on_live_without_a_gap(system: System) -> None:
    documents = flights(3_000, seed=2)
    system.run("topic", "create", "seam", "--partitions", "2")
    system.produce("seam", documents[:1_000])
    reader = system.subscribe("seam", "--from", "earliest", "--count", "3000")
    system.produce("seam", documents[1_000:2_000])
    system.produce("seam", documents[2_000:])
    assert reader.wait() == 0
    check_exact(reader.out.lines, documents)


def test_server_sent_events_carry_the_same(system: System) -> None:
    documents = flights(50, seed=3)
    system.run("topic", "create", "sse", "--partitions", "2")
    query = urlencode({"topic": "sse", "where": LOW[0]})
    expected = selected(documents, LOW[1])
    with urlopen(f"{system.url}/v1/subscribe?{query}", timeout=30) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = iter(stream.readline, b"")
        until(lambda: next(lines).strip() == b"event: subscribed", "the stream says subscribed")
        system.produce("sse", documents)
        events: list[str] = []
        for line in lines:
            if line.startswith(b"data: ") and b'"type":"event"' in line:
                events.append(line.removeprefix(b"data: ").decode())
            if len(events) == len(expected):
                break
    check_exact(events, expected)


def test_the_trace_that_an_event_belongs_to_goes_with_it(system: System) -> None:
    traced = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    system.run("topic", "create", "traced", "--partitions", "1")
    reader = system.subscribe("traced", "--count", "2")
    with urlopen(f"{system.url}/v1/subscribe?topic=traced", timeout=30) as stream:
        lines = iter(stream.readline, b"")
        until(lambda: next(lines).strip() == b"event: subscribed", "the stream says subscribed")
        events = [{"document": {"n": 1}, "headers": traced}, {"document": {"n": 2}}]
        body = json.dumps({"events": events}).encode()
        produce = Request(f"{system.url}/v1/topics/traced/produce", body, JSON)
        with urlopen(produce, timeout=30) as answer:
            assert answer.status == 200
        said = next(line for line in lines if b'"type":"event"' in line)
    assert reader.wait() == 0
    first, second = (json.loads(line) for line in reader.out.lines)
    assert first["headers"] == json.loads(said.removeprefix(b"data: "))["headers"] == traced
    assert "headers" not in second
    with urlopen(f"{system.url}/v1/topics/traced/records", timeout=30) as answer:
        read = json.load(answer)["records"]
    assert [one.get("headers") for one in read] == [None, traced]


def test_status_shows_every_role_and_all_settled(system: System) -> None:
    shown = json.loads("\n".join(system.run("status", "--json").out.lines))
    assert {n["role"] for n in shown["nodes"]} == {"coordinator", "ingest", "router", "gateway"}
    assert all(n["state"] == "ready" for n in shown["nodes"])
    until(
        lambda: all(p["lag"] == 0 for topic in system.status()["topics"] for p in topic["details"]),
        "everything is settled",
    )


def test_doctor_finds_nothing_wrong(system: System) -> None:
    assert system.run("doctor").out.lines


def test_spark_started_from_the_archive_that_the_set_up_made(system: System) -> None:
    from headgate.spark.starting.session import archive_for

    environ = environment()
    archive = archive_for("local[8,4]", find_java(environ), environ)
    found = archive.find() if archive else None
    if found is None:
        pytest.skip("there is none; make, or python -m headgate.spark.starting.training, makes it")
    maps = Path(f"/proc/{system.jvm_pid()}/maps")
    if not maps.exists():
        pytest.skip("this system doesn't tell what a process has mapped")
    assert str(found) in maps.read_text()
