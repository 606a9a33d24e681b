"""What is shown of a record, and which records are wanted."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from headgate.decide.browsing.cursor import BrowseCursor
from headgate.decide.browsing.places import partitions_of, places, resumed
from headgate.decide.browsing.showing import Masks, Wanted, described
from headgate.decide.filter.plan import compile_filter
from headgate.decide.produce.placement import partition_of
from headgate.model.browse_api import MASKED
from headgate.model.event import Record
from headgate.model.topology import FormerVersion, Topic
from headgate.ports.log import Extent

PERSON = {"name": "A", "card": {"number": "4111", "kind": "x"}, "trips": [{"pin": 1}, {"pin": 2}]}


def record(document: object = PERSON, **changed: object) -> Record:
    raw = document if isinstance(document, bytes) else msgspec.json.encode(document)
    made = Record("t", 0, 5, 1, "e", "k", "people", "insert", raw, None, None, 9, b'{"h":"v"}')
    return replace(made, **changed)


@pytest.mark.parametrize(
    ("paths", "named"),
    [
        ((), []),
        (("card.number",), ["card.number"]),
        (("card",), ["card"]),
        (("trips.pin",), ["trips.pin"]),
        (("name", "_key"), ["_key", "name"]),
        (("missing", "name.first", "card.number.x"), []),
    ],
)
def test_what_is_masked_is_named_and_not_there(paths: tuple[str, ...], named: list[str]) -> None:
    shown, masked = Masks(paths).masked(record(earlier=msgspec.json.encode(PERSON)))
    assert masked == named
    hidden = {"card.number": b"4111", "card": b"4111", "trips.pin": b'"pin":1', "name": b'"A"'}
    for name in named:
        assert hidden.get(name, b"k\0") not in shown.document
        assert hidden.get(name, b"k\0") not in (shown.earlier or b"")
    assert (shown.key == MASKED) is ("_key" in named)


def test_every_element_of_a_list_is_masked() -> None:
    shown, _ = Masks(("trips.pin",)).masked(record())
    assert msgspec.json.decode(shown.document)["trips"] == [{"pin": MASKED}, {"pin": MASKED}]


def test_a_document_that_cannot_be_taken_apart_is_masked_as_a_whole() -> None:
    shown, masked = Masks(("card",)).masked(record(b'{"card":"4111","n":1e999}'))
    assert (msgspec.json.decode(shown.document), masked) == (MASKED, ["card"])


def test_a_filter_finds_out_nothing_of_what_is_masked() -> None:
    shown, _ = Masks(("card.number",)).masked(record())
    assert not Wanted(compile_filter('card.number == "4111"')).verdict(shown)
    assert Wanted(compile_filter('card.kind == "x"')).verdict(shown)


@pytest.mark.parametrize(
    ("wanted", "changed", "expected"),
    [
        (Wanted(compile_filter(None)), {}, True),
        (Wanted(compile_filter('name == "A"')), {}, True),
        (Wanted(compile_filter('name == "B"')), {}, False),
        (Wanted(compile_filter('_key == "k"')), {}, True),
        (Wanted(compile_filter("1 / n == 1")), {"document": b'{"n":0}'}, None),
        (Wanted(compile_filter("n == 1")), {"document": b'{"n":1e999}'}, None),
        (Wanted(compile_filter(None)), {"document": b'{"n":1e999}'}, True),
        (Wanted(compile_filter(None), key="k"), {}, True),
        (Wanted(compile_filter(None), key="other"), {}, False),
        (Wanted(compile_filter(None), key=""), {"key": None}, False),
        (Wanted(compile_filter(None), collection="people"), {}, True),
        (Wanted(compile_filter(None), collection="others"), {}, False),
        # What is lost at the origin concerns everybody; a dropped collection those who watch it.
        (Wanted(compile_filter("x == 1")), {"op": "lost", "document": b"null", "key": None}, True),
        (Wanted(compile_filter("x == 1")), {"op": "drop", "document": b"null", "key": None}, True),
        (
            Wanted(compile_filter('_collection == "other"')),
            {"op": "drop", "document": b"null", "key": None},
            False,
        ),
        (
            Wanted(compile_filter(None), collection="new"),
            {"op": "rename", "document": b'{"to":"new"}', "key": None},
            True,
        ),
    ],
)
def test_which_records_are_wanted(
    wanted: Wanted, changed: dict[str, object], expected: bool | None
) -> None:
    assert wanted.verdict(record(**changed)) is expected


def test_a_record_is_described_with_its_headers() -> None:
    told = described(record(), ["card"])
    assert (told.headers, told.key, told.masked) == ({"h": "v"}, "k", ["card"])
    assert msgspec.json.decode(msgspec.json.encode(told))["document"] == PERSON


def test_a_key_is_looked_for_where_each_version_has_put_it() -> None:
    topic = Topic("t", 8, version=2, after=(3,) * 4 + (0,) * 4,
                  former=(FormerVersion(1, (0,) * 4, (3,) * 4),), original=4,
                  begins=(0,) * 4)  # fmt: skip
    for number in range(20):
        key = f"k{number}"
        found = partitions_of(topic, key=key, collection="c")
        assert set(found) == {partition_of(key, collection="c", count=n) for n in (4, 8)}
    assert partitions_of(topic, key="k", collection=None) == [*range(8)]
    assert partitions_of(topic, key=None, collection="c") == [*range(8)]


@pytest.mark.parametrize(
    ("start", "forward", "backward"),
    [
        ("now", {0: 9, 1: 0}, {0: 10, 1: 1}),
        ("earliest", {0: 3, 1: 0}, {0: 4, 1: 1}),
        ({0: 6}, {0: 5, 1: 0}, {0: 6, 1: 1}),
        ({0: 99, 1: 1}, {0: 9, 1: 0}, {0: 10, 1: 1}),
    ],
)
def test_where_a_look_begins(
    start: object, forward: dict[int, int], backward: dict[int, int]
) -> None:
    there = {0: Extent(4, 9), 1: Extent(1, 0)}
    assert places(start, there, "t", "forward") == forward  # type: ignore[arg-type]
    assert places(start, there, "t", "backward") == backward  # type: ignore[arg-type]


def test_a_partition_that_came_later_is_read_going_forward_only() -> None:
    there = {0: Extent(1, 9), 1: Extent(3, 5)}
    assert resumed(BrowseCursor("t", "forward", {0: 4}), there) == {0: 4, 1: 2}
    assert resumed(BrowseCursor("t", "backward", {0: 4}), there) == {0: 4, 1: 3}
