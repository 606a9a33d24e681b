"""What may enter the log, and the sentence for each thing that may not."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.produce.admission import (
    ProduceLimits,
    admit,
    is_routed,
    nesting_exceeds,
    on_one_line,
)
from headgate.errors import CallerError, InvalidRequest, TooLarge
from headgate.model.event import Event
from headgate.model.topology import Topic

KEYED = Topic("flights", 4)
OPPORTUNISTIC = Topic("jobs", 4, "opportunistic")
SMALL = ProduceLimits(
    body_bytes=2_000,
    events=3,
    document_bytes=100,
    document_depth=4,
    key_bytes=8,
    event_id_bytes=8,
    collection_bytes=8,
)


def admitted(body: bytes, topic: Topic = KEYED, limits: ProduceLimits = SMALL) -> list[Event]:
    ids = itertools.count(1)
    return admit(body, topic, limits, new_id=lambda: f"made-{next(ids)}").events


def body(*events: dict[str, Any], **rest: Any) -> bytes:
    return json.dumps({"events": list(events), **rest}).encode()


def test_an_event_keeps_what_it_came_with() -> None:
    [event] = admitted(
        b'{"events": [ {"document": {"a": 1, "b": "\\u00e9"}, "key": "k", "op": "update", '
        b'"event_id": "e1", "collection": "c"} ]}'
    )
    assert event == Event("e1", b'{"a": 1, "b": "\\u00e9"}', "k", "update", "c")


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        pytest.param(
            b'{"a":  1.0, "b": "\\u00e9"}', b'{"a":  1.0, "b": "\\u00e9"}', id="as-it-came"
        ),
        pytest.param(b'{"a":\n1}', b'{"a": 1}', id="on-one-line"),
        pytest.param(b"null", None, id="null-is-none"),
    ],
)
def test_the_document_before_the_change_is_kept(earlier: bytes, expected: bytes | None) -> None:
    [event, other] = admitted(
        b'{"events":[{"document":{},"event_id":"a","earlier":%b},{"document":{},"event_id":"b"}]}'
        % earlier
    )
    assert (event.earlier, other.earlier) == (expected, None)


def test_what_is_left_out_gets_its_default() -> None:
    [event] = admitted(b'{"events": [{"document": {}}]}')
    assert event == Event("made-1", b"{}", None, "insert", "")


def test_each_event_without_an_id_gets_its_own() -> None:
    events = admitted(body({"document": {}}, {"document": {}, "event_id": "x"}, {"document": {}}))
    assert [event.event_id for event in events] == ["made-1", "x", "made-2"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"events":[],"version":2}', True),
        (b'{"events":[],"version":null}', False),
        (b'{"events":[]}', False),
        (b'{"events":[],"version":{}}', False),
        (b'{"events":[],"version":"2"}', False),
        (b'{"events":[{"version":2}]}', False),
        (b"[2]", False),
        (b"not JSON", False),
        (b'{"version":2,"events":' + b"[" * 100_000, False),
    ],
)
def test_only_who_names_a_version_has_found_its_way(body: bytes, expected: bool) -> None:
    assert is_routed(body) == expected


def test_a_document_is_stored_on_one_line() -> None:
    [event] = admitted(b'{"events":[{"document":{\r\n "a":\n "x\\n"}}]}')
    assert event.document == b'{   "a":  "x\\n"}'
    assert msgspec.json.decode(event.document) == {"a": "x\n"}


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("11ms", 11), ("5s", 5_000), ("15m", 900_000)], ids=str
)
def test_the_request_timeout_is_kept(text: str, expected_ms: int) -> None:
    request = body({"document": {}}, request_timeout=text)
    assert admit(request, KEYED, SMALL, new_id=str).timeout_ms == expected_ms


REFUSALS: dict[str, tuple[bytes, type[CallerError], str]] = {
    "not-json": (b"{", InvalidRequest, "not a produce request"),
    "not-an-object": (b"[]", InvalidRequest, "not a produce request"),
    "no-document": (body({"key": "k"}), InvalidRequest, "missing required field `document`"),
    "unknown-field": (body({"document": {}, "doc": 1}), InvalidRequest, "unknown field `doc`"),
    "unknown-op": (body({"document": {}, "op": "upsert"}), InvalidRequest, "'upsert'"),
    **{
        f"op-of-connectors-{op}": (
            body({"document": {}}, {"document": {}, "op": op}),
            InvalidRequest,
            rf"^events\[1\]\.op is '{op}': use one of insert, update, delete$",
        )
        for op in ("read", "truncate", "drop", "rename", "lost")
    },
    "key-not-text": (body({"document": {}, "key": 5}), InvalidRequest, "Expected `str"),
    "no-events": (body(), InvalidRequest, "no events"),
    "too-many-events": (body(*[{"document": {}}] * 4), TooLarge, "4 events, the limit is 3"),
    "document-is-a-list": (body({"document": [1]}), InvalidRequest, "event 0 is not a JSON object"),
    "document-is-null": (body({"document": None}), InvalidRequest, "not a JSON object"),
    "document-too-large": (
        body({"document": {}}, {"document": {"a": "x" * 100}}),
        TooLarge,
        "document of event 1 has 109 bytes, the limit is 100",
    ),
    "document-too-deep": (
        b'{"events":[{"document":{"a":[[[[1]]]]}}]}',
        InvalidRequest,
        "nested deeper than 4 levels",
    ),
    "earlier-is-a-list": (
        body({"document": {}, "earlier": [1]}),
        InvalidRequest,
        "the earlier document of event 0 is not a JSON object",
    ),
    "earlier-too-large": (
        body({"document": {}}, {"document": {}, "earlier": {"a": "x" * 100}}),
        TooLarge,
        "earlier document of event 1 has 109 bytes, the limit is 100",
    ),
    "earlier-too-deep": (
        b'{"events":[{"document":{},"event_id":"a","earlier":{"a":[[[[1]]]]}}]}',
        InvalidRequest,
        "earlier document of event 0 is nested deeper than 4 levels",
    ),
    "nan": (b'{"events":[{"document":{"a":NaN}}]}', InvalidRequest, "not a produce request"),
    "broken-utf-8": (b'{"events":[{"document":{"a":"\xff"}}]}', InvalidRequest, "UTF-8 at byte 29"),
    "lone-surrogate": (
        b'{"events":[{"document":{"a":"\\ud800"}}]}',
        InvalidRequest,
        "not a produce request",
    ),
    "long-key": (body({"document": {}, "key": "é" * 5}), InvalidRequest, "key of more than 8"),
    "long-id": (body({"document": {}, "event_id": "x" * 9}), InvalidRequest, "event_id of more"),
    "empty-id": (body({"document": {}, "event_id": ""}), InvalidRequest, "empty event_id"),
    "long-collection": (
        body({"document": {}, "collection": "x" * 9}),
        InvalidRequest,
        "collection of more than 8 bytes",
    ),
    "repeated-id": (
        body({"document": {}, "event_id": "a"}, {"document": {}, "event_id": "a"}),
        InvalidRequest,
        "event 1 repeats the event_id 'a'",
    ),
    "timeout-too-short": (
        body({"document": {}}, request_timeout="10ms"),
        InvalidRequest,
        "more than 10ms and at most 15m",
    ),
    "timeout-too-long": (
        body({"document": {}}, request_timeout="901s"),
        InvalidRequest,
        "more than 10ms and at most 15m",
    ),
    "timeout-without-unit": (
        body({"document": {}}, request_timeout="5"),
        InvalidRequest,
        "not a duration",
    ),
    "body-too-large": (body({"document": {"a": "x" * 2_000}}), TooLarge, "more than 2000 bytes"),
}


@pytest.mark.parametrize(("request_body", "kind", "sentence"), REFUSALS.values(), ids=REFUSALS)
def test_a_bad_request_is_refused_whole_with_a_sentence(
    request_body: bytes, kind: type[CallerError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        admitted(request_body)


def test_a_key_on_an_opportunistic_topic_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidRequest, match="event 1 has a key, but the topic jobs is opport"):
        admitted(body({"document": {}}, {"document": {}, "key": "k"}), OPPORTUNISTIC)


def test_limits_are_inclusive() -> None:
    events = [
        {"document": {"a": "x" * 91}, "key": "é" * 4, "event_id": f"1234567{n}"} for n in "ab"
    ]
    assert len(admitted(body(*events, {"document": {"a": [[[1]]]}}))) == 3


documents = st.recursive(
    st.none() | st.integers() | st.text(max_size=6) | st.just('{"[\\'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = 1 if isinstance(value, dict | list) else 0
    return own + max((depth_of(one) for one in inner), default=0)


@given(st.dictionaries(st.text(max_size=4), documents), st.integers(0, 6))
def test_nesting_is_measured_as_a_parser_would(document: dict[str, Any], limit: int) -> None:
    assert nesting_exceeds(json.dumps(document).encode(), limit) == (depth_of(document) > limit)


@given(st.dictionaries(st.text(max_size=4), documents), st.sampled_from([None, 0, 2]))
def test_one_line_means_the_same(document: dict[str, Any], indent: int | None) -> None:
    line = on_one_line(json.dumps(document, indent=indent).encode())
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line) == document


offered = st.fixed_dictionaries(
    {"document": st.dictionaries(st.text(max_size=4), documents) | st.integers()},
    optional={
        "key": st.none() | st.text(max_size=9),
        "event_id": st.text(max_size=9) | st.sampled_from(["a", "b"]),
        "collection": st.text(max_size=9),
        "op": st.sampled_from(["insert", "update", "delete"]),
        "earlier": st.none() | documents,
    },
)


@given(st.lists(offered, min_size=1, max_size=3), st.sampled_from([KEYED, OPPORTUNISTIC]))
def test_a_glance_and_a_close_look_come_to_the_same(
    events: list[dict[str, Any]], topic: Topic
) -> None:
    """A line break behind the request changes nothing in it, but takes the careful way."""

    def outcome(text: bytes) -> list[Event] | str:
        try:
            return admitted(text, topic, dataclasses.replace(SMALL, body_bytes=1_000_000))
        except CallerError as error:
            return str(error)

    plain = body(*events)
    assert outcome(plain) == outcome(plain + b"\n")
