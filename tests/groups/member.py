"""Consumers as users write them: real clients with handlers that take their time, are cancelled,
ask for an event again, freeze and are killed, and others that fail with some events every time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Literal

from headgate import errors
from headgate.client.consumer import Consumer
from headgate.model.client_messages import Event, Item, Resync, is_redelivery, seq_of
from headgate.ports.connection import LinkListener
from headgate.ports.machine import Machine
from tests.groups.network import GroupDoors, GroupLink, Network
from tests.groups.oracle import BYSTANDER, Oracle, Work

Style = Literal["auto", "manual", "pool"]
"""Acknowledges by asking for the next one, by saying so, or works on several keys at a time."""
POOL = 5
KEYS_EXPECTED = 96
NACKS = 0.02
POLLS_S = (0.001, 0.05, 0.4, 3.0, 20.0)
Place = tuple[int, int, int, bool, bool]
"""Target, partition and seq, and what tells a redelivery and a resync from the record there."""
Doom = Literal["raise", "die", "hang"]
"""An exception ends it, its process ends without a word, or it has to be killed."""
NO_LIMIT_SURVIVES = 0.4
"""How often a consumer that may be handed something for ever gets through with it."""


class Poison:
    """What handlers fail with, and how a consumer that can't go on says so."""

    def __init__(self, on_doom: Callable[[Member, Doom], None]) -> None:
        self.places: set[tuple[int, int]] = set()
        self.on_doom = on_doom
        self.dooms: tuple[Doom, ...] = ("raise", "die", "hang")
        self.delays_s: tuple[float, ...] = (0.0, 0.5, 5.0, 40.0, 300.0)
        """After which they want something again."""


