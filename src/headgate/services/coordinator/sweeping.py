"""Dead letters are kept for `routing.dlq.max_age`; the coordinator that leads forgets older ones,
and all that is left of topics that were deleted: no lane sends it, and no operator can.

In chunks, so that lanes that write letters meanwhile don't wait. Never touches other parked
letters: what is left of a topic is forgotten under the epochs that its deletion took, so those that
a topic of the same name has written since are kept by the store, however late a sweep is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import structlog

from headgate.errors import Fenced, HeadgateError
from headgate.ports.letters import Fences, LetterStore
from headgate.ports.machine import Machine
from headgate.services.lived_clock import LivedClock
from headgate.telemetry import LogLine

log = structlog.get_logger()

SWEEP_EVERY_S = 60.0
CHUNK = 1_000


async def sweep_letters(
    store: LetterStore,
    *,
    max_age_s: float,
    left_behind: Callable[[], Awaitable[Mapping[str, Fences]]],
    machine: Machine,
    swept: Callable[[Collection[str]], Awaitable[None]] | None = None,
) -> None:
    """Forget dead letters of that age and what deleted topics have `left_behind`, again and again,
    until cancelled; `swept` hears of which topics nothing is left.

    A store that is away is asked again next time: nothing waits for this. Nor does a clock that
    jumps ahead make young letters old.
    """
    clock = LivedClock(machine)
    while True:
        before_ms = clock.now_ms() - round(max_age_s * 1_000)
        await _tried(_sweep(store, before_ms))
        await _tried(_forget_left_behind(store, left_behind, swept))
        await asyncio.sleep(SWEEP_EVERY_S)


async def forget_letters(store: LetterStore, fences: Fences) -> int:
    """A deleted topic takes its letters with it; returns how many."""
    gone = 0
    while some := await store.abandon(fences, limit=CHUNK):
        gone += some
    return gone


async def _sweep(store: LetterStore, before_ms: int) -> int:
    swept = 0
    while gone := await store.sweep(before_ms=before_ms, limit=CHUNK):
        swept += gone
    return swept


async def _forget_left_behind(
    store: LetterStore,
    left_behind: Callable[[], Awaitable[Mapping[str, Fences]]],
    swept: Callable[[Collection[str]], Awaitable[None]] | None,
) -> int:
    """One topic after the other: what can't be forgotten now keeps no other. Said once for all, as
    they fail together where the store is away."""
    gone, failure, done = 0, None, list[str]()
    for name, fences in (await left_behind()).items():
        try:
            gone += await forget_letters(store, fences)
            done.append(name)
        except Fenced:
            continue  # the topic is back, and so are its lanes
        except HeadgateError as error:
            failure = failure or error
    if failure is not None:
        log.warning(LogLine.SWEEP_FAILED, error=failure.message)
    if swept is not None:
        await swept(done)
    return gone


async def _tried(sweeping: Awaitable[int]) -> None:
    """What fails here keeps nothing else from being swept."""
    try:
        if swept := await sweeping:
            log.info(LogLine.LETTERS_SWEPT, count=swept)
    except HeadgateError as error:
        log.warning(LogLine.SWEEP_FAILED, error=error.message)
