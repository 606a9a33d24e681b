"""What the demo's page dares you to do to the system, and what became of it.

Everything that hurts is undone here, whatever ends first: who is frozen goes on, who was killed is
started again by the supervisor. Invariants: of each dare one is under way at most; what is told is
bounded; a dare never outlives the demo.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from headgate import errors
from headgate.client.subscriber import Event, Subscriber
from headgate.demo.flight import FLOOD_TIMES, TOPIC, Flight
from headgate.demo.page.slow_reading import SlowReading
from headgate.model.api import RepartitionPlan, RepartitionTopic, TopicInfo
from headgate.tasks import Crew

FREEZE_S = 5.0
FLOOD_S = 5.0
READS_NOTHING_S = 15.0
SLOW_BUFFER = 100
"""Messages that the slow subscriber takes in before its socket isn't read."""
BACK_TIMEOUT_S = 90.0
REPARTITION_TIMEOUT_S = 60.0
LEVEL_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.1
TOLD_MOST = 12

Roles = Callable[[], Mapping[str, int | None]]
"""The pid of each role that serves."""


@dataclass(frozen=True, slots=True)
class Dare:
    """One button: `title` says what it does, `about` what then happens; `under_way` is empty, or
    what is happening."""

    name: str
    title: str
    about: str
    under_way: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A sentence, and when it was said, in seconds since the start."""

    number: int
    at_s: float
    text: str


DARES = (
    Dare("kill-gateway", "Kill the gateway", "kill -9; this page is cut off and comes back"),
    Dare("kill-ingest", "Kill the ingest node", "kill -9; producers try again"),
    Dare("kill-coordinator", "Kill the coordinator", "kill -9; data flows on without it"),
    Dare("kill-router", "Kill the router", "kill -9; Spark takes 10 to 30 s to be back"),
    Dare("freeze-lane", "Freeze a lane", f"SIGSTOP for {FREEZE_S:.0f} s"),
    Dare("repartition", "Repartition", "half as many partitions more, or back, while all flows"),
    Dare("flood", "Flood", f"{FLOOD_TIMES} times the reports for {FLOOD_S:.0f} s"),
    Dare("slow", "Add a slow subscriber", f"reads nothing for {READS_NOTHING_S:.0f} s"),
)


class Dares:
    """`roles` says who serves; the topic has `partitions` as a rule."""

    def __init__(
        self, address: str, roles: Roles, flight: Flight, crew: Crew, *, partitions: int
    ) -> None:
        self._address = address
        self._roles = roles
        self._flight = flight
        self._crew = crew
        self._partitions = partitions
        self._under_way: dict[str, str] = {}
        self._told: deque[Told] = deque(maxlen=TOLD_MOST)
        self._count = 0
        self._started_s = asyncio.get_running_loop().time()
        self.left_out = self.again = 0
        """Of what slow subscribers read in the end."""

    @property
    def told(self) -> list[Told]:
        """The newest last."""
        return list(self._told)

    def list(self) -> list[Dare]:
        return [
            Dare(dare.name, dare.title, dare.about, self._under_way.get(dare.name, ""))
            for dare in DARES
        ]

    def take(self, name: str) -> None:
        """Begin. Raises NotFound for what is none, and NotNow for one that is under way."""
        work = self._work(name)
        if work is None:
            names = ", ".join(dare.name for dare in DARES)
            raise errors.NotFound(f"there is no {name[:100]}; the demo has {names}")
        if name in self._under_way:
            raise errors.NotNow(f"{name} is under way; wait until it is over")
        self._under_way[name] = "…"
        self._crew.start("dare", self._carry_out(name, work), about=name)

    def _work(self, name: str) -> Callable[[], Awaitable[str]] | None:
        verb, _, role = name.partition("-")
        if verb == "kill" and any(dare.name == name for dare in DARES):
            return lambda: self._kill(role)
        return {
            "freeze-lane": self._freeze_lane,
            "repartition": self._repartition,
            "flood": self._flood,
            "slow": self._slow,
        }.get(name)

    async def _carry_out(self, name: str, work: Callable[[], Awaitable[str]]) -> None:
        try:
            self._tell(await work())
        except (errors.HeadgateError, OSError) as error:
            self._tell(f"{name} came to nothing: {error}")
        finally:
            del self._under_way[name]

    def _begin(self, name: str, text: str) -> None:
        self._under_way[name] = text
        self._tell(text)

    def _tell(self, text: str) -> None:
        self._count += 1
        at_s = asyncio.get_running_loop().time() - self._started_s
        self._told.append(Told(self._count, round(at_s, 1), text))

    # --- each of them ----------------------------------------------------------------------------

    async def _kill(self, role: str) -> str:
        pid = self._roles().get(role)
        if pid is None:
            raise errors.NotNow(f"the {role} is being started already")
        os.kill(pid, signal.SIGKILL)
        began_s = asyncio.get_running_loop().time()
        self._begin(f"kill-{role}", f"killed the {role}, pid {pid}")
        await _until(lambda: self._roles().get(role) not in (None, pid), BACK_TIMEOUT_S, role)
        took_s = asyncio.get_running_loop().time() - began_s
        return f"the {role} is back after {took_s:.1f} s"

    async def _freeze_lane(self) -> str:
        status = self._flight.status
        lanes = [lane for lane in status.lanes if lane.pid] if status is not None else []
        if not lanes:
            raise errors.NotNow("no lane reads at the moment")
        lane = lanes[self._count % len(lanes)]
        os.kill(lane.pid, signal.SIGSTOP)
        try:
            refs = ", ".join(lane.partitions)
            self._begin("freeze-lane", f"froze lane {lane.lane}, pid {lane.pid}, of {refs}")
            await asyncio.sleep(FREEZE_S)
        finally:
            with suppress(ProcessLookupError):  # its window was given up, and it with that
                os.kill(lane.pid, signal.SIGCONT)
        return f"lane {lane.lane} goes on"

    async def _repartition(self) -> str:
        path = f"/v1/topics/{TOPIC}"
        async with self._flight.badges.client() as http:
            now = (await http.get(path, TopicInfo)).partitions
            more = self._partitions + max(1, self._partitions // 2)
            to = more if now == self._partitions else self._partitions
            await http.post(f"{path}/repartition", RepartitionTopic(to), RepartitionPlan)
            began_s = asyncio.get_running_loop().time()
            self._begin("repartition", f"from {now} to {to} partitions, while all flows")
            await _until(lambda: self._has(to), REPARTITION_TIMEOUT_S, "the repartition")
        took_s = asyncio.get_running_loop().time() - began_s
        return f"the topic has {to} partitions after {took_s:.1f} s"

    def _has(self, partitions: int) -> bool:
        status = self._flight.status
        found = [one for one in status.topics if one.name == TOPIC] if status is not None else []
        return any(one.repartition is None and one.partitions == partitions for one in found)

    async def _flood(self) -> str:
        self._flight.flood(FLOOD_S)
        self._begin("flood", f"{FLOOD_TIMES} times the reports for {FLOOD_S:.0f} s")
        await asyncio.sleep(FLOOD_S)
        return "the flood is over"

    async def _slow(self) -> str:
        token = self._flight.badges.admin
        async with Subscriber(self._address, TOPIC, buffer=SLOW_BUFFER, token=token) as subscriber:
            reading = SlowReading(subscriber.positions)
            self._begin("slow", f"a subscriber reads nothing for {READS_NOTHING_S:.0f} s")
            await asyncio.sleep(READS_NOTHING_S)
            wanted = self._heads()
            with suppress(TimeoutError):
                async with asyncio.timeout(LEVEL_TIMEOUT_S):
                    async for item in subscriber:
                        if isinstance(item, Event):
                            reading.read(item.partition, item.seq)
                        if reading.has_reached(wanted):
                            break
        self.left_out += reading.left_out
        self.again += reading.again
        return f"the slow subscriber: {reading.said(wanted)}"

    def _heads(self) -> dict[int, int]:
        """How far the log was at the last look."""
        status = self._flight.status
        found = [one for one in status.topics if one.name == TOPIC] if status is not None else []
        return {one.partition: one.head for topic in found for one in topic.details}


async def _until(is_so: Callable[[], bool], timeout_s: float, what: str) -> None:
    """The supervisor and the coordinator tell no one: there is no signal to wait for."""
    try:
        async with asyncio.timeout(timeout_s):
            while not is_so():  # noqa: ASYNC110  # see above
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError as error:
        raise errors.Timeout(f"{what} took more than {timeout_s:.0f} s") from error
