"""Coordinator, two ingest nodes, a router, two gateways and their clients in one process: all that
is acknowledged arrives, in order per key, without a socket or a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest

from headgate.client.producer import Producer
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.config import Config
from headgate.config.sections.roles import RouterSettings
from headgate.decide.feed.feed import Feed
from headgate.model.client_messages import Event, Item
from tests.sim.cluster import MemoryCluster, running
from tests.virtual_time import run_virtual

TOPIC = "flights"
PARTITIONS = 4
KEYS = 100
CALL = 250
"""Events that are sent with one call."""
PAUSE_S = 0.25
"""Between two calls."""
FILENO_AT = 4
"""So many arguments make a socket of one that is there."""
WINDOW_S = 20.0
"""One ends while events are sent; and only lanes that knew a subscriber from their beginning
deliver so that it may be written to past its queue."""
SHARED_S = 15.0
"""By then a group has shared its targets out."""


class Reader:
    """Whoever reads all that is meant for it: of each key, the numbers in the order they came."""

    def __init__(self) -> None:
        self.numbers: defaultdict[str, list[int]] = defaultdict(list)
        self.places: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.places)

    async def read(self, items: AsyncIterator[Item], until: Callable[[], bool]) -> None:
        async for item in items:
            assert isinstance(item, Event), f"{item} was left out"
            self.numbers[item.key or ""].append(item.document["number"])
            self.places.append((item.partition, item.seq))
            if until():
                return


def wanted(count: int, of: Callable[[int], bool] = lambda _: True) -> dict[str, list[int]]:
    """What a reader of `of` gets when `count` events are sent."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for number in filter(of, range(count)):
        found[f"key-{number % KEYS}"].append(number)
    return found


async def send(cluster: MemoryCluster, count: int, *, first: int = 0) -> None:
    async with cluster.producer(cluster.gateways[0].url) as producer:
        for begin in range(first, first + count, CALL):
            numbers = range(begin, min(begin + CALL, first + count))
            events = [OutgoingEvent({"number": n}, key=f"key-{n % KEYS}") for n in numbers]
            for outcome in await producer.send_many(TOPIC, events):
                assert not isinstance(outcome, Exception), outcome
            await asyncio.sleep(PAUSE_S)


async def moved(seed: int, count: int) -> tuple[Reader, Reader, list[Reader]]:
    """What two subscribers, at two gateways, and a group of two consumers get of `count` events."""
    everything, even, shares = Reader(), Reader(), [Reader(), Reader()]
    async with running(seed, Config(router=RouterSettings(window=WINDOW_S))) as cluster:
        await cluster.create_topic(cluster.gateways[0].url, TOPIC, PARTITIONS)
        first, second = (gateway.url for gateway in cluster.gateways)
        async with (
            cluster.subscriber(first, TOPIC) as one,
            cluster.subscriber(second, TOPIC, where="number % 2 == 0") as two,
            cluster.consumer(first, TOPIC, "packers") as three,
            cluster.consumer(second, TOPIC, "packers") as four,
            asyncio.timeout(600),
            asyncio.TaskGroup() as reading,
        ):
            reading.create_task(everything.read(one, lambda: len(everything) == count))
            reading.create_task(even.read(two, lambda: len(even) == count // 2))
            for share, consumer in zip(shares, (three, four), strict=True):
                reading.create_task(_share(share, consumer, shares, count))
            await asyncio.sleep(SHARED_S)
            await send(cluster, count)
    return everything, even, shares


async def _share(
    share: Reader, items: AsyncIterator[Item], shares: Iterable[Reader], count: int
) -> None:
    """Until all of the group have everything between them; whoever waits for nothing is left."""
    reading = asyncio.ensure_future(share.read(items, lambda: False))
    while sum(map(len, shares)) < count and not reading.done():  # noqa: ASYNC110 - see there
        await asyncio.sleep(0.1)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@pytest.fixture
def nothing_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket or a thread is a mistake, but for the loop's own pair, which the kernel made."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a thread or a socket")

    made = socket.socket

    class Refused(made):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **named: Any) -> None:
            if len(args) < FILENO_AT and named.get("fileno") is None:
                refuse()
            super().__init__(*args, **named)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(socket, "socket", Refused)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often feeds were asked for either way to a subscriber."""
    taken = Counter[str]()

    def counted(name: str) -> None:
        take = getattr(Feed, name)

        def counting(*args: Any, **named: Any) -> Any:
            outcome = take(*args, **named)
            taken[name] += bool(outcome)
            return outcome

        monkeypatch.setattr(Feed, name, counting)

    for name in ("pass_through", "deliver"):
        counted(name)
    return taken


@pytest.mark.usefixtures("nothing_real")
def test_ten_thousand_events_arrive_in_order_per_key(ways: Counter[str]) -> None:
    everything, even, shares = run_virtual(moved(1, 10_000))
    assert everything.numbers == wanted(10_000)
    assert even.numbers == wanted(10_000, lambda number: number % 2 == 0)
    assert all(shares), "both consumers have a share"
    together = {key: numbers for share in shares for key, numbers in share.numbers.items()}
    assert together == wanted(10_000)
    assert sum(map(len, shares)) == 10_000, "no key has two consumers"
    assert ways["pass_through"] > 1_000
    assert ways["deliver"] > 11_000, "the group's, and what came before a window began"


def test_a_seed_is_a_run() -> None:
    first, again = (run_virtual(moved(7, 500)) for _ in range(2))
    assert [one.places for one in (*first[:2], *first[2])] == [
        one.places for one in (*again[:2], *again[2])
    ]


async def read_across_a_restart(away_s: float) -> list[float]:
    """When each of ten events per second arrived, while the coordinator was away for so long."""
    loop, arrived, over = asyncio.get_running_loop(), list[float](), asyncio.Event()

    async def read(items: AsyncIterator[Item]) -> None:
        async for _ in items:
            arrived.append(loop.time())

    async def send(producer: Producer) -> None:
        number = 0
        while not over.is_set():
            await producer.send(TOPIC, {"number": number}, key=f"key-{number % KEYS}")
            number += 1
            await asyncio.sleep(0.1)

    async with running(3) as cluster:
        url = cluster.gateways[0].url
        await cluster.create_topic(url, TOPIC, PARTITIONS)
        async with (
            cluster.subscriber(url, TOPIC) as subscriber,
            cluster.producer(url) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            reading = tasks.create_task(read(subscriber))
            tasks.create_task(send(producer))
            await asyncio.sleep(5.0)
            await cluster.stop_coordinator()
            await asyncio.sleep(away_s)
            await cluster.start_coordinator()
            await asyncio.sleep(40.0)
            over.set()
            await asyncio.sleep(1.0)
            reading.cancel()
    return arrived


def test_nobody_waits_for_a_coordinator_that_comes_back() -> None:
    """Neither while it is away, nor while it finds out what there is."""
    arrived = run_virtual(read_across_a_restart(away_s=5.0))
    assert max(later - sooner for sooner, later in pairwise(arrived)) < 1.0
    assert arrived[-1] - arrived[0] > 45
