"""The producer against a real HTTP server: order, batches, retries, bounds and errors."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headgate import errors
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.client.http import HttpClient
from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.outgoing import OutgoingEvent, Receipt, wire_event
from headgate.client.producing.pending import Call
from headgate.errors import (
    HeadgateError,
    InvalidRequest,
    NotNow,
    Overloaded,
    PeerUnreachable,
    StorageFailed,
    UnknownTopic,
)
from headgate.model.api import ProduceAnswer, ProduceEvent
from headgate.model.http import Response
from tests.client.producing.produce_server import ProduceServer, produce_server

QUICK = ProducerOptions(backoff_first_s=0.001, backoff_max_s=0.01)


@pytest.fixture
async def server() -> AsyncIterator[ProduceServer]:
    async with produce_server() as running:
        running.add_topic("flights")
        yield running


def failing_script(server: ProduceServer, failures: list[HeadgateError]) -> None:
    def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
        if failures:
            raise failures.pop()
        return None

    server.script = script


# --- the plain case ------------------------------------------------------------------------------


async def test_a_receipt_says_where_the_event_is(server: ProduceServer) -> None:
    async with Producer(server.url) as producer:
        receipt = await producer.send(
            "flights", {"a": 1}, key="k", op="update", event_id="e", collection="c"
        )
    [event] = server.written("flights")
    assert (event.key, event.op, event.event_id, event.collection) == ("k", "update", "e", "c")
    assert server.documents("flights") == [{"a": 1}]
    assert receipt == Receipt(receipt.partition, 1, "e")


@pytest.mark.parametrize("document", [b'{"a": 1.0}', '{"a": 1.0}'], ids=["bytes", "text"])
async def test_json_text_is_passed_on_as_it_is(
    server: ProduceServer, document: bytes | str
) -> None:
    async with Producer(server.url) as producer:
        await producer.send("flights", document)
    assert bytes(server.written("flights")[0].document) == b'{"a": 1.0}'


async def test_the_document_before_the_change_goes_with_the_event(server: ProduceServer) -> None:
    async with Producer(server.url) as producer:
        await producer.send("flights", {"a": 2}, event_id="1", key="k", earlier={"a": 1})
        await producer.send("flights", {"a": 3}, event_id="2", key="k", earlier='{"a": 2.0}')
        await producer.send("flights", {"a": 4}, event_id="3", key="k")
        with pytest.raises(InvalidRequest, match="no object"):
            await producer.send("flights", {"a": 5}, earlier="[]")
    sent = [event.earlier for event in server.written("flights")]
    assert [bytes(one) for one in sent if isinstance(one, msgspec.Raw)] == [
        b'{"a":1}',
        b'{"a": 2.0}',
    ]
    assert sent[2] is msgspec.UNSET


async def test_headers_go_with_the_event(server: ProduceServer) -> None:
    async with Producer(server.url) as producer:
        await producer.send("flights", {"a": 1}, key="k", headers={"trace": "7f"})
        await producer.send("flights", {"a": 2}, key="k", headers={})
        with pytest.raises(InvalidRequest, match="4,096 is the most"):
            await producer.send("flights", {"a": 3}, headers={"a": "x" * 5_000})
        wrong: dict[str, Any] = {"a": 1}
        with pytest.raises(InvalidRequest, match="isn't text"):
            await producer.send("flights", {"a": 3}, headers=wrong)
    sent = [event.headers for event in server.written("flights")]
    assert sent == [{"trace": "7f"}, msgspec.UNSET]


async def test_sends_that_come_together_share_a_request(server: ProduceServer) -> None:
    async with Producer(server.url, ProducerOptions(linger_s=0.2, batch_events=10)) as producer:
        await asyncio.gather(*(producer.send("flights", {"n": n}) for n in range(25)))
    assert [len(request) for request in server.requests[:2]] == [10, 10]
    assert sum(len(request) for request in server.requests) == 25


async def test_a_batch_is_cut_by_bytes_too(server: ProduceServer) -> None:
    options = ProducerOptions(batch_bytes=3_000)
    async with Producer(server.url, options) as producer:
        events = [OutgoingEvent({"a": "x" * 1_000}) for _ in range(9)]
        outcomes = await producer.send_many("flights", events)
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert max(len(request) for request in server.requests) == 2


async def test_calls_that_are_over_leave_no_circles_behind(server: ProduceServer) -> None:
    """Nobody but Python's collector would end those, at more cost than the calls had."""
    async with Producer(server.url) as producer:
        await producer.send("flights", {})
        gc.collect()
        gc.disable()
        try:
            await asyncio.gather(*(producer.send("flights", {}, key=str(n)) for n in range(50)))
            await producer.send_many("flights", [OutgoingEvent({}) for _ in range(50)])
            found = gc.collect()
        finally:
            gc.enable()
    assert found < 50, "less than one thing per call"


