"""Writes what the pipelines of a lane set aside, and settles it once it is on disk.

Invariant: letters of one gateway are written in the order they were added, and a record is settled
on the strength of a letter only after the store has it. Gateways take turns, so nobody waits for
what another one could not take. While the store is full, away, or slower than letters come,
everything stays here, up to a bound at which nothing more is read of the partitions that they are
of; it is tried again until it works, with fewer at a time: a store that is slow takes large letters
one by one. Letters of a partition that a newer lane has are dropped: that one writes its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice

import structlog

from headgate.decide.delivery.retrying import Backoff
from headgate.decide.delivery.steps import Aside
from headgate.decide.letters.write_order import InTurn
from headgate.decide.portions import Portion, letter_bytes
from headgate.errors import Fenced, HeadgateError
from headgate.lane.delivery.sink import Sink, let_go
from headgate.lane.holding import Holding
from headgate.model.event import PartitionRef
from headgate.model.letters import NewLetter
from headgate.ports.letters import LetterStore
from headgate.ports.machine import Machine
from headgate.telemetry import LogLine

log = structlog.get_logger()

CAPACITY = 10_000
"""Letters that may wait for the store before nothing more is read of their partitions; with twice
as many, or with documents of twice the bytes that may, the lane reads nothing at all."""
CAPACITY_BYTES = 64 * 1024 * 1024
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
        capacity_bytes: int = CAPACITY_BYTES,
        backoff: Backoff | None = None,
    ) -> None:
        self._store = store
        self._holding = holding
        self._sink = sink
        self._backoff = backoff or Backoff(0.2, 5.0)
        self._machine = machine
        self._waiting = InTurn()
        self._capacity_bytes = capacity_bytes
        self._waiting_bytes = 0
        """Of their documents."""
        self._setting_aside: set[PartitionRef] = set()
        """Of which something was added since they were last read."""
        self._portion = Portion(WRITE_BYTES)
        self._added: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        """How many, of each gateway."""
        self._wake = asyncio.Event()
        self._progress = asyncio.Condition()
        self.error = ""
        """What is wrong with the store, if anything is."""

    def holds(self, ref: PartitionRef) -> bool:
        """Must `ref` wait until the store has caught up?"""
        times = 1 if ref in self._setting_aside else 2
        too_many = len(self._waiting) >= times * CAPACITY
        return too_many or self._waiting_bytes >= times * self._capacity_bytes

    def reads(self, ref: PartitionRef) -> None:
        """More of `ref` is read: whether it sets something aside shows anew."""
        self._setting_aside.discard(ref)

    def mark(self, gateway_id: str) -> int:
        """Everything added so far for the gateway; see `written`."""
        return self._added[gateway_id]

    def add(self, gateway_id: str, aside: Aside) -> None:
        letter = NewLetter(
            gateway_id, aside.state, aside.reason, aside.delivery, aside.attempts, aside.error
        )
        self._waiting.add(letter)
        self._waiting_bytes += len(letter.delivery.document)
        self._setting_aside.add(letter.ref)
        self._added[gateway_id] += 1
        self._wake.set()

    def is_written(self, gateway_id: str, mark: int) -> bool:
        """Whether everything added before `mark` is on disk, or concerns nobody here."""
        return self._written[gateway_id] >= mark

    def unwritten(self, gateway_id: str) -> int:
        """How many for the gateway are not on disk yet."""
        return self._added[gateway_id] - self._written[gateway_id]

    async def written(self, gateway_id: str, mark: int) -> None:
        """Returns when it is; see `is_written`."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.is_written(gateway_id, mark))

    async def written_within(self, timeout_s: float, gateway_id: str, mark: int) -> bool:
        """Whether it is by then."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.written(gateway_id, mark)
        except TimeoutError:
            return False
        return True

    async def all_written(self) -> None:
        """Returns when everything added so far is on disk, for all gateways."""
        for gateway_id, mark in list(self._added.items()):
            await self.written(gateway_id, mark)

    async def run(self) -> None:
        failures = 0
        while True:
            if not self._waiting:
                self._setting_aside.clear()
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._write_some()
            except Fenced as error:
                let_go(self._sink, error)
            except HeadgateError as error:
                self.error = error.message
                log.error(LogLine.LETTERS_FAILED, waiting=len(self._waiting), error=error.message)
                await asyncio.sleep(self._backoff.delay_s(failures, jitter=1.0))
                failures += 1
            else:
                failures, self.error = 0, ""

    async def _write_some(self) -> None:
        count = self._portion.fits(letter_bytes(one.delivery) for one in self._waiting.upcoming())
        letters = list(islice(self._waiting.upcoming(), count))
        self._waiting.tried(letters)
        fences = self._holding.fences()
        held = [letter for letter in letters if letter.ref in fences]
        if held:
            with self._portion.tried():
                await self._store.put(held, fences, now_ms=self._machine.wall_ms())
        self._waiting.remove(letters)
        self._waiting_bytes -= sum(len(letter.delivery.document) for letter in letters)
        for letter in held:
            self._sink.settled(letter.delivery, letter.state)
        async with self._progress:
            self._written.update(letter.gateway_id for letter in letters)
            self._progress.notify_all()