class Member:
    """`id_` is what the group knows it by, and may have been that of another process before."""

    def __init__(
        self,
        name: str,
        style: Style,
        network: Network,
        oracle: Oracle,
        chance: random.Random,
        *,
        machine: Machine,
        poison: Poison,
        limit: int = 0,
        id_: str | None = None,
    ) -> None:
        self.name = name
        self.id = id_ or name
        self.style = style
        self.limit = limit
        self._poison = poison
        self.slow_s = 0.0
        """What the next event takes on top."""
        self.is_dead = False
        self.has_left = False
        self._is_leaving = False
        self._network, self._oracle, self._chance = network, oracle, chance
        self._machine = machine
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._held: Work | None = None
        self._queues: dict[str, deque[tuple[Item, Work]]] = {}
        self._copies: dict[Place, list[Item]] = {}
        self._room = asyncio.Semaphore(POOL)
        self._workers: set[asyncio.Task[None]] = set()
        self._life: asyncio.Task[None] | None = None
        self.consumer = self._made()

    def _made(self) -> Consumer:
        consumer = Consumer(
            "http://nowhere",
            "flights",
            "radar",
            consumer=self.id,
            keys_expected=KEYS_EXPECTED,
            start="earliest",
            acks="auto" if self.style == "auto" else "manual",
            max_deliveries=self.limit,
            machine=self._machine,
        )
        _connect(consumer, self._network, self.name, lambda: self.is_frozen)
        return consumer

    @property
    def is_frozen(self) -> bool:
        return not self._thawed.is_set()

    def start(self) -> None:
        self._life = asyncio.create_task(self._live(), name=f"member {self.name}")

    async def _live(self) -> None:
        while True:
            try:
                await self.consumer.__aenter__()
                break
            except errors.HeadgateError:
                await asyncio.sleep(1.0)
                self.consumer = self._made()  # that one is spent
        await self._work()

    # --- working ---------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._is_leaving:
            await self._thawed.wait()
            if self._held is not None:
                self._oracle.acknowledged(self._held)
                self._held = None
            if self.style == "pool":
                await self._room.acquire()
            try:
                item = await self._next()
            except StopAsyncIteration:
                return
            except errors.HeadgateError:
                await asyncio.sleep(0.5)
                item = None
            if item is None:
                if self.style == "pool":
                    self._room.release()
            elif self.style == "pool":
                self._hand_to_worker(item)
            else:
                await self._handle(item, self._oracle.taken(self.name, item))

    async def _next(self) -> Item | None:
        """None: it was cancelled."""
        try:
            async with asyncio.timeout(self._chance.choice(POLLS_S)):
                return await anext(self.consumer)
        except TimeoutError:
            return None

    async def _handle(self, item: Item, work: Work) -> None:
        self._oracle.begin(work)
        try:
            await self._take_time()
            is_through = await self._gets_through(work)
        finally:
            self._oracle.end(work)
        await self._thawed.wait()
        is_nacked = self.style != "pool" and self._chance.random() < NACKS
        if isinstance(item, Event) and (is_nacked or not is_through):
            self._oracle.seen["nack"] += 1
            await self.consumer.nack(item, self._chance.choice(self._poison.delays_s))
        elif self.style == "auto":
            self._held = work
        else:
            self._oracle.acknowledged(work)
            for one in self._copies.pop(_place(item), [item]):
                async with asyncio.timeout(self._chance.choice((0.0, 1.0))):
                    await self.consumer.acknowledge(one)

    async def _take_time(self) -> None:
        quick = self._chance.choice((0.0, 0.005, 0.1, 0.4, 1.5))
        rare = 1.0 if self._chance.random() > 0.02 else self._chance.choice((10.0, 40.0))
        extra, self.slow_s = self.slow_s, 0.0
        await asyncio.sleep(quick * rare + extra)
        await self._thawed.wait()

    async def _gets_through(self, work: Work) -> bool:
        """False: it is to be asked for again. May end the consumer instead. What is asked for again
        would come behind what a pool has of its key."""
        if not work.key or work.place not in self._poison.places:
            return True
        if not self.limit and self._chance.random() < NO_LIMIT_SURVIVES:
            return True
        if self.style != "pool" and self._chance.random() < (0.4 if self.limit else 0.9):
            self._oracle.failed(work, "nack")
            return False
        how = self._chance.choice(self._poison.dooms)
        self._oracle.failed(work, how)
        self._poison.on_doom(self, how)
        await asyncio.Event().wait()
        raise AssertionError("its end is near")

    # --- several at a time -----------------------------------------------------------------------

    def _hand_to_worker(self, item: Item) -> None:
        """Events of a key one after the other; one that comes again while it is here, after a lost
        connection, is the same one."""
        place = _place(item)
        if (copies := self._copies.get(place)) is not None:
            copies.append(item)
            self._room.release()
            return
        self._copies[place] = [item]
        key = item.key if isinstance(item, Event) and item.key is not None else ""
        queue = self._queues.setdefault(key, deque())
        queue.append((item, self._oracle.taken(self.name, item)))
        if len(queue) == 1:
            worker = asyncio.create_task(self._work_off(key, queue), name=f"worker of {self.name}")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work_off(self, key: str, queue: deque[tuple[Item, Work]]) -> None:
        while queue:
            await self._handle(*queue[0])
            queue.popleft()
            self._room.release()
        del self._queues[key]

    # --- ends and faults -------------------------------------------------------------------------

    def links(self) -> list[GroupLink]:
        return self._network.links_of(self.name)

    def freeze(self) -> None:
        """The process stands still: it neither reads nor answers."""
        self._thawed.clear()
        self._oracle.frozen(self.name, True)
        for link in self.links():
            link.freeze()

    def thaw(self) -> None:
        if self.is_dead:
            return
        self._oracle.frozen(self.name, False)
        for link in self.links():
            link.thaw()
        self._thawed.set()

    async def leave(self, *, gently: bool, within_s: float = 60.0) -> None:
        """Closes after what is under way, or amid it; a close that is cancelled is tried again."""
        self._is_leaving = True
        if gently and self._life is not None:
            await asyncio.gather(self._life, *self._workers, return_exceptions=True)
        await self._end()
        self.has_left = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.consumer.close()
        await self.consumer.close()

    async def fall(self) -> None:
        """An exception leaves its `async with`."""
        await self._end()
        self.has_left = True
        error = ValueError("this can't be processed")
        await self.consumer.__aexit__(type(error), error, None)

    async def die(self, *, silently: bool) -> None:
        """Its process ends, with all it knows."""
        self.is_dead = True
        line = self.consumer._line
        for link in self.links():
            if silently:
                link.vanish()
            else:
                link._over = True
                link.cut()
        line.link = None
        self.consumer._membership.ended()
        await self._end()
        await line.close()

    async def _end(self) -> None:
        tasks = [*self._workers, *([self._life] if self._life is not None else [])]
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


class Bystander:
    """Of another group: takes everything at once, and nothing ever happens to it."""

    def __init__(self, network: Network, machine: Machine) -> None:
        self.consumer = Consumer(
            "http://nowhere",
            "flights",
            "tower",
            keys_expected=1,
            start="earliest",
            where="has(bad)",
            machine=machine,
        )
        _connect(self.consumer, network, BYSTANDER, lambda: False)
        self._life = asyncio.create_task(self._live(), name=BYSTANDER)

    async def _live(self) -> None:
        async with self.consumer:
            async for _ in self.consumer:
                pass

    async def leave(self) -> None:
        await self.consumer.close()
        await self._life


def _place(item: Item) -> Place:
    is_resync = isinstance(item, Resync)
    return item.target, item.partition, seq_of(item), is_redelivery(item), is_resync


def _connect(
    consumer: Consumer, network: Network, name: str, is_frozen: Callable[[], bool]
) -> None:
    """To `network`, as whom it is known there."""
    line = consumer._line

    def open_link(listener: LinkListener, _silence_s: float) -> GroupLink:
        link = GroupLink(listener, network, name)
        link.is_frozen = is_frozen()
        return link

    line.doors = GroupDoors(network)  # type: ignore[assignment]
    line.open_link = open_link
