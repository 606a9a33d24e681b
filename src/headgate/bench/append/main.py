"""`bench append`: how fast events get durable, against the bare store on the same disk.

Coordinator, ingest node and gateway run as processes, without Spark. Rounds of produce requests
alternate with rounds of the bare store, and with the same requests at a second such system where
everybody has to say who they are, so that whatever else the machine does meets all of them; figures
are medians over the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw
import msgspec
import psutil

from headgate.adapters.embedded.folder import DataFolder
from headgate.bench.append.bare import Bare, Written
from headgate.bench.append.load import Load, Sent
from headgate.bench.append.protocol import ServeBare, Serving
from headgate.bench.conditions import machine
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.secured import administrator, known_at, token_for, with_administrator
from headgate.bench.worker import Worker, worker
from headgate.client.credentials import Credentials
from headgate.client.http import HttpClient
from headgate.config import Config, LoadedConfig
from headgate.demo.stage import data_folder, demo_config
from headgate.model.api import CreateTopic, TopicInfo, TopologyAnswer
from headgate.model.topology import Placement
from headgate.services.supervisor import Supervisor
from headgate.wiring.machine import build_supervisor, plan_ports

ROLES = ("coordinator", "ingest", "gateway")
CLIENTS = 16
PARTITIONS = 4
EVENTS_PER_REQUEST = 100
DOCUMENT_BYTES = 200
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """`soak_per_s` is the rate of the minutes over which memory is watched; 0: it isn't."""

    rounds: int
    requests: int
    single_requests: int
    soak_per_s: int


QUICK = Sizes(rounds=5, requests=600, single_requests=1_000, soak_per_s=0)
FULL = Sizes(rounds=9, requests=1_200, single_requests=2_000, soak_per_s=4_000)


class Round(msgspec.Struct):
    """One round of the system and the one of the bare store next to it.

    With single requests, there is one of the barest server over the bare store, too; with keyed
    ones, one of the system that asks for credentials.
    """

    served_per_s: float
    bare_per_s: float
    latencies_ms: list[float]
    protocol_per_s: float = 0.0
    secured_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """A system: its public address, the administrator's credentials, and the producers' token."""

    url: str
    admin: Credentials | None = None
    token: str = ""


@dataclass(frozen=True, slots=True)
class Loads:
    """What a round sends where."""

    open: Load
    secured: Load | None
    protocol: Load | None
    bare: Bare


@dataclass(frozen=True, slots=True)
class Stage:
    """What a round needs: the load, the baseline, and the system."""

    load: Worker
    bare: Worker
    protocol: Worker
    open: Place
    secured: Place
    folder: Path
    ingest: psutil.Process


async def run(quick: bool, say: Say) -> Result:
    sizes = QUICK if quick else FULL
    conditions = {
        **machine(),
        "sqlite": apsw.sqlite_lib_version(),
        "clients": CLIENTS,
        "partitions": PARTITIONS,
        "events_per_request": EVENTS_PER_REQUEST,
        "document_bytes": DOCUMENT_BYTES,
        "rounds": sizes.rounds,
        "events_per_round": sizes.requests * EVENTS_PER_REQUEST,
        "single_events_per_round": sizes.single_requests,
    }
    with data_folder() as folder:
        async with _stage(Path(folder), say) as stage:
            # Before anything else: a node that has been busy already has no growth left to show.
            rss = await _memory(stage, sizes, say)
            say("measuring requests of one event")
            single = await _rounds(stage, "single", sizes, clients=1, events=1)
            say("measuring requests of a hundred events, keyed")
            batched = await _rounds(stage, "keyed", sizes)
            say("measuring requests of a hundred events, opportunistic")
            whole = await _rounds(stage, "opportunistic", sizes)
            rss = rss or {"rss_mb_end": _rss_mb(stage.ingest)}
    return result_of(batched, whole, single, rss, conditions)


