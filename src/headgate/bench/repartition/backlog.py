"""The fence of `bench repartition`: does it take longer when much is unsettled?

No router runs, so that whatever is written stays unsettled; the change of windows by which lanes
begin with new partitions is therefore in neither time. One topic gets the backlog, others get
nothing, and all are repartitioned the same way, one after the other. Behind the fence the one with
the backlog waits for lanes, which never come; it is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from headgate.bench.rebalance.stage import Stage
from headgate.bench.repartition.phases import create, repartition
from headgate.bench.result import Failed, Say
from headgate.client import Producer
from headgate.client.http import HttpClient, topic_path
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.errors import HeadgateError

BACKLOG = "backlog"
FROM, TO = 4, 8
EMPTY_TOPICS = 5
AT_ONCE = 500
WRITERS = 4
SAY_EVERY = 100_000
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Fences:
    """`without_ms` is the median over the empty topics; `backlog` is what was unsettled when the
    other one was asked for."""

    with_ms: float
    without_ms: float
    backlog: int


async def measure_fences(stage: Stage, backlog: int, say: Say) -> Fences:
    empty = [f"empty-{number}" for number in range(EMPTY_TOPICS)]
    async with HttpClient(stage.coordinator_url, timeout_s=TIMEOUT_S) as http:
        for name in (BACKLOG, *empty):
            await create(http, name, FROM)
        say(f"writing {backlog:,} events that nobody reads")
        await _write(stage.url, backlog, say)
        say("repartitioning with the backlog, and without")
        half = EMPTY_TOPICS // 2
        without = [await repartition(http, name, TO, whole=False) for name in empty[:half]]
        with_it = await repartition(http, BACKLOG, TO, whole=False)
        without += [await repartition(http, name, TO, whole=False) for name in empty[half:]]
        for name in (BACKLOG, *empty):
            await http.delete(topic_path(name))
    return Fences(with_it.fence_ms, median(one.fence_ms for one in without), with_it.backlog)


async def _write(url: str, count: int, say: Say) -> None:
    parts = _parts(count)
    async with Producer(url) as producer, asyncio.TaskGroup() as writing:
        for _ in range(WRITERS):
            writing.create_task(_write_parts(producer, parts, say))


def _parts(count: int) -> Iterator[range]:
    """Shared by all who write: each takes the next one."""
    return (range(n, min(n + AT_ONCE, count)) for n in range(0, count, AT_ONCE))


async def _write_parts(producer: Producer, parts: Iterator[range], say: Say) -> None:
    for numbers in parts:
        events = [OutgoingEvent({"number": n}, key=f"key-{n % 1_000}") for n in numbers]
        for outcome in await producer.send_many(BACKLOG, events):
            if isinstance(outcome, HeadgateError):
                raise Failed(f"the backlog could not be written: {outcome}")
        if numbers.stop % SAY_EVERY == 0:
            say(f"{numbers.stop:,} events written")
