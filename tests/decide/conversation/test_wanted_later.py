"""What is wanted again later comes in the order of the log, also around what is about a whole
collection."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.conversation.wanted_later import Again, Later, place_of
from headgate.model.client_messages import Event, Item, Resync


def event(seq: int, key: str | None = None, **changes: Any) -> Event:
    """One of a key or, without one, about the whole of its collection."""
    given_ = {"partition": 0, "collection": "c", "target": 0, **changes}
    return Event(
        topic="t",
        seq=seq,
        event_id=f"e{seq}",
        key=key,
        op="insert" if key is not None else "drop",
        **{"raw": msgspec.Raw(b"null"), **given_},
    )


def rename(seq: int, to: str, **changes: Any) -> Event:
    renamed = event(seq, raw=msgspec.Raw(b'{"to":"%s"}' % to.encode()), **changes)
    return msgspec.structs.replace(renamed, op="rename")


CASES: dict[str, tuple[Item, Item, bool]] = {
    "of one key": (event(1, "a"), event(2, "a"), True),
    "of two keys": (event(1, "a"), event(2, "b"), False),
    "all behind one": (event(1, "a"), event(2), True),
    "one behind all": (event(1), event(2, "a"), True),
    "all behind all": (event(1), event(2), True),
    "one before all": (event(5), event(2, "a"), False),
    "all before one": (event(5, "a"), event(2), False),
    "of another collection": (event(1), event(2, "a", collection="d"), False),
    "all of another collection": (event(1, "a"), event(2, collection="d"), False),
    "the former name behind a rename": (rename(1, "d"), event(2, "a"), True),
    "the new name behind a rename": (rename(1, "d"), event(2, "a", collection="d"), True),
    "a rename behind the new name": (event(1, "a", collection="d"), rename(2, "d"), True),
    "a rename behind a drop of the new name": (event(1, collection="d"), rename(2, "d"), True),
    "another name behind a rename": (rename(1, "d"), event(2, "a", collection="e"), False),
    "of another partition": (event(1), event(2, "a", partition=1), False),
    "of a later version, elsewhere": (event(9), event(2, "a", partition=1, version=2), True),
    "of an earlier version": (event(1, version=2), event(2, "a"), False),
    "of another target": (event(1), event(2, "a", target=1), False),
    "a record without a key": (event(1), msgspec.structs.replace(event(2), op="insert"), True),
    "two without a key": (
        msgspec.structs.replace(event(1), op="insert"),
        msgspec.structs.replace(event(2), op="insert"),
        False,
    ),
    "what is left out": (event(1), Resync("", "t", 0, 1, 3, "gap", 0), False),
    "behind what is left out": (Resync("", "t", 0, 0, 2, "gap", 0), event(2), False),
}


@pytest.mark.parametrize(("waiting", "coming", "waits"), CASES.values(), ids=CASES)
def test_what_has_to_wait_behind_what_is_wanted_later(
    waiting: Item, coming: Item, waits: bool
) -> None:
    later = Later()
    later.put(waiting, 60.0)
    assert later.holds(coming) is waits
    assert later.next_s() == 60.0, "what has to wait isn't due"
    assert later.take_due(59.0) == []
    came = [one.item for one in later.take_due(60.0)]
    assert came == ([waiting, coming] if waits else [waiting])
    assert not later
    assert later.next_s() == math.inf


def test_what_is_dropped_holds_nobody() -> None:
    later = Later()
    later.put(event(1), 60.0)
    assert later.holds(event(2, "a"))
    later.drop(lambda item: item == event(1))
    assert later.take_due(0.0) == [Again(event(2, "a"))]
    assert not later.holds(event(3, "a"))


somewhere = {
    "partition": st.integers(0, 1),
    "collection": st.sampled_from("cd"),
    "target": st.integers(0, 1),
    "version": st.integers(1, 2),
}
items = st.one_of(
    st.builds(event, st.integers(1, 12), st.none() | st.sampled_from("ab"), **somewhere),
    st.builds(rename, st.integers(1, 12), st.sampled_from("cde"), **somewhere),
)


def names(one: Event) -> set[str]:
    return {one.collection} | ({one.document["to"]} if one.op == "rename" else set())


def must_go_before(one: Event, other: Event) -> bool:
    """In the plainest words."""
    about_one_thing = one.key == other.key or one.key is None or other.key is None
    if one.target != other.target or not names(one) & names(other) or not about_one_thing:
        return False
    if one.version != other.version:
        return one.version < other.version
    return one.partition == other.partition and one.seq < other.seq


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(items, st.integers(0, 5)), unique_by=lambda one: place_of(one[0])))
def test_nothing_passes_what_it_must_not_and_everything_comes(
    wanted: list[tuple[Event, int]],
) -> None:
    # A key is in one partition of a version.
    wanted = [
        (msgspec.structs.replace(one, partition=0), s) if one.key else (one, s) for one, s in wanted
    ]
    places = {place_of(one): (one, due_s) for one, due_s in wanted}
    later = Later()
    for one, due_s in places.values():
        later.put(one, float(due_s))
    came: list[Event] = []
    for now_s in range(6):
        due = later.next_s()
        some = [again.item for again in later.take_due(float(now_s))]
        assert bool(some) == (due <= now_s), "who waits is woken when there is something"
        for item in some:
            assert isinstance(item, Event)
            assert places[place_of(item)][1] <= now_s
            came.append(item)
    assert sorted(map(place_of, came)) == sorted(places)
    for at, one in enumerate(came):
        assert not any(must_go_before(other, one) for other in came[at + 1 :])
