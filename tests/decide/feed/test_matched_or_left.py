"""What a change means to those who watch."""

from __future__ import annotations

import pytest

from headgate.decide.feed.matched_or_left import Kind, SoftDeletes, kind_for, leavers
from headgate.model.event import Op


def is_low(document: object) -> bool | None:
    return document["altitude"] < 3_000 if isinstance(document, dict) else None


LOW, HIGH = {"altitude": 100}, {"altitude": 9_000}


@pytest.mark.parametrize(
    ("document", "earlier", "kind"),
    [
        pytest.param(LOW, None, "event", id="matches"),
        pytest.param(LOW, HIGH, "event", id="has come in"),
        pytest.param(LOW, LOW, "event", id="has stayed"),
        pytest.param(HIGH, LOW, "left", id="has left"),
        pytest.param(HIGH, HIGH, None, id="never was there"),
        pytest.param(HIGH, None, None, id="nobody knows whether it was"),
        pytest.param(None, LOW, "left", id="can't be read any more"),
    ],
)
def test_a_change_is_an_event_or_a_leaving_or_nothing(
    document: object, earlier: object | None, kind: Kind | None
) -> None:
    assert kind_for(is_low, document, earlier) == kind


def test_who_leaves_is_who_matched_before_and_does_not_now() -> None:
    before = {"g1": ("a", "b"), "g2": ("c",), "g3": ("d",)}
    after = {"g1": ("b", "e"), "g3": ("d",)}
    assert leavers(before, after) == {"g1": ("a",), "g2": ("c",)}
    assert leavers({}, after) == {}


GONE, THERE = {"meta": {"deleted": True}}, {"meta": {"deleted": False}}


@pytest.mark.parametrize(
    ("op", "document", "earlier", "meaning"),
    [
        pytest.param("update", GONE, THERE, "delete", id="set"),
        pytest.param("update", GONE, None, "delete", id="set, and before is unknown"),
        pytest.param("update", THERE, GONE, "insert", id="cleared"),
        pytest.param("update", {}, GONE, "insert", id="taken out"),
        pytest.param("update", THERE, None, "update", id="clear, and before is unknown"),
        pytest.param("update", GONE, GONE, "update", id="was set before"),
        pytest.param("update", {"meta": {"deleted": None}}, THERE, "update", id="null is no mark"),
        pytest.param("update", {"meta": {"deleted": "2026-01-01"}}, THERE, "delete", id="a date"),
        pytest.param("update", {"meta": 5}, THERE, "update", id="the path leads nowhere"),
        pytest.param("update", None, None, "update", id="not a document"),
        pytest.param("insert", GONE, None, "insert", id="an insert stays one"),
        pytest.param("delete", THERE, GONE, "delete", id="a delete stays one"),
    ],
)
def test_a_mark_in_a_record_deletes_it(
    op: Op, document: object, earlier: object | None, meaning: Op
) -> None:
    assert SoftDeletes("meta.deleted").op(op, document, earlier) == meaning
