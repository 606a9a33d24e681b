"""From messages to events: positions, what is left out when it comes again, and what a table's
identity tells of the row before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.pgoutput.catalog import matched
from headgate.adapters.pgoutput.decoding import Decoding, Needs
from headgate.adapters.pgoutput.identity import Position, Timelines
from headgate.adapters.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Emitted,
    Insert,
    MalformedMessage,
    Message,
    Relation,
    Truncate,
    Update,
    Value,
)
from headgate.errors import ChangeTooLarge
from headgate.model.event import UNKNOWN_HEADER, Event

NOW_MS = 1_800_000_000_000
SYSTEM = 7
START = Position(SYSTEM, 1, 0x100)
INT, TEXT = 23, 25


def relation(identity: str = "d", *, keys: Sequence[str] = ("id",), oid: int = 1) -> Relation:
    columns = tuple(
        Column(name, kind, is_key=identity == "f" or name in keys)
        for name, kind in (("id", INT), ("name", TEXT), ("body", TEXT))
    )
    return Relation(oid, "public", "t", identity, columns)


def decoding(after: Position = START, **options: str) -> Decoding:
    return Decoding("shop", Timelines(SYSTEM, 1), after, **options)  # type: ignore[arg-type]


def fed(found: Decoding, messages: Iterable[Message], key: Sequence[str] = ("id",)) -> list[Event]:
    events: list[Event] = []
    for message in messages:
        try:
            events += found.take(message)
        except Needs as needs:
            found.learn(needs.relation, {}, key if needs.key else None)
    return events


def transaction(lsn: int, *changes: Message) -> list[Message]:
    return [Begin(lsn, NOW_MS, 1), *changes, Commit(lsn, lsn + 0x30, NOW_MS)]


def values(number: int, name: str | None = "n", body: Value = b"b") -> list[Value]:
    return [str(number).encode(), None if name is None else name.encode(), body]


def insert(number: int) -> Insert:
    return Insert(1, values(number))


def documents(events: Iterable[Event]) -> list[object]:
    return [json.loads(one.document) for one in events]


def test_changes_are_numbered_within_their_transaction_and_stand_behind_it_at_its_end() -> None:
    found = decoding()
    events = fed(found, [relation(), *transaction(0x200, insert(1), insert(2))])
    assert [one.source for one in events] == [
        str(Position(SYSTEM, 1, 0x200, 1)),
        str(Position(SYSTEM, 1, 0x200, 3)),
    ]
    assert found.position == str(Position(SYSTEM, 1, 0x230))
    assert found.time_ms == NOW_MS
    assert [one.key for one in events] == ["1", "2"]
    assert documents(events)[0] == {"id": 1, "name": "n", "body": "b"}


def test_within_a_transaction_it_stands_at_the_change_that_was_given_out() -> None:
    found = decoding()
    events = fed(found, [relation(), Begin(0x200, NOW_MS, 1), insert(1)])
    assert found.position == events[0].source
    assert found.is_within
    found.idle(0x900)
    assert found.position == events[0].source, "a keepalive says nothing of what is half sent"


def test_an_idle_stream_moves_on_with_what_the_server_has_sent() -> None:
    found = decoding()
    found.idle(0x900)
    assert found.position == str(Position(SYSTEM, 1, 0x900))
    found.idle(0x300)
    assert found.position == str(Position(SYSTEM, 1, 0x900)), "it never goes back"


BIG = [relation(), *transaction(0x200, *map(insert, range(9))), *transaction(0x240, insert(9))]


@given(st.integers(0, 10))
def test_what_is_had_is_left_out_wherever_the_reader_goes_on(had: int) -> None:
    whole = fed(decoding(), BIG)
    after = START if had == 0 else Position(*_parts(whole[had - 1].source or ""))
    assert fed(decoding(after), BIG) == whole[had:]


def _parts(source: str) -> list[int]:
    return [int(part, 16) for part in source.split("-")]


def test_what_was_told_is_noted_while_somebody_reads_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the next after long begins anew, as the first one does."""
    monkeypatch.setattr("headgate.adapters.pgoutput.decoding.NOTES_MOST", 3)
    found = decoding()
    found.told = set()
    for number in range(1, 4):
        fed(found, [Begin(number * 1_000, 0, number), Commit(number * 1_000, number * 1_000, 0)])
    assert found.told == {1, 2, 3}
    fed(found, [Begin(4_000, 0, 4), Commit(4_000, 4_000, 0)])
    assert found.told is None


def test_an_update_of_the_key_is_a_delete_and_an_insert() -> None:
    change = Update(1, values(1, None, None), False, values(2))
    events = fed(decoding(), [relation(), *transaction(0x200, change, insert(3))])
    assert [(one.op, one.key) for one in events] == [
        ("delete", "1"),
        ("insert", "2"),
        ("insert", "3"),
    ]
    assert documents(events)[0] == {"id": 1}
    positions = [one.source or "" for one in events]
    assert positions == sorted(set(positions))
    again = fed(
        decoding(Position(*_parts(positions[0]))), [relation(), *transaction(0x200, change)]
    )
    assert [one.op for one in again] == ["insert"], "half of it may be had"


