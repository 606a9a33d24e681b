"""What is changed under fences in the letters of PostgreSQL, as functions on an open transaction.

Invariant: each holds the fences of all its partitions until the transaction ends, before it changes
anything, so that nobody newer comes in between and nobody older gets through.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from headgate.adapters.letters import (
    as_text,
    content_of,
    either,
    encoded,
    in_place_of_damaged,
    printable,
    shown,
    undamaged,
)
from headgate.adapters.postgres.connections import Query, Session
from headgate.adapters.postgres.letter_table import LetterStatements
from headgate.decide.letters.fences import admitted
from headgate.decide.portions import Portion
from headgate.errors import StorageFailed
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.letters import Letter, LetterState, NewLetter
from headgate.ports.letters import Fences

TRIES = 5
"""How often a place may be taken and free again before a put gives up."""

_Place = tuple[LetterState, str, str, int, int, str]
"""What tells letters apart: state, gateway, topic, partition, seq, and of dead ones the reason."""


async def claim(
    session: Session, statements: LetterStatements, fences: Fences
) -> dict[str, frozenset[PartitionRef]]:
    await _admit(session, statements, fences, statements.fences_to_change)
    found: dict[str, set[PartitionRef]] = defaultdict(set)
    rows = await session.query(statements.behind, asked(fences))
    for topic, partition, gateway_id in rows:
        with contextlib.suppress(UnicodeDecodeError):  # it is nobody's
            found[gateway_id.decode()].add(PartitionRef(topic, partition))
    return {gateway_id: frozenset(behind) for gateway_id, behind in found.items()}


async def put(
    session: Session,
    statements: LetterStatements,
    letters: Sequence[NewLetter],
    fences: Fences,
    now_ms: int,
) -> None:
    await _admit(
        session, statements, {letter.fenced_by: fences[letter.fenced_by] for letter in letters}
    )
    # In one order for everybody: who inserts the same letters waits, but not in a circle.
    left: Sequence[NewLetter] = sorted(letters, key=_place_of)
    for _ in range(TRIES):
        taken = await _insert(session, statements, left, now_ms)
        left = await _join(session, statements, taken, now_ms) if taken else []
        if not left:
            return
    raise StorageFailed("letters came and went while others of their records were written")


async def _insert(
    session: Session, statements: LetterStatements, letters: Sequence[NewLetter], now_ms: int
) -> list[NewLetter]:
    """Those whose places are taken."""
    written = {_place(*row) for row in await session.query(statements.put, _rows(letters, now_ms))}
    taken: list[NewLetter] = []
    for letter in letters:
        if (place := _place_of(letter)) in written:
            written.discard(place)  # the next one of its kind is joined with it
        else:
            taken.append(letter)
    return taken


async def _join(
    session: Session, statements: LetterStatements, letters: Sequence[NewLetter], now_ms: int
) -> list[NewLetter]:
    """Returns the letters that are left to write: those whose places are free again, because
    another writer has just taken away the letter there, and what is kept of damaged ones."""
    stored = await _same(session, statements, letters)
    changed: dict[int, NewLetter] = {}
    left = [letter for letter in letters if _place_of(letter) not in stored]
    for letter in letters:
        if (found := stored.get(_place_of(letter))) is None:
            continue
        id_, reason, delivery = found
        before = changed.get(id_)
        if before is not None:
            reason, delivery = before.reason, before.delivery
        if delivery is None and (kept := in_place_of_damaged(letter)):
            left.append(kept)
        both = either(delivery, letter.delivery) or letter.delivery
        if (reason, delivery) != (letter.reason, both):
            changed[id_] = replace(letter, delivery=both)
    if changed:
        await session.query(statements.join, {**_said(changed), "now_ms": now_ms})
    return sorted(left, key=_place_of)


async def delete_damaged(
    session: Session, statements: LetterStatements, ids: Sequence[int]
) -> list[int]:
    """Of these the parked ones that nobody can be sent."""
    rows = await session.query(statements.parked_of, (list(ids),))
    gone = sorted(one.id for one in map(shown, rows) if one.damage)
    await session.query(statements.forget, (gone,))
    return gone


async def remove(
    session: Session, statements: LetterStatements, letters: Sequence[Letter], fences: Fences
) -> None:
    await _admit(
        session, statements, {letter.fenced_by: fences[letter.fenced_by] for letter in letters}
    )
    await session.query(statements.remove, ([letter.id for letter in letters],))


async def bury(
    session: Session,
    statements: LetterStatements,
    letters: Sequence[Letter],
    fences: Fences,
    now_ms: int,
) -> None:
    await _admit(
        session, statements, {letter.fenced_by: fences[letter.fenced_by] for letter in letters}
    )
    rows = await session.query(statements.still_parked, ([letter.id for letter in letters],))
    waiting = dict(rows)
    by_place: dict[_Place, tuple[Letter, Delivery | None]] = {}
    replaced: list[int] = []
    for letter in sorted(letters, key=lambda one: one.id):
        if letter.id not in waiting:
            continue
        said = letter.delivery
        content = waiting[letter.id]
        whole = undamaged(content, _where(said), letter.gateway_id)
        delivery = None if letter.damage else whole or said
        place = _place(letter.gateway_id, "dead", letter.reason, *_where(said))
        if place in by_place:
            former, stored = by_place[place]
            replaced.append(former.id)
            delivery = either(stored, delivery)
        by_place[place] = letter, delivery
    new = [
        NewLetter(letter.gateway_id, "dead", letter.reason, letter.delivery)
        for letter, _ in by_place.values()
    ]
    for place, (id_, _, stored) in (await _same(session, statements, new)).items():
        letter, delivery = by_place[place]
        replaced.append(id_)
        by_place[place] = letter, either(stored, delivery)
    await session.query(statements.forget, (replaced,))
    buried = {letter.id: letter for letter, _ in by_place.values()}
    contents = [content_of(delivery, one.gateway_id) for one, delivery in by_place.values()]
    values = {**_said(buried), "delivery": contents, "now_ms": now_ms}
    await session.query(statements.bury, values)


async def abandon(
    session: Session,
    statements: LetterStatements,
    portion: Portion,
    fences: Fences,
    limit: int,
) -> list[int]:
    await _admit(session, statements, fences)
    values = {**asked(fences), "limit": limit}
    return await forget(
        session, statements.of_partitions, statements.abandon, portion=portion, values=values
    )


async def forget(
    session: Session, found: Query, gone: Query, *, portion: Portion, values: Mapping[str, Any]
) -> list[int]:
    """Have `gone` forget what `found` finds, as far as it fits; returns the ids."""
    rows = await session.query(found, values)
    some = rows[: portion.fits(size_bytes for _, size_bytes in rows)]
    ids = [id_ for id_, _ in some]
    return sorted(id_ for (id_,) in await session.query(gone, {**values, "ids": ids}))


def asked(refs: Iterable[PartitionRef]) -> dict[str, Any]:
    wanted = sorted(set(refs))
    return {
        "topics": [ref.topic for ref in wanted],
        "partitions": [ref.partition for ref in wanted],
    }


async def _admit(
    session: Session, statements: LetterStatements, fences: Fences, look: Query | None = None
) -> None:
    while True:
        news = await _news(session, look or statements.fences_of, fences)
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
        # Another lane was quicker with a higher fence: the next look finds it, and raises.


async def _news(session: Session, look: Query, fences: Fences) -> Fences:
    """Those that are to be stored; raises Fenced."""
    rows = await session.query(look, asked(fences))
    stored = {PartitionRef(topic, partition): Fence(*fence) for topic, partition, *fence in rows}
    return {ref: one for ref, one in fences.items() if admitted(stored.get(ref), ref, one)}


async def _same(
    session: Session, statements: LetterStatements, letters: Sequence[NewLetter]
) -> dict[_Place, tuple[int, str, Delivery | None]]:
    """The stored letters that stand where these would: id, reason and delivery, where that isn't
    damaged."""
    found: dict[_Place, tuple[int, str, Delivery | None]] = {}
    for state, statement in (("parked", statements.same_parked), ("dead", statements.same_dead)):
        if some := [letter for letter in letters if letter.state == state]:
            rows = await session.query(statement, _places(some))
            for id_, gateway_id, written_for, content, *record in rows:
                topic, partition, seq = record
                reason = as_text(written_for)
                place = _place(gateway_id, some[0].state, reason, topic, partition, seq)
                whole = undamaged(content, (topic, partition, seq), gateway_id)
                found[place] = id_, reason, whole
    return found


def _place(
    gateway_id: str, state: LetterState, reason: str, topic: str, partition: int, seq: int
) -> _Place:
    return state, gateway_id, topic, partition, seq, reason if state == "dead" else ""


def _place_of(letter: NewLetter) -> _Place:
    return _place(letter.gateway_id, letter.state, letter.reason, *_where(letter.delivery))


def _where(delivery: Delivery) -> tuple[str, int, int]:
    return delivery.topic, delivery.partition, delivery.seq


def _said(letters: Mapping[int, NewLetter] | Mapping[int, Letter]) -> dict[str, Any]:
    return {
        "id": list(letters),
        "reason": [letter.reason for letter in letters.values()],
        "attempts": [letter.attempts for letter in letters.values()],
        "error": [printable(letter.error) for letter in letters.values()],
        "delivery": [encoded(one.delivery, one.gateway_id) for one in letters.values()],
    }


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
        "delivery": [encoded(letter.delivery, letter.gateway_id) for letter in letters],
    }
