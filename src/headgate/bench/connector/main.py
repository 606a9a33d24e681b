"""`bench connector`: changes of MongoDB into the log, and from a commit to its subscriber.

First a prepared backlog: the connector reads it into the durable log, in turns with PyMongo alone,
which reads the same into nothing. Then everything at once, Spark included: aircraft write to
MongoDB at a steady rate, and each change has to reach its subscribers, while the ingest node that
reads is watched for its memory.

A run in which one change is missing, or one too many, gives no figures: it fails.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from headgate.bench.conditions import machine, spark
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.worker import Worker, worker
from headgate.demo.flight import FlightPath
from headgate.demo.mongodb import connected, replica_set
from headgate.demo.stage import data_folder, demo_config, performance
from headgate.demo.summary import Summary
from headgate.demo.view import View
from headgate.demo.watches import WATCHES
from headgate.errors import OperatorError

if TYPE_CHECKING:
    from headgate.bench.connector.stage import Stage

MIB = 2**20
COMMITS_PER_S = 500.0
SEED = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """`rounds` through the backlog, one more of each warms up; memory is looked at `settled_s`
    into the steady rate, and at its end."""

    changes: int
    rounds: int
    seconds: float
    settled_s: float


QUICK = Sizes(changes=30_000, rounds=2, seconds=12.0, settled_s=4.0)
FULL = Sizes(changes=200_000, rounds=7, seconds=360.0, settled_s=60.0)


@dataclass(frozen=True, slots=True)
class Round:
    """Changes per second, and processor time per change: of the ingest node, and of the driver's
    process."""

    own_per_s: float
    bare_per_s: float
    own_cpu_us: float
    bare_cpu_us: float


@dataclass(slots=True)
class Vitals:
    """The ingest node while the system runs, as it was at each look."""

    settled_s: float
    rss_mb: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    produced: list[int] = field(default_factory=list)

    def see(self, view: View) -> None:
        pid = next((role.pid for role in view.roles if role.name == "ingest"), None)
        if view.phase != "producing" or view.elapsed_s < self.settled_s or pid is None:
            return
        try:
            process = psutil.Process(pid)
            used, rss = process.cpu_times(), process.memory_info().rss
        except psutil.Error:
            return  # it has just ended, which the run's end shows
        self.rss_mb.append(round(rss / MIB, 1))
        self.cpu_s.append(used.user + used.system)
        self.produced.append(view.produced)

    def figures(self) -> dict[str, float]:
        if len(self.rss_mb) < 2 or self.produced[-1] == self.produced[0]:
            raise Failed("the ingest node couldn't be watched")
        cpu_s = self.cpu_s[-1] - self.cpu_s[0]
        return {
            "rss_mb_start": self.rss_mb[0],
            "rss_mb_end": self.rss_mb[-1],
            "steady_cpu_us_per_event": round(
                cpu_s * 1e6 / (self.produced[-1] - self.produced[0]), 1
            ),
        }


async def run(quick: bool, say: Say) -> Result:
    sizes = QUICK if quick else FULL
    with data_folder() as folder:
        try:
            async with AsyncExitStack() as stack:
                say("starting MongoDB")
                uri = await stack.enter_async_context(replica_set(Path(folder) / "mongodb"))
                conditions = await _conditions(uri, sizes)
                rounds = await _drain(Path(folder), uri, sizes, say)
                summary, vitals = await _steady(Path(folder), uri, sizes, say)
        except OperatorError as error:
            raise Failed(error.message) from error
    return result_of(rounds, summary, vitals, conditions)


async def _conditions(uri: str, sizes: Sizes) -> dict[str, str | int | float]:
    from headgate.bench.connector.stage import PARTITIONS

    client = connected(uri)
    try:
        server = await client.server_info()
    finally:
        await client.close()
    return {
        **machine(),
        **spark(),
        "mongodb": str(server["version"]),
        "pymongo": version("pymongo"),
        "members": 1,
        "changes": sizes.changes,
        "rounds": sizes.rounds,
        "partitions": PARTITIONS,
        "commits_per_s": COMMITS_PER_S,
        "seconds": sizes.seconds,
        "subscribers": len(WATCHES),
    }


async def _drain(folder: Path, uri: str, sizes: Sizes, say: Say) -> list[Round]:
    # Not before it is known that PyMongo is there.
    from headgate.bench.connector.stage import backlog, stage

    say(f"writing a backlog of {sizes.changes:,} changes")
    client = connected(uri)
    try:
        position = await backlog(client, sizes.changes)
    finally:
        await client.close()
    async with (
        worker("headgate.bench.connector.bare") as bare,
        stage(folder / "backlog", uri, say) as own,
    ):
        say("reading it, PyMongo alone and the connector in turns")
        found = [
            await _round(own, bare, uri, position, sizes.changes) for _ in range(sizes.rounds + 1)
        ]
    return found[1:]


async def _round(own: Stage, bare: Worker, uri: str, position: str, changes: int) -> Round:
    from headgate.bench.connector.bare import BareRead, Drained
    from headgate.bench.connector.stage import DATABASE

    alone = await bare.ask(BareRead(uri, DATABASE, position, changes), Drained)
    taken = await own.drain(position, changes)
    return Round(
        own_per_s=taken.changes / taken.seconds,
        bare_per_s=alone.changes / alone.seconds,
        own_cpu_us=taken.cpu_s * 1e6 / taken.changes,
        bare_cpu_us=alone.cpu_s * 1e6 / alone.changes,
    )


async def _steady(folder: Path, uri: str, sizes: Sizes, say: Say) -> tuple[Summary, Vitals]:
    loaded = demo_config(folder / "steady")
    demo = loaded.config.demo
    plan = FlightPath(
        per_s=COMMITS_PER_S,
        partitions=demo.partitions,
        aircraft=demo.aircraft,
        seed=SEED,
        seconds=sizes.seconds,
        mongodb=uri,
    )
    vitals = Vitals(sizes.settled_s)
    say(f"{COMMITS_PER_S:g} commits/s for {sizes.seconds:g} s, from MongoDB to subscribers")
    async with performance(
        loaded,
        plan,
        asyncio.Event(),
        say=say,
        progress=lambda role: say(f"{role} is ready"),
        show=vitals.see,
        show_every_s=1.0,
    ) as summary:
        say("done, stopping")
    assert summary is not None  # only a stop ends it early, and nobody holds that event
    if not summary.ok or summary.duplicates:
        raise Failed(f"the run was not clean: {summary.line()}")
    return summary, vitals


def result_of(
    rounds: Sequence[Round],
    summary: Summary,
    vitals: Vitals,
    conditions: dict[str, str | int | float],
) -> Result:
    return Result(
        name="connector",
        conditions=conditions,
        figures={
            "mongodb_events_per_s": round(statistics.median(one.own_per_s for one in rounds)),
            "bare_mongodb_events_per_s": round(statistics.median(one.bare_per_s for one in rounds)),
            "mongodb_cpu_us_per_event": round(
                statistics.median(one.own_cpu_us for one in rounds), 1
            ),
            "bare_mongodb_cpu_us_per_event": round(
                statistics.median(one.bare_cpu_us for one in rounds), 1
            ),
            "mongodb_p50_ms": summary.p50_ms,
            "mongodb_p99_ms": summary.p99_ms,
            "mongodb_sent_p50_ms": summary.sent_p50_ms,
            "mongodb_sent_p99_ms": summary.sent_p99_ms,
            "commits": summary.produced,
            "delivered": summary.delivered,
            "lost": summary.lost,
            **vitals.figures(),
        },
        # Neighbours in time saw the same machine, so each round has a ratio of its own.
        ratios={
            "mongodb": round(statistics.median(one.own_per_s / one.bare_per_s for one in rounds), 3)
        },
    )


CONNECTOR = Benchmark(
    "connector", "MongoDB into the log against its bare driver, and from commit to subscriber", run
)
