"""The stores that lanes share, and what each lane sees of them when they and the lane misbehave.

A call may fail before it changed anything, take effect and fail all the same, or hang for a while.
A lane that is frozen gets no further than its next call; of one that was killed nothing is ever
seen again. What is changed is judged at once: a position that passes what is nowhere, and a letter
that is gone before everybody it was for has it, are found where they happen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.decide.lane.checkpoints import put
from headgate.errors import StorageFailed
from headgate.model.event import Fence, PartitionRef
from headgate.model.letters import Letter, NewLetter
from headgate.model.position import Position, Tally
from headgate.ports.letters import NO_SEQS, Fences
from tests.lane.ledger import Ledger

T = TypeVar("T")
StoreMood = Literal["well", "failing", "losing", "hanging", "shaky"]
STORE_MOODS: tuple[StoreMood, ...] = ("failing", "losing", "hanging", "shaky")


class JudgedLetters(MemoryLetterStore):
    """All lanes' letters. What is judged is what is stored, by its place: a letter that is joined
    has another id, and whoever names the former one removes nothing."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        there = {(one.gateway_id, one.delivery.partition, one.delivery.seq) for one in self.all()}
        await super().put(letters, fences, now_ms=now_ms)
        for new in letters:
            place = new.delivery.partition, new.delivery.seq
            self.ledger.tag(new.reason, place)
            self.ledger.tag(new.state, place)
            if (new.gateway_id, *place) in there:
                self.ledger.tag("met another letter", place)

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        self.stored.admit({one.ref: fences[one.ref] for one in letters})
        ids = {one.id for one in letters}
        gone = [one for one in self.all() if one.id in ids and one.state == "parked"]
        left = [one for one in self.all() if one not in gone]
        for one in gone:
            self.ledger.tag("removed", (one.delivery.partition, one.delivery.seq))
            self._judge(one, left)
            if one.id in self.stored.again:
                self._judge_retried(one)
        await super().remove(letters, fences)

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        await super().bury(letters, fences, now_ms=now_ms)
        for one in letters:
            self.ledger.tag("buried", (one.delivery.partition, one.delivery.seq))

    def all(self) -> list[Letter]:
        return list(self.stored.letters.values())

    def dead(self) -> list[Letter]:
        return [one for one in self.all() if one.state == "dead"]

    def want_again(self, letter: Letter) -> None:
        """An operator has a dead letter sent again."""
        self.ledger.tag("retried", (letter.delivery.partition, letter.delivery.seq))
        self.stored.revive(letter.id, now_ms=0)

    def drop(self, letter: Letter) -> None:
        """An operator forgets a dead letter."""
        self.stored.forget(letter.id)
        one = letter.delivery
        self.ledger.tag("deleted", (one.partition, one.seq))
        self.ledger.deleted |= {(one.partition, one.seq, name) for name in one.subscriptions}
        if one.lost_from:
            self.ledger.deleted |= self.ledger.covered(one, letter.gateway_id)

    def _judge_retried(self, one: Letter) -> None:
        """What an operator wants again is gone only when somebody got it."""
        place = one.delivery.partition, one.delivery.seq
        if not one.delivery.lost_from and place not in self.ledger.taken_again:
            self.ledger.violations.append(f"the letter of {place} was retried and given to nobody")

    def _judge(self, one: Letter, left: Sequence[Letter]) -> None:
        partition, seq = one.delivery.partition, one.delivery.seq
        owed = set(self.ledger.unaccounted(left, partition, seq))
        for name in one.delivery.subscriptions:
            if self.ledger.is_at(name, one.gateway_id) and (partition, seq, name) in owed:
                self.ledger.violations.append(
                    f"the letter of {partition}:{seq} is gone, and {name} lacks it"
                )


