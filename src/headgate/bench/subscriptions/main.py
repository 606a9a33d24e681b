"""`bench subscriptions`: a million subscriptions, from the gateways to the lane that matches.

Two ways lead there. Gateways that come (back) register all they have while a lane runs, which gets
them as changes; and a lane that starts later gets all of them as one snapshot. Coordinator and
ingest node are processes of the system. The lane is the real one in a process of its own, without
Spark around it. Meanwhile the coordinator is asked for its health all the time, because whatever it
does in one go keeps everybody else waiting.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from headgate.bench.conditions import machine
from headgate.bench.rebalance.router import Done, Join, Serve
from headgate.bench.rebalance.stage import Stage, roles_running
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.subscriptions.gateways import TOPIC, BareGateway, subscriptions
from headgate.bench.worker import Worker, worker
from headgate.client.http import HttpClient
from headgate.decide.matching.index import MatchIndex
from headgate.demo.stage import data_folder
from headgate.errors import HeadgateError
from headgate.model.api import CreateTopic, Health, Status, TopicInfo
from headgate.tasks import Helpers

ROUTER = "headgate.bench.rebalance.router"
PER_GATEWAY = 10_000
"""The quota of a gateway, unless it is configured."""
TIMEOUT_S = 600.0
LOOK_EVERY_S = 0.02
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Used:
    """What a process holds, and what it has used of the processors so far."""

    rss_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """`waits_ms` is how long the coordinator took for each answer meanwhile, in order."""

    took_s: float
    waits_ms: Sequence[float]
    coordinator: Used
    worker: Used


@dataclass(frozen=True, slots=True)
class Measured:
    """`empty` is without subscriptions; then one lane got them as changes, and another one as a
    snapshot."""

    empty: Phase
    changes: Phase
    snapshot: Phase


async def run(quick: bool, say: Say) -> Result:
    count = 50_000 if quick else 1_000_000
    conditions = {
        **machine(),
        "grpc": grpc.__version__,
        "subscriptions": count,
        "gateways": count // PER_GATEWAY,
        "spark": "none: the lane runs without it",
    }
    with data_folder() as folder:
        async with roles_running(Path(folder), say) as stage:
            measured = await _measure(stage, count, say)
            say("done, stopping")
    say("building the same index on its own")
    return result_of(count, measured, _bare_index_cpu_s(count), conditions)


async def _measure(stage: Stage, count: int, say: Say) -> Measured:
    async with HttpClient(stage.coordinator_url, timeout_s=TIMEOUT_S) as http:
        await http.post("/v1/topics", CreateTopic(TOPIC, 1, "keyed"), TopicInfo)
        coordinator = await _coordinator(http)
        async with _gateways(stage, count) as gateways:
            async with worker(ROUTER) as first:
                await _reading(stage, first)
                empty = Phase(0.0, (), _used(coordinator), _used(first.pid))
                say(f"registering {count} subscriptions from {len(gateways)} gateways")
                async with _watched(http) as waits_ms:
                    took_s = await _register(gateways)
                changes = Phase(took_s, sorted(waits_ms), _used(coordinator), _used(first.pid))
            say("a lane starts and gets them all at once")
            async with worker(ROUTER) as second:
                async with _watched(http) as waits_ms:
                    took_s = await _reading(stage, second)
                snapshot = Phase(took_s, sorted(waits_ms), _used(coordinator), _used(second.pid))
    return Measured(empty, changes, snapshot)


@asynccontextmanager
async def _gateways(stage: Stage, count: int) -> AsyncIterator[list[BareGateway]]:
    gateways = [
        BareGateway(stage.clients_connect, number, PER_GATEWAY)
        for number in range(count // PER_GATEWAY)
    ]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(gateway.welcomed() for gateway in gateways))
        yield gateways
    finally:
        await asyncio.gather(*(gateway.close() for gateway in gateways))


async def _register(gateways: Sequence[BareGateway]) -> float:
    began_s = time.monotonic()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(gateway.register() for gateway in gateways))
    return time.monotonic() - began_s


async def _reading(stage: Stage, router: Worker) -> float:
    """Join as the only router; a lane reads nothing before it has all subscriptions."""
    order = Join("router-1", stage.routers_connect, str(stage.data), stage.lane)
    began = await router.ask(order, Done)
    return (await router.ask(Serve(1, TIMEOUT_S), Done)).at_s - began.at_s


@asynccontextmanager
async def _watched(http: HttpClient) -> AsyncIterator[list[float]]:
    waits_ms: list[float] = []

    async def ask() -> None:
        while True:
            asked_s = time.monotonic()
            try:
                await http.get("/health", Health)
            except HeadgateError as error:
                raise Failed(f"the coordinator gave no answer: {error.message}") from error
            waits_ms.append((time.monotonic() - asked_s) * 1_000)
            await asyncio.sleep(LOOK_EVERY_S)

    async with Helpers() as helpers:
        helpers.start(ask())
        yield waits_ms


async def _coordinator(http: HttpClient) -> int:
    status = await http.get("/v1/status", Status)
    return next(node.pid for node in status.nodes if node.role == "coordinator")


def _used(pid: int) -> Used:
    process = psutil.Process(pid)
    times = process.cpu_times()
    return Used(process.memory_info().rss, times.user + times.system)


def _bare_index_cpu_s(count: int) -> float:
    """The index alone, from subscriptions that are there already."""
    everything = [
        subscription
        for number in range(count // PER_GATEWAY)
        for subscription in subscriptions(f"gateway-{number}", number * PER_GATEWAY, PER_GATEWAY)
    ]
    gc.disable()
    try:
        began_s = time.process_time()
        MatchIndex.of(everything)
        return time.process_time() - began_s
    finally:
        gc.enable()


def result_of(
    count: int, measured: Measured, bare_cpu_s: float, conditions: dict[str, str | int | float]
) -> Result:
    empty, changes, snapshot = measured.empty, measured.changes, measured.snapshot
    adopted_cpu_s = _cpu_s(empty.worker, changes.worker)
    snapshot_cpu_s = _cpu_s(empty.worker, snapshot.worker)
    return Result(
        name="subscriptions",
        conditions=conditions,
        figures={
            "subscriptions": count,
            "adopted_s": round(changes.took_s, 2),
            "adopted_per_s": round(count / changes.took_s),
            "adopted_coordinator_cpu_s": _cpu_s(empty.coordinator, changes.coordinator),
            "adopted_worker_cpu_s": adopted_cpu_s,
            "snapshot_s": round(snapshot.took_s, 2),
            "snapshot_coordinator_cpu_s": _cpu_s(changes.coordinator, snapshot.coordinator),
            "snapshot_worker_cpu_s": snapshot_cpu_s,
            "bare_index_cpu_s": round(bare_cpu_s, 2),
            "coordinator_rss_mib": _mib(changes.coordinator),
            "coordinator_bytes_per_subscription": _each(
                empty.coordinator, changes.coordinator, count
            ),
            "worker_rss_mib": _mib(snapshot.worker),
            "worker_bytes_per_subscription": _each(empty.worker, snapshot.worker, count),
            "worker_rss_mib_by_changes": _mib(changes.worker),
            "wait_p50_ms": _percentile(changes.waits_ms, 50),
            "wait_p99_ms": _percentile(changes.waits_ms, 99),
            "wait_max_ms": _percentile(changes.waits_ms, 100),
            "snapshot_wait_max_ms": _percentile(snapshot.waits_ms, 100),
        },
        ratios={
            "adopted_worker_cpu_over_index": round(adopted_cpu_s / bare_cpu_s, 2),
            "snapshot_worker_cpu_over_index": round(snapshot_cpu_s / bare_cpu_s, 2),
        },
    )


def _cpu_s(before: Used, after: Used) -> float:
    return round(after.cpu_s - before.cpu_s, 2)


def _mib(used: Used) -> float:
    return round(used.rss_bytes / MIB, 1)


def _each(before: Used, after: Used, count: int) -> float:
    return round((after.rss_bytes - before.rss_bytes) / count)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1)


SUBSCRIPTIONS = Benchmark(
    "subscriptions", "a million subscriptions get to the coordinator and to a lane", run
)