def result_of(
    batched: list[Round],
    whole: list[Round],
    single: list[Round],
    rss: dict[str, float],
    conditions: dict[str, str | int | float],
) -> Result:
    latencies_ms = sorted(one for each in batched for one in each.latencies_ms)
    single_ms = sorted(one for each in single for one in each.latencies_ms)
    return Result(
        name="append",
        conditions=conditions,
        figures={
            "events_per_s": _median(one.served_per_s for one in batched),
            "bare_events_per_s": _median(one.bare_per_s for one in batched),
            "opportunistic_events_per_s": _median(one.served_per_s for one in whole),
            "single_per_s": _median(one.served_per_s for one in single),
            "bare_single_per_s": _median(one.bare_per_s for one in single),
            "single_bare_protocol_per_s": _median(one.protocol_per_s for one in single),
            "secured_events_per_s": _median(one.secured_per_s for one in batched),
            "secured_single_per_s": _median(one.secured_per_s for one in single),
            "p50_ms": _percentile(latencies_ms, 50),
            "p99_ms": _percentile(latencies_ms, 99),
            "single_p50_ms": _percentile(single_ms, 50),
            "single_p99_ms": _percentile(single_ms, 99),
            **rss,
        },
        ratios={
            "batched": _ratio(batched),
            "batched_opportunistic": _ratio(whole),
            "single": _ratio(single),
            "secured": _secured_ratio(batched),
            "secured_single": _secured_ratio(single),
        },
    )


def _ratio(rounds: list[Round]) -> float:
    """The median of the rounds' own ratios: neighbours in time saw the same machine."""
    return round(statistics.median(one.served_per_s / one.bare_per_s for one in rounds), 3)


def _secured_ratio(rounds: list[Round]) -> float:
    """The same for producers with a credential, to those that need none."""
    return round(statistics.median(one.secured_per_s / one.served_per_s for one in rounds), 3)


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)


def _percentile(ordered: list[float], percent: int) -> float:
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 2)


# --- rounds --------------------------------------------------------------------------------------


async def _rounds(
    stage: Stage,
    topic: str,
    sizes: Sizes,
    *,
    clients: int = CLIENTS,
    events: int = EVENTS_PER_REQUEST,
) -> list[Round]:
    loads = await _loads(stage, topic, sizes, clients=clients, events=events)
    # The first round warms up: files are made, caches filled.
    return [await _round(stage, loads, number) for number in range(sizes.rounds + 1)][1:]


async def _loads(stage: Stage, topic: str, sizes: Sizes, *, clients: int, events: int) -> Loads:
    keyed: Placement = "opportunistic" if topic == "opportunistic" else "keyed"
    partitions = PARTITIONS if clients > 1 else 1
    folder = stage.folder / f"bare-{topic}"
    folder.mkdir()
    requests = sizes.requests if clients > 1 else sizes.single_requests

    async def to(place: Place) -> Load:
        version = await create_topic(place, topic, partitions, keyed)
        return Load(
            url=await ingest_url(place),
            topic=topic,
            round_name="",
            clients=clients,
            requests=requests,
            events=events,
            document_bytes=DOCUMENT_BYTES,
            keyed=keyed == "keyed",
            version=version if keyed == "keyed" else None,
            token=place.token,
        )

    load = await to(stage.open)
    protocol: Load | None = None
    if clients == 1:
        serving = await stage.protocol.ask(ServeBare(str(folder), DOCUMENT_BYTES), Serving)
        protocol = msgspec.structs.replace(load, url=serving.url)
    bare = Bare(str(folder), "", partitions, requests, events, DOCUMENT_BYTES)
    return Loads(load, await to(stage.secured) if keyed == "keyed" else None, protocol, bare)


async def _round(stage: Stage, loads: Loads, number: int) -> Round:
    name, total = f"r{number}", loads.open.requests * loads.open.events

    async def per_s(load: Load) -> tuple[float, list[float]]:
        sent = await stage.load.ask(msgspec.structs.replace(load, round_name=name), Sent)
        return total / sent.seconds, sent.latencies_ms

    done = Round(0.0, 0.0, [])
    # In turns the one first and the other: what the first leaves to the disk meets both.
    for is_secured in (False, True) if number % 2 else (True, False):
        if not is_secured:
            done.served_per_s, done.latencies_ms = await per_s(loads.open)
        elif loads.secured is not None:
            done.secured_per_s, _ = await per_s(loads.secured)
    written = await stage.bare.ask(msgspec.structs.replace(loads.bare, round_name=name), Written)
    done.bare_per_s = total / written.seconds
    if loads.protocol is not None:
        done.protocol_per_s, _ = await per_s(loads.protocol)
    return done


