"""Reads what is parked for a gateway, of many partitions at a time.

Invariant: a letter that can't be read holds what is behind it of its partition, and nothing else.
One that the store has damaged comes marked as such; where the store fails, each partition is read
by itself, so that those that can be read are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headgate.decide.operations.letter_queries import is_damaged
from headgate.errors import HeadgateError
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter
from headgate.ports.letters import LetterStore


@dataclass(frozen=True, slots=True)
class Found:
    """Of each partition its letters up to the first that can't be read. Of those that `end` there
    nobody knows how many there are behind it; those that `halt` have nothing before it. It says
    why."""

    letters: list[Letter]
    end: Collection[PartitionRef]
    halt: Mapping[PartitionRef, str]


async def read_parked(
    store: LetterStore,
    gateway_id: str,
    refs: Sequence[PartitionRef],
    *,
    each: int,
    after_seqs: Mapping[PartitionRef, int],
    halted: Collection[PartitionRef],
) -> Found:
    """Of those that are `halted` one may fail alone. Raises what the store does where it fails for
    all or for none of them alone, or for one that is read alone and went well so far: it is more
    likely away or slow than damaged."""

    async def read(some: Sequence[PartitionRef]) -> list[Letter]:
        return await store.parked(gateway_id, some, each=each, after_seqs=after_seqs)

    letters: list[Letter] = []
    halt: dict[PartitionRef, str] = {}
    try:
        letters = await read(refs)
    except HeadgateError:
        if len(refs) == 1 and refs[0] not in halted:
            raise
        for ref in refs:
            try:
                letters += await read([ref])
            except HeadgateError as error:
                halt[ref] = f"its letters can't be read: {error.message}"
                if len(halt) == len(refs) > 1:
                    raise
        if not halt:
            raise  # it was too much at a time, or is over: fewer are asked for the next time
    return _up_to_damage(letters, halt)


def _up_to_damage(letters: Sequence[Letter], halt: dict[PartitionRef, str]) -> Found:
    readable: list[Letter] = []
    begun: set[PartitionRef] = set()
    end = set(halt)
    for letter in letters:
        if letter.damage and letter.ref not in end:
            end.add(letter.ref)
            if letter.ref not in begun:
                record = f"the letter of record {letter.delivery.seq}"
                halt[letter.ref] = f"{record}: {is_damaged(letter)}"
        if letter.ref not in end:
            begun.add(letter.ref)
            readable.append(letter)
    return Found(readable, end, halt)