async def test_closing_sends_what_waits(server: ProduceServer) -> None:
    async with Producer(server.url, ProducerOptions(linger_s=30)) as producer:
        sending = asyncio.create_task(producer.send("flights", {"a": 1}))
        await asyncio.sleep(0)
    assert (await sending).seq == 1


async def test_a_closed_producer_says_so(server: ProduceServer) -> None:
    producer = Producer(server.url)
    await producer.close()
    with pytest.raises(InvalidRequest, match="the producer is closed"):
        await producer.send("flights", {})


# --- order ---------------------------------------------------------------------------------------


async def test_events_of_a_key_keep_the_order_of_the_calls_through_failures(
    server: ProduceServer,
) -> None:
    attempts = 0

    def script(events: list[ProduceEvent]) -> ProduceAnswer | None:
        nonlocal attempts
        attempts += 1
        if attempts % 3 == 0:
            raise NotNow("try again")
        if attempts % 3 == 1:
            return server.failing("flights", events, {"k1", "k3"})
        return None

    server.script = script
    options = ProducerOptions(batch_events=7, backoff_first_s=0.001, backoff_max_s=0.002)
    async with Producer(server.url, options) as producer:
        await asyncio.gather(
            *(producer.send("flights", {"n": n}, key=f"k{n % 5}") for n in range(200))
        )
    for key in range(5):
        numbers = [
            document["n"]
            for event, document in zip(
                server.written("flights"), server.documents("flights"), strict=True
            )
            if event.key == f"k{key}"
        ]
        assert numbers == list(range(key, 200, 5))


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [NotNow("later"), Overloaded("later"), StorageFailed("the disk is full")], ids=repr
)
async def test_what_may_pass_is_tried_again_under_the_same_ids(
    server: ProduceServer, error: HeadgateError
) -> None:
    failing_script(server, [error, error])
    async with Producer(server.url, QUICK) as producer:
        receipt = await producer.send("flights", {"a": 1})
    assert [[event.event_id for event in events] for events in server.requests] == [
        [receipt.event_id]
    ] * 3


async def test_only_the_failed_part_is_sent_again(server: ProduceServer) -> None:
    answers = iter([{"k1"}])

    def script(events: list[ProduceEvent]) -> ProduceAnswer | None:
        return server.failing("flights", events, next(answers, set()))

    server.script = script
    events = [OutgoingEvent({}, key=f"k{n}") for n in range(3)]
    async with Producer(server.url, QUICK) as producer:
        outcomes = await producer.send_many("flights", events)
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert [[event.key for event in sent] for sent in server.requests] == [
        ["k0", "k1", "k2"],
        ["k1"],
    ]


async def test_at_the_deadline_the_last_error_is_the_answer(server: ProduceServer) -> None:
    server.script = lambda events: server.failing("flights", events, {"bad"})
    options = ProducerOptions(deadline_s=0.1, backoff_first_s=0.01, backoff_max_s=0.02)
    async with Producer(server.url, options) as producer:
        events = [OutgoingEvent({}, key="bad"), OutgoingEvent({}, key="good")]
        outcomes = await producer.send_many("flights", events)
    assert isinstance(outcomes[0], NotNow)
    assert isinstance(outcomes[1], Receipt)


async def test_a_callers_mistake_is_not_tried_again(server: ProduceServer) -> None:
    async with Producer(server.url) as producer:
        with pytest.raises(UnknownTopic, match="no topic flughts"):
            await producer.send("flughts", {})


