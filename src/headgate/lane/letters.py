"""Writes what the pipelines of a lane set aside, and settles it once it is on disk.

Invariant: letters are written in the order they were added, and a record is settled on the strength
of a letter only after the store has it. While the store is full or away everything stays here, up
to a bound at which the lane reads nothing more; it is tried again until it works, with fewer at a
time: a store that is slow takes large letters one by one. Letters of a partition that somebody
newer has are dropped: it writes its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

import structlog

from headgate.decide.delivery.steps import Aside
from headgate.decide.portions import Portion, letter_bytes
from headgate.decide.retrying import Backoff
from headgate.errors import Fenced, HeadgateError
from headgate.lane.holding import Holding
from headgate.lane.sink import Sink, let_go
from headgate.model.letters import NewLetter
from headgate.ports.letters import LetterStore
from headgate.ports.machine import Machine
from headgate.telemetry import LogEvent

log = structlog.get_logger()

CAPACITY = 10_000
"""Letters that may wait for the store before the lane stops reading."""
WRITE_BYTES = 4 * 1024 * 1024
"""What is written at a time: some 500 small letters, or four documents of a mebibyte."""


class LetterWriter:
    def __init__(
        self,
        store: LetterStore,
        holding: Holding,
        sink: Sink,
        *,
        machine: Machine,
        capacity: int = CAPACITY,
        backoff: Backoff | None = None,
    ) -> None:
        self._store = store
        self._holding = holding
        self._sink = sink
        self._capacity = capacity
        self._backoff = backoff or Backoff(0.2, 5.0)
        self._machine = machine
        self._waiting: deque[NewLetter] = deque()
        self._portion = Portion(WRITE_BYTES)
        self._added = self._written = 0
        self._wake = asyncio.Event()
        self._progress = asyncio.Condition()
        self.error = ""
        """What is wrong with the store, if anything is."""

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self._capacity

    @property
    def mark(self) -> int:
        """Everything added so far; see `written`."""
        return self._added

    def add(self, gateway_id: str, aside: Aside) -> None:
        self._waiting.append(
            NewLetter(
                gateway_id, aside.state, aside.reason, aside.delivery, aside.attempts, aside.error
            )
        )
        self._added += 1
        self._wake.set()

    async def written(self, mark: int) -> None:
        """Returns when everything added before `mark` is on disk, or concerns nobody here."""
        async with self._progress:
            await self._progress.wait_for(lambda: self._written >= mark)

    async def written_within(self, timeout_s: float) -> bool:
        """Whether everything added so far is on disk by then."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.written(self._added)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        failures = 0
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._write_some()
            except Fenced as error:
                let_go(self._sink, error)
            except HeadgateError as error:
                self.error = error.message
                log.error(LogEvent.LETTERS_FAILED, waiting=len(self._waiting), error=error.message)
                await asyncio.sleep(self._backoff.delay_s(failures, jitter=1.0))
                failures += 1
            else:
                failures, self.error = 0, ""

    async def _write_some(self) -> None:
        count = self._portion.fits(letter_bytes(letter.delivery) for letter in self._waiting)
        letters = list(islice(self._waiting, count))
        fences = self._holding.fences()
        held = [letter for letter in letters if letter.ref in fences]
        if held:
            with self._portion.tried():
                await self._store.put(held, fences, now_ms=self._machine.wall_ms())
        for _ in letters:
            self._waiting.popleft()
        for letter in held:
            self._sink.settled(letter.delivery, letter.state)
        async with self._progress:
            self._written += len(letters)
            self._progress.notify_all()
