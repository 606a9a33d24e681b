"""`bench fanout`: one event to everybody, against a bare picows broadcast to the same clients.

A gateway with its coordinator, a second one where everybody has said who they are and is shown what
a grant's filter lets through, and the bare server, each in a process; the clients of all in two
more. An event is delivered when the last client has it, and only then the next one is sent. Rounds
of the gateways alternate with rounds of the bare server, so that whatever else the machine does
meets all of them; ratios are medians over the rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path

import msgspec

from headgate.bench.append.rows import document
from headgate.bench.conditions import machine
from headgate.bench.fanout.bare import BareFanout, Listen, Listening, Sent
from headgate.bench.fanout.crowd import Arrived, Await, Join, Joined
from headgate.bench.fanout.stage import Gateway, allow_sockets, gateway_running
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.worker import Worker, worker
from headgate.demo.stage import data_folder
from headgate.tasks import Helpers

CROWDS = 2
DOCUMENT_BYTES = 200
ARRIVAL_TIMEOUT_S = 60.0
ROUNDS_MIN = 5


@dataclass(frozen=True, slots=True)
class Size:
    """`events` are those of one round; the first round warms up and comes on top of `rounds`.

    A busy machine may get fewer rounds: none is begun after `seconds`, but for the first few.
    `is_secured`: the second gateway has as many clients.
    """

    clients: int
    rounds: int
    events: int
    seconds: float
    is_secured: bool = False


QUICK = (
    Size(1_000, rounds=40, events=4, seconds=12.0, is_secured=True),
    Size(10_000, rounds=20, events=1, seconds=12.0),
)
FULL = (
    Size(1_000, rounds=250, events=4, seconds=180.0, is_secured=True),
    Size(10_000, rounds=200, events=1, seconds=360.0, is_secured=True),
)


class Measured(msgspec.Struct):
    """One server's part of a round: per event the time to the last client, and processor time."""

    clients: int
    last_ms: list[float]
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.messages / (sum(self.last_ms) / 1_000)

    @property
    def messages(self) -> int:
        return self.clients * len(self.last_ms)


@dataclass(frozen=True, slots=True)
class Round:
    gateway: Measured
    bare: Measured
    secured: Measured | None = None


@dataclass(slots=True)
class Audience:
    """The clients of one server, spread over the crowds."""

    url: str
    crowds: Sequence[Worker]
    token: str = ""
    subscriptions: list[str] = field(default_factory=list)
    frames: int = 0

    async def grow_to(self, clients: int) -> None:
        shares = split(clients - len(self.subscriptions), len(self.crowds))
        joined = await asyncio.gather(
            *(
                crowd.ask(Join(self.url, share, self.token), Joined)
                for crowd, share in zip(self.crowds, shares, strict=True)
            )
        )
        if faults := [each.fault for each in joined if each.fault]:
            raise Failed(f"not every client could subscribe: {faults[0]}")
        # In turns, as they came to the servers: clients that wait side by side share the cores.
        turns = zip_longest(*(each.subscriptions for each in joined))
        self.subscriptions += [name for turn in turns for name in turn if name is not None]
        self.frames = 0

    async def one_more(self, send: Callable[[], Awaitable[float]]) -> tuple[float, str]:
        """Send an event; returns the milliseconds until the last client had it, and the frame."""
        self.frames += 1
        order = Await(self.url, self.frames, ARRIVAL_TIMEOUT_S)
        async with Helpers() as helpers:
            waiting = [helpers.start(crowd.ask(order, Arrived)) for crowd in self.crowds]
            began_s = await send()
            arrived = await asyncio.gather(*waiting)
        if faulty := sum(each.uneven + each.lost for each in arrived):
            raise Failed(f"{faulty} clients of {self.url} missed an event, or had it twice")
        last = max(arrived, key=lambda each: each.at_s)
        if last.at_s < began_s:
            raise Failed(f"clients of {self.url} had an event before it was sent")
        return (last.at_s - began_s) * 1_000, last.frame