async def test_one_calls_mistake_does_not_fail_its_neighbours(server: ProduceServer) -> None:
    def script(events: list[ProduceEvent]) -> ProduceAnswer | None:
        if any(event.key == "bad" for event in events):
            raise InvalidRequest("event is bad", index=1)
        return None

    server.script = script
    async with Producer(server.url, ProducerOptions(linger_s=0.05)) as producer:
        good, bad, fine = await asyncio.gather(
            *(producer.send("flights", {}, key=key) for key in ("good", "bad", "fine")),
            return_exceptions=True,
        )
    assert isinstance(good, Receipt)
    assert isinstance(bad, InvalidRequest)
    assert isinstance(fine, Receipt)


async def test_a_document_that_is_no_json_is_refused_before_it_is_sent(
    server: ProduceServer,
) -> None:
    async with Producer(server.url) as producer:
        with pytest.raises(InvalidRequest, match="can't be written as JSON"):
            await producer.send("flights", {"a": object()})
    assert server.requests == []


async def test_nothing_at_the_address_is_said_in_a_sentence(unused_tcp_port: int) -> None:
    options = ProducerOptions(deadline_s=1.0, backoff_first_s=0.01)
    async with Producer(f"http://127.0.0.1:{unused_tcp_port}", options) as producer:
        with pytest.raises(PeerUnreachable, match="start it with `headgate up`"):
            await producer.send("flights", {})


# --- bounds --------------------------------------------------------------------------------------


async def test_what_waits_is_bounded_and_calls_wait_for_room(server: ProduceServer) -> None:
    outstanding: list[int] = []
    options = ProducerOptions(batch_events=5, outstanding_events=10, linger_s=0.0)
    async with Producer(server.url, options) as producer:

        def script(_events: list[ProduceEvent]) -> None:
            outstanding.append(producer._outstanding_events)

        server.script = script
        await asyncio.gather(*(producer.send("flights", {"n": n}) for n in range(100)))
        assert producer._outstanding_events == 0
    assert max(outstanding) <= 10
    assert len(server.written("flights")) == 100


async def test_a_cancelled_send_gives_its_room_back(server: ProduceServer) -> None:
    options = ProducerOptions(linger_s=0.05, outstanding_events=1)
    async with Producer(server.url, options) as producer:
        first = asyncio.create_task(producer.send("flights", {"n": 1}))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(producer.send("flights", {"n": 2}), 30)
    assert server.documents("flights") == [{"n": 2}]


# --- the HTTP client -----------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["127.0.0.1:8780", "ftp://x", "http://", "http://a b"], ids=repr)
async def test_an_impossible_address_is_said_in_a_sentence(url: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a Headgate address"):
        async with HttpClient(url) as client:
            await client.call("GET", "/health")


async def test_something_else_at_the_address_is_said_in_a_sentence(server: ProduceServer) -> None:
    async with HttpClient(server.url) as client:
        with pytest.raises(InvalidRequest, match="is not a Headgate of this version; name another"):
            await client.get("/v1/topics", ProduceAnswer)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"n": 2}},{"document": {"n": 666}', id="two documents"),
        pytest.param('{"n": 2},"op":"delete"', id="more fields of the event"),
        pytest.param("{bad", id="cut off"),
        pytest.param("[1]", id="no object"),
        pytest.param(b"\xff", id="no text"),
    ],
)
def test_a_text_that_is_not_one_json_object_is_refused_before_it_is_sent(text: str | bytes) -> None:
    with pytest.raises(InvalidRequest, match="the document is"):
        wire_event(OutgoingEvent(text), ScriptedMachine())


