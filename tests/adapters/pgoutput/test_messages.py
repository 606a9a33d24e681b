"""What the stream's bytes mean: any message as it was written, and nothing that wasn't."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
    decode,
)
from tests.adapters.pgoutput.encoding import SINCE_2000_MS, encode

LSNS = st.integers(0, 2**63 - 1)
OIDS = st.integers(0, 2**32 - 1)
TIMES = st.integers(SINCE_2000_MS - 10**12, SINCE_2000_MS + 10**13)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
VALUES = st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=40))
ROWS = st.lists(VALUES, max_size=6)
COLUMNS = st.builds(Column, NAMES, OIDS, st.booleans(), st.integers(-1, 2**31 - 1))
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Begin, LSNS, TIMES, OIDS),
    st.builds(Commit, LSNS, LSNS, TIMES),
    st.builds(Insert, OIDS, ROWS),
    st.builds(Update, OIDS, st.none(), st.just(value=False), ROWS),
    st.builds(Update, OIDS, ROWS, st.booleans(), ROWS),
    st.builds(Delete, OIDS, ROWS, st.booleans()),
    st.builds(Truncate, st.lists(OIDS, max_size=4).map(tuple)),
    st.builds(
        Relation,
        *(OIDS, NAMES, NAMES, st.sampled_from("dnfi")),
        st.lists(COLUMNS, max_size=5).map(tuple),
    ),
    st.builds(Type, OIDS, NAMES, NAMES),
    st.builds(Emitted, st.booleans(), LSNS, NAMES, st.binary(max_size=40)),
    st.builds(Origin, NAMES),
)


@given(MESSAGES)
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode(encode(message)) == message


@given(MESSAGES, st.data())
def test_what_is_cut_short_or_too_long_is_no_message(message: Message, data: st.DataObject) -> None:
    written = encode(message)
    at = data.draw(st.integers(0, len(written) - 1))
    for wrong in (written[:at], written + b"\0"):
        with pytest.raises(MalformedMessage):
            decode(wrong)


@given(st.binary(max_size=60))
def test_noise_is_a_message_or_refused(noise: bytes) -> None:
    try:
        message = decode(noise)
    except MalformedMessage:
        return
    assert decode(encode(message)) == message or noise[:1] in b"TRYMO"


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"S\0\0\0\1\1", id="a transaction that is streamed while it is open"),
        pytest.param(b"I\0\0\0\1K\0\0", id="an insert without a new row"),
        pytest.param(b"U\0\0\0\1X\0\0", id="an update with another part"),
        pytest.param(b"D\0\0\0\1N\0\0", id="a delete with a new row"),
        pytest.param(b"I\0\0\0\1N\0\1b\0\0\0\1x", id="a value in binary"),
    ],
)
def test_what_this_protocol_does_not_have_is_refused(wrong: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(wrong)


def test_a_schema_without_a_name_is_the_catalogs() -> None:
    found = decode(encode(Relation(1, "", "t", "d", ())))
    assert isinstance(found, Relation)
    assert found.name == "pg_catalog.t"
