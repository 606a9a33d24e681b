"""`bench connector`: changes of MongoDB and PostgreSQL into the log, what their tables hold, and
from a commit to its subscriber.

First a prepared backlog: the connector reads it into the durable log, in turns with the bare
driver, which reads the same into nothing; then a snapshot, in turns with a bare cursor. Then
everything at once, Spark included: aircraft write to the database at a steady rate, and each change
has to reach its subscribers, while the ingest node that reads is watched for its memory.

A run in which one change is missing, or one too many, gives no figures: it fails.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from headgate.bench.conditions import machine, spark
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.worker import Worker, worker
from headgate.demo import postgresql as postgres_server
from headgate.demo.flight import FlightPath
from headgate.demo.mongodb import connected, replica_set
from headgate.demo.stage import data_folder, demo_config, performance
from headgate.demo.summary import Summary
from headgate.demo.view import View
from headgate.demo.watches import WATCHES
from headgate.errors import OperatorError

if TYPE_CHECKING:
    from headgate.bench.connector.stage import Stage
    from headgate.model.connectors_api import CreateConnector

MIB = 2**20
COMMITS_PER_S = 500.0
SEED = 1
SNAPSHOTS = {"mongodb": "snapshot_mongodb", "postgresql": "snapshot"}
"""What the ratios of snapshots are called."""


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


@dataclass(frozen=True, slots=True)
class DatabaseRounds:
    """Of one database: its changes, and what a table holds."""

    changes: Sequence[Round]
    rows: Sequence[Round]


@dataclass(frozen=True, slots=True)
class Steady:
    summary: Summary
    vitals: Vitals


async def run(quick: bool, say: Say) -> Result:
    sizes = QUICK if quick else FULL
    with data_folder() as folder:
        try:
            async with AsyncExitStack() as stack:
                say("starting MongoDB and PostgreSQL")
                uri = await stack.enter_async_context(replica_set(Path(folder) / "mongodb"))
                dsn = await stack.enter_async_context(postgres_server.server())
                conditions = await _conditions(uri, dsn, sizes)
                drains = await _drain(Path(folder), uri, dsn, sizes, say)
                steady = {
                    "mongodb": await _steady(Path(folder), sizes, say, mongodb=uri),
                    "postgresql": await _steady(Path(folder), sizes, say, postgresql=dsn),
                }
        except OperatorError as error:
            raise Failed(error.message) from error
    return result_of(drains, steady, conditions)


async def _conditions(uri: str, dsn: str, sizes: Sizes) -> dict[str, str | int | float]:
    from headgate.bench.connector.stage import PARTITIONS

    client = connected(uri)
    try:
        server = await client.server_info()
    finally:
        await client.close()
    async with await postgres_server.connected(dsn) as connection:
        found = await connection.execute("SHOW server_version")
        [(postgres,)] = await found.fetchall()
    return {
        **machine(),
        **spark(),
        "mongodb": str(server["version"]),
        "pymongo": version("pymongo"),
        "members": 1,
        "postgresql": str(postgres),
        "psycopg": version("psycopg"),
        "changes": sizes.changes,
        "rounds": sizes.rounds,
        "partitions": PARTITIONS,
        "commits_per_s": COMMITS_PER_S,
        "seconds": sizes.seconds,
        "subscribers": len(WATCHES),
    }


async def _drain(
    folder: Path, uri: str, dsn: str, sizes: Sizes, say: Say
) -> dict[str, DatabaseRounds]:
    # Not before it is known that the drivers are there.
    from headgate.bench.connector import mongo, postgres
    from headgate.bench.connector.stage import stage

    say(f"writing backlogs of {sizes.changes:,} changes")
    backlogs: Mapping[str, mongo.Backlog | postgres.Backlog] = {
        "mongodb": await mongo.backlog(uri, sizes.changes),
        "postgresql": await postgres.backlog(dsn, sizes.changes),
    }
    bare = {
        "mongodb": "headgate.bench.connector.bare",
        "postgresql": "headgate.bench.connector.bare_postgres",
    }
    found = {}
    async with stage(folder / "backlog", say) as own:
        for name, backlog in backlogs.items():
            async with worker(bare[name]) as alone:
                say(f"reading {name}, its bare driver and the connector in turns")
                found[name] = DatabaseRounds(
                    await _rounds(own, alone, backlog.reading, backlog.bare_changes, sizes),
                    await _rounds(own, alone, backlog.snapshot, backlog.bare_rows, sizes),
                )
    return found


async def _rounds(
    own: Stage,
    bare: Worker,
    connector: Callable[[str], Awaitable[CreateConnector]],
    order: msgspec.Struct,
    sizes: Sizes,
) -> list[Round]:
    """One more comes first, and warms up."""
    from headgate.bench.connector.bare import Drained

    found = []
    for _ in range(sizes.rounds + 1):
        alone = await bare.ask(order, Drained)
        taken = await own.drain(connector, sizes.changes)
        found.append(
            Round(
                own_per_s=taken.changes / taken.seconds,
                bare_per_s=alone.changes / alone.seconds,
                own_cpu_us=taken.cpu_s * 1e6 / taken.changes,
                bare_cpu_us=alone.cpu_s * 1e6 / alone.changes,
            )
        )
    return found[1:]


async def _steady(
    folder: Path, sizes: Sizes, say: Say, *, mongodb: str = "", postgresql: str = ""
) -> Steady:
    name = "mongodb" if mongodb else "postgresql"
    loaded = demo_config(folder / f"steady-{name}")
    demo = loaded.config.demo
    plan = FlightPath(
        per_s=COMMITS_PER_S,
        partitions=demo.partitions,
        aircraft=demo.aircraft,
        seed=SEED,
        seconds=sizes.seconds,
        mongodb=mongodb,
        postgresql=postgresql,
    )
    vitals = Vitals(sizes.settled_s)
    say(f"{COMMITS_PER_S:g} commits/s for {sizes.seconds:g} s, from {name} to subscribers")
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
    return Steady(summary, vitals)


def result_of(
    drains: Mapping[str, DatabaseRounds],
    steady: Mapping[str, Steady],
    conditions: dict[str, str | int | float],
) -> Result:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for name, drained in drains.items():
        for of, rounds in ((name, drained.changes), (f"{name}_rows", drained.rows)):
            per = "events" if of == name else "rows"
            figures |= {
                f"{name}_{per}_per_s": round(_median(one.own_per_s for one in rounds)),
                f"bare_{name}_{per}_per_s": round(_median(one.bare_per_s for one in rounds)),
                f"{name}_cpu_us_per_{per[:-1]}": round(
                    _median(one.own_cpu_us for one in rounds), 1
                ),
                f"bare_{name}_cpu_us_per_{per[:-1]}": round(
                    _median(one.bare_cpu_us for one in rounds), 1
                ),
            }
        # Neighbours in time saw the same machine, so each round has a ratio of its own.
        ratios[name] = _ratio(drained.changes)
        ratios[SNAPSHOTS[name]] = _ratio(drained.rows)
    for name, ran in steady.items():
        figures |= {
            f"{name}_p50_ms": ran.summary.p50_ms,
            f"{name}_p99_ms": ran.summary.p99_ms,
            f"{name}_sent_p50_ms": ran.summary.sent_p50_ms,
            f"{name}_sent_p99_ms": ran.summary.sent_p99_ms,
        }
        seen = {
            "commits": ran.summary.produced,
            "delivered": ran.summary.delivered,
            "lost": ran.summary.lost,
            **ran.vitals.figures(),
        }
        figures |= {f"{name}_{what}": value for what, value in seen.items()}
    return Result(name="connector", conditions=conditions, figures=figures, ratios=ratios)


def _ratio(rounds: Sequence[Round]) -> float:
    return round(_median(one.own_per_s / one.bare_per_s for one in rounds), 3)


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


CONNECTOR = Benchmark(
    "connector",
    "MongoDB and PostgreSQL into the log against their bare drivers, and from commit to subscriber",
    run,
)
