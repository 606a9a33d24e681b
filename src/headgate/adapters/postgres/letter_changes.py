"""What a lane changes in the letters of PostgreSQL, as functions on a transaction that is open.

Invariant: each holds the fences of all its partitions until the transaction ends, before it changes
anything, so that nobody newer comes in between and nobody older gets through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from headgate.adapters.letters import decoded, encoded, printable
from headgate.adapters.postgres.connections import Session
from headgate.adapters.postgres.letter_table import LetterStatements
from headgate.decide.delivery.parts import joined
from headgate.decide.letter_fences import admitted
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.letters import Letter, LetterState, NewLetter
from headgate.ports.letters import Fences

_Place = tuple[LetterState, str, str, int, int, str]
"""What tells letters apart: state, gateway, topic, partition, seq, and of dead ones the reason."""


async def claim(
    session: Session, statements: LetterStatements, fences: Fences
) -> dict[str, frozenset[PartitionRef]]:
    await _admit(session, statements, fences)
    found: dict[str, set[PartitionRef]] = defaultdict(set)
    rows = await session.query(statements.behind, asked(fences))
    for topic, partition, gateway_id in rows:
        found[gateway_id].add(PartitionRef(topic, partition))
    return {gateway_id: frozenset(behind) for gateway_id, behind in found.items()}


async def put(
    session: Session,
    statements: LetterStatements,
    letters: Sequence[NewLetter],
    fences: Fences,
    now_ms: int,
) -> None:
    await _admit(session, statements, {letter.ref: fences[letter.ref] for letter in letters})
    # In one order for everybody: who inserts the same letters waits, but not in a circle.
    ordered = sorted(letters, key=_place_of)
    written = {_place(*row) for row in await session.query(statements.put, _rows(ordered, now_ms))}
    others: list[NewLetter] = []
    for letter in ordered:
        if (place := _place_of(letter)) in written:
            written.discard(place)  # the next one of its kind is joined to it
        else:
            others.append(letter)
    if others:
        await _join(session, statements, others)


async def _join(
    session: Session, statements: LetterStatements, letters: Sequence[NewLetter]
) -> None:
    stored = await _same(session, statements, letters)
    changed: dict[int, Delivery] = {}
    for letter in letters:
        id_, delivery = stored[_place_of(letter)]
        delivery = changed.get(id_, delivery)
        if (both := joined(delivery, letter.delivery)) != delivery:
            changed[id_] = both
    values = {
        "ids": list(changed),
        "deliveries": [encoded(delivery) for delivery in changed.values()],
    }
    await session.query(statements.join, values)


async def remove(
    session: Session, statements: LetterStatements, letters: Sequence[Letter], fences: Fences
) -> None:
    await _admit(session, statements, {letter.ref: fences[letter.ref] for letter in letters})
    await session.query(statements.remove, ([letter.id for letter in letters],))


async def bury(
    session: Session,
    statements: LetterStatements,
    letters: Sequence[Letter],
    fences: Fences,
    now_ms: int,
) -> None:
    await _admit(session, statements, {letter.ref: fences[letter.ref] for letter in letters})
    rows = await session.query(statements.still_parked, ([letter.id for letter in letters],))
    waiting = {id_: decoded(content, redelivery=False) for id_, content in rows}
    by_place: dict[_Place, tuple[Letter, Delivery]] = {}
    replaced: list[int] = []
    for letter in sorted(letters, key=lambda one: one.id):
        if (delivery := waiting.get(letter.id)) is None:
            continue
        place = _place(letter.gateway_id, "dead", letter.reason, *_where(delivery))
        if place in by_place:
            former, stored = by_place[place]
            replaced.append(former.id)
            delivery = joined(stored, delivery)
        by_place[place] = letter, delivery
    new = [
        NewLetter(letter.gateway_id, "dead", letter.reason, delivery)
        for letter, delivery in by_place.values()
    ]
    for place, (id_, stored) in (await _same(session, statements, new)).items():
        letter, delivery = by_place[place]
        replaced.append(id_)
        by_place[place] = letter, joined(stored, delivery)
    await session.query(statements.forget, (replaced,))
    buried = list(by_place.values())
    values = {
        "id": [letter.id for letter, _ in buried],
        "reason": [letter.reason for letter, _ in buried],
        "attempts": [letter.attempts for letter, _ in buried],
        "error": [printable(letter.error) for letter, _ in buried],
        "now_ms": now_ms,
        "delivery": [encoded(delivery) for _, delivery in buried],
    }
    await session.query(statements.bury, values)


def asked(refs: Iterable[PartitionRef]) -> dict[str, Any]:
    wanted = sorted(set(refs))
    return {
        "topics": [ref.topic for ref in wanted],
        "partitions": [ref.partition for ref in wanted],
    }


async def _admit(session: Session, statements: LetterStatements, fences: Fences) -> None:
    while True:
        news = await _news(session, statements, fences)
        if not news:
            return
        wanted = sorted(news.items())
        values = {
            "topics": [ref.topic for ref, _ in wanted],
            "partitions": [ref.partition for ref, _ in wanted],
            "epochs": [fence.epoch for _, fence in wanted],
            "windows": [fence.window for _, fence in wanted],
            "attempts": [fence.attempt for _, fence in wanted],
        }
        if len(await session.query(statements.admit, values)) == len(wanted):
            return
        # Somebody was quicker with a higher one: the next look finds it, and raises.


async def _news(session: Session, statements: LetterStatements, fences: Fences) -> Fences:
    """Those that are to be stored; raises Fenced."""
    rows = await session.query(statements.fences_of, asked(fences))
    stored = {PartitionRef(topic, partition): Fence(*fence) for topic, partition, *fence in rows}
    return {ref: one for ref, one in fences.items() if admitted(stored.get(ref), ref, one)}


async def _same(
    session: Session, statements: LetterStatements, letters: Sequence[NewLetter]
) -> dict[_Place, tuple[int, Delivery]]:
    """The stored letters that stand where these would, with their ids."""
    found: dict[_Place, tuple[int, Delivery]] = {}
    for state, statement in (("parked", statements.same_parked), ("dead", statements.same_dead)):
        if some := [letter for letter in letters if letter.state == state]:
            for id_, gateway_id, reason, content in await session.query(statement, _places(some)):
                delivery = decoded(content, redelivery=False)
                found[_place(gateway_id, some[0].state, reason, *_where(delivery))] = id_, delivery
    return found


def _place(
    gateway_id: str, state: LetterState, reason: str, topic: str, partition: int, seq: int
) -> _Place:
    return state, gateway_id, topic, partition, seq, reason if state == "dead" else ""


def _place_of(letter: NewLetter) -> _Place:
    return _place(letter.gateway_id, letter.state, letter.reason, *_where(letter.delivery))


def _where(delivery: Delivery) -> tuple[str, int, int]:
    return delivery.topic, delivery.partition, delivery.seq


def _places(letters: Sequence[NewLetter]) -> dict[str, Any]:
    return {
        "gateway_id": [letter.gateway_id for letter in letters],
        "reason": [letter.reason for letter in letters],
        "topic": [letter.delivery.topic for letter in letters],
        "partition": [letter.delivery.partition for letter in letters],
        "seq": [letter.delivery.seq for letter in letters],
    }


def _rows(letters: Sequence[NewLetter], now_ms: int) -> dict[str, Any]:
    deliveries = [letter.delivery for letter in letters]
    return {
        **_places(letters),
        "state": [letter.state for letter in letters],
        "key": [None if one.key is None else one.key.encode() for one in deliveries],
        "attempts": [letter.attempts for letter in letters],
        "error": [printable(letter.error) for letter in letters],
        "at_ms": [now_ms] * len(letters),
        "delivery": [encoded(delivery) for delivery in deliveries],
    }
