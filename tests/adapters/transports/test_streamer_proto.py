"""The messages of the gRPC transport, for senders that have only the .proto file."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import errors
from headgate.adapters.grpc import streamer
from headgate.adapters.grpc.streamer import DeliveryAck, EventBatch, StreamerEvent
from headgate.adapters.listeners import GrpcListener, ListenerOptions
from headgate.model.delivery import Batch, DeliveryAnswer
from tests.adapters.transports.stage import GATEWAY, Book

ROOT = Path(__file__).parents[3]


def test_the_compiled_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    compiled = tmp_path / "streamer.binpb"
    subprocess.run(["sh", ROOT / "scripts/proto.sh", compiled], check=True, timeout=60)
    used = Path(streamer.__file__).with_name("streamer.binpb")
    assert used.read_bytes() == compiled.read_bytes(), "run make proto"


@pytest.mark.parametrize("message", [EventBatch, DeliveryAck], ids=["batch", "ack"])
@given(st.binary(min_size=1), st.sampled_from([1, 127, 128, 16_383, 16_384, 2_097_152]))
def test_what_is_only_json_is_written_and_read_as_the_library_does(
    message: Any, some: bytes, size: int
) -> None:
    for text in (some, b"x" * size):
        encoded = message(json=text).SerializeToString()
        assert streamer.encode(text) == encoded
        start = streamer.only_json(encoded)
        assert start is not None
        assert encoded[start:] == text


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_json_is_found_only_where_the_library_finds_nothing_else(
    data: bytes,
) -> None:
    for tried in (data, b"\x7a" + data):
        start = streamer.only_json(tried)
        if start is not None:
            assert EventBatch.FromString(tried) == EventBatch(json=tried[start:])


@pytest.mark.parametrize(
    "message",
    [
        EventBatch(),
        EventBatch(gateway_id=GATEWAY, json=b"{}"),
        EventBatch(window=1),
        EventBatch(events=[StreamerEvent(seq=1)]),
    ],
    ids=["empty", "with a field before it", "another field", "events"],
)
def test_all_other_messages_are_left_to_the_library(message: Any) -> None:
    assert streamer.only_json(message.SerializeToString()) is None
    assert streamer.only_json(b"\x7a\x00") is None
    assert streamer.only_json(b"\x7a\x05abc") is None
    assert streamer.only_json(b"\x7a\x01ab") is None
    assert streamer.only_json(b"\x7a" + b"\x80" * 9) is None


def event(**changes: Any) -> Any:
    fields = {
        "subscription_ids": ["s1", "s2"],
        "event_type": "update",
        "tenant": "acme",
        "collection": "positions",
        "document_id": "DLH1",
        "payload": b'{"alt":1}',
        "seq": 5,
        "partition_id": 2,
        "topic": "flights",
        "event_id": "e5",
        "epoch": 3,
        "time_ms": 99,
        "since": [0, 4],
        "left": ["s2"],
    }
    return StreamerEvent(**{**fields, **changes})


async def exchange(accept: Any, *batches: Any) -> list[Any]:
    """What a gateway answers to a sender that knows the messages and nothing else."""
    listener = GrpcListener(ListenerOptions(protocol="grpc"), accept)
    url = await listener.start()
    async with grpc.aio.insecure_channel(url.removeprefix("grpc://")) as channel:
        stream: Any = channel.stream_stream(
            "/headgate.v1.Streamer/DeliverEvents",
            request_serializer=EventBatch.SerializeToString,
            response_deserializer=DeliveryAck.FromString,
        )()
        answers = []
        for batch in batches:
            await stream.write(batch)
            answers.append(await stream.read())
        await stream.done_writing()
    await listener.stop(1.0)
    return answers


async def test_events_field_by_field_are_deliveries() -> None:
    book = Book()
    sent = EventBatch(gateway_id=GATEWAY, window=7, attempt=1, incarnation="i", events=[event()])
    (ack,) = await exchange(book, sent)
    assert (ack.accepted, ack.rejected, list(ack.results)) == (1, 0, [1])
    assert ack.fill == 0.25
    (found,) = book.batches
    assert (found.gateway_id, found.window, found.attempt) == (GATEWAY, 7, 1)
    assert found.incarnation == "i"
    (one,) = found.deliveries
    assert (one.topic, one.partition, one.seq, one.event_id) == ("flights", 2, 5, "e5")
    assert (one.key, one.collection, one.op, one.epoch) == ("DLH1", "positions", "update", 3)
    assert (bytes(one.document), one.time_ms) == (b'{"alt":1}', 99)
    assert (one.subscriptions, one.since, one.left) == (("s1", "s2"), (0, 4), ("s2",))
    assert (one.redelivery, one.lost_from, one.broadcast) == (False, 0, False)


async def test_what_is_not_an_ordinary_record_is_marked_as_such() -> None:
    book = Book()
    marks: list[dict[str, Any]] = [{"redelivery": True}, {"lost_from": 4}, {"broadcast": True}]
    await exchange(book, EventBatch(events=[event(**mark) for mark in marks]))
    found = [(one.redelivery, one.lost_from, one.broadcast) for one in book.deliveries]
    assert found == [(True, 0, False), (False, 4, False), (False, 0, True)]


async def test_a_record_without_a_key_has_none() -> None:
    book = Book()
    await exchange(book, EventBatch(events=[event(document_id=None)]))
    assert book.deliveries[0].key is None


async def test_every_verdict_has_its_number() -> None:
    def mixed(_batch: Batch) -> DeliveryAnswer:
        return DeliveryAnswer(
            ("accepted", "duplicate", "no_subscriber", "stale_fence", "retry", "rejected")
        )

    (ack,) = await exchange(mixed, EventBatch(events=[event() for _ in range(6)]))
    assert list(ack.results) == [1, 2, 3, 4, 5, 6]
    assert (ack.accepted, ack.rejected) == (3, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"event_type": "upsert"}, id="unknown type"),
        pytest.param({"payload": b"{"}, id="not JSON"),
    ],
)
async def test_a_wrong_event_is_refused_and_the_stream_goes_on(wrong: dict[str, Any]) -> None:
    book = Book()
    good = EventBatch(events=[event()])
    refused, taken = await exchange(book, EventBatch(events=[event(**wrong)]), good)
    assert refused.refusal.status == errors.InvalidRequest.status
    assert "e5" in refused.refusal.message
    assert list(taken.results) == [1]
