"""What happens to the produce requests of one opportunistic topic: events in, effects out.

    waiting   in the room, in order of arrival, until a partition may be tried
    writing   an append to `partition` is under way
    bound     nobody knows whether it is in a partition: `doubts` are read back one after the other

    offer          -> waiting -> writing at once, where a partition may be tried; bound for a retry
    writing        -> answered   `written`, `refused`
    writing        -> waiting    `failed`: nothing was written, so any partition may be next
    writing        -> bound      `unknown`, or no answer within the write timeout
    bound          -> answered   `read` found everything, or a late `written`
    bound          -> waiting    `read` found less, or a late `failed`: only the rest is placed anew
    waiting        -> answered   deadline, `abandon`, `stop`: nothing was written
    writing, bound -> answered   deadline: the outcome is unknown

Invariants: a request is answered exactly once, by its deadline; it is never appended anywhere while
it may be in another partition; it goes whole to the usable partition with the fewest records
waiting (ties to the lowest number), and counts there until its append has ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headgate.decide.produce.partition_health import Health, HealthRules
from headgate.decide.produce.placement import place

Verdict = Literal["written", "refused", "timeout", "unknown", "cancelled", "stopped"]
"""`timeout`, `cancelled` and `stopped` say that nothing was written."""


@dataclass(frozen=True, slots=True)
class Append:
    """Write what is left of `request` to `partition`, then report under the same `attempt`."""

    request: int
    attempt: int
    partition: int


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Look for the events of `request` in `partition`, then report under the same `attempt`."""

    request: int
    attempt: int
    partition: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of `request`; `partition` is where an unknown outcome may be found out."""

    request: int
    verdict: Verdict
    partition: int | None = None


Effect = Append | ReadBack | Answer


@dataclass(frozen=True, slots=True)
class PlacingRules:
    write_timeout_s: float = 3.0
    health: HealthRules = field(default_factory=HealthRules)


@dataclass(frozen=True, slots=True)
class _Write:
    size: int
    started_s: float


@dataclass(slots=True)
class _Request:
    """`attempt` changes with every stay in the room, so that late news of an earlier one shows."""

    number: int
    size: int
    deadline_s: float
    attempt: int = 0
    partition: int | None = None
    overdue_s: float = math.inf
    doubts: tuple[int, ...] = ()
    read_s: float = math.inf
    reads: int = 0
    abandoned: bool = False


class Placing:
    """`next_s` is when `tick` wants to be called, at the latest; calling it earlier is harmless."""

    def __init__(self, rules: PlacingRules) -> None:
        self._rules = rules
        self._health = Health(rules.health)
        self._backlog: dict[int, int] = {}
        self._requests: dict[int, _Request] = {}
        self._room: dict[int, _Request] = {}
        self._writes: dict[int, dict[tuple[int, int], _Write]] = {}
        self._writing: Counter[int] = Counter()
        self._stopping = False
        self.next_s = math.inf

    # --- events ----------------------------------------------------------------------------------

    def observe(self, now_s: float, backlog: Mapping[int, int]) -> list[Effect]:
        """The partitions there are, each with its appended minus its settled records."""
        if backlog.keys() != self._backlog.keys():
            self._health.know(sorted(backlog))
        self._backlog = dict(backlog)
        return self._place(now_s)

    def offer(
        self,
        now_s: float,
        request: int,
        *,
        size: int,
        deadline_s: float,
        doubts: tuple[int, ...] = (),
    ) -> list[Effect]:
        """A new request; `doubts` are partitions where earlier attempts at it may be."""
        if self._stopping:
            return [Answer(request, "stopped")]
        offered = _Request(request, size, deadline_s, doubts=doubts)
        self._requests[request] = offered
        self._wake(deadline_s)
        if doubts:
            return self._read_back(offered)
        return self._wait(now_s, offered)

    def written(self, now_s: float, request: int, attempt: int, partition: int) -> list[Effect]:
        write = self._end_write(request, attempt, partition)
        if write is not None:
            self._health.written(now_s, partition, started_s=write.started_s)
        current = self._current(request, attempt)
        answers = self._answer(current, "written") if current is not None else []
        return answers + self._place(now_s)

    def failed(self, now_s: float, request: int, attempt: int, partition: int) -> list[Effect]:
        """Nothing was written, for sure."""
        self._end_write(request, attempt, partition)
        self._health.failed(now_s, partition)
        current = self._current(request, attempt)
        if current is None:
            return self._place(now_s)
        return self._wait(now_s, current)

    def unknown(self, now_s: float, request: int, attempt: int, partition: int) -> list[Effect]:
        """The append has ended, and nobody knows how."""
        self._end_write(request, attempt, partition)
        self._health.failed(now_s, partition)
        current = self._current(request, attempt)
        if current is None or current.doubts:
            return self._place(now_s)  # It's gone, or being read back already.
        return self._doubt(current, partition) + self._place(now_s)

    def refused(self, now_s: float, request: int, attempt: int, partition: int) -> list[Effect]:
        """The caller's mistake: nothing was written, and no partition is to blame."""
        self._end_write(request, attempt, partition)
        current = self._current(request, attempt)
        answers = self._answer(current, "refused") if current is not None else []
        return answers + self._place(now_s)

    def read(self, now_s: float, request: int, attempt: int, found: int) -> list[Effect]:
        """`found` of the events are in the partition that was read; the others aren't."""
        current = self._current(request, attempt)
        if current is None or not current.doubts:
            return []
        current.size -= found
        current.doubts = current.doubts[1:]
        current.reads = 0
        if current.size <= 0:
            return self._answer(current, "written") + self._place(now_s)
        if current.doubts:
            return self._read_back(current)
        return self._wait(now_s, current)

    def unreadable(self, now_s: float, request: int, attempt: int) -> list[Effect]:
        """The partition can't tell now; it's asked again after a while."""
        current = self._current(request, attempt)
        if current is not None:
            current.reads += 1
            current.read_s = now_s + self._rules.health.set_aside_s(current.reads)
            self._wake(current.read_s)
        return []

    def abandon(self, now_s: float, request: int) -> list[Effect]:
        """Its caller has gone: it isn't tried again, but what is being written goes on."""
        current = self._requests.get(request)
        if current is None:
            return []
        if request in self._room:
            return self._answer(current, "cancelled")
        if current.doubts:
            return self._answer(current, "unknown", current.doubts[0])
        current.abandoned = True
        return []

    def stop(self, now_s: float, until_s: float) -> list[Effect]:
        """Answer what waits; what is being written may take until `until_s`."""
        self._stopping = True
        effects: list[Effect] = []
        for request in list(self._room.values()):
            effects += self._answer(request, "stopped")
        for request in self._requests.values():
            request.deadline_s = min(request.deadline_s, until_s)
        self._wake(until_s)
        return effects

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = []
        for request in list(self._requests.values()):
            if now_s >= request.deadline_s:
                effects += self._expire(request)
            elif now_s >= request.overdue_s and request.partition is not None:
                self._health.failed(now_s, request.partition)
                effects += self._doubt(request, request.partition)
            elif now_s >= request.read_s:
                effects += self._read_back(request)
        self.next_s = min(
            (min(r.deadline_s, r.overdue_s, r.read_s) for r in self._requests.values()),
            default=math.inf,
        )
        return effects + self._place(now_s)

    # --- transitions -----------------------------------------------------------------------------

    def _wait(self, now_s: float, request: _Request) -> list[Effect]:
        request.attempt += 1
        request.partition = None
        request.overdue_s = request.read_s = math.inf
        request.doubts = ()
        if request.abandoned:
            return self._answer(request, "cancelled") + self._place(now_s)
        if self._stopping:
            return self._answer(request, "stopped") + self._place(now_s)
        self._room[request.number] = request
        return self._place(now_s)

    def _place(self, now_s: float) -> list[Effect]:
        """Write what waits, first come, first served, as far as partitions may be tried."""
        effects: list[Effect] = []
        for request in list(self._room.values()):
            partition = self._choose(now_s, request.size)
            if partition is None:
                self._wake(self._health.next_try_s(now_s))
                break
            del self._room[request.number]
            request.partition = partition
            request.overdue_s = now_s + self._rules.write_timeout_s
            self._wake(request.overdue_s)
            writes = self._writes.setdefault(partition, {})
            writes[request.number, request.attempt] = _Write(request.size, now_s)
            self._writing[partition] += request.size
            effects.append(Append(request.number, request.attempt, partition))
        return effects

    def _choose(self, now_s: float, size: int) -> int | None:
        oldest_s = {
            partition: next(iter(writes.values())).started_s
            for partition, writes in self._writes.items()
            if writes
        }
        usable = self._health.usable(now_s, oldest_s)
        if not usable:
            return None
        waiting = {number: self._backlog[number] + self._writing[number] for number in usable}
        return place([size], waiting)[0]

    def _doubt(self, request: _Request, partition: int) -> list[Effect]:
        request.overdue_s = math.inf
        if request.abandoned:
            return self._answer(request, "unknown", partition)
        request.doubts = (partition,)
        return self._read_back(request)

    def _read_back(self, request: _Request) -> list[Effect]:
        request.read_s = math.inf
        return [ReadBack(request.number, request.attempt, request.doubts[0])]

    def _expire(self, request: _Request) -> list[Effect]:
        if request.number in self._room:
            return self._answer(request, "timeout")
        where = request.doubts[0] if request.doubts else request.partition
        return self._answer(request, "unknown", where)

    def _answer(
        self, request: _Request, verdict: Verdict, partition: int | None = None
    ) -> list[Effect]:
        del self._requests[request.number]
        self._room.pop(request.number, None)
        return [Answer(request.number, verdict, partition)]

    def _end_write(self, request: int, attempt: int, partition: int) -> _Write | None:
        write = self._writes.get(partition, {}).pop((request, attempt), None)
        if write is not None:
            self._writing[partition] -= write.size
        return write

    def _current(self, request: int, attempt: int) -> _Request | None:
        """The request, unless it was answered or has gone on since `attempt`."""
        current = self._requests.get(request)
        return current if current is not None and current.attempt == attempt else None

    def _wake(self, at_s: float) -> None:
        self.next_s = min(self.next_s, at_s)
