"""Which lanes run, and which partitions may be read by a lane that nobody hears from.

A partition is idle, running (a lane holds a stream and said so) or lost: its lane's stream broke
without a goodbye, so the lane may be dead or merely cut off. Only a re-run of the lane, a new epoch
or the end of the lease ends that doubt.

A lane that starts wants its partitions first, and has them when it has claimed their positions:
until then the lane that ran them still does. It counts for the adoption floor from the first moment
on, and so does its predecessor to the last.

A lane that is back on another stream counts as running what it says it reads, and the doubt stays:
a newer lane, of which nobody heard, may have claimed it. It asks the store again, and says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.decide.coordination.views.rates import Meter
from headgate.model.control.reports import LaneReport, PartitionReport
from headgate.model.control.to_coordinator import Hello
from headgate.model.event import Fence, PartitionRef
from headgate.model.topology import Owner

CLAIM_MS = 10_000
"""A claim that was under way when its lane's stream broke has reached the store by then, or never
will: a lane begins none without having asked on its stream, a second ago at most."""

_Identity = tuple[str, int, int]


def _identity(hello: Hello) -> _Identity:
    return hello.incarnation, hello.window, hello.attempt


def _fence(hello: Hello, owner: Owner) -> Fence:
    return Fence(owner.epoch, hello.window, hello.attempt)


@dataclass(frozen=True, slots=True)
class _Unsaid:
    """Since when nobody hears of a lane that wanted a partition, and may have claimed it under
    `fence` (None: under any)."""

    since_ms: int
    fence: Fence | None = None

    def is_over(self, claimed: Fence, asked_ms: int) -> bool:
        """Whether a lane that was asked then, and has claimed the partition, shows that this one
        didn't and won't."""
        return (self.fence is not None and self.fence <= claimed) or self.is_ripe(asked_ms)

    def is_ripe(self, now_ms: int) -> bool:
        return now_ms - self.since_ms >= CLAIM_MS


@dataclass(slots=True)
class Lane:
    hello: Hello
    adopted: int
    started_ms: int
    seen_ms: int
    told_to_end: bool = False
    report: LaneReport | None = None
    load: Meter = field(default_factory=Meter)
    asked_ms: int = 0
    """When the lane was asked to prove that it still holds the partitions that it reads."""
    handed_off: dict[PartitionRef, Owner] = field(default_factory=dict)
    """What it has let go of, and is to hear of when another lane has it: so that it may end."""

    @property
    def refs(self) -> list[PartitionRef]:
        return [owner.ref for owner in self.hello.owns]


@dataclass(slots=True)
class Lanes:
    by_session: dict[int, Lane] = field(default_factory=dict)
    lost_since_ms: dict[PartitionRef, int] = field(default_factory=dict)
    ended_ms: dict[PartitionRef, int] = field(default_factory=dict)
    """When the last lane of a partition that has none said goodbye."""
    unsaid: dict[PartitionRef, _Unsaid] = field(default_factory=dict)
    """What a lane of which nobody hears wanted, and may have claimed."""
    idle_since_ms: dict[PartitionRef, int] = field(default_factory=dict)
    """Since when a router that could read a partition, and should, has had no lane for it."""
    restarts: dict[PartitionRef, int] = field(default_factory=dict)
    """How often a partition was read anew because the lane that read it was lost."""
    _running: dict[PartitionRef, int] = field(default_factory=dict)
    _newest: dict[PartitionRef, tuple[Fence, _Identity]] = field(default_factory=dict)
    """The last lane that began with a partition, also when its stream broke since."""
    _acknowledged: dict[PartitionRef, tuple[_Identity, int]] = field(default_factory=dict)
    """Which lane of a partition was the last to acknowledge a revision, and which one."""

    def is_overtaken(self, hello: Hello, owner: Owner) -> bool:
        """True for a lane that comes back after a newer one has begun with its partition.

        The newer one holds the position, so it alone counts, even while it isn't heard.
        """
        newest = self._newest.get(owner.ref)
        return newest is not None and newest[0] > _fence(hello, owner)

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
        """A lane is there and reads `owns`; returns by session the partitions that it takes from
        other lanes."""
        self.by_session[session] = Lane(hello, adopted, now_ms, now_ms)
        return self._run(session, owns)

    def claim(
        self, session: int, owns: Sequence[Owner], *, asked_ms: int = 0, now_ms: int
    ) -> dict[int, list[Owner]]:
        """A lane that is there already holds the positions of `owns`, and of nothing else; returns
        the same."""
        self.keep(session, {owner.ref for owner in owns}, now_ms=now_ms)
        lane = self.by_session[session]
        lane.hello = replace(lane.hello, owns=tuple(owns), wants=())
        taken = self._run(session, owns)
        for owner in owns:
            self.lost_since_ms.pop(owner.ref, None)
            unsaid = self.unsaid.get(owner.ref)
            if unsaid is not None and unsaid.is_over(_fence(lane.hello, owner), asked_ms):
                del self.unsaid[owner.ref]
        return taken

    def _run(self, session: int, owns: Sequence[Owner]) -> dict[int, list[Owner]]:
        hello = self.by_session[session].hello
        taken = self.take_from_others(owns, session)
        for owner in owns:
            ref, lane = owner.ref, (_fence(hello, owner), _identity(hello))
            self._running[ref] = session
            if ref in self.lost_since_ms and self._newest.get(ref) != lane:
                self._count_restart(ref)
            self._newest[ref] = lane
            self.ended_ms.pop(ref, None)
        return taken

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
        """The partitions that the lane still reads of those it began with."""
        lane = self.by_session.get(session)
        return [] if lane is None else [r for r in lane.refs if self._running.get(r) == session]

    def release(self, session: int, refs: Iterable[PartitionRef]) -> None:
        """The lane has let go of `refs`."""
        for ref in refs:
            if self._running.get(ref) == session:
                del self._running[ref]

    def hand_off(self, session: int, owners: Sequence[Owner]) -> None:
        """The lane has let go of `owners`, as it was asked to."""
        self.by_session[session].handed_off.update((owner.ref, owner) for owner in owners)
        self.release(session, [owner.ref for owner in owners])

    def keep(self, session: int, refs: Collection[PartitionRef], *, now_ms: int) -> None:
        """The lane reads only `refs` any more: newer lanes have fenced it off from the others, and
        may be reading them."""
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
        """The lane's stream broke: it may still be reading, also partitions that it only wanted so
        far."""
        lane = self.by_session.get(session)
        if lane is None:
            return
        self.suspect(self.end(session, now_ms=now_ms), now_ms=now_ms)
        for owner in lane.hello.wants:
            doubts = [one.fence for one in [self.unsaid.get(owner.ref)] if one is not None]
            fences = [fence for fence in doubts if fence is not None] + [_fence(lane.hello, owner)]
            self.unsaid[owner.ref] = _Unsaid(now_ms, None if None in doubts else max(fences))

    def suspect(self, refs: Iterable[PartitionRef], *, now_ms: int) -> None:
        """Any of these may be read by a lane of which nobody hears."""
        for ref in refs:
            self.lost_since_ms.setdefault(ref, now_ms)

    def suspect_all(self, refs: Collection[PartitionRef], *, now_ms: int) -> None:
        """After a restart of the coordinator: by an unknown lane, which may yet have to claim."""
        self.suspect(refs, now_ms=now_ms)
        self.unsaid.update((ref, _Unsaid(now_ms)) for ref in refs)

    def fence(self, owners: Iterable[Owner]) -> dict[int, list[Owner]]:
        """A new epoch fences the lanes that may have been reading these; returns by session the
        lanes that are known to, or have let go of them."""
        owners = list(owners)
        for owner in owners:
            if self.lost_since_ms.pop(owner.ref, None) is not None:
                self._count_restart(owner.ref)
            self.unsaid.pop(owner.ref, None)
            self.ended_ms.pop(owner.ref, None)
            self.idle_since_ms.pop(owner.ref, None)
        fenced = {owner.ref for owner in owners}
        for lane in self.by_session.values():
            left = tuple(owner for owner in lane.hello.wants if owner.ref not in fenced)
            if len(left) < len(lane.hello.wants):
                lane.hello = replace(lane.hello, wants=left)
        handed_off = self._told_of(fenced)
        for session, taken in self.take_from_others(owners).items():
            handed_off.setdefault(session, []).extend(taken)
        return handed_off

    def _told_of(self, fenced: Collection[PartitionRef]) -> dict[int, list[Owner]]:
        told: dict[int, list[Owner]] = {}
        for session, lane in self.by_session.items():
            for ref in [ref for ref in lane.handed_off if ref in fenced]:
                told.setdefault(session, []).append(lane.handed_off.pop(ref))
        return told

    def forget(self, refs: Iterable[PartitionRef]) -> None:
        """These are of no topic any more, and nobody who comes back may read them."""
        for ref in refs:
            for table in (self._newest, self._acknowledged, self.restarts, self.ended_ms):
                table.pop(ref, None)

    def silent(self, before_ms: int) -> list[int]:
        """Sessions of lanes that were not heard of since `before_ms`."""
        return [s for s, lane in self.by_session.items() if lane.seen_ms <= before_ms]

    def unread(self, since_ms: int) -> list[PartitionRef]:
        """Partitions of which no lane was heard at least since then."""
        unsaid = {ref: one.since_ms for ref, one in self.unsaid.items()}
        times = (self.lost_since_ms, unsaid, self.idle_since_ms)
        unheard = {ref for found in times for ref, at_ms in found.items() if at_ms <= since_ms}
        return sorted(unheard - self.awaited() - self._running.keys())

    def to_prove(self, now_ms: int) -> list[int]:
        """The lanes that must show again that they hold their partitions, because a lane that isn't
        heard may have claimed them; each is asked now and then."""
        asked = []
        readers = {self._running.get(r) for r, one in self.unsaid.items() if one.is_ripe(now_ms)}
        for session in sorted(one for one in readers if one is not None):
            lane = self.by_session[session]
            if now_ms - lane.asked_ms >= CLAIM_MS:
                lane.asked_ms = now_ms
                asked.append(session)
        return asked

    def forgive(self, absent_ms: int) -> None:
        for lane in self.by_session.values():
            lane.seen_ms += absent_ms
            lane.started_ms += absent_ms
        for times in (self.lost_since_ms, self.ended_ms, self.idle_since_ms):
            for ref in times:
                times[ref] += absent_ms
        self.unsaid = {
            ref: _Unsaid(one.since_ms + absent_ms, one.fence) for ref, one in self.unsaid.items()
        }

    def of_router(self, router_id: str) -> list[tuple[int, Lane]]:
        return [(s, lane) for s, lane in self.by_session.items() if lane.hello.node_id == router_id]

    @property
    def in_doubt(self) -> bool:
        """May a lane be reading that nobody hears from?"""
        return bool(self.lost_since_ms or self.unsaid)

    def is_in_doubt(self, ref: PartitionRef) -> bool:
        """May only a lane be reading `ref` that nobody hears from?"""
        return ref not in self._running and (ref in self.lost_since_ms or ref in self.unsaid)

    def awaited(self) -> set[PartitionRef]:
        """What lanes will read that wait for the subscriptions, or for the store of positions."""
        return {owner.ref for lane in self.by_session.values() for owner in lane.hello.wants}

    def is_running(self, ref: PartitionRef) -> bool:
        return ref in self._running

    def may_be_read(self, ref: PartitionRef) -> bool:
        return ref in self._running or ref in self.lost_since_ms or ref in self.unsaid

    def reader(self, ref: PartitionRef) -> int | None:
        """The session of the lane that reads `ref`."""
        return self._running.get(ref)

    def settled(self, ref: PartitionRef) -> int:
        """How far `ref` is settled, as the lane that reads it says; 0 where none says so."""
        report = self._report(ref)
        return 0 if report is None else report.settled

    def is_rid_of(self, ref: PartitionRef, seq: int) -> bool:
        """Whether the lane that reads `ref` says that all up to there is settled and nothing
        parked, or there is nothing."""
        report = self._report(ref)
        return not seq if report is None else report.settled >= seq and not report.parked

    def _report(self, ref: PartitionRef) -> PartitionReport | None:
        session = self.reader(ref)
        report = None if session is None else self.by_session[session].report
        reports = () if report is None else report.partitions
        return next((one for one in reports if one.ref == ref), None)

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
        if ended := self._running.keys() & self.ended_ms.keys():
            yield f"{ended} are read, and over"
