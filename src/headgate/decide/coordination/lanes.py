"""Which lanes run, and which partitions may be read by a lane that nobody hears from.

A partition is idle, running (a lane holds a stream and said so) or lost: its lane's stream broke
without a goodbye, so the lane may be dead or merely cut off. Only a re-run of the lane, a new epoch
or the end of the lease ends that doubt.

A lane that starts wants its partitions first, and has them when it has claimed their positions:
until then whoever ran them still does. It counts for the adoption floor from the first moment on,
and so does its predecessor to the last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.decide.coordination.rates import Meter
from headgate.model.control import Hello, LaneReport
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner

_Identity = tuple[str, int, int]


def _identity(hello: Hello) -> _Identity:
    return hello.incarnation, hello.window, hello.attempt


@dataclass(slots=True)
class Lane:
    hello: Hello
    adopted: int
    started_ms: int
    seen_ms: int
    told_to_end: bool = False
    report: LaneReport | None = None
    load: Meter = field(default_factory=Meter)

    @property
    def wanted(self) -> list[PartitionRef]:
        return [owner.ref for owner in self.hello.wants]

    @property
    def refs(self) -> list[PartitionRef]:
        return [owner.ref for owner in self.hello.owns]


@dataclass(slots=True)
class Lanes:
    by_session: dict[int, Lane] = field(default_factory=dict)
    lost_since_ms: dict[PartitionRef, int] = field(default_factory=dict)
    ended_ms: dict[PartitionRef, int] = field(default_factory=dict)
    """When the last lane of a partition that has none said goodbye."""
    unsaid_since_ms: dict[PartitionRef, int] = field(default_factory=dict)
    """Since when nobody hears of a lane that wanted a partition, and may have claimed it."""
    idle_since_ms: dict[PartitionRef, int] = field(default_factory=dict)
    """Since when a router that could read a partition, and should, has had no lane for it."""
    restarts: dict[PartitionRef, int] = field(default_factory=dict)
    """How often a partition was read anew because whoever read it was lost."""
    _running: dict[PartitionRef, int] = field(default_factory=dict)
    _newest: dict[PartitionRef, Hello] = field(default_factory=dict)
    """The last lane that began with a partition, also when its stream broke since."""
    _acknowledged: dict[PartitionRef, tuple[_Identity, int]] = field(default_factory=dict)
    """Which lane of a partition was the last to acknowledge a revision, and which one."""

    def is_overtaken(self, hello: Hello, ref: PartitionRef) -> bool:
        """True for a lane that comes back after a newer one of its router has begun with `ref`.

        The newer one holds the position, so it alone counts, even while nobody hears from it.
        """
        newest = self._newest.get(ref)
        return (
            newest is not None
            and newest.incarnation == hello.incarnation
            and (newest.window, newest.attempt) > (hello.window, hello.attempt)
        )

    def acknowledge(self, session: int, revision: int) -> None:
        """The lane matches with `revision` of this coordinator's registry, or a newer one."""
        lane = self.by_session[session]
        lane.adopted = max(lane.adopted, revision)
        for ref in self.held(session):
            self._acknowledged[ref] = (_identity(lane.hello), lane.adopted)

    def knows(self, hello: Hello) -> bool:
        """Whether this very lane has its revision from this coordinator."""
        return any(
            known == _identity(hello) and revision >= hello.revision
            for owner in hello.owns
            for known, revision in [self._acknowledged.get(owner.ref, (None, 0))]
        )

    def start(
        self, session: int, hello: Hello, owns: Sequence[Owner], *, adopted: int, now_ms: int
    ) -> dict[int, list[Owner]]:
        """A lane is there and reads `owns`; returns what it takes from which other sessions."""
        self.by_session[session] = Lane(hello, adopted, now_ms, now_ms)
        return self._run(session, owns)

    def claim(self, session: int, owns: Sequence[Owner]) -> dict[int, list[Owner]]:
        """A lane that is there already reads `owns` from now on; returns the same."""
        lane = self.by_session[session]
        lane.hello = replace(lane.hello, owns=tuple(owns), wants=())
        return self._run(session, owns)

    def _run(self, session: int, owns: Sequence[Owner]) -> dict[int, list[Owner]]:
        hello = self.by_session[session].hello
        taken = self.take_from_others(owns, session)
        for owner in owns:
            self._running[owner.ref] = session
            if owner.ref in self.lost_since_ms and not self._is_newest(hello, owner.ref):
                self._count_restart(owner.ref)
            self._newest[owner.ref] = hello
            self.lost_since_ms.pop(owner.ref, None)
            self.unsaid_since_ms.pop(owner.ref, None)
            self.ended_ms.pop(owner.ref, None)
        return taken

    def _is_newest(self, hello: Hello, ref: PartitionRef) -> bool:
        """Is it the lane that was the last to begin with `ref`, back on another stream?"""
        newest = self._newest.get(ref)
        return newest is not None and (
            (newest.incarnation, newest.window, newest.attempt)
            == (hello.incarnation, hello.window, hello.attempt)
        )

    def _count_restart(self, ref: PartitionRef) -> None:
        if ref in self._newest:  # else it is this coordinator that has only just begun
            self.restarts[ref] = self.restarts.get(ref, 0) + 1

    def take_from_others(
        self, owners: Iterable[Owner], session: int | None = None
    ) -> dict[int, list[Owner]]:
        """Nobody but `session` counts as a reader of these any more.

        Returns who did, under which epoch. A lane that is left with nothing counts no more at all.
        """
        taken: dict[int, list[Owner]] = {}
        for owner in owners:
            other = self._running.get(owner.ref)
            if other is not None and other != session:
                del self._running[owner.ref]
                held = {o.ref: o for o in self.by_session[other].hello.owns}
                taken.setdefault(other, []).append(held[owner.ref])
        for other in taken:
            if not self.held(other):
                del self.by_session[other]
        return taken

    def held(self, session: int) -> list[PartitionRef]:
        """What the lane reads of all that it began with."""
        lane = self.by_session.get(session)
        return [] if lane is None else [r for r in lane.refs if self._running.get(r) == session]

    def release(self, session: int, refs: Iterable[PartitionRef]) -> None:
        """The lane has let go of `refs`."""
        for ref in refs:
            if self._running.get(ref) == session:
                del self._running[ref]

    def keep(self, session: int, refs: Collection[PartitionRef], *, now_ms: int) -> None:
        """The lane reads only `refs` any more: somebody has fenced it off from the others, and may
        be reading them."""
        lost = [ref for ref in self.held(session) if ref not in refs]
        self.release(session, lost)
        self.suspect(lost, now_ms=now_ms)

    def end(self, session: int, *, now_ms: int) -> list[PartitionRef]:
        """The lane said goodbye; returns what it read until then."""
        held = self.held(session)
        for ref in held:
            del self._running[ref]
            self.ended_ms[ref] = now_ms
        self.by_session.pop(session, None)
        return held

    def lose(self, session: int, *, now_ms: int) -> None:
        """The lane's stream broke: it may still be reading, also what it only wanted so far."""
        lane = self.by_session.get(session)
        self.suspect(self.end(session, now_ms=now_ms), now_ms=now_ms)
        for ref in lane.wanted if lane is not None else ():
            self.unsaid_since_ms.setdefault(ref, now_ms)

    def suspect(self, refs: Iterable[PartitionRef], *, now_ms: int) -> None:
        """After a restart of the coordinator: any of these may be read by an unknown lane."""
        for ref in refs:
            self.lost_since_ms.setdefault(ref, now_ms)

    def fence(self, owners: Iterable[Owner]) -> dict[int, list[Owner]]:
        """A new epoch fences whoever may have been reading these; returns who is known to."""
        owners = list(owners)
        for owner in owners:
            if self.lost_since_ms.pop(owner.ref, None) is not None:
                self._count_restart(owner.ref)
            self.unsaid_since_ms.pop(owner.ref, None)
            self.ended_ms.pop(owner.ref, None)
            self.idle_since_ms.pop(owner.ref, None)
        return self.take_from_others(owners)

    def silent(self, before_ms: int) -> list[int]:
        """Sessions of lanes that were not heard of since `before_ms`."""
        return [s for s, lane in self.by_session.items() if lane.seen_ms <= before_ms]

    def unread(self, since_ms: int) -> list[PartitionRef]:
        """Partitions of which no lane was heard at least since then."""
        times = (self.lost_since_ms, self.unsaid_since_ms, self.idle_since_ms)
        unheard = {ref for found in times for ref, at_ms in found.items() if at_ms <= since_ms}
        return sorted(unheard - self.awaited())

    def forgive(self, absent_ms: int) -> None:
        for lane in self.by_session.values():
            lane.seen_ms += absent_ms
            lane.started_ms += absent_ms
        doubts = (self.lost_since_ms, self.unsaid_since_ms)
        for times in (*doubts, self.ended_ms, self.idle_since_ms):
            for ref in times:
                times[ref] += absent_ms

    def of_router(self, router_id: str) -> list[tuple[int, Lane]]:
        return [(s, lane) for s, lane in self.by_session.items() if lane.hello.node_id == router_id]

    @property
    def in_doubt(self) -> bool:
        """May a lane be reading that nobody hears from?"""
        return bool(self.lost_since_ms or self.unsaid_since_ms)

    def awaited(self) -> set[PartitionRef]:
        """What lanes will read that wait for the subscriptions, or for the store of positions."""
        return {ref for lane in self.by_session.values() for ref in lane.wanted}

    def is_running(self, ref: PartitionRef) -> bool:
        return ref in self._running

    def may_be_read(self, ref: PartitionRef) -> bool:
        doubts = (self.lost_since_ms, self.unsaid_since_ms)
        return ref in self._running or any(ref in times for times in doubts)

    def reader(self, ref: PartitionRef) -> int | None:
        """The session of the lane that reads `ref`."""
        return self._running.get(ref)

    def running(self) -> dict[PartitionRef, Owner]:
        """What lanes read, under the epochs they began with."""
        return {
            owner.ref: owner
            for session, lane in self.by_session.items()
            for owner in lane.hello.owns
            if self._running.get(owner.ref) == session
        }

    def contradictions(self) -> Iterator[str]:
        """Partitions of which these tables say what can't all be true."""
        if strangers := self._running.keys() - self.running().keys():
            yield f"{strangers} are read by lanes that don't know of it"
        if doubtful := self._running.keys() & {*self.lost_since_ms, *self.ended_ms}:
            yield f"{doubtful} are read, and in doubt or over"
