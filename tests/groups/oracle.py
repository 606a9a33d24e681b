"""Judges what became of a group's events, from the log, the wires and what handlers saw alone.

It knows which record was appended when, which consumer began, ended and acknowledged what, which of
them had a way to the coordinator at which time, and what an operator wished. It knows nothing of
targets, epochs and positions but what messages say, and how a key is placed, which is documented.

Judged at once:
- order, and that nothing is passed: when a record begins for the first time, or again, everything
  older of its key was acknowledged by somebody, or the group was told to resync over it;
- that nothing comes again for no reason: what a gateway was told to be processed, by whoever owned
  the target then, never comes again unmarked, if that gateway was not lost or cut off before it
  could save that; and to the consumer itself that processed it only where somebody else may have
  had the target meanwhile;
- one at a time: nobody begins with an event of a key while another consumer works on one of it,
  but for an overlap that docs/adr/0013 allows: the other one was frozen for longer than it is
  given to finish, or cut off; then no more events of the target overlap than may be in hand, of
  which some may still be on their way to it, and it may ask for some of them again;
- bounds: what went over a wire and wasn't acknowledged over it, per target and in all;
- positions: a target is never given out past a record that none of its owners said to be processed;
- resyncs tell of records that the log doesn't have any more, marks of what an operator wished;
- resets: a target goes back only where an operator put its partition, and then nothing behind that
  counts as processed, whoever had said so; one that stands before that stays, and only what was
  processed ahead of its position, and never said, comes again;
- what a group gives up, and sends again, to nobody else: giving_up.py. A dead letter of the group
  accounts for its record as if that were processed.
Judged at the end: everything is processed, told or a letter, every wish is fulfilled.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.decide.produce.placement import partition_of
from headgate.model.client_messages import Event, Item, Resync
from headgate.model.event import Fence
from headgate.model.letters import Letter, NewLetter
from headgate.services.gateway.groups.bounds import ConsumerBounds
from tests.groups.giving_up import GivingUp, target_of
from tests.groups.network import GroupLink

BYSTANDER = "bystander"
"""Of another group, which wants the events that the group fails with."""
SAVED_S = 3.0
"""By then an acknowledgement is durable, when nothing is in its way."""
SLOW_S = 2.0
MEET_S = 30.0
"""What happens to a target within that time of each other has met."""
RESET_S = 60.0
"""For a reset to be carried out, and read: it waits for gateways that are cut off."""
FROZEN_S = 6.4
"""A consumer is given 10 s from when it was last heard, which may be 3 s before it froze."""
ASKED_S = 1.1
"""A gateway that has the store alone to ask whether a target is its own asks so often."""
LOST_S = 29.4
"""What belongs to a consumer that has no connection, or whose gateway has none, goes elsewhere
after a lease, also where it was on its way there."""

Place = tuple[int, int]
"""Partition and seq."""


@dataclass(eq=False)
class Work:
    """One event in the hands of one consumer."""

    member: str
    place: Place
    key: str
    target: int
    came_s: float
    """When it came to the client."""
    handed_s: float
    """When its gateway wrote it, which may be long before that."""
    taken_s: float
    """When the user was handed it."""
    marked: bool = False
    begun_s: float = 0.0
    overlapped: bool = False
    """Somebody else has begun with its key meanwhile, and was allowed to."""


@dataclass(frozen=True)
class Said:
    """All up to `seq` that it was `sent`, or stands up to `start`, is processed, says a consumer to
    its gateway."""

    seq: int
    at_s: float
    member: str
    node: str
    start: int
    sent: set[int]


@dataclass
class Path:
    """When a consumer had no way to the coordinator; the last one may not have ended."""

    linked: bool = False
    frozen: bool = False
    gateway_away: bool = False
    breaks: list[tuple[float, float, float]] = field(default_factory=list)
    """Begin, end, and how long that has to be for somebody else to be given what it has."""

    @property
    def is_open(self) -> bool:
        return self.linked and not self.frozen and not self.gateway_away

    def changed(self, now_s: float) -> None:
        if self.breaks and self.breaks[-1][1] == math.inf:
            begin_s, _, needed_s = self.breaks[-1]
            end_s = now_s if self.is_open else math.inf
            self.breaks[-1] = (begin_s, end_s, min(needed_s, self._needed_s))
        elif not self.is_open:
            self.breaks.append((now_s, math.inf, self._needed_s))

    @property
    def _needed_s(self) -> float:
        return FROZEN_S if self.frozen else LOST_S

    def broken(self, from_s: float, to_s: float) -> bool:
        return any(begin_s <= to_s and end_s >= from_s for begin_s, end_s, _ in self.breaks)

    def excuses(self, from_s: float, now_s: float) -> bool:
        """Whether somebody else may have been given what it has had since `from_s`."""
        return any(
            end_s >= from_s and min(end_s, now_s) - begin_s >= needed_s
            for begin_s, end_s, needed_s in self.breaks
        )


class Oracle:
    """Implements network.Tap."""

    def __init__(self, bounds: ConsumerBounds) -> None:
        self._bounds = bounds
        self.earliest: Callable[[int], int] = lambda _: 0
        """Where the log of a partition begins."""
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        """What happened how often, so that it can be asserted that it did."""
        self.keys: dict[Place, str] = {}
        self.of_key: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        self.acked: set[Place] = set()
        self.acked_by: dict[tuple[str, Place], float] = {}
        self._taken_by: dict[tuple[str, Place], float] = {}
        """When each was handed what it acknowledged."""
        self._epochs: dict[tuple[str, int], int] = {}
        """Under which epoch each consumer, as it knows, had each target last."""
        self._between_s: dict[tuple[str, int], float] = {}
        """When it last got it under one that doesn't follow that."""
        self.said: defaultdict[tuple[int, int], list[Said]] = defaultdict(list)
        """Per target and partition, what gateways were told to be processed."""
        self._said_alone: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        """Likewise, by themselves: what stands before them is wanted later, or said by nobody."""
        self.told: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        """Per target and partition, the open intervals that somebody was told to resync over."""
        self.target_of: dict[str, int] = {}
        self.active: defaultdict[str, list[Work]] = defaultdict(list)
        self.paths: defaultdict[str, Path] = defaultdict(Path)
        """Of consumers."""
        self.nodes: defaultdict[str, Path] = defaultdict(lambda: Path(linked=True))
        """Of gateways."""
        self._owners: defaultdict[int, Path] = defaultdict(Path)
        """When each target was whose."""
        self._owned: dict[int, int] = {}
        """The highest epoch under which each target was ever given out."""
        self.wishes: dict[Place, float] = {}
        self.ever_wished: set[Place] = set()
        self.by_reset: set[Place] = set()
        self.resets: list[tuple[int, int, float]] = []
        self.passed_over: set[Place] = set()
        """Up to where an operator wanted nothing any more of a partition."""
        self._passes: dict[tuple[int, int], tuple[int, int]] = {}
        """Per target and partition that is less far: up to where, and since behind which epoch."""
        self._gone_back: set[tuple[int, int, float]] = set()
        """Target, and the partition and time of a reset that it has gone back for."""
        self._backs: defaultdict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
        """Per target and partition, when a consumer was told that it goes back, and to where."""
        self.appended_s: dict[Place, float] = {}
        self.overlaps: defaultdict[tuple[str, int, float], set[tuple[Place, bool]]]
        self.overlaps = defaultdict(set)
        """Per consumer, target and when it lost that: what it had in hand then, and went on with,
        as often as it liked."""
        self.happened: defaultdict[int, list[tuple[float, float, str]]] = defaultdict(list)
        """Per target, from when to when."""
        self.history: defaultdict[str, list[str]] = defaultdict(list)
        self._passed: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._came: dict[tuple[str, int, int, bool], tuple[float, float]] = {}
        """When something came to a consumer, and when it was written."""
        self._written_s: dict[tuple[GroupLink, int, int, int, bool], float] = {}
        """Per link, epoch, partition, seq and mark, when it was last written."""
        self._out: defaultdict[GroupLink, dict[tuple[int, int], set[Any]]] = defaultdict(dict)
        self._starts: dict[tuple[GroupLink, int, int, int], int] = {}
        """Per link, target, epoch and partition."""
        self._sent: defaultdict[tuple[GroupLink, int, int, int], set[int]] = defaultdict(set)
        self._bystander_got_s: dict[Place, float] = {}
        self.targets = 0
        self.giving_up = GivingUp(
            now_s=lambda: self.now_s,
            violated=lambda what, place: self.violated(what, self.keys.get(place, "")),
            was_saved=self._had_time,
        )

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def violated(self, what: str, key: str = "") -> None:
        history = "".join(f"\n      {line}" for line in self.history[key][-25:]) if key else ""
        self.violations.append(f"{self.now_s:.3f}: {what}{history}")

    # --- which features have met -----------------------------------------------------------------

    def tag(self, what: str, target: int, since_s: float | None = None) -> None:
        begin_s = self.now_s if since_s is None else since_s
        self.happened[target].append((begin_s, self.now_s, what))

    def tag_links(self, what: str, links: Iterable[GroupLink]) -> None:
        """All targets that are owned over these."""
        for link in links:
            for target in {where[0] for where in self._out[link]}:
                self.tag(what, target)

    def met(self) -> Counter[tuple[str, str]]:
        """How often each two features met at a target."""
        found: Counter[tuple[str, str]] = Counter()
        for happened in self.happened.values():
            happened.sort()
            for at, (_, end_s, one) in enumerate(happened):
                for begin_s, _, other in happened[at + 1 :]:
                    if begin_s > end_s + MEET_S:
                        break
                    found[min(one, other), max(one, other)] += 1
        return found

    # --- the log and its operators ---------------------------------------------------------------

    def appended(self, partition: int, seq: int, key: str) -> None:
        self.keys[partition, seq] = key
        self.appended_s[partition, seq] = self.now_s
        self.of_key[partition, key].append(seq)

    def wished(self, place: Place) -> None:
        self.wishes[place] = self.now_s
        self.by_reset.discard(place)
        self.ever_wished.add(place)

    # --- letters of the group --------------------------------------------------------------------

    def revived(self, letter: Letter) -> None:
        """An operator wants the group to get it again."""
        self.giving_up.revived(letter)
        place = letter.delivery.partition, letter.delivery.seq
        self.wishes[place] = self.now_s
        self.by_reset.discard(place)
        self.history[self.keys[place]].append(f"{self.now_s:9.3f} the letter of {place} is retried")

    def written(self, letter: NewLetter, fence: Fence) -> None:
        self.giving_up.written(letter, fence)
        self._given_up(letter)

    def buried(self, letter: Letter, fence: Fence) -> None:
        self.giving_up.buried(letter, fence)
        self._given_up(letter)

    def _given_up(self, letter: NewLetter | Letter) -> None:
        place = letter.delivery.partition, letter.delivery.seq
        key = self.keys[place]
        self.seen["given up"] += 1
        self.tag("given up", target_of(letter))
        self.wishes.pop(place, None)
        self.history[key].append(f"{self.now_s:9.3f} {place} is a letter")

    def removed_letter(self, letter: Letter) -> None:
        self.giving_up.removed(letter)
        self.seen["letter processed"] += 1

    def reset(self, partition: int, to: int, settled: int) -> None:
        """By an operator, who saw it at `settled`."""
        for target in range(self.targets):
            self._passes.pop((target, partition), None)
        for seq in range(to + 1, settled + 1):
            self.wishes[partition, seq] = self.now_s
            self.by_reset.add((partition, seq))
        self.resets.append((partition, to, self.now_s))

    def group_reset(
        self, partition: int, to: int, head: int, *, ahead: Container[int], is_over: bool = True
    ) -> None:
        """By an operator, who saw that partition end at `head`, and of these targets less than
        what comes up to `to` processed. What is passed over may come for as long as it isn't over:
        `passed` says when that was."""
        for place in [one for one in self.wishes if one[0] == partition and one[1] <= to]:
            del self.wishes[place]
        self.passed_over.add((partition, to))
        for target in range(self.targets):
            self._passes.pop((target, partition), None)
            if is_over and target in ahead:
                self._passes[target, partition] = to, self._owned.get(target, 0)
        for seq in range(max(to + 1, self.earliest(partition)), head + 1):
            if self.placed(self.keys[partition, seq]) not in ahead:
                self.wishes[partition, seq] = self.now_s
                self.by_reset.add((partition, seq))
        self.resets.append((partition, to, self.now_s))

    def epochs(self) -> dict[int, int]:
        """The highest one of each target."""
        return dict(self._owned)

    def passed(
        self, partition: int, to: int, *, ahead: Iterable[int], epochs: dict[int, int]
    ) -> None:
        """A reset of the group that went ahead is over, for whoever has these targets behind those
        epochs."""
        for target in ahead:
            self._passes[target, partition] = to, epochs.get(target, 0)

    def forgotten(self) -> None:
        """The coordinator has lost its store, and with it what was just asked of it."""
        for place in self.by_reset & self.wishes.keys():
            if self.wishes[place] > self.now_s - RESET_S:
                del self.wishes[place]

    def unfulfilled(self) -> list[Place]:
        """A lane's letter goes to the others while nobody owns a target: see ADR 13."""
        return [
            place
            for place, at_s in self.wishes.items()
            if not self._went_elsewhere(place, at_s) or not self._was_unowned(place, at_s)
        ]

    def _went_elsewhere(self, place: Place, at_s: float) -> bool:
        return place not in self.by_reset and self._bystander_got_s.get(place, -math.inf) >= at_s

    def _was_unowned(self, place: Place, at_s: float) -> bool:
        """Or its owner was at a gateway that nobody heard, and that may have been given up."""
        target = self.target_of.get(self.keys[place], -1)
        ways = [self._owners[target], *self.nodes.values()]
        return target < 0 or any(way.broken(at_s - RESET_S, at_s + RESET_S) for way in ways)

    def _kind_of_mark(self, place: Place) -> str:
        return "sent again" if place in self.giving_up.sent_again else "redelivery"

    def _goes_back(self, target: int, partition: int, seq: int) -> None:
        """A consumer is told that it gets what follows `seq` again."""
        self.seen["reset"] += 1
        self.tag("reset", target)
        where = target, partition
        self._backs[where].append((self.now_s, seq))
        wanted = [one for one in self.resets if one[0] == partition]
        if not wanted:
            self.violated(f"target {target} goes back to {(partition, seq)}, and nobody wished it")
        # One that stands before where the partition was put, or there, stays: what was said so far
        # holds. One that had saved more goes back. Of others there is no telling: what is others'
        # may have brought a position further, and what was said may not have been saved.
        may_be_back = any(to == seq for _, to, _ in wanted)
        is_back = any(self._had_saved_more(where, seq, at_s) for _, to, at_s in wanted if to == seq)
        if any(to <= seq for _, to, _ in wanted):
            self.said[where] = [replace(one, seq=min(seq, one.seq)) for one in self.said[where]]
            self._said_alone[where] = {one for one in self._said_alone[where] if one <= seq}
        new = {(target, partition, at_s) for _, to, at_s in wanted if to >= seq} - self._gone_back
        self._gone_back |= new
        if new:
            again = [one for one in self.keys if one[0] == partition and one[1] > seq]
            for place in [one for one in again if self.placed(self.keys[one]) == target]:
                self.acked.discard(place)
                if is_back:
                    self.giving_up.begins_anew(place)
                elif may_be_back:
                    self.giving_up.may_begin_anew(place)
                self._passed[partition, self.keys[place]] = 0

    def _had_saved_more(self, where: tuple[int, int], seq: int, by_s: float) -> bool:
        """Whether a gateway was told more of a target, and had the time to save that by then."""
        return any(
            one.seq > seq and one.at_s + SAVED_S <= by_s and self._is_saved(one)
            for one in self.said[where]
        )

    def _is_from_before(self, work: Work) -> bool:
        """Whether its target has gone back behind it since it came."""
        backs = self._backs[work.target, work.place[0]]
        return any(at_s >= work.came_s and seq < work.place[1] for at_s, seq in backs)

    def removed(self, partition: int, earliest: int) -> None:
        """By retention: what isn't there can't come again."""
        for place in [p for p in self.wishes if p[0] == partition and p[1] < earliest]:
            del self.wishes[place]

    # --- handlers --------------------------------------------------------------------------------

    def taken(self, member: str, item: Item) -> Work:
        """A user was handed it."""
        if isinstance(item, Resync):
            self._told(item)
            now_s = self.now_s
            return Work(member, (item.partition, 0), "", item.target, now_s, now_s, now_s)
        assert isinstance(item, Event)
        place, again = (item.partition, item.seq), item.redelivery
        key = item.key
        if key is None and place[1] < self.earliest(place[0]):
            key = self.keys[place]  # a letter of what the log didn't have any more
        assert key is not None, item
        at_s = self._came.get((member, *place, again), (self.now_s, self.now_s))
        return Work(member, place, key, item.target, *at_s, self.now_s, again)

    def begin(self, work: Work) -> None:
        """And works on it now."""
        work.begun_s = self.now_s
        if not work.key:
            return
        place = work.place
        self._note(work, "begins with")
        if self.keys.get(place) != work.key:
            self.violated(f"{place} has another key than {work.key}")
        if self.target_of.setdefault(work.key, work.target) != work.target:
            self.violated(f"{work.key} is in two targets")
        if work.marked:
            self.tag(self._kind_of_mark(place), work.target)
            if place not in self.ever_wished and place not in self.giving_up.sent_again:
                self.violated(f"{place} is marked, and nobody wished it", work.key)
        elif not self._is_from_before(work):
            self._judge_order(work)
            self._judge_repeat(work)
        self._judge_others(work)
        self.active[work.key].append(work)

    def _told(self, item: Resync) -> None:
        if item.reason == "reset":
            return
        self.seen["resync"] += 1
        self.tag("retention", item.target)
        is_wanted = (item.partition, item.from_seq - 1) in self.passed_over
        self.seen["passed over"] += is_wanted
        if item.from_seq > self.earliest(item.partition) and not is_wanted:
            self.violated(f"{item} is told of what the log still has")
        self.told[item.target, item.partition].append((item.after_seq, item.from_seq))

    def failed(self, work: Work, how: str) -> None:
        """It can't be processed."""
        self.seen[how] += 1
        self._note(work, f"fails ({how}) with")
        self.tag("failure", work.target)

    def end(self, work: Work) -> None:
        """Processed, given up, or its process was killed."""
        if work.key and work in self.active[work.key]:
            self.active[work.key].remove(work)
            self._note(work, "is out of")
            if self.now_s - work.begun_s >= SLOW_S:
                self.tag("slow", work.target, work.begun_s)

    def acknowledged(self, work: Work) -> None:
        if not work.key:
            return
        self._note(work, "acknowledges")
        self.acked.add(work.place)
        if not work.marked and not self._is_from_before(work):
            self.acked_by.setdefault((work.member, work.place), self.now_s)
            self._taken_by.setdefault((work.member, work.place), work.taken_s)
        # A reset doesn't bring again what is in hand where no position has passed it.
        since_s = self.now_s if work.place in self.by_reset else work.begun_s
        if self.wishes.get(work.place, math.inf) <= since_s:
            del self.wishes[work.place]
            self.seen["wish fulfilled"] += 1

    def _note(self, work: Work, what: str) -> None:
        mark = " again" if work.marked else ""
        line = f"{self.now_s:9.3f} {work.member} {what} {work.place}{mark} of {work.key}"
        self.history[work.key].append(line)

    # --- judging ---------------------------------------------------------------------------------

    def _judge_order(self, work: Work) -> None:
        partition, seq = work.place
        where = partition, work.key
        seqs = self.of_key[where]
        while self._passed[where] < len(seqs) and seqs[self._passed[where]] < seq:
            older = seqs[self._passed[where]]
            if not self._is_accounted(partition, older):
                self.violated(
                    f"{work.member} begins with {work.place}, and {older} isn't processed", work.key
                )
                return
            self._passed[where] += 1

    def _is_accounted(self, partition: int, seq: int) -> bool:
        if (partition, seq) in self.acked or (partition, seq) in self.giving_up.letters:
            return True
        return self.is_told((partition, seq))

    def is_told(self, place: Place) -> bool:
        """Whether somebody was told that it doesn't come."""
        partition, seq = place
        told = self.told[self.placed(self.keys[place]), partition]
        return any(after < seq < from_ for after, from_ in told)

    def placed(self, key: str) -> int:
        """Its target, also where nothing of the key was ever sent; -1 before anybody has joined."""
        if key in self.target_of or not self.targets:
            return self.target_of.get(key, -1)
        return partition_of(key, collection="", count=self.targets)

    def _judge_repeat(self, work: Work) -> None:
        partition, seq = work.place
        acked_s = self.acked_by.get((work.member, work.place), math.inf)
        backs = self._backs[work.target, partition]
        is_back = any(at_s >= acked_s - SAVED_S and to < seq for at_s, to in backs)
        between_s = self._between_s.get((work.member, work.target), -math.inf)
        is_between = between_s >= self._taken_by.get((work.member, work.place), math.inf)
        if acked_s < work.taken_s and not is_back and not is_between:
            self.violated(f"{work.member} has processed {work.place} itself", work.key)
        for said in reversed(self.said[work.target, partition]):
            if said.seq < seq:
                return
            if seq > said.start and seq not in said.sent:
                continue  # the gateway has kept it back
            if said.at_s < work.taken_s and self._is_saved(said):
                if work.handed_s <= said.at_s + ASKED_S and self._may_overlap(work):
                    return
                self.violated(
                    f"{work.place} comes to {work.member} again, and {said.member} had said to "
                    f"{said.node} that {said.seq} is processed, at {said.at_s:.3f}",
                    work.key,
                )
                return
            self.seen["repeat"] += 1

    def _judge_position(self, target: int, partition: int, position: int) -> None:
        """A target begins after records that its owners, and nobody else, said to be processed."""
        said_seq = max((said.seq for said in self.said[target, partition]), default=0)
        for seq in range(position, max(said_seq, self.earliest(partition) - 1), -1):
            key = self.keys[partition, seq]
            is_letter = (partition, seq) in self.giving_up.letters
            is_said = seq in self._said_alone[target, partition]
            if self.target_of.get(key) == target and not is_letter and not is_said:
                self.violated(
                    f"target {target} begins after {(partition, position)}, and no owner said that "
                    f"{seq} is processed",
                    key,
                )
                return

    def _is_saved(self, said: Said) -> bool:
        return self._had_time(said.node, said.at_s)

    def _had_time(self, node: str, at_s: float) -> bool:
        """Whether a gateway could save what it knew then."""
        until_s = min(self.now_s, at_s + SAVED_S)
        return not self.nodes[node].broken(at_s - SAVED_S, until_s)

    def _judge_others(self, work: Work) -> None:
        for other in self.active[work.key]:
            if other.member == work.member:
                continue
            if not self._may_overlap(other) and not self._may_overlap(work):
                self.violated(
                    f"{work.member} begins with {work.place} while {other.member} works on "
                    f"{other.place} since {other.begun_s:.3f}; "
                    f"breaks {self.paths[other.member].breaks[-3:]}",
                    work.key,
                )

    def _may_overlap(self, work: Work) -> bool:
        """Whether its consumer may have lost it without having been asked; such are counted."""
        path = self.paths[work.member]
        if not path.excuses(work.came_s, self.now_s):
            return False
        if not work.overlapped:
            work.overlapped = True
            lost = work.member, work.target, path.breaks[-1][0]
            self.overlaps[lost].add((work.place, work.marked))
            self.seen["overlap"] += 1
            if len(self.overlaps[lost]) > self._bounds.prefetch:
                self.violated(f"more than {self._bounds.prefetch} events overlap", work.key)
        return True

    # --- ways ------------------------------------------------------------------------------------

    def frozen(self, member: str, is_frozen: bool) -> None:
        path = self.paths[member]
        path.frozen = is_frozen
        path.changed(self.now_s)

    def gateway_away(self, node: str, members: Iterable[str], *, is_away: bool) -> None:
        for path in (self.nodes[node], *(self.paths[member] for member in members)):
            path.gateway_away = is_away
            path.changed(self.now_s)

    # --- wires -----------------------------------------------------------------------------------

    def to_client(self, link: GroupLink, message: dict[str, Any]) -> None:
        if link.member == BYSTANDER:
            self._judge_bystander(message)
        elif message["type"] == "resync" and message["reason"] == "reset":
            self._goes_back(message["target"], message["partition"], message["from"] - 1)
        elif message["type"] in ("event", "resync") and "target" in message:
            where = message["target"], message["epoch"]
            out = self._out[link].setdefault(where, set())
            again = message.get("redelivery", False)
            if message["type"] == "event" and not again:
                self._judge_passing(message)
            seq = message["from"] - 1 if message["type"] == "resync" else message["seq"]
            thing = message["partition"], seq, again
            self._written_s[link, message["epoch"], *thing] = self.now_s
            number = message.get("deliveries", 1) if message["type"] == "event" else 0
            if message.get("key") is not None:
                self.target_of.setdefault(message["key"], message["target"])
            self.giving_up.handed(link, where, thing, number, self._out[link])
            out.add(thing)
            if not again:
                self._sent[(link, *where, message["partition"])].add(seq)
            if len(out) > self._bounds.prefetch:
                self.violated(f"{len(out)} of target {message['target']} are out at {link.member}")
            in_all = sum(map(len, self._out[link].values()))
            if in_all > self._bounds.in_hand:
                self.violated(f"{in_all} are out at {link.member}")
        elif message["type"] == "assigned":
            target, epoch = message["target"], message["epoch"]
            self._owned[target] = max(epoch, self._owned.get(target, 0))
            self._out[link][target, epoch] = set()
            self._owner_changed(target)
            self.giving_up.owns(link, (target, epoch))
            for partition, seq in message["positions"].items():
                self._starts[link, target, epoch, int(partition)] = seq
                self._judge_position(target, int(partition), seq)
        elif message["type"] == "revoke":
            self.tag("handover", message["target"])
            self.giving_up.asked_for(link, message["target"])
        elif message["type"] == "revoked":
            where = message["target"], message["epoch"]
            self.giving_up.lost(link, self._out[link], is_noted=False, of=where)
            self._out[link].pop(where, None)
            self._owner_changed(message["target"])
        elif message["type"] == "given_up" and message.get("redelivery", False):
            out = self._out[link].get((message["target"], message["epoch"]), set())
            out.discard((message["partition"], message["seq"], True))

    def _judge_passing(self, message: dict[str, Any]) -> None:
        where = message["target"], message["partition"]
        to, epoch = self._passes.get(where, (0, 0))
        if message["seq"] <= to and message["epoch"] > epoch:
            place = message["partition"], message["seq"]
            self.violated(f"{place} comes, and nothing up to {to} is wanted", self.keys[place])

    def _judge_bystander(self, message: dict[str, Any]) -> None:
        if message["type"] == "event":
            place = message["partition"], message["seq"]
            self.seen["bystander"] += 1
            self._bystander_got_s[place] = self.now_s
            if message.get("redelivery", False) and place not in self.ever_wished:
                self.violated(f"{place} is sent again to another group", self.keys[place])

    def arrived(self, link: GroupLink, message: dict[str, Any]) -> None:
        if link.member == BYSTANDER:
            return
        if message["type"] == "joined":
            self.targets = message["targets"]
            path = self.paths[link.member]
            path.linked = True
            path.gateway_away = False
            path.changed(self.now_s)
        elif message["type"] == "assigned":
            where, epoch = (link.member, message["target"]), message["epoch"]
            if epoch > self._epochs.get(where, epoch) + 1:
                self._between_s[where] = self.now_s
            self._epochs[where] = epoch
        elif message["type"] == "event":
            thing = message["partition"], message["seq"], message.get("redelivery", False)
            written_s = self._written_s[link, message["epoch"], *thing]
            self._came[(link.member, *thing)] = self.now_s, written_s

    def to_gateway(self, link: GroupLink, message: dict[str, Any]) -> None:
        if link.member == BYSTANDER:
            return
        if message["type"] == "join":
            self.giving_up.joins(link, message.get("max_deliveries", 0))
        elif message["type"] == "nack":
            self.giving_up.nacked(link, message, self._out[link])
        elif message["type"] == "held":
            self.seen["held"] += 1
            self.giving_up.held(link, message)
        elif message["type"] == "leave":
            failed = message.get("failed", False)
            self.giving_up.leaves(link, self._out[link], failed=failed)
        if message["type"] not in ("ack", "released"):
            return
        where = message["target"], message["epoch"]
        out = self._out[link].get(where, set())
        if message["type"] == "released":
            self._out[link].pop(where, None)
            self._owner_changed(where[0])
            return
        is_owner = where in self._out[link] and self._owned.get(where[0]) == where[1]
        for partition, seq in message.get("positions", {}).items():
            if is_owner:
                there = (link, *where, int(partition))
                start, sent = self._starts.get(there, 0), self._sent[there]
                said = Said(seq, self.now_s, link.member, link.node_id, start, sent)
                self.said[where[0], int(partition)].append(said)
            out -= {one for one in out if not one[2] and one[0] == int(partition) and one[1] <= seq}
        for partition, seqs in message.get("processed", {}).items():
            if is_owner:
                self._said_alone[where[0], int(partition)].update(seqs)
            out -= {(int(partition), seq, False) for seq in seqs}
        for partition, seqs in message.get("redelivered", {}).items():
            for seq in seqs:
                if (int(partition), seq, True) in out:
                    out.discard((int(partition), seq, True))
                    self.giving_up.acknowledged_again((int(partition), seq))

    def ended(self, link: GroupLink) -> None:
        if link.member == BYSTANDER:
            return
        out = self._out.pop(link, {})
        is_owner = all(self._owned[target] == epoch for target, epoch in out)
        self.giving_up.ended(link, out, is_owner=is_owner)
        for target, _ in out:
            self._owner_changed(target)
        path = self.paths[link.member]
        path.linked = False
        path.changed(self.now_s)

    def _owner_changed(self, target: int) -> None:
        path = self._owners[target]
        path.linked = any(where[0] == target for out in self._out.values() for where in out)
        path.changed(self.now_s)

    # --- the end ---------------------------------------------------------------------------------

    def missing(self) -> list[tuple[Place, str]]:
        """Records that nobody processed, and nobody was told about."""
        return [(place, key) for place, key in self.keys.items() if not self._is_accounted(*place)]