class JudgedCheckpoints(MemoryCheckpointStore):
    """All lanes' positions."""

    def __init__(self, ledger: Ledger, letters: JudgedLetters) -> None:
        super().__init__()
        self.ledger = ledger
        self.letters = letters

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        missing = self.ledger.unaccounted(self.letters.all(), ref.partition, settled)
        await super().save(ref, fence, settled, tally)
        if missing:
            self.ledger.violations.append(
                f"position {settled} of partition {ref.partition} passes {missing[:5]}"
            )

    def put(self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool) -> None:
        """What a reset does, at once."""
        self.stored[ref] = put(self.stored.get(ref), ref, fence, settled=settled, resync=resync)

    def position(self, ref: PartitionRef) -> int:
        stored = self.stored.get(ref)
        return 0 if stored is None else stored.settled


@dataclass
class Link:
    """What stands between one lane and everything else."""

    random: random.Random
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    dead: bool = False
    steps_left: int = -1
    """So many more steps until `dies` is called; never, where it is below zero."""
    dies: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.thawed.set()

    async def pass_through(self) -> None:
        await self.thawed.wait()
        self.steps_left -= 1
        if self.steps_left == 0:
            self.dies()
        if self.dead:
            await asyncio.get_running_loop().create_future()  # for ever: nobody is there

    async def call(self, mood: StoreMood, work: Callable[[], Awaitable[T]]) -> T:
        await self.pass_through()
        await asyncio.sleep(self.random.choice([0.0, 0.0, 0.001, 0.02]))
        if mood == "shaky":
            mood = self.random.choice(["well", *STORE_MOODS[:-1]])
        if mood == "hanging":
            await asyncio.sleep(self.random.uniform(0.5, 3.0))
            mood = self.random.choice(["well", "failing", "losing"])
        await self.pass_through()
        if mood == "failing":
            raise StorageFailed("the store is away")
        done = await work()
        await self.pass_through()
        if mood == "losing":
            raise StorageFailed("the answer of the store got lost")
        return done


class Moody:
    """How a store behaves now."""

    mood: StoreMood = "well"


class LinkedLetters:
    """What one lane sees of the letters."""

    def __init__(self, link: Link, inner: MemoryLetterStore, moody: Moody) -> None:
        self._link, self._inner, self._moody = link, inner, moody

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self._link.call(self._moody.mood, work)

    async def claim(self, fences: Fences) -> dict[str, frozenset[PartitionRef]]:
        return await self._call(lambda: self._inner.claim(fences))

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        await self._call(lambda: self._inner.put(letters, fences, now_ms=now_ms))

    async def parked(
        self,
        gateway_id: str,
        refs: Iterable[PartitionRef],
        *,
        each: int,
        after_seqs: Mapping[PartitionRef, int] = NO_SEQS,
    ) -> list[Letter]:
        return await self._call(
            lambda: self._inner.parked(gateway_id, refs, each=each, after_seqs=after_seqs)
        )

    async def revived(
        self, refs: Iterable[PartitionRef], *, after_id: int, limit: int
    ) -> list[Letter]:
        return await self._call(lambda: self._inner.revived(refs, after_id=after_id, limit=limit))

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        await self._call(lambda: self._inner.remove(letters, fences))

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        await self._call(lambda: self._inner.bury(letters, fences, now_ms=now_ms))


class LinkedCheckpoints:
    """What one lane sees of the positions."""

    def __init__(self, link: Link, inner: MemoryCheckpointStore, moody: Moody) -> None:
        self._link, self._inner, self._moody = link, inner, moody

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self._link.call(self._moody.mood, work)

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        return await self._call(lambda: self._inner.claim(ref, fence, after=after))

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        await self._call(lambda: self._inner.save(ref, fence, settled, tally))

    async def stop(self, ref: PartitionRef, fence: Fence, why: str) -> None:
        await self._call(lambda: self._inner.stop(ref, fence, why))

    async def list(self) -> dict[PartitionRef, Position]:
        return await self._call(self._inner.list)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a lane doesn't use {name}")
