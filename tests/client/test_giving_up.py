"""Consumers with `max_deliveries`, real gateways and a coordinator that decides: what they fail
with becomes a letter of the group, everything else is processed in its order."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headgate.client import Consumer, Event, SyncConsumer
from headgate.client.subscriber import Item
from headgate.decide.lane.checkpoints import Checkpoint
from headgate.model.letters import Letter
from tests.client.group_system import GroupSystem, group_system, position_ref
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
        async with asyncio.timeout(30):
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
                async with asyncio.timeout(30), consumer(system) as made:
                    async for message in made:
                        number, _ = number_of(message)
                        if number == POISON:
                            raise error
                        seen.append(number)
        async with asyncio.timeout(30), consumer(system) as made:
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
                async with asyncio.timeout(30), consumer(system, acks="manual") as made:
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


async def test_so_is_a_reader_whose_workers_are_tasks() -> None:
    async with group_system() as system:
        async with consumer(system) as first:
            await owns(first)
            await produce(system, 6)
        seen: list[int] = []

        async def work(made: Consumer, message: Item) -> None:
            number, _ = number_of(message)
            if number == POISON:
                raise ValueError("poison")
            await made.acknowledge(message)
            seen.append(number)

        async def read() -> None:
            async with (
                consumer(system, acks="manual") as made,
                asyncio.TaskGroup() as workers,
            ):
                async for message in made:
                    workers.create_task(work(made, message))

        for _ in range(5):
            reading = asyncio.create_task(read())
            await until(lambda: reading.done() or bool(letters(system)))  # noqa: B023 - done by then
            reading.cancel()
            await asyncio.wait([reading])
        async with asyncio.timeout(30), consumer(system, acks="manual") as made:
            while set(seen) != {1, 2, 4, 5, 6}:
                await work(made, await anext(made))
        assert numbers(system) == [POISON]
        assert letters(system)[0].attempts == 3


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


# --- what is no failure --------------------------------------------------------------------------


def lose_connection(made: Consumer) -> None:
    link = made._line.link
    assert link is not None
    link.abort()
    made._line.lost()


async def test_a_network_that_flaps_while_a_handler_works_is_no_failure() -> None:
    async with group_system() as system, consumer(system, max_deliveries=2) as made:
        await owns(made)
        await produce(system, 1)
        async with asyncio.timeout(30):
            await anext(made)
        for _ in range(3):
            lose_connection(made)
            await until(lambda: not made.targets)
            await owns(made)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(made)
        assert not letters(system)


async def test_what_is_nacked_for_later_comes_at_once_after_a_lost_connection() -> None:
    async with group_system() as system, consumer(system, max_deliveries=2) as made:
        await owns(made)
        await produce(system, 1)
        async with asyncio.timeout(30):
            message = await anext(made)
            await made.nack(message, delay_s=60)
            lose_connection(made)
            assert number_of(await anext(made)) == (1, 2)
        assert not letters(system)


@pytest.mark.parametrize(
    "seq",
    [
        pytest.param(2, id="first"),
        pytest.param(4, id="behind one that is held back"),
        pytest.param(3, id="held back itself"),
    ],
)
async def test_other_keys_go_on_beside_one_that_is_wanted_later(seq: int) -> None:
    """Also where one of them, or one behind it, has a single delivery left."""
    async with group_system() as system:
        ref = position_ref(0, 0, targets=1)
        system.checkpoints.stored[ref] = Checkpoint(0, 0, 0, settled=0, tried=((seq, 2, 0),))
        async with asyncio.timeout(30), consumer(system, start="earliest") as made:
            await owns(made)
            await produce(system, 6)
            seen: list[int] = []
            async for message in made:
                number, _ = number_of(message)
                if number == 1:
                    await made.nack(message, delay_s=600)
                    continue
                seen.append(number)
                if seen == [2, 4, 6]:
                    break


async def test_what_waits_unseen_in_the_client_did_not_fail() -> None:
    async with group_system() as system:
        with contextlib.suppress(ValueError):
            async with consumer(system, max_deliveries=1, acks="manual") as made:
                await owns(made)
                await produce(system, 2)
                async with asyncio.timeout(30):
                    await made.acknowledge(await anext(made))
                await until(lambda: bool(made._membership.waiting))
                raise ValueError("no room on the disk")
        async with asyncio.timeout(30), consumer(system, max_deliveries=1) as made:
            assert number_of(await anext(made))[0] == 2
        assert not letters(system)


async def test_what_waits_beside_something_from_before_a_reconnect_is_not_blamed() -> None:
    async with group_system() as system:
        made = consumer(system, max_deliveries=1)
        await made.__aenter__()
        await owns(made)
        await produce(system, 2)
        async with asyncio.timeout(30):
            assert number_of(await anext(made))[0] == 1
        lose_connection(made)
        await until(lambda: not made.targets)
        await owns(made)
        await until(lambda: bool(made._membership.waiting))
        made._membership.ended()  # killed
        lose_connection(made)
        await made.close()
        async with asyncio.timeout(30), consumer(system, "d", max_deliveries=1) as other:
            assert number_of(await anext(other))[0] == 1
        assert not letters(system)
