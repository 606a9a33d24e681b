"""The blocking producer: the same promises, from a thread without a loop."""

from __future__ import annotations

import asyncio

import pytest

from headgate.client.outgoing import OutgoingEvent, Receipt
from headgate.client.sync_producer import SyncProducer
from headgate.errors import InvalidRequest, UnknownTopic
from tests.client.produce_server import produce_server


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
