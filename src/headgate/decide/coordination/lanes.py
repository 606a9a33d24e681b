"""Which lanes run, and which partitions may be read by a lane that nobody hears from.

A partition is idle, running (a lane holds a stream and said so) or lost: its lane's stream broke
without a goodbye, so the lane may be dead or merely cut off. Only a re-run of the lane, a new epoch
or the end of the lease ends that doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model.control import Hello, LaneReport
from headgate.model.event import PartitionRef


@dataclass(slots=True)
class Lane:
    hello: Hello
    adopted: int
    started_ms: int
    seen_ms: int
    told_to_end: bool = False
    report: LaneReport | None = None

    @property
    def refs(self) -> list[PartitionRef]:
        return [owner.ref for owner in self.hello.owns]


@dataclass(slots=True)
class Lanes:
    by_session: dict[int, Lane] = field(default_factory=dict)
    lost_since_ms: dict[PartitionRef, int] = field(default_factory=dict)
    ended_ms: dict[PartitionRef, int] = field(default_factory=dict)
    """When the last lane of a partition that has none said goodbye."""
    _running: dict[PartitionRef, int] = field(default_factory=dict)

    def is_overtaken(self, hello: Hello) -> bool:
        """True for a lane that comes back after a newer one of its router has begun."""
        mine = (hello.window, hello.attempt)
        return any(
            (running.hello.window, running.hello.attempt) > mine
            for owner in hello.owns
            if (session := self._running.get(owner.ref)) is not None
            and (running := self.by_session[session]).hello.incarnation == hello.incarnation
        )

    def start(self, session: int, hello: Hello, *, adopted: int, now_ms: int) -> list[int]:
        """A lane reads its partitions from now on; returns the sessions it replaces."""
        replaced = {
            other
            for owner in hello.owns
            if (other := self._running.get(owner.ref)) is not None and other != session
        }
        for other in replaced:
            self.end(other, now_ms=now_ms)
        self.by_session[session] = Lane(hello, adopted, now_ms, now_ms)
        for owner in hello.owns:
            self._running[owner.ref] = session
            self.lost_since_ms.pop(owner.ref, None)
            self.ended_ms.pop(owner.ref, None)
        return sorted(replaced)

    def end(self, session: int, *, now_ms: int) -> Lane | None:
        """The lane counts no more: it said goodbye, or a newer one was let in."""
        lane = self.by_session.pop(session, None)
        if lane is not None:
            for ref in lane.refs:
                if self._running.get(ref) == session:
                    del self._running[ref]
                    self.ended_ms[ref] = now_ms
        return lane

    def lose(self, session: int, *, now_ms: int) -> None:
        """The lane's stream broke: it may still be reading."""
        lane = self.end(session, now_ms=now_ms)
        if lane is not None:
            for ref in lane.refs:
                self.lost_since_ms.setdefault(ref, now_ms)

    def suspect(self, refs: Iterable[PartitionRef], *, now_ms: int) -> None:
        """After a restart of the coordinator: any of these may be read by an unknown lane."""
        for ref in refs:
            self.lost_since_ms.setdefault(ref, now_ms)

    def cleared(self, refs: Iterable[PartitionRef]) -> None:
        """A new epoch fences whoever may have been reading these."""
        for ref in refs:
            self.lost_since_ms.pop(ref, None)
            session = self._running.get(ref)
            if session is not None:
                self.end(session, now_ms=0)

    def silent(self, before_ms: int) -> list[int]:
        """Sessions of lanes that were not heard of since `before_ms`."""
        return [s for s, lane in self.by_session.items() if lane.seen_ms <= before_ms]

    def forgive(self, absent_ms: int) -> None:
        for lane in self.by_session.values():
            lane.seen_ms += absent_ms
            lane.started_ms += absent_ms
        for times in (self.lost_since_ms, self.ended_ms):
            for ref in times:
                times[ref] += absent_ms

    def of_router(self, router_id: str) -> list[tuple[int, Lane]]:
        return [(s, lane) for s, lane in self.by_session.items() if lane.hello.node_id == router_id]

    def is_running(self, ref: PartitionRef) -> bool:
        return ref in self._running
