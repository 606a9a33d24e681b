"""What waits in a client is bounded, whatever it is; what stands behind it is heard later, not
lost."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headgate.client import Consumer, Event, Subscriber
from headgate.client.consumer import BUFFER, BUFFER_BYTES
from tests.client.model_gateway import event
from tests.client.virtual_gateway import VirtualGateway, options
from tests.virtual_time import run_virtual


def test_redeliveries_count_like_everything_else_and_none_is_lost() -> None:
    async def consume() -> None:
        gateway = VirtualGateway()
        consumer = gateway.served(Consumer(topic="a", group="g", consumer="c", **options()))
        async with consumer:
            await asyncio.sleep(1.0)
            [session] = gateway.sessions
            total = 2 * BUFFER + 10
            for seq in range(1, total + 1):
                session.wire.send(event("a", seq, target=0, epoch=1, redelivery=True))
            session.revoke()
            await asyncio.sleep(1.0)
            assert len(consumer._membership.waiting) == BUFFER
            assert consumer.targets, "what it is asked for stands behind what isn't read"
            seen = [await anext(consumer) for _ in range(BUFFER)]
            assert [item.seq for item in seen if isinstance(item, Event)] == [*range(1, BUFFER + 1)]
            while consumer.targets:
                assert gateway.groups["g"].owner is not None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await anext(consumer)
            await asyncio.sleep(1.0)
            assert gateway.groups["g"].owner is None, "and is released when it is heard"

    run_virtual(consume())


def test_documents_fill_the_buffer_of_a_consumer_and_all_of_them_come() -> None:
    async def consume() -> None:
        gateway = VirtualGateway()
        consumer = gateway.served(Consumer(topic="a", group="g", consumer="c", **options()))
        async with consumer:
            await asyncio.sleep(1.0)
            [session] = gateway.sessions
            large = {"text": "x" * (BUFFER_BYTES // 8)}
            for seq in range(1, 31):
                session.wire.send(event("a", seq, target=0, epoch=1, document=large))
            await asyncio.sleep(1.0)
            assert len(consumer._membership.waiting) == 8
            seen = [await anext(consumer) for _ in range(30)]
            assert [item.seq for item in seen if isinstance(item, Event)] == [*range(1, 31)]

    run_virtual(consume())


@pytest.mark.parametrize("acks", ["auto", "manual"])
def test_documents_fill_the_buffer_of_a_subscriber_and_one_always_fits(acks: str) -> None:
    async def follow() -> None:
        gateway = VirtualGateway()
        gateway.append("a", 100)
        made = Subscriber(topic="a", start="earliest", buffer_bytes=50, acks=acks, **options())  # type: ignore[arg-type]
        async with gateway.served(made) as subscriber:
            await asyncio.sleep(1.0)
            waiting = subscriber._following.waiting
            assert len(waiting) == 8, 'of {"n":1}'
            seen = [await anext(subscriber) for _ in range(50)]
            await asyncio.sleep(1.0)
            assert 25 < waiting.size_bytes < 50 + 8
            seen += [await anext(subscriber) for _ in range(50)]
            assert [item.seq for item in seen if isinstance(item, Event)] == [*range(1, 101)]
            assert waiting.size_bytes == 0

    run_virtual(follow())


@pytest.mark.parametrize("acks", ["auto", "manual"])
def test_a_subscriber_that_is_not_read_holds_its_buffer_and_then_gets_everything(acks: str) -> None:
    async def follow() -> None:
        gateway = VirtualGateway()
        gateway.append("a", 100)
        made = Subscriber(topic="a", start="earliest", buffer=10, acks=acks, **options())  # type: ignore[arg-type]
        async with gateway.served(made) as subscriber:
            await asyncio.sleep(1.0)
            assert len(subscriber._following.waiting) == 10
            seen = [await anext(subscriber) for _ in range(100)]
            assert [item.seq for item in seen if isinstance(item, Event)] == [*range(1, 101)]

    run_virtual(follow())