HALF = "\ud800"


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        pytest.param(OutgoingEvent({}, key=HALF), "key has half a character", id="key"),
        pytest.param(OutgoingEvent({}, key=b"k"), "key is of type bytes", id="key bytes"),  # type: ignore[arg-type]
        pytest.param(OutgoingEvent({}, event_id=HALF), "event_id has half", id="event_id"),
        pytest.param(OutgoingEvent({}, event_id=7), "event_id is of type int", id="event_id int"),  # type: ignore[arg-type]
        pytest.param(OutgoingEvent({}, collection=HALF), "collection has half", id="collection"),
        pytest.param(OutgoingEvent({}, collection=None), "collection is of type", id="no text"),  # type: ignore[arg-type]
        pytest.param(OutgoingEvent({}, op="zap"), "use one of delete, insert", id="op"),  # type: ignore[arg-type]
        *(
            pytest.param(
                OutgoingEvent({}, op=op),  # type: ignore[arg-type]
                f"op is '{op}': use one of delete, insert, update",
                id=f"op of connectors: {op}",
            )
            for op in ("read", "truncate", "drop", "rename", "lost")
        ),
        pytest.param(OutgoingEvent({"a": HALF}), "can't be written as JSON", id="document"),
        pytest.param(OutgoingEvent([1]), "give it as a mapping", id="list"),  # type: ignore[arg-type]
        pytest.param(OutgoingEvent(f'{{"a":"{HALF}"}}'), "not valid JSON", id="text"),
        pytest.param(OutgoingEvent(b'{"a":"\xff"}'), "not valid JSON", id="bytes"),
        pytest.param(OutgoingEvent(b'{"a":' * 5_000), "not valid JSON", id="deep"),
        pytest.param(OutgoingEvent({}, earlier=f'"{HALF}'), "not valid JSON", id="earlier"),
        pytest.param(OutgoingEvent({}, headers={"a": HALF}), "header of .* half a", id="header"),
        pytest.param(OutgoingEvent({}, headers=[("a", "b")]), "headers are of type", id="headers"),  # type: ignore[arg-type]
    ],
)
async def test_what_can_not_be_sent_is_refused_before_it_meets_others(
    server: ProduceServer, event: OutgoingEvent, sentence: str
) -> None:
    async with Producer(server.url) as producer:
        with pytest.raises(InvalidRequest, match=sentence):
            await producer.send_many("flights", [OutgoingEvent({}, key="fine"), event])
    assert server.requests == []


class Text(str):
    """As arrays and templates have it; the encoder knows `str` alone."""

    __slots__ = ()


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(OutgoingEvent({}, key=Text("one")), id="key"),
        pytest.param(OutgoingEvent({}, key="one", event_id=Text("7")), id="event_id"),
        pytest.param(OutgoingEvent({}, key="one", collection=Text("c")), id="collection"),
        pytest.param(OutgoingEvent({}, key="one", op=Text("update")), id="op"),  # type: ignore[arg-type]
        pytest.param(OutgoingEvent({}, key="one", headers={Text("a"): Text("b")}), id="headers"),
    ],
)
async def test_text_of_a_class_of_its_own_is_text_and_fails_nobody(
    server: ProduceServer, event: OutgoingEvent
) -> None:
    server.add_topic("flights")
    async with Producer(server.url, ProducerOptions(linger_s=0.05)) as producer:
        beside = asyncio.create_task(producer.send("flights", {}, key="beside"))
        [outcome] = await producer.send_many("flights", [event])
        assert isinstance(await beside, Receipt)
    assert isinstance(outcome, Receipt)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"a": float("nan")}, "a is nan, a number that JSON doesn't have"),
        ({"a": {"b": [1.0, None, float("inf")]}}, r"a\.b\[2\] is inf"),
        ({"a": None, "b": (float("-inf"),)}, r"b\[0\] is -inf"),
    ],
)
def test_numbers_that_json_does_not_have_are_refused(
    document: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        wire_event(OutgoingEvent(document), ScriptedMachine())
    with pytest.raises(InvalidRequest, match=sentence):
        wire_event(OutgoingEvent({}, earlier=document), ScriptedMachine())


def test_null_is_a_value_like_any_other() -> None:
    event = wire_event(
        OutgoingEvent({"a": None, "b": "null", "c": [1.5, {"d": None}]}), ScriptedMachine()
    )
    assert bytes(event.document) == b'{"a":null,"b":"null","c":[1.5,{"d":null}]}'


# --- somebody else answers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"<html>welcome</html>"), (200, b'{"events":7}'), (502, b"<html>bad gateway</html>")],
)
async def test_an_answer_that_nobody_understands_says_nothing_about_the_log(
    server: ProduceServer, status: int, body: bytes
) -> None:
    server.add_topic("flights")
    server.instead = Response(status, body)
    options = ProducerOptions(deadline_s=0.3, backoff_first_s=0.05)
    async with Producer(server.url, options) as producer:
        with pytest.raises(errors.OutcomeUnknown):
            await producer.send("flights", {"n": 1}, key="k")
    assert server.documents("flights") == [{"n": 1}]