@pytest.mark.parametrize(
    ("identity", "old", "earlier", "document", "unknown"),
    [
        pytest.param("d", None, None, {"id": 1, "name": "new"}, ["body"], id="default"),
        pytest.param("i", None, None, {"id": 1, "name": "new"}, ["body"], id="by an index"),
        pytest.param(
            "f",
            values(1, "old", b"large"),
            {"id": 1, "name": "old", "body": "large"},
            {"id": 1, "name": "new", "body": "large"},
            None,
            id="full",
        ),
        pytest.param(
            *("d", values(1, None, None), None, {"id": 1, "name": "new"}, ["body"]),
            id="default with a key that is sent although it is as it was",
        ),
    ],
)
def test_an_unchanged_large_value_is_filled_in_or_marked_unknown(
    identity: str,
    old: list[Value] | None,
    earlier: object,
    document: object,
    unknown: list[str] | None,
) -> None:
    change = Update(1, old, identity == "f", values(1, "new", UNCHANGED))
    [event] = fed(decoding(), [relation(identity), *transaction(0x200, change)])
    assert (event.op, json.loads(event.document)) == ("update", document)
    assert (None if event.earlier is None else json.loads(event.earlier)) == earlier
    headers = None if event.headers is None else json.loads(event.headers)
    assert headers == (None if unknown is None else {UNKNOWN_HEADER: json.dumps(unknown)})


@pytest.mark.parametrize(
    ("identity", "document", "earlier"),
    [("d", {"id": 1}, None), ("f", {"id": 1, "name": "n", "body": "b"}, True)],
)
def test_a_delete_tells_what_its_table_keeps(
    identity: str, document: object, earlier: bool | None
) -> None:
    old = values(1) if identity == "f" else values(1, None, None)
    change = Delete(1, old, identity == "f")
    [event] = fed(decoding(), [relation(identity), *transaction(0x200, change)])
    assert (event.op, event.key, json.loads(event.document)) == ("delete", "1", document)
    assert event.earlier == (event.document if earlier else None)


def test_a_key_of_several_columns_is_an_array() -> None:
    keyed = relation(keys=("id", "name"))
    [event] = fed(decoding(), [keyed, *transaction(0x200, Insert(1, values(1, 'a"b')))])
    assert event.key == '[1,"a\\"b"]'


def test_a_truncate_is_about_each_of_its_tables() -> None:
    tables = [relation(), relation(oid=2)]
    events = fed(decoding(), [*tables, *transaction(0x200, Truncate((1, 2)))])
    assert [(one.op, one.key, one.document) for one in events] == [("truncate", None, b"null")] * 2
    assert len({one.source for one in events}) == len({one.event_id for one in events}) == 2


def test_messages_are_records_where_they_are_asked_for() -> None:
    spoken = [
        *transaction(0x200, Emitted(is_transactional=True, lsn=0, prefix="p", content=b"hi")),
        Emitted(is_transactional=False, lsn=0x260, prefix="q", content=b"\xff"),
        *transaction(0x260, Emitted(is_transactional=True, lsn=0, prefix="p", content=b"")),
    ]
    assert fed(decoding(), spoken) == []
    events = fed(decoding(messages="said"), spoken)
    assert [(one.collection, one.key) for one in events] == [("said", k) for k in "pqp"]
    assert documents(events) == [
        {"prefix": "p", "content": "hi"},
        {"prefix": "q", "base64": "/w=="},
        {"prefix": "p", "content": ""},
    ]
    positions = [one.source or "" for one in events]
    assert positions == sorted(set(positions))


def test_a_change_that_cannot_become_a_record_has_a_place_and_a_name() -> None:
    found = decoding()
    wrong = Insert(1, [b"1", b"\xff", None])
    fed(found, [relation(), Begin(0x200, NOW_MS, 1), insert(0)])
    before = found.position
    with pytest.raises(ChangeTooLarge) as stopped:
        found.take(wrong)
    assert stopped.value.what == "insert of public.t"
    assert found.position == before
    # Whoever leaves it out goes on behind it.
    behind = Position(*_parts(stopped.value.position))
    messages = [relation(), *transaction(0x200, insert(0), wrong, insert(2))]
    assert [one.key for one in fed(decoding(behind), messages)] == ["2"]


def test_a_table_without_a_key_stops_it() -> None:
    with pytest.raises(ChangeTooLarge, match="neither a primary key"):
        fed(decoding(), [relation(keys=()), *transaction(0x200, insert(1))])


def test_a_full_identity_and_types_of_ones_own_need_the_catalog() -> None:
    found = decoding()
    with pytest.raises(Needs) as full:
        found.take(relation("f"))
    assert full.value.key
    own = Relation(1, "public", "t", "d", (Column("id", 20_000, is_key=True),))
    with pytest.raises(Needs) as unknown:
        found.take(own)
    assert unknown.value.types == [20_000]
    assert not unknown.value.key


@pytest.mark.parametrize("message", [insert(1), Truncate((1,)), Delete(1, values(1), False)])
def test_what_was_never_described_or_begun_is_malformed(message: Message) -> None:
    for before in ([relation()], [Begin(0x200, NOW_MS, 1)]):
        with pytest.raises(MalformedMessage):
            fed(decoding(), [*before, message])


@pytest.mark.parametrize(
    ("now", "key"),
    [
        pytest.param([("id", True), ("name", False), ("body", False)], ["id"], id="as it was"),
        pytest.param([("number", True), ("name", False), ("body", False)], ["id"], id="renamed"),
        pytest.param([("id", True), ("name", False), ("", False)], ["id"], id="another dropped"),
        pytest.param(
            [("number", True), ("name", False), ("", False), ("more", False)],
            ["id"],
            id="renamed, another dropped, one more",
        ),
        pytest.param([("id", False), ("name", True), ("body", True)], ["name", "body"], id="two"),
        pytest.param([("number", True), ("x", False), ("", False), ("z", False)], [], id="unclear"),
        pytest.param([("name", False), ("id", True), ("body", False)], ["name"], id="swapped"),
    ],
)
def test_the_primary_key_of_today_is_found_in_the_table_of_then(
    now: list[tuple[str, bool]], key: list[str]
) -> None:
    assert matched(now, ["id", "name", "body"]) == key
