"""Lines become events, whatever the chunks they come in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.reading.json_lines import EventReader, EventShape, Input, NumberedEvent
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.errors import InvalidRequest


def read(text: bytes, shape: EventShape | None = None) -> list[NumberedEvent]:
    reader = EventReader(shape or EventShape())
    return [*reader.feed(text), *reader.finish()]


def test_a_line_is_an_event_with_its_text_as_the_document() -> None:
    [one, two] = read(b'{"a": 1.0}\n{"b":2}\n', EventShape(None, "c", "update"))
    assert one == NumberedEvent(1, OutgoingEvent(b'{"a": 1.0}', None, "update", None, "c"))
    assert two.event.document == b'{"b":2}'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'{"a":1}\n\n  \n{"b":2}', id="empty-lines"),
        pytest.param(b'{"a":1}\r\n\r\n\r\n{"b":2}\r\n', id="windows"),
        pytest.param(b'\xef\xbb\xbf{"a":1}\n\n\n{"b":2}\n', id="byte-order-mark"),
    ],
)
def test_line_ends_and_empty_lines_keep_the_numbers(text: bytes) -> None:
    assert [(one.line, one.event.document) for one in read(text)] == [
        (1, b'{"a":1}'),
        (4, b'{"b":2}'),
    ]


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=9)), max_size=9), st.data())
def test_how_the_input_is_cut_makes_no_difference(
    documents: list[dict[str, str]], data: st.DataObject
) -> None:
    text = b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in documents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    reader = EventReader(EventShape())
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    events = [event for chunk in chunks for event in reader.feed(chunk)] + [*reader.finish()]
    assert [json.loads(one.event.document) for one in events] == documents  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("document", "field", "key"),
    [
        (b'{"id":"x"}', "id", "x"),
        (b'{"a":{"b":{"c":"deep"}}}', "a.b.c", "deep"),
        (b'{"id":5}', "id", "5"),
        (b'{"id":12345678901234567890123}', "id", "12345678901234567890123"),
        (b'{"id":1.5}', "id", "1.5"),
        (b'{"id":""}', "id", ""),
    ],
)
def test_the_key_is_the_text_or_number_in_its_field(document: bytes, field: str, key: str) -> None:
    assert read(document, EventShape(field))[0].event.key == key


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"a" 1}', r"line 2 is not valid JSON: expected ':'"),
        (b'{"a":1} {"b":2}', "line 2 is not valid JSON"),
        (b'{"a":', "line 2 is not valid JSON"),
        (b'{"id":"\xff"}', "line 2 is not valid JSON: it is not UTF-8"),
        (b'{"id":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "line 2 is not valid JSON: it is nested"),
        (b"[1]", "line 2 is not a JSON object"),
        (b'"text"', "line 2 is not a JSON object"),
        (b"{}", "line 2 has no field id"),
        (b'{"id":null}', "line 2 has no field id"),
        (b'{"id":true}', "line 2 has neither text nor a number in the field id"),
        (b'{"id":{"a":1}}', "line 2 has neither text nor a number in the field id"),
    ],
)
def test_a_line_that_can_not_be_sent_is_named_with_its_number(line: bytes, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        read(b'{"id":"fine"}\n' + line + b"\n", EventShape("id"))


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.cli.reading.json_lines.LINE_BYTES_MAX", 100)
    reader = EventReader(EventShape())
    assert list(reader.feed(b"{}\n" + b" " * 100)) != []
    with pytest.raises(InvalidRequest, match="line 2 is longer than"):
        reader.feed(b" ")


def test_a_line_is_named_with_its_file_where_there_are_several() -> None:
    reader = EventReader(EventShape(), Input(1, "b.jsonl"))
    [event] = reader.feed(b"{}\n")
    assert str(event) == "line 1 of b.jsonl"
    with pytest.raises(InvalidRequest, match=r"^line 2 of b.jsonl is not a JSON object$"):
        list(reader.feed(b"[]\n"))
