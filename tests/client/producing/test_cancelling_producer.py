"""Every public call of a Producer, cancelled at each of its awaits in turn: a call that goes on
hears the truth, nothing is written twice, the calls after it work, and in the end nothing runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.outgoing import OutgoingEvent, Receipt
from headgate.errors import InvalidRequest
from tests.client.cancelling import Cancelled, Cancelling, cancel_everywhere
from tests.client.producing.test_producer_ends import Node, assert_true, outcome_of, producer_of
from tests.client.test_token_functions import Here

OTHERS = [f"{kind}-{number}" for kind in ("other", "late") for number in range(5)]
"""Sent by calls that nobody cancels."""


class ClosableNode(Node):
    def __init__(self) -> None:
        super().__init__()
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Books:
    def __init__(self, cancelling: Cancelling) -> None:
        self.cancelling = cancelling
        self.receipts: list[str] = []

    async def ask(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        """None where it was cancelled."""
        try:
            return await self.cancelling.call(name, work)
        except Cancelled:
            return None

    async def send(self, producer: Producer, *ids: str) -> None:
        receipt = None
        if len(ids) == 1:
            receipt = await self.ask("send", producer.send("t", {}, key="k", event_id=ids[0]))
            outcomes = [receipt] if receipt is not None else []
        else:
            events = [OutgoingEvent({}, key="k", event_id=one) for one in ids]
            outcomes = await self.ask("send_many", producer.send_many("t", events)) or []
        assert all(isinstance(one, Receipt) for one in outcomes), outcomes
        self.receipts += [one.event_id for one in outcomes]


async def produce(cancelling: Cancelling) -> None:
    """More than there is room for at a time, so that calls wait for each other."""
    node, books = ClosableNode(), Books(cancelling)
    producer = producer_of(node, outstanding_events=3, deadline_s=2.0)
    if await books.ask("enter", producer.__aenter__()) is None:
        await producer.__aenter__()
    await books.send(producer, "a")
    await books.send(producer, *(f"b{number}" for number in range(8)))
    others = [asyncio.create_task(outcome_of(producer, f"other-{n}", "o")) for n in range(5)]
    await asyncio.sleep(0)
    await books.send(producer, "c")
    others += [asyncio.create_task(outcome_of(producer, f"late-{n}", "o")) for n in range(5)]
    await asyncio.sleep(0)
    node.refuses_s = 0.1
    if await books.ask("close", producer.close()) is None:
        await producer.close()
    await producer.close()
    for name, other in zip(OTHERS, others, strict=True):
        assert_true({name: await other}, node)
    with pytest.raises(InvalidRequest, match="closed"):
        await producer.send("t", {})
    assert len(set(node.log)) == len(node.log)
    assert set(books.receipts) <= set(node.log)
    assert books.receipts[-1] == "c" or "c" not in books.receipts
    own = [one for one in node.log if one not in OTHERS]
    sent = ["a", *(f"b{n}" for n in range(8)), "c"]
    assert own == [one for one in sent if one in own], "in the order of the calls"
    assert producer._outstanding_events == 0
    assert node.closed


def test_a_call_may_be_cancelled_at_any_await() -> None:
    assert cancel_everywhere(produce) >= 12


async def produce_with_tokens(cancelling: Cancelling) -> None:
    """Which take a while to get, and the first of which is over when it is said."""
    here, books = Here(), Books(cancelling)
    tokens = iter(["old"])

    async def ask() -> str:
        await asyncio.sleep(0.001)
        return next(tokens, "new")

    options = ProducerOptions(deadline_s=2.0)
    producer = Producer("http://here", options, token=ask, open_calls=here.open_calls)
    if await books.ask("enter", producer.__aenter__()) is None:
        await producer.__aenter__()
    await books.send(producer, "a")
    await books.send(producer, "b0", "b1")
    await producer.send("t", {}, event_id="c")
    last = asyncio.create_task(producer.send("t", {}, event_id="d"))
    await asyncio.sleep(0)
    if await books.ask("close", producer.close()) is None:
        await producer.close()
    await asyncio.wait([last])
    if last.exception() is None:
        books.receipts.append("d")
    assert set(books.receipts) <= set(here.produced_ids)
    assert len(set(here.produced_ids)) == len(here.produced_ids)
    assert "c" in here.produced_ids
    assert producer._outstanding_events == 0
    assert here.closed


def test_so_it_may_while_tokens_are_asked_for_and_refused() -> None:
    assert cancel_everywhere(produce_with_tokens) >= 6
