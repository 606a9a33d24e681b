"""The stored state taken apart and put together again."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.etcd.stored_elements import assembled, changed_elements, elements
from headgate.errors import StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.stored import StoredState
from headgate.model.topology import Node, Owner, Topic

FIELDS = msgspec.structs.fields(StoredState)


def first_of(value: Any) -> Any:
    return msgspec.structs.astuple(value)[0] if isinstance(value, msgspec.Struct) else value


# Few names and numbers, so that two states have much in common.
NAMES = st.sampled_from(["a", "b", "a/b", "a%2Fb", "%", "é", ""])
NUMBERS = st.sampled_from([0, 1, 2, 10])


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values as they are declared, so that a new field is tested without a word here."""
    if get_origin(kind) is Annotated:  # with bounds, which these keep
        return values_of(get_args(kind)[0])
    if kind is str:
        return NAMES
    if kind is int:
        return NUMBERS
    if get_origin(kind) is tuple:
        several = st.lists(values_of(get_args(kind)[0]), max_size=6, unique_by=first_of)
        return several.map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(*map(values_of, get_args(kind)), max_size=2)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return st.builds(kind, **{field.name: values_of(field.type) for field in fields})
    return st.from_type(kind)


states: st.SearchStrategy[StoredState] = values_of(StoredState)


def in_order(state: StoredState) -> StoredState:
    many = [f.name for f in FIELDS if get_origin(f.type) is tuple]
    return msgspec.structs.replace(
        state, **{name: tuple(sorted(getattr(state, name), key=first_of)) for name in many}
    )


@given(states)
def test_a_state_taken_apart_can_be_put_together(state: StoredState) -> None:
    assert assembled(elements(state)) == in_order(state)


@given(states, states)
def test_a_change_is_the_plain_difference_of_all_elements(
    before: StoredState, after: StoredState
) -> None:
    old, new = elements(before), elements(after)
    gone = {name: None for name in old if name not in new}
    come = {name: content for name, content in new.items() if old.get(name) != content}
    assert changed_elements(before, after) == {**gone, **come}


@given(states, states, st.data())
def test_any_part_of_a_change_leaves_something_that_can_be_loaded(
    before: StoredState, after: StoredState, data: st.DataObject
) -> None:
    changes = changed_elements(before, after)
    found: dict[str, bytes | None] = {**elements(before)}
    found.update(list(changes.items())[: data.draw(st.integers(0, len(changes)))])
    partly = assembled({name: content for name, content in found.items() if content is not None})
    for field in FIELDS:
        if get_origin(field.type) is tuple:
            known = (*getattr(before, field.name), *getattr(after, field.name))
            assert all(value in known for value in getattr(partly, field.name))


STATE = StoredState(
    boot=3,
    topics=(Topic("a", 2),),
    deleted=("old/one",),
    logs=(Owner(PartitionRef("a", 10), "ingest-1", 7),),
    nodes=(Node("ingest-1", "ingest"),),
)


def test_elements_are_named_by_what_tells_them_apart() -> None:
    assert list(changed_elements(StoredState(), STATE)) == [
        "boot",
        "deleted/old%2Fone",
        "topics/a",
        "logs/a/10",
        "nodes/ingest-1",
    ]


def test_one_element_changed_is_one_element_written() -> None:
    moved = msgspec.structs.replace(STATE, logs=(Owner(PartitionRef("a", 10), "ingest-2", 8),))
    changes = changed_elements(STATE, moved)
    assert changes == {"logs/a/10": b'{"ref":["a",10],"node_id":"ingest-2","epoch":8}'}
    assert changed_elements(STATE, msgspec.structs.replace(STATE, logs=())) == {"logs/a/10": None}


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    owners = tuple(Owner(PartitionRef("a", number), "x", 1) for number in range(12))
    assert assembled(elements(StoredState(logs=owners))).logs == owners


def test_elements_of_a_field_from_another_release_are_left_out() -> None:
    assert assembled({"boot": b"2", "invented": b"{}", "invented/a": b"[]"}).boot == 2


def test_two_values_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="topics have the same name"):
        elements(StoredState(topics=(Topic("a", 1), Topic("a", 2))))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("boot", b"many", id="no json"),
        pytest.param("topics/a", b'{"name": "a"}', id="a field is missing"),
        pytest.param("gateways/a", b"\xff", id="no text"),
    ],
)
def test_a_damaged_element_is_named(name: str, content: bytes) -> None:
    with pytest.raises(StorageFailed, match=name):
        assembled({name: content})