async def test_a_refusal_by_something_in_between_means_not_written(server: ProduceServer) -> None:
    server.add_topic("flights")
    server.instead = Response(404, b"<html>no such page</html>")
    async with Producer(server.url) as producer:
        with pytest.raises(errors.InvalidRequest, match="not a Headgate"):
            await producer.send("flights", {"n": 1}, key="k")


async def test_calls_that_fail_together_have_each_its_own_error(server: ProduceServer) -> None:
    """What one caller adds to it, such as a traceback or a note, is not the others' business."""
    server.add_topic("flights")
    server.instead = Response(404, b"<html>no such page</html>")
    async with Producer(server.url) as producer:
        calls = [producer.send("flights", {"n": n}, key="k") for n in range(3)]
        failed = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(one) for one in failed} == {errors.InvalidRequest}
    assert len({id(one) for one in failed}) == 3


async def test_what_may_be_written_is_unknown_whatever_something_in_between_says_then(
    server: ProduceServer,
) -> None:
    server.add_topic("flights")
    server.instead = Response(502, b"<html>bad gateway</html>")

    def then(_events: list[ProduceEvent]) -> None:
        if len(server.requests) > 1:
            server.instead = Response(429, b"<html>slow down</html>")

    server.script = then
    async with Producer(server.url, ProducerOptions(deadline_s=2.0)) as producer:
        with pytest.raises(errors.OutcomeUnknown):
            await producer.send("flights", {"n": 1}, key="k")
    assert server.documents("flights") == [{"n": 1}]


@pytest.mark.parametrize("is_heard_of", [True, False], ids=["told", "cancelled"])
async def test_what_nobody_knew_the_outcome_of_is_said_to_come_again(
    server: ProduceServer, is_heard_of: bool
) -> None:
    """Its program sends it once more, in other company, which leads to another node."""
    server.add_topic("flights")
    server.instead, asked = Response(502, b"<html>bad gateway</html>"), asyncio.Event()
    server.script = lambda _events: asked.set()
    options = ProducerOptions(deadline_s=0.3, backoff_first_s=0.05, linger_s=0.0)
    async with Producer(server.url, options) as producer:
        sending = asyncio.create_task(producer.send("flights", {"n": 1}, event_id="e1"))
        await asyncio.wait_for(asked.wait(), 10.0)
        if is_heard_of:
            with pytest.raises(errors.OutcomeUnknown):
                await sending
        else:
            sending.cancel()
            await asyncio.wait([sending])
        server.instead = None
        before = len(server.again)
        events = [OutgoingEvent({"n": 0}, event_id="e0"), OutgoingEvent({"n": 1}, event_id="e1")]
        await producer.send_many("flights", events)
        await producer.send("flights", {"n": 2}, event_id="e2")
    assert set(server.again[:before]) == {False}
    assert [server.requests[at][-1].event_id for at, said in enumerate(server.again) if said] == [
        "e1"
    ]
    assert [event.event_id for event in server.requests[-1]] == ["e2"]


async def test_who_goes_on_with_what_another_producer_sent_says_so(server: ProduceServer) -> None:
    server.add_topic("flights")
    async with Producer(server.url, ProducerOptions(again=True)) as producer:
        await producer.send("flights", {"n": 1}, event_id="e1")
    assert server.again == [True]


async def test_a_call_that_is_cancelled_as_it_ends_is_remembered_too(
    server: ProduceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program hears that it was cancelled, and doesn't know that it was written."""
    server.add_topic("flights")
    async with Producer(server.url, ProducerOptions(linger_s=0.0)) as producer:
        sending = asyncio.create_task(producer.send("flights", {"n": 1}, event_id="e1"))

        def end(call: Call) -> None:
            ended(call)
            sending.cancel()

        ended = Call._end
        monkeypatch.setattr(Call, "_end", end)
        with pytest.raises(asyncio.CancelledError):
            await sending
        monkeypatch.undo()
        await producer.send("flights", {"n": 1}, event_id="e1")
    assert server.again == [False, True]
