"""Sends what is parked for a gateway, the oldest of each partition first.

A letter leaves the store when the gateway has answered for it, or when every subscription it was
for has ended or moved to another gateway, which reads the log from the subscriber's position on.
What is refused for good becomes a dead letter, or, where none are kept, stays and holds what is
behind it, as one does that can't be read (reading.py).

Invariant: no letter is sent before everything older is through, or the gateway has said that it
keeps the order of each subscriber (`GoOn`): then letters go page by page, and those that wait for a
slow subscriber come again later. Up to a letter that is sent, all that the lane has set aside is
written (`_Horizon`); and a letter of a former lane waits until this one has read the log up to it,
because what that one had in memory is older, and nowhere else. Letters are changed only under the
lane's fence.

While all goes well, several pages are read at a time, sent one by one and removed together: letters
come in hundreds per call of the store, and have to leave it as fast. Where few are left, the
gateway's `Parked` is told, so that there are no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from headgate.decide.delivery.rules import LEFT, DeliveryRules
from headgate.decide.delivery.steps import Redrive
from headgate.decide.feed.redelivered import marked
from headgate.decide.letters import pages as letter_pages
from headgate.decide.letters.parked import Parked
from headgate.decide.letters.reading_size import LettersAtOnce
from headgate.decide.portions import letter_bytes
from headgate.errors import CallerError, Fenced, HeadgateError
from headgate.lane.delivery.sending import Sending
from headgate.lane.delivery.setting_aside import SettingAside
from headgate.lane.delivery.sink import Sink, let_go
from headgate.lane.holding import Holding
from headgate.lane.letters.elders import Elders
from headgate.lane.letters.reading import read_parked
from headgate.lane.letters.writing import LetterWriter
from headgate.model.delivery import SETTLING_VERDICTS, Delivery, DeliveryAnswer, Verdict
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter, NewLetter
from headgate.ports.letters import Fences, LetterStore
from headgate.ports.machine import Machine
from headgate.telemetry import LogLine

log = structlog.get_logger()

REJECTED = "the gateway rejected it"
WRITTEN_IN_S = 1.0
"""How long a pipeline waits for what it has set aside to be on disk before it sends letters."""

FEW = 500
"""Letters that may wait to be written where the last ones of a partition are told to be on their
way: they go with one call of the store."""

_Sent = Sequence[tuple[Letter, Delivery]]


@dataclass(frozen=True, slots=True)
class _Horizon:
    """Once the gateway's letters before `mark` are written, the store has all that is parked of a
    partition up to `read_seq`: nothing of it waited in memory when the mark was set, and it has
    been behind ever since. (What waits for its last letters is newer than all of them, and parked
    in its order where it is after all.)"""

    mark: int
    read_seq: int


@dataclass(slots=True)
class _Done:
    """Letters that can be removed: delivered, or wanted by nobody."""

    through: list[Letter] = field(default_factory=list)
    unwanted: list[Letter] = field(default_factory=list)


@dataclass(slots=True)
class RedriveCounts:
    redriven: int = 0
    released: int = 0
    dead: int = 0


class Redriving:
    """`turn` is taken to send, `now_s` is the loop's clock."""

    def __init__(
        self,
        gateway_id: str,
        parked: Parked,
        *,
        rules: DeliveryRules,
        turn: asyncio.Lock,
        store: LetterStore,
        letters: LetterWriter,
        setting_aside: SettingAside,
        holding: Holding,
        sink: Sink,
        sending: Sending,
        machine: Machine,
        now_s: Callable[[], float],
    ) -> None:
        self._gateway_id = gateway_id
        self._parked = parked
        self._rules = rules
        self._turn = turn
        self._store = store
        self._letters = letters
        self._setting_aside = setting_aside
        self._holding = holding
        self._sink = sink
        self._sending = sending
        self._machine = machine
        self._now_s = now_s
        self._through: dict[PartitionRef, int] = {}
        """Of each partition the newest letter that the gateway took."""
        self._passed: set[int] = set()
        """The ids of letters that were refused after the gateway took a newer one, while the store
        doesn't say so."""
        self._horizons: dict[PartitionRef, _Horizon] = {}
        """How far letters may be sent. One stays while there are letters up to it: the store may
        never catch up with what is set aside meanwhile."""
        self._elders = Elders(gateway_id, store, holding)
        self._at_once = LettersAtOnce()
        self.counts = RedriveCounts()

    async def redrive(self, step: Redrive) -> None:
        try:
            await self._redrive(step)
        except Fenced as error:
            let_go(self._sink, error)
        except HeadgateError as error:
            log.error(LogLine.LETTERS_FAILED, gateway=self._gateway_id, error=error.message)
            now_s = self._now_s()
            if self._at_once.failed(now_s):
                self._parked.postponed(now_s)
            else:
                self._parked.store_failed(now_s)

    async def _redrive(self, step: Redrive) -> None:
        mark = self._letters.mark(self._gateway_id)
        horizons = await self._written_horizons(step.refs, mark)
        if not horizons:
            self._parked.postponed(self._now_s())
            return
        fences = self._holding.fences()
        for ref in step.refs:
            if ref not in fences:
                self._horizons.pop(ref, None)
                self._sending.drop(ref)  # its letters are another lane's
        refs = [ref for ref in horizons if ref in fences]
        each = self._at_once.each(step)
        read = await read_parked(
            self._store,
            self._gateway_id,
            refs,
            each=each,
            after_seqs=step.after_seqs,
            halted=self._parked.halted,
        )
        self._halt(read.halt)
        found, refs = read.letters, [ref for ref in refs if ref not in read.halt]
        if not refs:
            return
        counts = Counter([letter.ref for letter in found])
        newest = {letter.ref: letter.delivery.seq for letter in found}
        found, refs = await self._behind_their_elders(found, refs)
        ripe = [letter for letter in found if letter.delivery.seq <= horizons[letter.ref].read_seq]
        beyond = set(refs).difference(letter.ref for letter in ripe)
        for ref in beyond:
            del self._horizons[ref]
        current = {ref for ref in beyond if horizons[ref].mark == mark}
        parked = {letter.ref for letter in found}
        self._none_to_send(current, parked, step)
        went_well = not ripe or await self._send_pages(self._up_to_a_halt(ripe), step, fences)
        if went_well and self._letters.unwritten(self._gateway_id) <= FEW:
            few = {ref for ref in refs if counts[ref] < each and ref not in read.end}
            few -= step.after_seqs.keys()
            # New deliveries may wait behind them in memory only where they are newer than all of
            # them.
            last = {ref for ref in few if newest.get(ref, 0) <= self._holding.read_seq(ref)}
            self._parked.nearly_drained(last, now_s=self._now_s())

    def _halt(self, whys: Mapping[PartitionRef, str]) -> None:
        for ref, why in whys.items():
            log.error(
                LogLine.LETTERS_FAILED, gateway=self._gateway_id, partition=str(ref), error=why
            )
            self._setting_aside.take(self._parked.halt(ref, why, self._now_s()))

    async def _send_pages(self, letters: Sequence[Letter], step: Redrive, fences: Fences) -> bool:
        """One after the other, for as long as each goes through as a whole; True when all did. Of
        records that are to come again one at a time: a subscriber may have no room for it."""
        pages, done = letter_pages.in_pages(letters, step.each), _Done()
        is_alone = any(letter.delivery.redelivery for letter in letters)
        whole = False
        for page in pages:
            whole = await self._send_wanted(page, step, done) and not is_alone
            if not whole:
                break
        await self._remove_done(done, {**fences, **self._holding.fences()})
        largest_bytes = max(letter_bytes(letter.delivery) for letter in letters)
        self._at_once.done(largest_bytes, whole=whole, now_s=self._now_s())
        return whole

    async def _remove_done(self, done: _Done, fences: Fences) -> None:
        if done.unwanted:
            await self._remove(done.unwanted, fences)
            self.counts.released += len(done.unwanted)
        if done.through:
            await self._remove(done.through, fences)
            self.counts.redriven += len(done.through)
        self._parked.removed(Counter([one.ref for one in (*done.through, *done.unwanted)]))

    async def _behind_their_elders(
        self, letters: Sequence[Letter], refs: Sequence[PartitionRef]
    ) -> tuple[list[Letter], list[PartitionRef]]:
        """`letters` and `refs` without those of partitions that have to wait for others: where a
        topic was repartitioned, what is parked of its former versions goes first. Letters of one
        version at a time."""
        versions: dict[PartitionRef, int] = {}
        for letter in letters:
            version = self._holding.version_of(letter.ref, letter.delivery.seq)
            versions.setdefault(letter.ref, version)
        asked = {ref: versions.get(ref) or self._holding.version(ref) for ref in refs}
        waiting = await self._elders.awaited_by(asked, self._now_s())
        self._setting_aside.take(self._parked.held(waiting, now_s=self._now_s()))
        going = [
            letter
            for letter in letters
            if letter.ref not in waiting
            and self._holding.version_of(letter.ref, letter.delivery.seq) == versions[letter.ref]
        ]
        return going, [ref for ref in refs if ref not in waiting]

    async def _written_horizons(
        self, refs: Sequence[PartitionRef], mark: int
    ) -> dict[PartitionRef, _Horizon]:
        """Of those whose older letters the store has, now or in a moment. Where it has everything
        up to `mark`, what is set aside so far, that is the horizon."""
        gateway_id, horizons = self._gateway_id, self._horizons
        is_current = self._letters.is_written(gateway_id, mark)
        for ref in refs:
            if is_current or ref not in horizons:
                horizons[ref] = _Horizon(mark, self._holding.read_seq(ref))
        first = min(horizons[ref].mark for ref in refs)
        await self._letters.written_within(WRITTEN_IN_S, gateway_id, first)
        return {
            ref: horizons[ref]
            for ref in refs
            if self._letters.is_written(gateway_id, horizons[ref].mark)
        }

    def _none_to_send(
        self, refs: AbstractSet[PartitionRef], found: AbstractSet[PartitionRef], step: Redrive
    ) -> None:
        """Of `refs` there is nothing up to this step's horizon. For partitions with an earlier
        horizon that says nothing: they are looked for again, up to the next."""
        empty = refs - found
        begun = {ref for ref in empty if step.after_seqs.get(ref)}
        self._parked.drained(empty - begun)
        self._parked.pages_empty(begun, now_s=self._now_s())
        self._parked.unread(refs & found, now_s=self._now_s())

    def _up_to_a_halt(self, letters: Sequence[Letter]) -> list[Letter]:
        """Of a partition that a former lane left standing still, the first letter alone."""
        sending: list[Letter] = []
        for letter in letters:
            first = not any(one.ref == letter.ref for one in sending)
            if first and letter.reason == "rejected":
                self._parked.found_halted(letter.ref, letter.delivery.seq, letter.error)
            if first or letter.ref not in self._parked.halted:
                sending.append(letter)
        return sending

    async def _send_wanted(self, letters: Sequence[Letter], step: Redrive, done: _Done) -> bool:
        """Whether all of them are done with."""
        fences = self._holding.fences()
        letters = [self._as_passed(letter) for letter in letters]
        from_seqs = letter_pages.from_seqs(letters, step)
        sending: list[tuple[Letter, Delivery]] = []
        unwanted: list[Letter] = []
        for letter in letters:
            if (fence := fences.get(letter.ref)) is None:
                continue  # another lane's, meanwhile
            wanted = self._holding.wanted(letter.delivery, self._gateway_id)
            if wanted is None:
                unwanted.append(letter)
            else:
                from_seq = from_seqs.get(letter.ref, 0)
                sending.append((letter, replace(wanted, epoch=fence.epoch, from_seq=from_seq)))
        if left := self._left(unwanted):
            await self._bury_left(left, fences)
            unwanted = [one for one in unwanted if one not in left]
        done.unwanted += unwanted
        return not sending or await self._send_letters(sending, fences, step, done)

    def _as_passed(self, letter: Letter) -> Letter:
        """Marked if it was passed over, or the gateway would take it for a repeat."""
        if letter.id not in self._passed:
            return letter
        return replace(letter, delivery=marked(letter.delivery))

    async def _remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        await self._store.remove(letters, fences)
        self._passed.difference_update(letter.id for letter in letters)

    def _left(self, unwanted: Sequence[Letter]) -> list[Letter]:
        """The letters that no subscription there wants any more, and that no log brings to a
        subscriber that comes back."""
        return [one for one in unwanted if self._rules.is_left(one.delivery, "no_subscriber")]

    async def _bury_left(self, letters: Sequence[Letter], fences: Fences) -> None:
        dead = [replace(one, reason="left", error=LEFT) for one in letters]
        await self._store.bury(dead, fences, now_ms=self._machine.wall_ms())
        self.counts.dead += len(dead)

    async def _send_letters(
        self, letters: _Sent, fences: Fences, step: Redrive, done: _Done
    ) -> bool:
        parked = self._parked
        largest = max(Counter([letter.ref for letter, _ in letters]).values())
        try:
            async with self._turn:
                if not parked.may_redrive(self._now_s()):
                    return False
                parked.redriving(len(letters), full=largest >= step.each)
                answer = await self._sending.send([delivery for _, delivery in letters])
        except CallerError as error:
            if parked.redrive_refused(len(letters), now_s=self._now_s()):
                await self._reject([letters[0][0]], error.message, fences)
            return False
        if answer is None:
            return False
        through = await self._answered(letters, answer, fences)
        done.through += through
        return len(through) == len(letters)

    async def _answered(
        self, letters: _Sent, answer: DeliveryAnswer, fences: Fences
    ) -> list[Letter]:
        """Those that went through."""
        by_verdict: dict[Verdict, list[Letter]] = {}
        for (letter, _), verdict in zip(letters, answer.verdicts, strict=True):
            by_verdict.setdefault(verdict, []).append(letter)
        rejected = by_verdict.get("rejected", [])
        through = [one for verdict in SETTLING_VERDICTS for one in by_verdict.get(verdict, ())]
        forward = {letter.ref for letter in (*through, *rejected)}
        pages = letter_pages.answered([letter for letter, _ in letters], by_verdict, answer)
        stuck = {letter.ref for letter in by_verdict.get("retry", ())} - forward
        asides = self._parked.redriven(
            fill=answer.fill,
            later={ref for ref in stuck if pages[ref] is None},
            through={letter.ref for letter in through} - {letter.ref for letter in rejected},
            pages=pages,
            now_s=self._now_s(),
        )
        self._setting_aside.take(asides)
        for letter in by_verdict.get("stale_fence", ()):
            reason = f"gateway {self._gateway_id} has seen a newer owner of {letter.ref}"
            self._sink.overtaken(letter.ref, reason)
        if left := self._left(by_verdict.get("no_subscriber", ())):
            await self._bury_left(left, fences)
            through = [one for one in through if one not in left]
        for one in through:
            self._through[one.ref] = max(one.delivery.seq, self._through.get(one.ref, 0))
        if rejected:
            await self._reject(rejected, REJECTED, fences)
        return through

    async def _reject(self, letters: list[Letter], error: str, fences: Fences) -> None:
        """They are refused for good. A partition that halts instead says so in its letter, for the
        lanes to come; and where the gateway took a newer one before, the letter is marked, or it
        would be taken for a repeat later on. Until that is written, this lane knows it (`_passed`),
        and what passed it stays parked: nothing else would tell the next lane."""
        now_s, now_ms = self._now_s(), self._machine.wall_ms()
        dead: list[Letter] = []
        halting: list[NewLetter] = []
        for letter in letters:
            attempts = letter.attempts + 1
            passed = letter.delivery.seq < self._through.get(letter.ref, 0)
            if passed:
                self._passed.add(letter.id)
            seq = letter.delivery.seq
            asides = self._parked.letter_rejected(letter.ref, seq, error, now_s=now_s)
            if asides is None:
                dead.append(replace(letter, reason="rejected", attempts=attempts, error=error))
                continue
            self._setting_aside.take(asides)
            delivery = marked(letter.delivery) if passed else letter.delivery
            halting.append(
                NewLetter(self._gateway_id, "parked", "rejected", delivery, attempts, error)
            )
        if dead:
            await self._store.bury(dead, fences, now_ms=now_ms)
            self.counts.dead += len(dead)
        if halting:
            await self._store.put(halting, fences, now_ms=now_ms)
        self._passed.difference_update(letter.id for letter in letters)
