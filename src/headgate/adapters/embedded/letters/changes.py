"""What is changed under fences in the letter file, as functions on a transaction that is open.

Invariant: each looks at the fences of all its partitions before it changes anything, so one that
raises Fenced has changed nothing and the transaction may go on with the changes of others.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from headgate.adapters.embedded.letters.tables import (
    ABANDON,
    ADMIT,
    BURY,
    FENCE,
    FORGET,
    PUT,
    REMOVE,
    STILL_PARKED,
    THE_DEAD_ONE,
    THE_PARKED_ONE,
    THOSE,
)
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
from headgate.decide.letters.fences import admitted
from headgate.model.delivery import Delivery
from headgate.model.event import Fence
from headgate.model.letters import Letter, LetterReason, LetterState, NewLetter
from headgate.ports.letters import Fences


def claim(connection: apsw.Connection, fences: Fences) -> None:
    _admit(connection, fences)


def put(
    connection: apsw.Connection, letters: Sequence[NewLetter], fences: Fences, now_ms: int
) -> None:
    _admit(connection, {letter.fenced_by: fences[letter.fenced_by] for letter in letters})
    for letter in letters:
        _write(connection, letter, now_ms)


def _write(connection: apsw.Connection, letter: NewLetter, now_ms: int) -> None:
    if not _insert(connection, letter, now_ms):
        _join(connection, letter, now_ms)


def _insert(connection: apsw.Connection, letter: NewLetter, now_ms: int) -> bool:
    """False where its place is taken."""
    delivery = letter.delivery
    values = (
        letter.gateway_id,
        letter.state,
        letter.reason,
        delivery.topic,
        delivery.partition,
        delivery.seq,
        delivery.key,
        letter.attempts,
        printable(letter.error),
        now_ms,
        encoded(delivery, letter.gateway_id),
    )
    return connection.execute(PUT, values).fetchone() is not None


def _join(connection: apsw.Connection, letter: NewLetter, now_ms: int) -> None:
    found = _same(connection, letter.gateway_id, letter.state, letter.reason, letter.delivery)
    assert found is not None, "nothing else can be in the way"
    id_, reason, stored = found
    both = either(stored, letter.delivery) or letter.delivery
    if (reason, stored) == (letter.reason, both):
        return
    connection.execute(FORGET, (id_,))
    _insert(connection, msgspec.structs.replace(letter, delivery=both), now_ms)
    if stored is None and (kept := in_place_of_damaged(letter)):
        _write(connection, kept, now_ms)


def delete(connection: apsw.Connection, ids: str) -> list[int]:
    """Dead ones of these, and damaged ones."""
    rows = connection.execute(THOSE, (ids,)).fetchall()
    found = [shown(row) for row in rows]
    gone = sorted(one.id for one in found if one.state == "dead" or one.damage)
    connection.executemany(FORGET, [(id_,) for id_ in gone])
    return gone


def remove(connection: apsw.Connection, letters: Sequence[Letter], fences: Fences) -> None:
    _admit(connection, {letter.fenced_by: fences[letter.fenced_by] for letter in letters})
    ids = msgspec.json.encode([letter.id for letter in letters]).decode()
    connection.execute(REMOVE, (ids,))


def bury(
    connection: apsw.Connection, letters: Sequence[Letter], fences: Fences, now_ms: int
) -> None:
    _admit(connection, {letter.fenced_by: fences[letter.fenced_by] for letter in letters})
    for letter in letters:
        row = connection.execute(STILL_PARKED, (letter.id,)).fetchone()
        if row is None:
            continue
        said = letter.delivery
        whole = undamaged(row[0], _place(said), letter.gateway_id)
        delivery = None if letter.damage else whole or said
        if found := _same(connection, letter.gateway_id, "dead", letter.reason, said):
            id_, _, stored = found
            delivery = either(stored, delivery)
            connection.execute(FORGET, (id_,))
        error = printable(letter.error)
        content = content_of(delivery, letter.gateway_id)
        values = (letter.reason, letter.attempts, error, now_ms, content, letter.id)
        connection.execute(BURY, values)


def abandon(connection: apsw.Connection, fences: Fences, limit: int) -> int:
    _admit(connection, fences)
    refs = msgspec.json.encode([(ref.topic, ref.partition) for ref in fences]).decode()
    return len(connection.execute(ABANDON, (refs, limit)).fetchall())


def _admit(connection: apsw.Connection, fences: Fences) -> None:
    news = []
    for ref, fence in fences.items():
        row = connection.execute(FENCE, (ref.topic, ref.partition)).fetchone()
        if admitted(Fence(*row) if row else None, ref, fence):
            news.append((ref.topic, ref.partition, fence.epoch, fence.window, fence.attempt))
    connection.executemany(ADMIT, news)


def _same(
    connection: apsw.Connection,
    gateway_id: str,
    state: LetterState,
    reason: LetterReason,
    delivery: Delivery,
) -> tuple[int, str, Delivery | None] | None:
    """The letter of that kind which the gateway has of the record already, its reason, and what it
    is about, where that isn't damaged."""
    place = (delivery.topic, delivery.partition, gateway_id, delivery.seq)
    if state == "parked":
        row = connection.execute(THE_PARKED_ONE, place).fetchone()
    else:
        row = connection.execute(THE_DEAD_ONE, (*place, reason)).fetchone()
    if row is None:
        return None
    id_, written_for, content = row
    return id_, as_text(written_for), undamaged(content, _place(delivery), gateway_id)


def _place(delivery: Delivery) -> tuple[str, int, int]:
    return delivery.topic, delivery.partition, delivery.seq
