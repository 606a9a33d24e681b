"""The blocking producer: the same promises, from a thread without a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import pytest

from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.outgoing import Outcome, OutgoingEvent, Receipt
from headgate.client.sync import blocking
from headgate.client.sync.producer import SyncProducer
from headgate.errors import (
    HeadgateError,
    InvalidRequest,
    NotNow,
    OutcomeUnknown,
    UnknownTopic,
)
from tests.client.producing.produce_server import produce_server

T = TypeVar("T")


def use(url: str) -> None:
    with SyncProducer(url) as producer:
        assert producer.send("flights", {"n": 1}, event_id="e").event_id == "e"
        outcomes = producer.send_many("flights", [OutgoingEvent({"n": 2}), OutgoingEvent({"n": 3})])
        assert all(isinstance(outcome, Receipt) for outcome in outcomes)
        with pytest.raises(UnknownTopic):
            producer.send("nope", {})
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send("flights", {})


async def test_calls_block_until_the_events_are_written() -> None:
    async with produce_server() as server:
        server.add_topic("flights", 1)
        await asyncio.wait_for(asyncio.to_thread(use, server.url), 30)
        assert server.documents("flights") == [{"n": n} for n in (1, 2, 3)]


# --- closing while others send -------------------------------------------------------------------

THREADS = 8


def in_thread(work: Callable[[], T]) -> Future[T]:
    """In a thread that may hang without holding up the tests."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def send_on(producer: SyncProducer, name: int, some_sent: threading.Event) -> list[Outcome]:
    """One event after the other, until one isn't written."""
    outcomes: list[Outcome] = []
    while not outcomes or isinstance(outcomes[-1], Receipt):
        try:
            event_id = f"{name}-{len(outcomes)}"
            outcomes.append(producer.send("flights", {}, key=str(name), event_id=event_id))
        except HeadgateError as error:
            outcomes.append(error)
        if len(outcomes) > 3:
            some_sent.set()
    return outcomes


def close_while_others_send(url: str) -> list[list[Outcome]]:
    some_sent = threading.Event()
    options = ProducerOptions(outstanding_events=3)
    with SyncProducer(url, options) as producer:
        sending = [
            in_thread(partial(send_on, producer, name, some_sent)) for name in range(THREADS)
        ]
        assert some_sent.wait(30)
    return [one.result(30) for one in sending]


async def test_every_thread_hears_the_truth_when_another_closes() -> None:
    async with produce_server() as server:
        server.add_topic("flights", 1)
        per_thread = await asyncio.to_thread(close_while_others_send, server.url)
        written = {event.event_id for event in server.written("flights")}
    receipts = [one for outcomes in per_thread for one in outcomes if isinstance(one, Receipt)]
    assert {one.event_id for one in receipts} == written
    for outcomes in per_thread:
        assert isinstance(outcomes[-1], InvalidRequest | NotNow)


def test_closing_ends_calls_that_never_get_an_answer(unused_tcp_port: int) -> None:
    options = ProducerOptions(deadline_s=0.2, backoff_first_s=0.01, linger_s=0.0)
    with SyncProducer(f"http://127.0.0.1:{unused_tcp_port}", options) as producer:
        sending = [in_thread(lambda: producer.send("flights", {})) for _ in range(THREADS)]
    for one in sending:
        assert isinstance(one.exception(10), InvalidRequest | NotNow)


def test_a_call_that_would_never_end_is_unknown_when_the_producer_is_closed(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    async def never_ends(*_: object, **__: object) -> Receipt:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Producer, "send", never_ends)
    monkeypatch.setattr(blocking, "LAST_WORDS_S", 0.01)
    producer = SyncProducer(f"http://127.0.0.1:{unused_tcp_port}")
    sending = in_thread(lambda: producer.send("flights", {}))
    assert begun.wait(30)
    producer.close()
    producer.close()
    assert isinstance(sending.exception(5), OutcomeUnknown)
