"""Stores that misbehave: what any process sees of the log's readers and writers, positions, letters
and the coordinator's state while their server does.

    well      answers
    failing   does nothing and says so
    losing    does what it was asked, and says that it failed
    slow      does it after a while
    shaky     one of these, call by call
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, cast

from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.errors import OutcomeUnknown, StorageFailed
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.ports.log import Appended, Taken
from tests.sim.scheduler import Process

Mood = Literal["well", "failing", "losing", "slow", "shaky"]
BAD: Final[tuple[Mood, ...]] = ("failing", "losing", "slow", "shaky")
EVERYTHING: Final = ""
SLOW_S: Final = 2.0
LATE: Final = 0.5
LATE_S: Final = 6.0
"""Of what a server is slow to do, how much waits there for longer than a leader's lease."""
WRITTEN: Final = 0.5
"""Of the appends whose outcome is unknown, how many are in the log."""


class Weather:
    """How one store is, for everybody who uses it."""

    def __init__(self, name: str, chance: random.Random, server: Process | None = None) -> None:
        """With a `server`, what was asked is done there, however late that is and whatever has
        become of whoever asked."""
        self.name = name
        self.mood: Mood = "well"
        self.moods: dict[tuple[str, str], Mood] = {}
        """How it is for a process, by name, in one of the things that it does, or in `EVERYTHING`,
        whatever it is for everybody else."""
        self._chance = chance
        self._server = server

    async def call(self, work: Callable[[], Any], name: str = "") -> Any:
        mood = None
        if self.moods:
            caller = _caller().name
            mood = self.moods.get((caller, name), self.moods.get((caller, EVERYTHING)))
        return await self._answered(mood or self.now(), work)

    async def _answered(self, mood: Mood, work: Callable[[], Any]) -> Any:
        if mood == "slow":
            takes_s = self._chance.uniform(0.0, SLOW_S)
            if self._server is not None:
                if self._chance.random() < LATE:
                    takes_s += LATE_S
                return await self._served(self._server, takes_s, work)
            await asyncio.sleep(takes_s)
        if mood == "failing":
            await asyncio.sleep(0.001)
            raise self._failed()
        result = await work()
        if mood == "losing":
            raise self._failed()
        return result

    async def _served(self, server: Process, takes_s: float, work: Callable[[], Any]) -> Any:
        caller = _caller()
        answer: asyncio.Future[Any] = caller.create_future()

        def hears(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        async def serves() -> None:
            await asyncio.sleep(takes_s)
            try:
                result = await work()
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                caller.call_soon(hears, None, error)
            else:
                caller.call_soon(hears, result, None)

        server.start(serves())
        return await answer

    async def append(self, work: Callable[[], Any]) -> Any:
        """The same, for what may have been written all the same: whoever asked can't tell."""
        mood = self.now()
        if mood == "losing":
            if self._chance.random() < WRITTEN:
                await work()
            raise OutcomeUnknown(f"{self.name} ended in the middle of a write")
        return await self._answered(mood, work)

    def now(self) -> Mood:
        if self.mood != "shaky":
            return self.mood
        return self._chance.choice(("well", "well", *BAD[:-1]))

    def _failed(self) -> StorageFailed:
        return StorageFailed(f"{self.name} can't be reached; start it")


def _caller() -> Process:
    return cast("Process", asyncio.get_running_loop())


class Moody:
    """A store in such weather: what it does asynchronously may go wrong, the rest is as it is."""

    def __init__(self, store: Any, weather: Weather) -> None:
        self._store = store
        self._weather = weather

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name == "close" or not inspect.iscoroutinefunction(method):
            return method

        async def moody(*args: Any, **options: Any) -> Any:
            return await self._weather.call(lambda: method(*args, **options), name)

        setattr(self, name, moody)  # the next time it is found there
        return moody


class MoodyWriter(Moody):
    """The log's writer in such weather; of one partition everything in the order of the calls."""

    def __init__(self, writer: MemoryLogWriter, weather: Weather) -> None:
        super().__init__(writer, weather)
        self._writer = writer
        self._turns: defaultdict[PartitionRef, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def append(
        self, ref: PartitionRef, events: Sequence[Event], *, version: int, now_ms: int
    ) -> list[Appended]:
        async with self._turns[ref]:
            appended: list[Appended] = await self._weather.append(
                lambda: self._writer.append(ref, events, version=version, now_ms=now_ms)
            )
            return appended

    async def take_in(
        self,
        ref: PartitionRef,
        mark: IntakeMark,
        events: Sequence[Event],
        *,
        version: int,
        now_ms: int,
    ) -> Taken:
        async with self._turns[ref]:
            taken: Taken = await self._weather.append(
                lambda: self._writer.take_in(ref, mark, events, version=version, now_ms=now_ms)
            )
            return taken

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        """Behind all writes that were handed in before."""
        async with self._turns[ref]:
            found: dict[str, int] = await self._weather.call(
                lambda: self._writer.find(ref, event_ids)
            )
            return found
