"""`bench flood`: what a flood by one client costs the others.

Coordinator, ingest node and gateway run as processes, without Spark, and every caller needs a
credential. A quiet producer sends single events at a steady rate, alone and, in turns with that,
beside a flooder that sends as fast as it goes over many connections: events beyond a limit of its
own, or requests with a token that nobody knows. Figures are medians over the rounds; a ratio is the
99th percentile beside a flood to that of the same round without one. The flooder runs on the same
machine and takes its processor time, so that the ratios are what a flood costs at worst.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from headgate.bench.append.load import Load, Sent
from headgate.bench.append.main import Place, create_topic, ingest_url, secured_place, system
from headgate.bench.conditions import machine
from headgate.bench.flood.crowd import Flood, Flooded
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.secured import known_at
from headgate.bench.worker import Worker, worker
from headgate.client.http import HttpClient, topic_path
from headgate.demo.stage import data_folder, demo_config
from headgate.model.access import Limits
from headgate.model.access_api import CreatedToken, CreateToken

TOPIC = "flights"
PARTITIONS = 4
CLIENTS = 4
PER_S = 100
CONNECTIONS = 32
LIMIT_PER_S = 100
DOCUMENT_BYTES = 200
REFUSED = {"limited": "429", "unknown": "401"}
"""The kinds of floods, and how each is answered, sooner or later."""


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int
    seconds: float


QUICK = Sizes(rounds=3, seconds=2.0)
FULL = Sizes(rounds=9, seconds=10.0)


class Round(msgspec.Struct):
    """What the quiet producer waited for each answer, alone and beside each kind of flood, and how
    many answers per second the flooder got."""

    alone_ms: list[float]
    beside_ms: dict[str, list[float]]
    floods_per_s: dict[str, float]


async def run(quick: bool, say: Say) -> Result:
    sizes = QUICK if quick else FULL
    conditions = {
        **machine(),
        "clients": CLIENTS,
        "events_per_s": PER_S,
        "flood_connections": CONNECTIONS,
        "flood_limit_events_per_s": LIMIT_PER_S,
        "rounds": sizes.rounds,
        "seconds": sizes.seconds,
    }
    with data_folder() as folder:
        async with (
            system(demo_config(Path(folder) / "data"), say, is_secured=True) as (config, _),
            worker("headgate.bench.append.load") as quiet,
            worker("headgate.bench.flood.crowd") as crowd,
        ):
            place = await secured_place(config)
            version = await create_topic(place, TOPIC, PARTITIONS, "keyed")
            stage = Stage(quiet, crowd, place, await ingest_url(place), version, sizes)
            tokens = {"limited": await limited_token(place), "unknown": "nobody-knows-this-one"}
            await known_at(stage.url, tokens["limited"])
            say("measuring a quiet producer, alone and beside floods")
            rounds = [await stage.round(number, tokens) for number in range(sizes.rounds + 1)]
    return result_of(rounds[1:], conditions)  # the first one warmed up


@dataclass(frozen=True, slots=True)
class Stage:
    """`url` is that of the ingest node, to which all of them send."""

    quiet: Worker
    crowd: Worker
    place: Place
    url: str
    version: int
    sizes: Sizes

    async def round(self, number: int, tokens: dict[str, str]) -> Round:
        done = Round(await self._latencies_ms(f"{number}-alone"), {}, {})
        for kind, token in tokens.items():
            flood = Flood(self.url, _request(self.url, token), CONNECTIONS, self.sizes.seconds)
            done.beside_ms[kind], flooded = await asyncio.gather(
                self._latencies_ms(f"{number}-{kind}"), self.crowd.ask(flood, Flooded)
            )
            check(kind, flooded)
            done.floods_per_s[kind] = sum(flooded.answers.values()) / self.sizes.seconds
        return done

    async def _latencies_ms(self, name: str) -> list[float]:
        load = Load(
            url=self.url,
            topic=TOPIC,
            round_name=name,
            clients=CLIENTS,
            requests=round(PER_S * self.sizes.seconds),
            events=1,
            document_bytes=DOCUMENT_BYTES,
            keyed=True,
            version=self.version,
            per_s=PER_S,
            token=self.place.token,
        )
        return (await self.quiet.ask(load, Sent)).latencies_ms


def check(kind: str, flooded: Flooded) -> None:
    """Raises Failed for what was no flood."""
    if not flooded.answers.get(REFUSED[kind], 0):
        raise Failed(f"a flood ({kind}) should be answered {REFUSED[kind]}: {flooded.answers}")


async def limited_token(place: Place) -> str:
    limits = Limits(events_per_s=LIMIT_PER_S)
    wanted = CreateToken("flood", ["produce"], limits=limits)
    async with HttpClient(place.url, credentials=place.admin) as client:
        made = await client.post("/v1/tokens", wanted, CreatedToken)
    return made.token


def _request(url: str, token: str) -> str:
    body = '{"events":[{"key":"flood","document":{"flood":true}}]}'
    return (
        f"POST {topic_path(TOPIC)}/produce HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n"
        f"authorization: Bearer {token}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    )


def result_of(rounds: list[Round], conditions: dict[str, str | int | float]) -> Result:
    def over(figure: Callable[[Round], float]) -> float:
        return round(statistics.median(map(figure, rounds)), 3)

    def percent_of(kind: str, percent: int) -> float:
        return over(lambda one: percentile(one.beside_ms[kind], percent))

    figures = {
        "p50_ms": over(lambda one: percentile(one.alone_ms, 50)),
        "p99_ms": over(lambda one: percentile(one.alone_ms, 99)),
        **{f"{kind}_p50_ms": percent_of(kind, 50) for kind in REFUSED},
        **{f"{kind}_p99_ms": percent_of(kind, 99) for kind in REFUSED},
        **{f"{kind}_per_s": over(partial(_per_s, kind)) for kind in REFUSED},
    }
    ratios = {f"p99_{kind}": over(partial(_ratio, kind)) for kind in REFUSED}
    return Result("flood", conditions, figures, ratios)


def _per_s(kind: str, one: Round) -> float:
    return one.floods_per_s[kind]


def _ratio(kind: str, one: Round) -> float:
    """Neighbours in time saw the same machine."""
    return percentile(one.beside_ms[kind], 99) / percentile(one.alone_ms, 99)


def percentile(values: Iterable[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


FLOOD = Benchmark("flood", "what a flood by one client costs the others' latency", run)
