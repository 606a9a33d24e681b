"""How long each phase of a repartition takes, as the coordinator's topology tells it.

It is asked every few milliseconds, so no time is more exact than that, and a phase that is shorter
may not be seen at all.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from headgate.bench.result import Failed
from headgate.client.http import HttpClient, topic_path
from headgate.model.api import (
    CreateTopic,
    RepartitionPlan,
    RepartitionTopic,
    Status,
    TopicInfo,
    TopologyAnswer,
)
from headgate.model.event import PartitionRef
from headgate.model.topology import Topic

PHASES = ("announced", "sealing", "fenced", "draining", "drained")
LOOK_EVERY_S = 0.01
CREATE_TIMEOUT_S = 30.0
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Cutover:
    """On the monotonic clock; `phases_ms` has those that were seen."""

    asked_s: float
    fenced_s: float
    ended_s: float
    phases_ms: dict[str, float]
    backlog: int = 0
    """The unsettled records when the repartition was asked for."""

    @property
    def fence_ms(self) -> float:
        return (self.fenced_s - self.asked_s) * 1_000


async def create(http: HttpClient, name: str, partitions: int) -> None:
    wanted = CreateTopic(name, partitions, "keyed")
    await http.post("/v1/topics", wanted, TopicInfo, timeout_s=CREATE_TIMEOUT_S)


async def until_read(http: HttpClient, name: str, partitions: int) -> None:
    """Lanes read all partitions of the topic."""
    wanted = {str(PartitionRef(name, number)) for number in range(partitions)}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                lanes = (await http.get("/v1/status", Status)).lanes
                if wanted <= {ref for lane in lanes for ref in lane.partitions}:
                    return
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise Failed(f"nobody reads {name} within {PATIENCE_S:g} s") from None


async def repartition(http: HttpClient, name: str, to: int, *, whole: bool) -> Cutover:
    """Asks for it, and watches until it is over, or until the fence alone."""
    asked_s = time.monotonic()
    path = f"{topic_path(name)}/repartition"
    wanted = RepartitionTopic(to)
    plan = await http.post(path, wanted, RepartitionPlan, timeout_s=CREATE_TIMEOUT_S)
    since_s: dict[str, float] = {PHASES[0]: asked_s}
    fenced_s = 0.0
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                topic = await _topic(http, name)
                now_s = time.monotonic()
                phase = topic.repartition.phase if topic.repartition else ""
                since_s.setdefault(phase, now_s)
                if topic.partitions == to:
                    fenced_s = fenced_s or now_s
                    if not whole or not phase:
                        phases_ms = durations_ms(since_s, now_s)
                        return Cutover(asked_s, fenced_s, now_s, phases_ms, plan.backlog)
                elif not phase:
                    raise Failed(f"the repartition of {name} to {to} was given up")
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise Failed(f"{name} isn't repartitioned within {PATIENCE_S:g} s") from None


async def _topic(http: HttpClient, name: str) -> Topic:
    answer = await http.get("/v1/topology", TopologyAnswer)
    [topic] = [topic for topic in answer.topology.topics if topic.name == name]
    return topic


def durations_ms(since_s: dict[str, float], ended_s: float) -> dict[str, float]:
    """Each phase lasts until the next one that was seen."""
    seen = sorted((at_s, phase) for phase, at_s in since_s.items() if phase in PHASES)
    ends_s = [at_s for at_s, _ in seen[1:]] + [ended_s]
    return {
        phase: (end_s - at_s) * 1_000 for (at_s, phase), end_s in zip(seen, ends_s, strict=True)
    }
