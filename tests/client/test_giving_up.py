"""Consumers with `max_deliveries`, real gateways and a coordinator that decides: what they fail
with becomes a letter of the group, everything else is processed in its order."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headgate.client import Consumer, Event, SyncConsumer
from headgate.client.subscriber import Item
from headgate.model.letters import Letter
from tests.client.group_system import GroupSystem, group_system
from tests.services.gateway.world import until

POISON = 3
"""The number that nobody can process."""


def letters(system: GroupSystem) -> list[Letter]:
    return list(system.letters.letters.values())


def numbers(system: GroupSystem) -> list[int]:
    return [one.delivery.seq for one in letters(system)]


def consumer(system: GroupSystem, name: str = "c", **options: object) -> Consumer:
    given = {"keys_expected": 100, "retry_first_s": 0.02, "max_deliveries": 3, **options}
    return Consumer(system.url, "flights", "radar", consumer=name, **given)  # type: ignore[arg-type]


async def produce(system: GroupSystem, count: int) -> None:
    for number in range(1, count + 1):
        system.log.append({"n": number}, partition=0, key=f"k{number % 2}")
    await system.deliver()


async def owns(one: Consumer) -> None:
    await until(lambda: bool(one.targets))


def number_of(message: Item) -> tuple[int, int]:
    assert isinstance(message, Event)
    return message.document["n"], message.deliveries


async def test_what_is_nacked_too_often_is_a_letter_and_the_rest_of_its_key_goes_on() -> None:
    async with group_system() as system, consumer(system) as made:
        await owns(made)
        await produce(system, 6)
        seen: list[tuple[int, int]] = []
        async with asyncio.timeout(10):
            async for message in made:
                seen.append(number_of(message))
                if seen[-1][0] == POISON:
                    await made.nack(message)
                if len([one for one in seen if one[0] != POISON]) == 5:
                    break
        assert [one for one in seen if one[0] == POISON] == [(POISON, n) for n in (1, 2, 3)]
        odd = [number for number, _ in seen if number % 2]
        assert odd == [1, 3, 3, 3, 5], "nothing of its key passes it"
        assert numbers(system) == [POISON]


async def test_an_exception_that_leaves_the_block_counts_and_a_cancelled_task_does_not() -> None:
    async with group_system() as system:
        async with consumer(system) as first:
            await owns(first)
            await produce(system, 6)
        seen: list[int] = []
        for error in (ValueError, asyncio.CancelledError, ValueError, ValueError):
            with contextlib.suppress(error):
                async with asyncio.timeout(10), consumer(system) as made:
                    async for message in made:
                        number, _ = number_of(message)
                        if number == POISON:
                            raise error
                        seen.append(number)
        async with asyncio.timeout(10), consumer(system) as made:
            async for message in made:
                seen.append(number_of(message)[0])
                if sorted(seen) == [1, 2, 4, 5, 6]:
                    break
        await until(lambda: numbers(system) == [POISON])
        assert letters(system)[0].attempts == 3


async def test_who_acknowledges_by_hand_is_blamed_only_for_what_is_certain() -> None:
    async with group_system() as system:
        async with consumer(system) as first:
            await owns(first)
            await produce(system, 6)
        seen: list[int] = []
        for _ in range(4):
            with contextlib.suppress(ValueError):
                async with asyncio.timeout(10), consumer(system, acks="manual") as made:
                    async for message in made:
                        number, _ = number_of(message)
                        if number == POISON:
                            raise ValueError("poison")
                        await made.acknowledge(message)
                        seen.append(number)
                        if 6 in seen:
                            break
        assert sorted(set(seen)) == [1, 2, 4, 5, 6]
        assert numbers(system) == [POISON]


async def test_a_blocking_consumer_counts_too() -> None:
    async with group_system() as system:
        async with consumer(system) as first:
            await owns(first)
            await produce(system, 6)

        def work() -> list[int]:
            made = SyncConsumer(
                system.url, "flights", "radar", consumer="s", keys_expected=100, max_deliveries=1
            )
            seen: list[int] = []
            with made:
                for message in made:
                    number, _ = number_of(message)
                    if number == POISON and not letters(system):
                        raise ValueError("poison")
                    seen.append(number)
                    if len(seen) == 3:
                        break
            return seen

        with pytest.raises(ValueError, match="poison"):
            await asyncio.to_thread(work)
        assert await asyncio.to_thread(work) == [4, 5, 6]
        assert numbers(system) == [POISON]
