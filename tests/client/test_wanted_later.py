"""A message that its consumer can't process now comes again, in its order."""

from __future__ import annotations

import asyncio

import pytest

from headgate import errors
from headgate.client import Consumer
from headgate.model.client_messages import Event
from tests.client.virtual_gateway import VirtualGateway, options
from tests.virtual_time import run_virtual


def test_a_message_comes_again_after_its_delay_and_the_others_behind_it() -> None:
    async def consume() -> None:
        gateway = VirtualGateway()
        gateway.append("a", 3)
        made = Consumer(topic="a", group="g", consumer="c", **options())
        async with gateway.served(made) as consumer:
            now_s = asyncio.get_running_loop().time
            begun_s = now_s()
            seqs: list[int] = []
            async for message in consumer:
                assert isinstance(message, Event)
                seqs.append(message.seq)
                if len(seqs) <= 2:
                    await consumer.nack(message, 60.0)
                if message.seq == 3:
                    break
            assert seqs == [1, 1, 1, 2, 3]
            assert 120.0 <= now_s() - begun_s < 121.0

    run_virtual(consume())


def test_closing_waits_for_nothing_that_is_wanted_later() -> None:
    async def consume() -> None:
        gateway = VirtualGateway()
        gateway.append("a", 1)
        made = Consumer(topic="a", group="g", consumer="c", **options())
        async with gateway.served(made) as consumer:
            await consumer.nack(await anext(consumer), 600.0)
            begun_s = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - begun_s < 5.0
        assert gateway.groups["g"].settled == 0

    run_virtual(consume())


@pytest.mark.parametrize("delay_s", [-1.0, float("inf"), float("nan")])
def test_a_delay_that_is_none_is_refused(delay_s: float) -> None:
    async def consume() -> None:
        gateway = VirtualGateway()
        gateway.append("a", 1)
        made = Consumer(topic="a", group="g", consumer="c", **options())
        async with gateway.served(made) as consumer:
            with pytest.raises(errors.InvalidRequest, match="can't come again"):
                await consumer.nack(await anext(consumer), delay_s)

    run_virtual(consume())


def test_a_message_comes_again_to_whoever_waits_for_the_next_already() -> None:
    async def consume() -> None:
        gateway = VirtualGateway()
        gateway.append("a", 1)
        made = Consumer(topic="a", group="g", consumer="c", acks="manual", **options())
        async with gateway.served(made) as consumer:
            first = await anext(consumer)
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(1.0)
            await consumer.nack(first)
            async with asyncio.timeout(5.0):
                again = await waiting
            assert isinstance(again, Event)
            assert again.seq == 1

    run_virtual(consume())


def test_what_stood_behind_it_comes_to_whoever_waits_once_it_is_acknowledged_after_all() -> None:
    async def consume() -> None:
        gateway = VirtualGateway()
        gateway.append("a", 2)
        made = Consumer(topic="a", group="g", consumer="c", acks="manual", **options())
        async with gateway.served(made) as consumer:
            first = await anext(consumer)
            await consumer.nack(first, 3_600.0)
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(1.0)
            await consumer.acknowledge(first)
            async with asyncio.timeout(5.0):
                behind = await waiting
            assert isinstance(behind, Event)
            assert behind.seq == 2

    run_virtual(consume())
