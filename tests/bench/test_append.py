"""The parts of `bench append` that need no running system."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import msgspec
import pytest

from headgate.bench.append.bare import Bare, Written
from headgate.bench.append.load import Load, Sent, run
from headgate.bench.append.main import Round, result_of
from headgate.bench.append.protocol import ServeBare, Serving
from headgate.bench.append.rows import document, event_id
from headgate.bench.registry import BENCHMARKS
from headgate.bench.result import Failed
from headgate.bench.worker import worker
from headgate.model.api import ProduceAnswer, ProduceEvent, ProduceResult
from tests.client.producing.produce_server import ProduceServer, produce_server


def test_it_is_registered() -> None:
    assert BENCHMARKS["append"].name == "append"


@pytest.mark.parametrize("number", [0, 7, 123_456_789])
def test_documents_have_exactly_the_size_and_are_objects(number: int) -> None:
    made = document(number, 200)
    assert len(made) == 200
    assert msgspec.json.decode(made)["number"] == number


def test_ids_differ_between_rounds_and_events() -> None:
    ids = {event_id(name, number) for name in ("r1", "r11") for number in range(300)}
    assert len(ids) == 600


def test_ratios_compare_each_round_with_its_neighbour() -> None:
    rounds = [
        Round(50, 100, [1.0, 3.0], secured_per_s=49),
        Round(10, 10, [2.0], secured_per_s=9),
        Round(30, 100, [9.0], secured_per_s=33),
    ]
    result = result_of(rounds, rounds[:1], rounds[1:2], {"rss_mb_end": 5.0}, {"cores": 2})
    assert result.ratios == {
        "batched": 0.5,
        "batched_opportunistic": 0.5,
        "single": 1.0,
        "secured": 0.98,
        "secured_single": 0.9,
    }
    assert result.figures["secured_events_per_s"] == 33
    assert result.figures["events_per_s"] == 30
    assert result.figures["bare_events_per_s"] == 100
    assert (result.figures["p50_ms"], result.figures["p99_ms"]) == (3.0, 9.0)
    assert result.figures["rss_mb_end"] == 5.0


def test_single_requests_are_shown_next_to_the_barest_server() -> None:
    rounds = [Round(50, 100, [1.0], protocol_per_s) for protocol_per_s in (60.0, 80.0, 70.0)]
    result = result_of(rounds, rounds, rounds, {}, {})
    assert result.figures["single_bare_protocol_per_s"] == 70.0


async def test_the_barest_server_commits_a_row_per_request(tmp_path: Path) -> None:
    async with worker("headgate.bench.append.protocol") as protocol:
        serving = await protocol.ask(ServeBare(str(tmp_path), document_bytes=100), Serving)
        load = Load(serving.url, "t", "r", 1, requests=5, events=1, document_bytes=100, keyed=True)
        sent = await asyncio.to_thread(run, load)
        assert len(sent.latencies_ms) == 5
    connection = apsw.Connection(str(tmp_path / "protocol.db"))
    assert list(connection.execute("SELECT count(*), max(seq) FROM records")) == [(5, 5)]
    assert list(connection.execute("SELECT head FROM partition")) == [(5,)]
    connection.close()


async def test_the_bare_store_writes_every_row_round_after_round(tmp_path: Path) -> None:
    order = Bare(str(tmp_path), "r1", writers=2, commits=6, rows=60, document_bytes=100)
    async with worker("headgate.bench.append.bare") as bare:
        for name in ("r1", "r2"):
            written = await bare.ask(msgspec.structs.replace(order, round_name=name), Written)
            assert written.seconds > 0
    for number in range(2):
        connection = apsw.Connection(str(tmp_path / f"{number}.db"))
        found = connection.execute("SELECT count(*), max(seq), sum(length(document)) FROM records")
        assert list(found) == [(360, 360, 36_000)]
        assert list(connection.execute("SELECT head FROM partition")) == [(360,)]
        assert list(connection.execute("SELECT count(*) FROM ids")) == [(360,)]
        connection.close()


def load(server: ProduceServer, **changes: object) -> Load:
    made = Load(
        server.url,
        "t",
        "r1",
        clients=3,
        requests=7,
        events=5,
        document_bytes=100,
        keyed=True,
        version=1,
    )
    return msgspec.structs.replace(made, **changes)


async def test_the_load_sends_every_request_and_times_it() -> None:
    async with produce_server() as server, worker("headgate.bench.append.load") as clients:
        server.add_topic("t")
        sent = await clients.ask(load(server), Sent)
        assert len(sent.latencies_ms) == 7
        assert len(server.written("t")) == 35
        assert set(server.versions) == {1}
        paced = await clients.ask(load(server, round_name="r2", clients=1, per_s=50.0), Sent)
        assert paced.seconds >= 0.6
        assert server.credentials == {""}
        await clients.ask(load(server, round_name="r3", token="hg_1"), Sent)
        assert server.credentials == {"", "Bearer hg_1"}


async def test_an_event_that_was_not_acknowledged_fails_the_benchmark() -> None:
    def script(events: list[ProduceEvent]) -> ProduceAnswer | None:
        return ProduceAnswer([ProduceResult(event.event_id or "") for event in events])

    async with produce_server() as server, worker("headgate.bench.append.load") as clients:
        server.add_topic("t")
        server.script = script
        with pytest.raises(Failed, match="without an answer"):
            await clients.ask(load(server), Sent)


def test_a_load_that_nobody_answers_is_not_a_measurement(unused_tcp_port: int) -> None:
    nowhere = Load(f"http://127.0.0.1:{unused_tcp_port}", "t", "r1", 1, 1, 1, 100, True)
    with pytest.raises(ConnectionRefusedError):
        run(nowhere)
