"""Which partitions of a topic take nothing for now, and when each of them is asked again.

A partition between two owners, or whose store is away, refuses its events while its node takes
others'. The pauses after one refusal and the next grow, up to a bound.

Invariant: as long as a partition is in here, all that waits for it waits for the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from headgate.client.producing.pending import Pending, ProducerOptions
from headgate.ports.machine import Machine


class Setbacks:
    def __init__(self, options: ProducerOptions, machine: Machine) -> None:
        self._options = options
        self._machine = machine
        self._until_s: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until_s)

    def __contains__(self, partition: int | None) -> bool:
        return partition in self._until_s

    def pause_s(self, pending: Pending) -> float:
        """How long `pending` waits at most where it is refused once more."""
        pause_s: float = self._options.backoff_first_s * 2.0 ** min(pending.setbacks, 32)
        return min(pause_s, self._options.backoff_max_s)

    def add(self, partition: int, pending: Pending) -> None:
        """It refused `pending`."""
        pause_s = self.pause_s(pending) * (0.5 + 0.5 * self._machine.jitter())
        pending.setbacks += 1
        pending.not_before_s = asyncio.get_running_loop().time() + pause_s
        self._note(partition, pending)

    def _note(self, partition: int, pending: Pending) -> None:
        self._until_s[partition] = max(self._until_s.get(partition, 0.0), pending.not_before_s)

    def due_s(self, partition: int | None) -> float:
        return 0.0 if partition is None else self._until_s.get(partition, 0.0)

    def end(self, partitions: Collection[int | None]) -> None:
        for partition in partitions:
            if partition is not None:
                self._until_s.pop(partition, None)

    def move(self, waiting: Iterable[tuple[int | None, Pending]]) -> None:
        """The topic has other partitions: those that events are in which were refused."""
        self._until_s.clear()
        for partition, pending in waiting:
            if partition is not None and pending.setbacks:
                self._note(partition, pending)
