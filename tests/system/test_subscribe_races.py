"""Subscribing races producing: whoever was told "subscribed" misses nothing appended after that.

A producer never stops: in every round it writes one event for each racer there is, also for those
that are still subscribing. A racer notes which round had begun when it got its answer; every later
round began after the answer, so all of its events must come, each once and in order.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from headgate.client import Event, Producer, Subscriber
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.errors import HeadgateError
from tests.system.harness import System

TOPIC = "races"
RACES = 1_000
AT_A_TIME = 50
ROUNDS_AFTER = 3
"""Rounds after the answer for which a racer stays."""


class Rounds:
    """The producer: `begun` is the number of the newest round, `racers` who gets an event in it."""

    def __init__(self, url: str) -> None:
        self.begun = 0
        self.racers: set[int] = set()
        self._url = url

    async def go_on(self) -> None:
        async with Producer(self._url) as producer:
            for number in itertools.count(1):
                racers = sorted(self.racers)
                self.begun = number
                events = [
                    OutgoingEvent(
                        {"racer": racer, "round": number}, f"r{racer}", "insert", None, ""
                    )
                    for racer in racers
                ]
                for outcome in await producer.send_many(TOPIC, events):
                    assert not isinstance(outcome, HeadgateError), outcome
                await asyncio.sleep(0)


async def race(rounds: Rounds, url: str, racer: int) -> tuple[int, list[int]]:
    """Returns the round in which it was told, and those of which events came."""
    seen: list[int] = []
    rounds.racers.add(racer)
    try:
        async with Subscriber(url, TOPIC, where=f"racer == {racer}") as subscriber:
            told = rounds.begun
            async for item in subscriber:
                assert isinstance(item, Event), item
                seen.append(item.document["round"])
                if seen[-1] >= told + ROUNDS_AFTER:
                    break
    finally:
        rounds.racers.discard(racer)
    return told, seen


def missed(told: int, seen: list[int]) -> set[int]:
    return set(range(told + 1, told + ROUNDS_AFTER + 1)) - set(seen)


async def all_races(url: str) -> dict[int, tuple[int, list[int]]]:
    rounds, numbers = Rounds(url), iter(range(RACES))
    results: dict[int, tuple[int, list[int]]] = {}

    async def one_after_the_other() -> None:
        for racer in numbers:
            results[racer] = await race(rounds, url, racer)

    producing = asyncio.create_task(rounds.go_on())
    racing = asyncio.gather(*(one_after_the_other() for _ in range(AT_A_TIME)))
    either: set[asyncio.Future[Any]] = {producing, racing}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if producing.done():
            producing.result()
        await racing
    finally:
        racing.cancel()
        producing.cancel()
        await asyncio.gather(producing, racing, return_exceptions=True)
    return results


@pytest.mark.timeout(300)
def test_from_the_answer_on_nothing_is_missed_in_a_thousand_races(system: System) -> None:
    system.run("topic", "create", TOPIC, "--partitions", "4")
    results = asyncio.run(all_races(system.url))
    assert len(results) == RACES
    lost = {racer: gone for racer, (told, seen) in results.items() if (gone := missed(told, seen))}
    assert lost == {}
    for racer, (_, seen) in results.items():
        assert seen == list(range(seen[0], seen[-1] + 1)), (
            f"racer {racer}: not once, or not in order"
        )
    racing = sum(seen[0] <= told for told, seen in results.values())
    assert racing, "nobody got an event that was produced while it subscribed: it was no race"
