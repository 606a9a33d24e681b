"""One run of the demo against a running Headgate: subscribe, produce, drain, sum up.

It is an ordinary client: what it knows about the system comes from the receipts for its reports,
from the audience's subscribers or consumers, and from GET /v1/status. Invariants: nothing is
produced before everybody is subscribed; what is under way is bounded, production pauses at the
bound; the wait at the end is bounded too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from headgate import errors
from headgate.client.http import HttpClient
from headgate.client.subscriber import Event
from headgate.demo.aircraft import Fleet
from headgate.demo.audience import Audience, Watchers
from headgate.demo.badges import PRODUCER, Badges
from headgate.demo.draining import Drain, busy_with
from headgate.demo.figures import Pace
from headgate.demo.scoreboard import Scoreboard
from headgate.demo.summary import Summary, summarize
from headgate.demo.team import Team
from headgate.demo.view import Gauges, View, WindowCount
from headgate.demo.ways_in import Numbered, Produced, WayIn
from headgate.model.api import CreateTopic, Status, TopicInfo
from headgate.tasks import Crew, first_of

TOPIC = "flights"
TIME_LAPSE = 20.0
"""Seconds of flight per second of the demo, so that aircraft climb and land while you look."""

LANES_TIMEOUT_S = 30.0
LANES_EVERY_S = 0.1
UNDER_WAY_MOST = 20_000
BATCH_MOST = 500
FLOOD_TIMES = 10
PREPARE_TIMEOUT_S = 90.0
CREATE_TIMEOUT_S = 20.0
RETRY_S = 0.5
STATUS_EVERY_S = 0.5
STATUS_KEPT_S = 5.0
"""An older answer says nothing about now."""
HALFWAY_S = 20.0
"""When it is half-way in a run that ends when the user stops it."""
TROUBLE_SHOWN_S = 5.0
NOBODY_ANSWERS = "nobody answers at the public address; subscribers and producers try again"

T = TypeVar("T")

Show = Callable[[View], None]


@dataclass(frozen=True, slots=True)
class FlightPath:
    """`seconds` None: until stopped. With `consumers`, so many share the aircraft, instead of
    subscribers with a filter each. With `mongodb`, the address of a replica set, or `postgresql`,
    that of a server, reports are written there, into `database` (a schema in the latter), and a
    connector reads them."""

    per_s: float
    partitions: int
    aircraft: int
    seed: int
    seconds: float | None
    consumers: int = 0
    mongodb: str = ""
    postgresql: str = ""
    database: str = "headgate_demo"


class Flight:
    """`show` is called with a fresh view every `show_every_s` seconds; `badges` has everybody's
    tokens."""

    def __init__(
        self,
        address: str,
        plan: FlightPath,
        show: Show,
        *,
        show_every_s: float,
        badges: Badges | None = None,
    ) -> None:
        self._address = address
        self._plan = plan
        self.badges = badges or Badges(address)
        self._show = show
        self._show_every_s = show_every_s
        self._fleet = Fleet(seed=plan.seed, count=plan.aircraft)
        self._audience = _audience(address, plan, self.badges)
        self._way_in = _way_in(address, plan, self.badges)
        self._board = Scoreboard(len(self._audience.watches))
        self._by_partition = [0] * plan.partitions
        self._gauges = Gauges(self._audience.watches)
        self._windows = WindowCount()
        self._status: Status | None = None
        self._status_s = 0.0
        self._is_lost = True
        self._moved = asyncio.Event()
        self._crew = Crew("demo")
        self._halfway: asyncio.Task[None] | None = None
        self._phase = "subscribing"
        self._trouble = "", 0.0
        self._started_s = self._now_s()
        self._produced_for_s = 0.0
        self._flood: Pace | None = None
        self._flood_ends_s = 0.0

    def flood(self, for_s: float) -> None:
        """Produce `FLOOD_TIMES` as much for a while."""
        now_s = self._now_s()
        self._flood = Pace(per_s=self._plan.per_s * (FLOOD_TIMES - 1), start_s=now_s)
        self._flood_ends_s = now_s + for_s

    @property
    def status(self) -> Status | None:
        """What the coordinator said last."""
        return self._status

    async def run(self, stopping: asyncio.Event) -> Summary:
        """Produce until the time is up or `stopping` is set, then wait for what is expected."""
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(self.badges.client())
            crew = await stack.enter_async_context(self._crew)
            crew.need("screen", self._keep_showing())
            crew.need("status", self._keep_watching(http))
            await first_of(self._prepare(http, stack), stopping.wait())
            # Ended before the tasks that they follow.
            following = await stack.enter_async_context(Crew("demo"))
            for work in self._audience.following(self._received):
                following.need("following", work)
            flight = self._produce_and_drain(http, stopping)
            await first_of(flight, crew.failed(), following.failed())
            consumers = self._audience.consumers(self._now_s())
        return summarize(
            self._board,
            self._audience.watches,
            windows=self._windows.changes,
            seconds=self._produced_for_s,
            seed=self._plan.seed,
            consumers=consumers,
            is_lost=self._is_lost,
        )

    # --- before the first event ------------------------------------------------------------------

    async def _prepare(self, http: HttpClient, stack: AsyncExitStack) -> None:
        """Create the topic and what leads there, and open the whole audience."""
        await self._patiently(lambda: _create_topic(http, self._plan.partitions))
        grants = {PRODUCER: f"produce on {TOPIC}", **self._audience.grants}
        await self._patiently(lambda: self.badges.hand_out(grants))
        await self._patiently(lambda: self._way_in.prepare(http))
        await self._audience.enter(stack, self._patiently)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again what may work later, for a while."""
        deadline_s = self._now_s() + PREPARE_TIMEOUT_S
        while True:
            try:
                return await attempt()
            except errors.NotNow:
                if self._now_s() >= deadline_s:
                    raise
            await asyncio.sleep(RETRY_S)

    # --- while it runs ---------------------------------------------------------------------------

    def _received(self, watch: int, event: Event) -> None:
        self._board.received(
            watch,
            self._way_in.id_of(event),
            partition=event.partition,
            seq=event.seq,
            at_s=self._now_s(),
        )
        self._moved.set()

    async def _keep_watching(self, http: HttpClient) -> None:
        while True:
            await self._watch(http)
            await asyncio.sleep(STATUS_EVERY_S)

    async def _watch(self, http: HttpClient) -> None:
        try:
            self._status = await http.get("/v1/status", Status)
            self._status_s = self._now_s()
        except errors.NotNow as error:
            # The sentence for other users gives advice that doesn't concern those who watch.
            said = NOBODY_ANSWERS if "no_answer" in error.details else str(error)
            self._note_trouble(said)
            return
        if self._phase == "subscribing":
            self._windows = WindowCount()
        self._windows.see(self._status.windows)

    async def _keep_showing(self) -> None:
        while True:
            self._show(self._view())
            await asyncio.sleep(self._show_every_s)

    def _note_trouble(self, sentence: str) -> None:
        self._trouble = sentence, self._now_s()

    def _view(self) -> View:
        now_s = self._now_s()
        trouble, since_s = self._trouble
        return self._gauges.view(
            self._board,
            self._by_partition,
            self._status,
            address=self._address,
            phase=self._phase,
            now_s=now_s,
            elapsed_s=now_s - self._started_s,
            total_s=self._plan.seconds,
            windows=self._windows.changes,
            trouble=trouble if now_s - since_s < TROUBLE_SHOWN_S else "",
            waiting=self._waiting(),
            consumers=self._audience.consumers(now_s),
            origin=_origin(self._plan),
        )

    # --- producing -------------------------------------------------------------------------------

    async def _produce_and_drain(self, http: HttpClient, stopping: asyncio.Event) -> None:
        # Nothing could be lost if it began now, but Spark's start isn't what is to be seen; nor
        # are the windows that the topic and the subscriptions took changes of this run.
        deadline_s = self._now_s() + LANES_TIMEOUT_S
        while not self._is_read() and self._now_s() < deadline_s and not stopping.is_set():
            await _wait(stopping, LANES_EVERY_S)
            await self._watch(http)
        self._phase = "producing"
        self._started_s = self._now_s()
        async with self._way_in:
            await self._produce(stopping)
            self._produced_for_s = self._now_s() - self._started_s
            self._phase = "draining"
            await self._drain()
        self._phase = "finished"
        self._show(self._view())

    def _is_read(self) -> bool:
        """Whether lanes read every partition."""
        lanes = self._status.lanes if self._status is not None else []
        read = {ref for lane in lanes for ref in lane.partitions}
        return read >= {f"{TOPIC}:{number}" for number in range(self._plan.partitions)}

    async def _produce(self, stopping: asyncio.Event) -> None:
        seconds = self._plan.seconds
        end_s = self._started_s + seconds if seconds is not None else float("inf")
        halfway_s = self._started_s + (HALFWAY_S if seconds is None else seconds / 2)
        pace = Pace(per_s=self._plan.per_s, start_s=self._started_s)
        number = 0
        while not stopping.is_set() and (now_s := self._now_s()) < end_s:
            if now_s >= halfway_s and self._halfway is None:
                self._halfway = self._crew.start("half-way", self._audience.halfway())
            count = min(pace.take(now_s) + self._flooded(now_s), BATCH_MOST)
            if self._board.under_way + count > UNDER_WAY_MOST:
                count = 0
                self._note_trouble("paused: too many events wait for their delivery")
            if count:
                reports = [self._report(number + step, now_s) for step in range(count)]
                number += count
                # Tasks start in the order of their creation, and the way in keeps that of calls.
                self._crew.start("sending", self._send_and_note(reports))
            await _wait(stopping, min(pace.due_s, end_s) - self._now_s())

    def _flooded(self, now_s: float) -> int:
        if self._flood is not None and now_s >= self._flood_ends_s:
            self._flood = None
        return 0 if self._flood is None else self._flood.take(now_s)

    def _report(self, number: int, now_s: float) -> Numbered:
        report = self._fleet.report(number, (now_s - self._started_s) * TIME_LAPSE)
        numbered = Numbered(number, report)
        expected = self._audience.expected_by(report)
        self._board.sent(numbered.id, key=report.icao, number=number, expected=expected, at_s=now_s)
        return numbered

    async def _send_and_note(self, reports: list[Numbered]) -> None:
        outcomes = await self._way_in.send(reports)
        now_s = self._now_s()
        for one, outcome in zip(reports, outcomes, strict=True):
            if isinstance(outcome, errors.HeadgateError):
                self._board.not_acknowledged(one.id)
                self._note_trouble(str(outcome))
            else:
                self._board.acknowledged(one.id, at_s=now_s)
                # A repartition has added some since.
                self._by_partition += [0] * (outcome + 1 - len(self._by_partition))
                self._by_partition[outcome] += 1
        self._moved.set()

    async def _drain(self) -> None:
        """Until everything expected has arrived, or won't any more, or takes too long."""
        if self._halfway is not None:
            await self._halfway
        drain = Drain(now_s=self._now_s())
        while self._board.under_way:
            verdict = drain.judge(self._board.under_way, self._busy_with(), now_s=self._now_s())
            if verdict != "wait":
                self._is_lost = verdict == "lost"
                self._board.waited(until_s=self._now_s())
                return
            self._moved.clear()
            await _wait(self._moved, STATUS_EVERY_S)

    def _busy_with(self) -> str:
        is_old = self._now_s() - self._status_s > STATUS_KEPT_S
        return busy_with(None if is_old else self._status, TOPIC)

    def _waiting(self) -> str:
        if self._phase != "draining" or not self._board.missing:
            return ""
        busy = self._busy_with()
        why = f" ({busy})" if busy else ""
        return f"waiting for what is on its way: {self._board.missing:,}{why}"

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