async def create_topic(place: Place, topic: str, partitions: int, placement: Placement) -> int:
    async with HttpClient(place.url, credentials=place.admin) as client:
        wanted = CreateTopic(topic, partitions, placement)
        made = await client.post("/v1/topics", wanted, TopicInfo, timeout_s=30.0)
    return made.version


async def ingest_url(place: Place) -> str:
    """Where a producer would send, too."""
    async with HttpClient(place.url, credentials=place.admin) as client:
        answer = await client.get("/v1/topology", TopologyAnswer)
    [node] = answer.topology.of_role("ingest")
    return node.url


# --- memory --------------------------------------------------------------------------------------


async def _memory(stage: Stage, sizes: Sizes, say: Say) -> dict[str, float]:
    """Of a fresh ingest node, one and five minutes into steady load; nothing in a quick run."""
    if not sizes.soak_per_s:
        return {}
    say("measuring memory over five minutes")
    await create_topic(stage.open, "memory", PARTITIONS, "keyed")
    first = await _soak(stage, sizes.soak_per_s, "soak1", 60.0)
    for minute in range(2, 6):
        last = await _soak(stage, sizes.soak_per_s, f"soak{minute}", 60.0)
    return {"rss_mb_after_1m": first, "rss_mb_after_5m": last}


async def _soak(stage: Stage, per_s: int, name: str, seconds: float) -> float:
    load = Load(
        url=await ingest_url(stage.open),
        topic="memory",
        round_name=name,
        clients=CLIENTS,
        requests=int(per_s * seconds / EVENTS_PER_REQUEST),
        events=EVENTS_PER_REQUEST,
        document_bytes=DOCUMENT_BYTES,
        keyed=True,
        per_s=per_s,
    )
    await stage.load.ask(load, Sent)
    return _rss_mb(stage.ingest)


def _rss_mb(process: psutil.Process) -> float:
    return round(process.memory_info().rss / MIB, 1)


# --- the system ----------------------------------------------------------------------------------


@asynccontextmanager
async def _stage(folder: Path, say: Say) -> AsyncIterator[Stage]:
    async with (
        system(demo_config(folder / "data"), say) as (config, supervisor),
        system(demo_config(folder / "secured"), say, is_secured=True) as (guarded, _),
        worker("headgate.bench.append.load") as load,
        worker("headgate.bench.append.bare") as bare,
        worker("headgate.bench.append.protocol") as protocol,
    ):
        pid = supervisor.pids["ingest"]
        if pid is None:
            raise Failed("the ingest node has ended")
        ingest = psutil.Process(pid)
        secured = await secured_place(guarded)
        yield Stage(load, bare, protocol, Place(_url(config)), secured, folder, ingest)


@asynccontextmanager
async def system(
    loaded: LoadedConfig, say: Say, *, is_secured: bool = False
) -> AsyncIterator[tuple[Config, Supervisor]]:
    """The roles that take and keep events."""
    config = plan_ports(loaded.config, loaded.origins)
    if is_secured:
        config = with_administrator(config)
    data = DataFolder.open(Path(config.data))
    with data.lock():
        supervisor = build_supervisor(config, data, say, ROLES)
        try:
            await supervisor.start(lambda role: say(f"{role} is ready"))
            yield config, supervisor
        finally:
            await supervisor.stop()


async def secured_place(config: Config) -> Place:
    """With a producer whose token the node knows."""
    admin = administrator(config)
    assert admin is not None, "that is what it was started with"
    place = Place(_url(config), admin, await token_for(_url(config), admin, "produce"))
    await known_at(await ingest_url(place), place.token)
    return place


def _url(config: Config) -> str:
    return f"http://{config.public.host}:{config.public.port}"


APPEND = Benchmark("append", "durable events/s through HTTP, against the bare store", run)
