"""What a change becomes, from recorded documents; the server at hand is too old to split events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bson import Timestamp
from bson.datetime_ms import DatetimeMS

from headgate.adapters.mongo.changes import Fragments, Naming, described, event_of, time_ms_of

NAMING = Naming("orders", "shop")
TOKEN = "826AFDA6C3000000142B022C0100296E5A1004C92308D661914ABB908EB01094775F77461E5F6964002B02{}04"

# As MongoDB 7.0 documents and sends it: a token per fragment, fields spread over them.
SPLIT: list[dict[str, Any]] = [
    {
        "_id": {"_data": TOKEN.format("0001")},
        "splitEvent": {"fragment": 1, "of": 3},
        "operationType": "update",
        "clusterTime": Timestamp(0x6AFDA6C3, 20),
        "wallTime": DatetimeMS(1_795_008_195_516),
        "ns": {"db": "shop", "coll": "items"},
        "documentKey": {"_id": 1},
        "fullDocument": {"_id": 1, "text": "new"},
    },
    {
        "_id": {"_data": TOKEN.format("0002")},
        "splitEvent": {"fragment": 2, "of": 3},
        "fullDocumentBeforeChange": {"_id": 1, "text": "old"},
    },
    {
        "_id": {"_data": TOKEN.format("0003")},
        "splitEvent": {"fragment": 3, "of": 3},
        "updateDescription": {"updatedFields": {"text": "new"}},
    },
]


def recorded() -> list[dict[str, Any]]:
    return [dict(one) for one in SPLIT]


def plain(number: int) -> dict[str, Any]:
    return {
        "_id": {"_data": TOKEN.format(f"1{number:03}")},
        "operationType": "insert",
        "clusterTime": Timestamp(0x6AFDA6C4, number),
        "ns": {"db": "shop", "coll": "items"},
        "documentKey": {"_id": number},
        "fullDocument": {"_id": number},
    }


@pytest.mark.parametrize("cut", range(1, 5))
def test_fragments_become_one_change_wherever_batches_end(cut: int) -> None:
    changes = [plain(1), *recorded(), plain(2)]
    fragments = Fragments()
    first = fragments.whole(changes[:cut])
    assert fragments.waiting == (cut in (2, 3))
    found = [event_of(one, NAMING) for one in (*first, *fragments.whole(changes[cut:]))]
    assert not fragments.waiting
    assert [event.op for event in found if event] == ["insert", "update", "insert"]
    event = found[1]
    assert event is not None
    assert event.source == TOKEN.format("0003")
    assert json.loads(event.document) == {"_id": 1, "text": "new"}
    assert json.loads(event.earlier or b"") == {"_id": 1, "text": "old"}


def test_fragments_that_begin_anew_forget_the_ones_before() -> None:
    fragments = Fragments()
    first = {**recorded()[0], "fullDocument": {"_id": 1, "text": "half"}}
    assert fragments.whole([first]) == []
    (whole,) = fragments.whole(recorded())
    assert whole["fullDocument"]["text"] == "new"


def test_a_delete_is_what_was_deleted_or_its_key() -> None:
    change = {**plain(3), "operationType": "delete"}
    del change["fullDocument"]
    bare = event_of(change, NAMING)
    known = event_of({**change, "fullDocumentBeforeChange": {"_id": 3, "n": 1}}, NAMING)
    assert bare is not None
    assert known is not None
    assert (bare.document, bare.earlier) == (b'{"_id":3}', None)
    assert known.document == known.earlier == b'{"_id":3,"n":1}'


@pytest.mark.parametrize("kind", ["dropDatabase", "invalidate", "createIndexes", "of tomorrow"])
def test_what_is_about_no_document_and_no_collection_makes_no_event(kind: str) -> None:
    change = {"_id": plain(1)["_id"], "operationType": kind, "ns": {"db": "shop"}}
    assert event_of(change, NAMING) is None


def test_a_change_is_described_by_what_an_operator_can_look_for() -> None:
    assert described(plain(4)) == "insert of shop.items _id=4"
    drop = {"operationType": "drop", "ns": {"db": "shop", "coll": "items"}}
    assert described(drop) == "drop of shop.items"


def test_the_time_is_the_servers_to_the_millisecond_where_it_says_so() -> None:
    assert time_ms_of(SPLIT[0]) == 1_795_008_195_516
    assert time_ms_of(plain(1)) == 0x6AFDA6C4 * 1_000
