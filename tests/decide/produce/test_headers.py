"""Headers of events: short texts by name, bounded, and the same wherever they are shown."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headgate.decide.produce.admission import ProduceLimits
from headgate.decide.produce.headers import HEADERS_BYTES, decoded, encoded
from headgate.errors import InvalidRequest
from headgate.model.event import Event
from headgate.services.ingest.produce.handing_on import _offered
from tests.decide.produce.test_admission import admitted, body


@pytest.mark.parametrize(
    "headers",
    [{"a": "b"}, {"träge": "東京", "leer": ""}, {"b": "2", "a": "1"}, {'q"': "\n\x00"}],
    ids=json.dumps,
)
def test_headers_come_back_as_they_were(headers: dict[str, str]) -> None:
    stored = encoded(headers, "the event")
    assert stored is not None
    assert list(decoded(stored).items()) == list(headers.items())
    assert b"\n" not in stored, "a record is one line on its way"


def test_none_are_none() -> None:
    assert encoded({}, "the event") is None
    assert decoded(None) == {}


REFUSED: dict[str, tuple[dict[Any, Any], str]] = {
    "number": ({"a": 1}, "the header 'a' of event 3 isn't text"),
    "nameless": ({"": "x"}, "a header of event 3 has no name"),
    "surrogate": ({"a": "\ud800"}, "half a character"),
    "long": ({"a": "x" * HEADERS_BYTES}, "4,097 bytes, and 4,096 is the most: shorten them"),
    "many": ({f"{number:04}": "x" * 12 for number in range(300)}, "4,800 bytes, and 4,096"),
    "wide": ({"a": "\u00e4" * 2_048}, "4,097 bytes"),
}


@pytest.mark.parametrize(("headers", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_kept_is_refused_with_a_sentence(
    headers: dict[Any, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        encoded(headers, "event 3")


def test_the_longest_that_fit_are_kept() -> None:
    assert encoded({"a": "x" * (HEADERS_BYTES - 1)}, "the event") is not None


# --- on the way in -------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 1])
def test_a_request_brings_them_and_they_are_kept(others: int) -> None:
    plain = [{"document": {}, "event_id": f"o{number}"} for number in range(others)]
    given = {"document": {}, "event_id": "e", "headers": {"trace": "7f", "x": "\u00e4"}}
    *before, event = admitted(body(*plain, given))
    assert decoded(event.headers) == {"trace": "7f", "x": "\u00e4"}
    assert [one.headers for one in before] == [None] * others


def test_empty_headers_are_none() -> None:
    [event] = admitted(body({"document": {}, "event_id": "e", "headers": {}}))
    assert event == Event("e", b"{}")


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({"a": 1}, "Expected `str`"),
        ("text", "Expected `object`"),
        ({"a": "x" * 500, "b": "x" * 3_700}, "the headers of event 0 have names and values of"),
    ],
    ids=["number", "text", "long"],
)
def test_a_request_with_bad_headers_is_refused_whole(headers: object, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        admitted(body({"document": {}, "headers": headers}), limits=ProduceLimits())


def test_a_node_hands_them_on_to_the_owner() -> None:
    event = Event("e", b"{}", headers=encoded({"a": "b"}, "the event"))
    [again] = admitted(msgspec.json.encode({"events": [msgspec.to_builtins(_offered_json(event))]}))
    assert again == event


def _offered_json(event: Event) -> object:
    return msgspec.json.decode(msgspec.json.encode(_offered(event)))