async def _create_topic(http: HttpClient, partitions: int) -> None:
    try:
        await http.post(
            "/v1/topics", CreateTopic(TOPIC, partitions), TopicInfo, timeout_s=CREATE_TIMEOUT_S
        )
    except errors.TopicExists:
        return  # an earlier try got through without its answer


def _audience(address: str, plan: FlightPath, badges: Badges) -> Audience:
    if plan.consumers:
        return Team(address, TOPIC, badges, size=plan.consumers, aircraft=plan.aircraft)
    return Watchers(address, TOPIC, badges)


def _origin(plan: FlightPath) -> str:
    """The database that reports are written to; empty: they are produced."""
    return "MongoDB" if plan.mongodb else "PostgreSQL" if plan.postgresql else ""


def _way_in(address: str, plan: FlightPath, badges: Badges) -> WayIn:
    if plan.postgresql:
        from headgate.demo.by_postgres import ByPostgres  # psycopg may not be installed

        return ByPostgres(plan.postgresql, plan.database, TOPIC, partitions=plan.partitions)
    if not plan.mongodb:
        return Produced(address, TOPIC, token=badges.of(PRODUCER))
    from headgate.demo.by_mongo import ByMongo  # PyMongo may not be installed

    return ByMongo(plan.mongodb, plan.database, TOPIC, partitions=plan.partitions)


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    """True when `event` was set in time."""
    if timeout_s <= 0:
        await asyncio.sleep(0)  # also when it is late, the other tasks get their turn
        return event.is_set()
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