def sockets_for(sizes: Iterable[Size]) -> int:
    """Of the process that needs most: a gateway, or a crowd with its share of all servers'."""
    sizes = tuple(sizes)
    most = max(size.clients for size in sizes)
    secured = max((size.clients for size in sizes if size.is_secured), default=0)
    return max(most, -(-(2 * most + secured) // CROWDS))


def split(total: int, parts: int) -> list[int]:
    return [total // parts + (number < total % parts) for number in range(parts)]


async def run(quick: bool, say: Say) -> Result:
    sizes = QUICK if quick else FULL
    allow_sockets(sockets_for(sizes))
    conditions: dict[str, str | int | float] = {
        **machine(),
        "picows": version("picows"),
        "uvloop": version("uvloop"),
        "document_bytes": DOCUMENT_BYTES,
        "client_processes": CROWDS,
    }
    rounds: dict[int, list[Round]] = {}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(data_folder())
        gateway = await stack.enter_async_context(gateway_running(Path(folder) / "open", say))
        secured = await stack.enter_async_context(
            gateway_running(Path(folder) / "secured", say, is_secured=True)
        )
        bare = await stack.enter_async_context(worker("headgate.bench.fanout.bare"))
        crowds = [
            await stack.enter_async_context(worker("headgate.bench.fanout.crowd"))
            for _ in range(CROWDS)
        ]
        stage = Stage(gateway, secured, bare, crowds, (await bare.ask(Listen(), Listening)).url)
        for size in sizes:
            say(f"subscribing {size.clients} clients")
            await stage.grow_to(size)
            say(f"measuring {size.clients} clients")
            found = rounds[size.clients] = await stage.rounds(size)
            conditions[f"n{size.clients}_events"] = len(found) * size.events
        conditions["frame_bytes"] = stage.frame_bytes
        rss_mb = gateway.rss_mb
    return result_of(rounds, rss_mb, conditions)


class Stage:
    """The servers and their audiences."""

    def __init__(
        self,
        gateway: Gateway,
        secured: Gateway,
        bare: Worker,
        crowds: Sequence[Worker],
        bare_url: str,
    ) -> None:
        self._gateway = gateway
        self._secured = secured
        self._bare = bare
        self._at_gateway = Audience(gateway.url, crowds)
        self._at_secured = Audience(secured.url, crowds, secured.token)
        self._at_bare = Audience(bare_url, crowds)
        self._document = document(0, DOCUMENT_BYTES)
        self._frame = ""
        self._bare_cpu_s = 0.0

    @property
    def frame_bytes(self) -> int:
        return len(self._frame.encode())

    async def grow_to(self, size: Size) -> None:
        await self._at_gateway.grow_to(size.clients)
        await self._at_bare.grow_to(size.clients)
        if size.is_secured:
            await self._at_secured.grow_to(size.clients)

    async def rounds(self, size: Size) -> list[Round]:
        found: list[Round] = []
        deadline_s = time.monotonic() + size.seconds
        for number in range(size.rounds + 1):
            if number > ROUNDS_MIN and time.monotonic() > deadline_s:
                break
            found.append(await self._round(size, is_secured_first=number % 2 == 0))
        return found[1:]

    async def _round(self, size: Size, *, is_secured_first: bool) -> Round:
        secured = None
        if size.is_secured and is_secured_first:
            secured = await self._gateway_round(size, self._secured, self._at_secured)
        # Before the bare server: its frame is what that sends.
        gateway = await self._gateway_round(size, self._gateway, self._at_gateway)
        if size.is_secured and not is_secured_first:
            secured = await self._gateway_round(size, self._secured, self._at_secured)
        return Round(gateway, await self._bare_round(size), secured)

    async def _gateway_round(self, size: Size, gateway: Gateway, audience: Audience) -> Measured:
        subscriptions = tuple(audience.subscriptions)

        async def deliver() -> float:
            began_s = time.monotonic()
            await gateway.deliver(self._document, subscriptions)
            return began_s

        before_s = gateway.cpu_s()
        last_ms = []
        for _ in range(size.events):
            event_ms, self._frame = await audience.one_more(deliver)
            last_ms.append(event_ms)
        return Measured(size.clients, last_ms, gateway.cpu_s() - before_s)

    async def _bare_round(self, size: Size) -> Measured:
        async def broadcast() -> float:
            sent = await self._bare.ask(BareFanout(self._frame), Sent)
            if sent.clients != size.clients:
                raise Failed(f"the bare server has {sent.clients} clients, not {size.clients}")
            self._bare_cpu_s = sent.cpu_s
            return sent.at_s

        before_s = self._bare_cpu_s
        last_ms = [(await self._at_bare.one_more(broadcast))[0] for _ in range(size.events)]
        return Measured(size.clients, last_ms, self._bare_cpu_s - before_s)


# --- the result ----------------------------------------------------------------------------------


def result_of(
    rounds: dict[int, list[Round]], rss_mb: float, conditions: dict[str, str | int | float]
) -> Result:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for clients, found in rounds.items():
        figures |= _figures(f"n{clients}", [one.gateway for one in found])
        figures |= _figures(f"bare_n{clients}", [one.bare for one in found])
        # Neighbours in time saw the same machine, so each round has a ratio of its own.
        ratios[f"n{clients}"] = round(
            statistics.median(one.gateway.per_s / one.bare.per_s for one in found), 3
        )
        if pairs := [(one.secured, one.gateway) for one in found if one.secured is not None]:
            figures |= _figures(f"secured_n{clients}", [secured for secured, _ in pairs])
            ratios[f"secured_n{clients}"] = round(
                statistics.median(secured.per_s / own.per_s for secured, own in pairs), 3
            )
    if secured_ratios := [one for name, one in ratios.items() if name.startswith("secured_")]:
        ratios["secured"] = min(secured_ratios)
    figures["rss_mb_end"] = rss_mb
    return Result("fanout", conditions, figures, ratios)


def _figures(name: str, found: Sequence[Measured]) -> dict[str, float]:
    last_ms = sorted(one for each in found for one in each.last_ms)
    return {
        f"{name}_messages_per_s": _median(one.per_s for one in found),
        f"{name}_last_p50_ms": _percentile(last_ms, 50),
        f"{name}_last_p99_ms": _percentile(last_ms, 99),
        # Over all rounds at once: the system counts processor time in steps of 10 ms.
        f"{name}_cpu_us_per_message": round(
            sum(one.cpu_s for one in found) * 1e6 / sum(one.messages for one in found), 2
        ),
    }


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 2)


FANOUT = Benchmark(
    "fanout", "one event to 1,000 and 10,000 subscribers, against a bare broadcast", run
)
