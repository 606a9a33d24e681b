"""Letters in memory, by the same rules as every other store's.

A call takes effect at once and as a whole, or raises Fenced and changes nothing; it is answered a
turn of the event loop later. Stores that share a `MemoryLetters` share its letters, as processes
share a database; nothing outlives them. Invariant: per gateway a record has at most one parked
letter in the order, and one dead letter per reason.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from headgate.adapters.letters import in_place_of_damaged, printable
from headgate.decide.delivery.parts import joined
from headgate.decide.letters.fences import admitted
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import group_of
from headgate.model.letters import Letter, LetterCount, LetterQuery, NewLetter
from headgate.ports.letters import NO_SEQS, Fences

_Place = tuple[str, PartitionRef, int, str]
"""Gateway, partition and seq, and the reason of a dead letter."""


class MemoryLetters:
    """The stored letters, and how lanes change them."""

    def __init__(self) -> None:
        self.letters: dict[int, Letter] = {}
        """By id, in the order of the ids."""
        self.again: set[int] = set()
        """Those that an operator wanted to be sent again."""
        self._fences: dict[PartitionRef, Fence] = {}
        self._places: dict[_Place, int] = {}
        """The one letter of each place; what is sent again has none while it is parked."""
        self._order: dict[tuple[str, PartitionRef], list[int]] = {}
        """The seqs that are parked in the order, per gateway and partition."""
        self._last_id = 0

    def admit(self, fences: Fences) -> None:
        """Raises Fenced before anything is changed."""
        known = self._fences
        self._fences |= {
            ref: fence for ref, fence in fences.items() if admitted(known.get(ref), ref, fence)
        }

    def put(self, new: NewLetter, *, now_ms: int) -> None:
        one = self._at(_place(new))
        if one is None:
            self._write(self._next_id(), new, now_ms)
            return
        if one.damage:
            self.forget(one.id)
            self._write(self._next_id(), new, now_ms)
            if (kept := in_place_of_damaged(new)) is not None:
                self.put(kept, now_ms=now_ms)
            return
        both = joined(one.delivery, new.delivery)
        if (one.reason, one.delivery) == (new.reason, both):
            return
        self.forget(one.id)
        self._write(self._next_id(), replace(new, delivery=both), now_ms)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _write(self, id_: int, new: NewLetter, now_ms: int) -> None:
        letter = Letter(
            id_,
            new.gateway_id,
            new.state,
            new.reason,
            new.delivery,
            new.attempts,
            printable(new.error),
            now_ms,
        )
        self.letters[id_] = letter
        self._enter(letter)

    def bury(self, said: Letter, *, now_ms: int) -> None:
        stored = self.letters.get(said.id)
        if stored is None or stored.state != "parked":
            return
        self._leave(stored)
        dead = replace(
            stored,
            state="dead",
            reason=said.reason,
            attempts=said.attempts,
            error=printable(said.error),
            at_ms=now_ms,
        )
        before = self._at(_place(dead))
        if before is not None:
            self.forget(before.id)
            if dead.damage:
                dead = replace(dead, delivery=before.delivery, damage=before.damage)
            elif not before.damage:
                dead = replace(dead, delivery=joined(before.delivery, dead.delivery))
        self.letters[dead.id] = dead
        self._enter(dead)

    def revive(self, id_: int, *, now_ms: int) -> None:
        letter = self.letters[id_]
        self._leave(letter)
        self.letters[id_] = replace(letter, state="parked", at_ms=now_ms)
        self.again.add(id_)

    def forget(self, id_: int) -> None:
        self._leave(self.letters.pop(id_))
        self.again.discard(id_)

    def behind(self, refs: Container[PartitionRef]) -> dict[str, frozenset[PartitionRef]]:
        """Per gateway, those of `refs` that have letters in the order."""
        found: defaultdict[str, set[PartitionRef]] = defaultdict(set)
        for gateway_id, ref in self._order:
            if ref in refs:
                found[gateway_id].add(ref)
        return {gateway_id: frozenset(some) for gateway_id, some in found.items()}

    def in_order(
        self, gateway_id: str, ref: PartitionRef, after_seq: int, *, limit: int
    ) -> list[Letter]:
        parked = self._order.get((gateway_id, ref), [])
        begin = bisect_right(parked, after_seq)
        seqs = parked[begin : begin + limit]
        ids = [self._places[gateway_id, ref, seq, ""] for seq in seqs]
        return [self.letters[id_] for id_ in ids]

    def outside_the_order(self, refs: Container[PartitionRef]) -> Iterator[Letter]:
        for id_ in sorted(self.again):
            letter = self.letters[id_]
            if letter.state == "parked" and letter.fenced_by in refs:
                yield self.shown(letter)

    def shown(self, letter: Letter) -> Letter:
        if letter.id not in self.again:
            return letter
        return replace(letter, delivery=replace(letter.delivery, redelivery=True))

    def _at(self, place: _Place) -> Letter | None:
        return self.letters[self._places[place]] if place in self._places else None

    def _enter(self, letter: Letter) -> None:
        self._places[_place(letter)] = letter.id
        if letter.state == "parked":
            seqs = self._order.setdefault((letter.gateway_id, letter.ref), [])
            insort(seqs, letter.delivery.seq)

    def _leave(self, letter: Letter) -> None:
        place = _place(letter)
        if self._places.get(place) != letter.id:
            return
        del self._places[place]
        if letter.state == "parked":
            seqs = self._order[letter.gateway_id, letter.ref]
            del seqs[bisect_left(seqs, letter.delivery.seq)]
            if not seqs:
                del self._order[letter.gateway_id, letter.ref]


class MemoryLetterStore:
    """Implements ports.letters.LetterStore."""

    def __init__(self, stored: MemoryLetters | None = None) -> None:
        self.stored = MemoryLetters() if stored is None else stored

    # --- lanes -----------------------------------------------------------------------------------

    async def claim(self, fences: Fences) -> dict[str, frozenset[PartitionRef]]:
        self.stored.admit(fences)
        behind = self.stored.behind(fences)
        await asyncio.sleep(0)
        return behind

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        self.stored.admit({letter.fenced_by: fences[letter.fenced_by] for letter in letters})
        for letter in letters:
            self.stored.put(letter, now_ms=now_ms)
        await asyncio.sleep(0)

    async def parked(
        self,
        gateway_id: str,
        refs: Iterable[PartitionRef],
        *,
        each: int,
        after_seqs: Mapping[PartitionRef, int] = NO_SEQS,
    ) -> list[Letter]:
        stored = self.stored
        found = [
            letter
            for ref in sorted(set(refs))
            for letter in stored.in_order(gateway_id, ref, after_seqs.get(ref, 0), limit=each)
        ]
        await asyncio.sleep(0)
        return found

    async def revived(
        self, refs: Iterable[PartitionRef], *, after_id: int, limit: int
    ) -> list[Letter]:
        again = self.stored.outside_the_order(frozenset(refs))
        found = [letter for letter in again if letter.id > after_id][:limit]
        await asyncio.sleep(0)
        return found

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        self.stored.admit({letter.fenced_by: fences[letter.fenced_by] for letter in letters})
        self._forget("parked", [letter.id for letter in letters])
        await asyncio.sleep(0)

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        self.stored.admit({letter.fenced_by: fences[letter.fenced_by] for letter in letters})
        for letter in letters:
            self.stored.bury(letter, now_ms=now_ms)
        await asyncio.sleep(0)

    # --- operators -------------------------------------------------------------------------------

    async def find(
        self, query: LetterQuery, *, after_id: int = 0, limit: int = 100
    ) -> list[Letter]:
        found = [one for one in self._chosen(query) if one.id > after_id][:limit]
        await asyncio.sleep(0)
        return found

    async def count(self, query: LetterQuery) -> int:
        await asyncio.sleep(0)
        return len(list(self._chosen(query)))

    async def counts(self) -> list[LetterCount]:
        kinds: defaultdict[tuple[str, ...], list[Letter]] = defaultdict(list)
        for one in self.stored.letters.values():
            kinds[one.state, one.gateway_id, one.delivery.topic, one.reason].append(one)
        await asyncio.sleep(0)
        return [_counted(some) for _, some in sorted(kinds.items())]

    async def revive(self, ids: Sequence[int], *, now_ms: int) -> list[int]:
        revived = self._those("dead", ids)
        for id_ in revived:
            self.stored.revive(id_, now_ms=now_ms)
        await asyncio.sleep(0)
        return revived

    async def delete(self, ids: Sequence[int]) -> list[int]:
        letters = self.stored.letters
        damaged = [id_ for id_ in self._those("parked", ids) if letters[id_].damage]
        for id_ in damaged:
            self.stored.forget(id_)
        deleted = sorted([*self._forget("dead", ids), *damaged])
        await asyncio.sleep(0)
        return deleted

    async def sweep(self, *, before_ms: int, limit: int) -> int:
        old = sorted(self._chosen(LetterQuery(before_ms=before_ms)), key=lambda one: one.at_ms)
        swept = self._forget("dead", [one.id for one in old[:limit]])
        await asyncio.sleep(0)
        return len(swept)

    async def abandon(self, fences: Fences, *, limit: int) -> int:
        self.stored.admit(fences)
        those = [one.id for one in self.stored.letters.values() if one.ref in fences][:limit]
        for id_ in those:
            self.stored.forget(id_)
        await asyncio.sleep(0)
        return len(those)

    async def close(self) -> None:
        return

    def _chosen(self, query: LetterQuery) -> Iterator[Letter]:
        ids = set(query.ids)
        for one in self.stored.letters.values():
            if (not ids or one.id in ids) and _matches(query, one):
                yield self.stored.shown(one)

    def _those(self, state: str, ids: Iterable[int]) -> list[int]:
        letters = self.stored.letters
        return [id_ for id_ in sorted(set(ids)) if id_ in letters and letters[id_].state == state]

    def _forget(self, state: str, ids: Iterable[int]) -> list[int]:
        those = self._those(state, ids)
        for id_ in those:
            self.stored.forget(id_)
        return those


def _place(letter: Letter | NewLetter) -> _Place:
    reason = letter.reason if letter.state == "dead" else ""
    return letter.gateway_id, letter.ref, letter.delivery.seq, reason


def _matches(query: LetterQuery, one: Letter) -> bool:
    wanted: list[tuple[object, object]] = [
        (query.state, one.state),
        (query.gateway_id, one.gateway_id),
        (query.group, group_of(one.gateway_id)),
        (query.topic, one.ref.topic),
        (query.partition, one.ref.partition),
        (query.seq, one.delivery.seq),
        (query.key, one.delivery.key),
        (query.reason, one.reason),
    ]
    return (
        all(value is None or value == found for value, found in wanted)
        and (query.before_ms is None or one.at_ms < query.before_ms)
        and (query.after_ms is None or one.at_ms > query.after_ms)
    )


def _counted(some: Sequence[Letter]) -> LetterCount:
    one = some[0]
    oldest_ms = min(letter.at_ms for letter in some)
    return LetterCount(one.state, one.gateway_id, one.ref.topic, one.reason, len(some), oldest_ms)
