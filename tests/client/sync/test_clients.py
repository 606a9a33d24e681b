"""The blocking subscriber and consumer: the same promises, from threads without a loop; cancelling
means that another thread closes, or that somebody presses Ctrl-C."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from headgate import errors
from headgate.client import Event, SyncConsumer, SyncSubscriber
from headgate.client.sync.blocking import Call
from tests.client.served_gateway import ServedGateway, served_gateway
from tests.client.sync.test_producer import in_thread
from tests.waiting import until

WAIT_S = 30.0
BUSY_S = 0.1
Client = SyncSubscriber | SyncConsumer


def subscriber(gateway: ServedGateway, **options: Any) -> SyncSubscriber:
    return SyncSubscriber(
        gateway.url, "a", id="s", start="earliest", **{"retry_first_s": 0.01, **options}
    )


def consumer(gateway: ServedGateway, **options: Any) -> SyncConsumer:
    return SyncConsumer(gateway.url, "a", "g", consumer="c", **{"retry_first_s": 0.01, **options})


MAKERS = [pytest.param(subscriber, id="subscriber"), pytest.param(consumer, id="consumer")]


async def in_a_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.wait_for(asyncio.wrap_future(in_thread(work)), WAIT_S)


def seqs(items: list[Any]) -> list[int]:
    assert all(isinstance(item, Event) for item in items), items
    return [item.seq for item in items]


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.mark.parametrize("make", MAKERS)
async def test_items_come_one_by_one_and_a_wait_may_have_an_end(
    make: Callable[[ServedGateway], Client],
) -> None:
    def use(gateway: ServedGateway) -> None:
        with make(gateway) as client:
            assert seqs([next(client), next(client)]) == [1, 2]
            item = client.next(timeout_s=WAIT_S)
            assert seqs([item]) == [3]
            assert client.next(timeout_s=0.01) is None
            assert client.next(timeout_s=0) is None
            assert client.reconnects == 0
        assert list(client) == []
        with pytest.raises(errors.InvalidRequest, match="closed"):
            client.next(timeout_s=0)

    async with served_gateway() as gateway:
        gateway.append("a", 3)
        await in_a_thread(lambda: use(gateway))
        assert not threads_of("subscriber") + threads_of("consumer")
        await until(lambda: not gateway.sessions)
        assert not gateway.mistakes


@pytest.mark.parametrize("make", MAKERS)
async def test_who_enters_it_twice_is_told_so_and_it_goes_on(
    make: Callable[[ServedGateway], Client],
) -> None:
    def use(gateway: ServedGateway) -> None:
        with make(gateway) as client:
            with pytest.raises(errors.InvalidRequest, match="entered once"):
                client.__enter__()
            assert seqs([next(client)]) == [1]

    async with served_gateway() as gateway:
        gateway.append("a")
        await in_a_thread(lambda: use(gateway))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("when", ["it waits", "it reconnects", "it is entered"])
async def test_every_thread_hears_of_it_when_another_closes(
    make: Callable[[ServedGateway], Client], when: str
) -> None:
    async with served_gateway() as gateway:
        client = make(gateway)
        name = "s" if isinstance(client, SyncSubscriber) else "c"
        if when == "it is entered":
            gateway.silent.update((name, *names(client)))
            waiting: Future[object] = in_thread(client.__enter__)
            await until(lambda: gateway.opened == 1)
        else:
            await in_a_thread(client.__enter__)
            if when == "it reconnects":
                gateway.silent.update((name, *names(client)))
                gateway.drop_all()
                await until(lambda: gateway.opened == 2)
            waiting = in_thread(lambda: list(client))
        await in_a_thread(client.close)
        if when == "it is entered":
            with pytest.raises(errors.HeadgateError, match="closed"):
                await asyncio.wait_for(asyncio.wrap_future(waiting), WAIT_S)
        else:
            assert await asyncio.wait_for(asyncio.wrap_future(waiting), WAIT_S) == []
        await until(lambda: not gateway.sessions)
        assert not threads_of("subscriber") + threads_of("consumer")


def names(client: Client) -> list[str]:
    if isinstance(client, SyncSubscriber):
        return list(client._subscriber._following.subscriptions)
    return [client.id]


@pytest.mark.parametrize("make", MAKERS)
async def test_what_an_interrupted_thread_did_not_see_is_the_next_one(
    make: Callable[[ServedGateway], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the moment at which the item has come."""

    def use(gateway: ServedGateway) -> None:
        with make(gateway) as client:
            wait = client._outcome

            def interrupted(call: Call[Any]) -> Any:
                monkeypatch.setattr(client, "_outcome", wait)
                wait(call)
                raise KeyboardInterrupt

            monkeypatch.setattr(client, "_outcome", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(client)
            assert seqs([client.next(0.5), client.next(0.5)]) == [1, 2]

    async with served_gateway() as gateway:
        gateway.append("a", 2)
        await in_a_thread(lambda: use(gateway))


@pytest.mark.parametrize("is_closed", [False, True])
async def test_positions_that_an_interrupted_thread_reads_do_not_pass_what_it_did_not_see(
    monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    """However long it takes the client to hear of the Ctrl-C."""

    def use(gateway: ServedGateway) -> None:
        with subscriber(gateway) as client:
            assert seqs([next(client)]) == [1]
            wait = client._outcome

            def interrupted(call: Call[Any]) -> Any:
                monkeypatch.setattr(client, "_outcome", wait)
                wait(call)
                client._loop.call_soon_threadsafe(threading.Event().wait, BUSY_S)
                raise KeyboardInterrupt

            monkeypatch.setattr(client, "_outcome", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(client)
            if is_closed:
                client.close()
            assert client.positions == client.positions_of(*names(client)) == {0: 1}

    async with served_gateway() as gateway:
        gateway.append("a", 2)
        await in_a_thread(lambda: use(gateway))


async def test_acknowledgements_and_positions_are_those_of_the_client() -> None:
    def use(gateway: ServedGateway) -> None:
        with subscriber(gateway, acks="manual") as client:
            items = [next(client) for _ in range(3)]
            client.ack(items[1])
            assert client.positions == {0: 3}
            assert client.positions_of("s" if "s" in names(client) else names(client)[0]) == {0: 3}
            assert client.subscribed.topic == "a"
        with consumer(gateway, acks="manual") as other:
            message = next(other)
            other.acknowledge(message)
            assert (other.targets, other.id) == (frozenset({0}), "c")
            assert other.joined is not None

    async with served_gateway() as gateway:
        gateway.append("a", 3)
        await in_a_thread(lambda: use(gateway))
        assert gateway.groups["g"].settled == 1
        acks = [one for one in gateway.requests if one["type"] == "ack"]
        assert [one["positions"] for one in acks] == [{"0": 2}, {"0": 1}]


async def test_what_is_wrong_is_raised_and_the_thread_ends() -> None:
    def use(gateway: ServedGateway) -> None:
        client = SyncSubscriber(gateway.url)
        client.add("a", id="refused")
        with pytest.raises(errors.UnknownTopic), client:
            raise AssertionError("not entered")

    async with served_gateway() as gateway:
        gateway.refused["refused"] = {"code": "unknown_topic", "message": "no", "details": {}}
        await in_a_thread(lambda: use(gateway))
        assert not threads_of("subscriber")
