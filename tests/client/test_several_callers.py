"""Several tasks or threads take from one consumer: each is done with its own messages only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.client import Consumer, SyncConsumer
from headgate.model.client_messages import Event, Item
from tests.client.served_gateway import served_gateway
from tests.client.sync.test_producer import in_thread
from tests.client.virtual_gateway import VirtualGateway, options
from tests.virtual_time import run_virtual
from tests.waiting import until

SAID_S = 1.0
"""Acknowledgements are said by then."""


def seq_of(item: Item | None) -> int:
    assert isinstance(item, Event)
    return item.seq


def consuming(
    work: Callable[[Consumer, Callable[[], Awaitable[int]]], Awaitable[None]], events: int = 9
) -> None:
    """`work` with a consumer, and what it takes to learn up to where the group is settled."""

    async def run() -> None:
        gateway = VirtualGateway()
        gateway.append("a", events)

        async def settled() -> int:
            await asyncio.sleep(SAID_S)
            return gateway.groups["g"].settled

        made = Consumer(topic="a", group="g", consumer="c", **options())
        async with gateway.served(made) as consumer:
            await asyncio.sleep(SAID_S)
            await work(consumer, settled)

    run_virtual(run())


def test_a_task_that_asks_is_done_with_its_own_message_alone() -> None:
    async def work(consumer: Consumer, settled: Callable[[], Awaitable[int]]) -> None:
        go_on = asyncio.Event()

        async def slow() -> None:
            assert seq_of(await anext(consumer)) == 1
            await go_on.wait()
            await anext(consumer)

        slow_one = asyncio.create_task(slow())
        await asyncio.sleep(0)
        assert [seq_of(await anext(consumer)) for _ in range(3)] == [2, 3, 4]
        assert await settled() == 0, "1 is worked on"
        go_on.set()
        await slow_one
        assert await settled() == 3, "4 and 5 are worked on"

    consuming(work)


def test_what_a_task_asked_for_together_is_done_together() -> None:
    async def work(consumer: Consumer, settled: Callable[[], Awaitable[int]]) -> None:
        batch = await asyncio.gather(*(anext(consumer) for _ in range(3)))
        assert sorted(map(seq_of, batch)) == [1, 2, 3]
        assert await settled() == 0
        await asyncio.gather(*(anext(consumer) for _ in range(3)))
        assert await settled() == 3

    consuming(work)


async def in_a_task(wait: Awaitable[Item]) -> Item:
    return await asyncio.ensure_future(wait)


async def in_time(wait: Awaitable[Item]) -> Item:
    return await asyncio.wait_for(wait, 30)


@pytest.mark.parametrize("waiting", [in_a_task, in_time])
def test_a_task_that_only_waits_takes_for_the_one_that_asked(
    waiting: Callable[[Awaitable[Item]], Awaitable[Item]],
) -> None:
    async def work(consumer: Consumer, settled: Callable[[], Awaitable[int]]) -> None:
        async def one_after_the_other(go_on: asyncio.Event) -> None:
            while True:
                await waiting(anext(consumer))
                await go_on.wait()

        fast, never = asyncio.Event(), asyncio.Event()
        fast.set()
        tasks = [asyncio.create_task(one_after_the_other(one)) for one in (never, fast)]
        assert await settled() == 0, "1 is worked on"
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        tasks[1].cancel()
        await asyncio.wait(tasks)

    consuming(work)


def test_whoever_has_ended_is_done_with_it_when_another_asks() -> None:
    async def work(consumer: Consumer, settled: Callable[[], Awaitable[int]]) -> None:
        async def one() -> int:
            return seq_of(await anext(consumer))

        assert [await asyncio.create_task(one()) for _ in range(3)] == [1, 2, 3]
        assert await settled() == 2

    consuming(work)


async def test_a_thread_that_asks_is_done_with_its_own_message_alone() -> None:
    def use(consumer: SyncConsumer, settled: Callable[[], int]) -> None:
        go_on, has_one = threading.Event(), threading.Event()

        def slow() -> list[Any]:
            items = [seq_of(next(consumer))]
            has_one.set()
            assert go_on.wait(30)
            return [*items, seq_of(next(consumer))]

        slow_one = in_thread(slow)
        assert has_one.wait(30)
        assert [seq_of(next(consumer)) for _ in range(3)] == [2, 3, 4]
        assert consumer.next(timeout_s=0.0) is not None
        assert settled() == 0, "1 is worked on"
        go_on.set()
        assert slow_one.result(30) == [1, 6]

    async with served_gateway() as gateway:
        gateway.append("a", 6)
        consumer = SyncConsumer(gateway.url, "a", "g", consumer="c")
        await asyncio.to_thread(consumer.__enter__)
        await asyncio.to_thread(use, consumer, lambda: gateway.groups["g"].settled)
        await until(lambda: gateway.groups["g"].settled == 4)
        await asyncio.to_thread(consumer.close)
