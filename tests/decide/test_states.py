"""Lives as tables, and the diagrams in docs/ that are made from them."""

from __future__ import annotations

from enum import StrEnum

import pytest

from headgate.decide.states import Life, OutOfTurn, Table, described, diagram, renewed


class Door(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    BRICKED_UP = "bricked up"


class Deed(StrEnum):
    PUSH = "pushed"
    PULL = "pulled"
    WALL = "walled in"


MEANS = {
    Door.OPEN: "who wants to may pass",
    Door.CLOSED: "nobody passes",
    Door.BRICKED_UP: "it was a door",
}
MOVES = {
    Door.OPEN: {Deed.PUSH: Door.CLOSED},
    Door.CLOSED: {Deed.PULL: Door.OPEN, Deed.WALL: Door.BRICKED_UP},
    Door.BRICKED_UP: {},
}
TABLE = Table(Door.OPEN, MOVES, MEANS)
DIAGRAM = """\
stateDiagram-v2
    [*] --> open
    open --> closed: pushed
    closed --> open: pulled
    closed --> bricked_up: walled in
    state "bricked up" as bricked_up
    bricked_up --> [*]"""


def test_a_life_goes_where_its_table_says() -> None:
    life = Life(TABLE)
    assert life.state is Door.OPEN
    assert life.meets(Deed.PUSH) is Door.CLOSED
    assert life.may_meet(Deed.WALL)
    assert not life.may_meet(Deed.PUSH)
    assert life.meets(Deed.PULL) is life.state is Door.OPEN


def test_what_is_not_in_the_table_raises_and_changes_nothing() -> None:
    life = Life(TABLE)
    with pytest.raises(OutOfTurn, match="'walled in' can't happen in the state 'open'"):
        life.meets(Deed.WALL)
    assert life.state is Door.OPEN


@pytest.mark.parametrize(
    "moves",
    [
        {Door.OPEN: {Deed.PUSH: Door.CLOSED}},
        {**MOVES, Door.CLOSED: {Deed.PULL: Door.OPEN, Deed.WALL: Door.OPEN}},
    ],
    ids=["a state without a row", "a state that nothing leads to"],
)
def test_a_table_has_a_way_to_every_state(moves: dict[Door, dict[Deed, Door]]) -> None:
    with pytest.raises(ValueError, match="a way to it"):
        Table(Door.OPEN, moves, MEANS)


def test_a_table_knows_every_event() -> None:
    moves = {**MOVES, Door.CLOSED: {Deed.WALL: Door.BRICKED_UP}}
    with pytest.raises(ValueError, match="nothing ever follows from: pulled"):
        Table(Door.OPEN, moves, MEANS)


def test_every_state_of_a_table_has_a_meaning() -> None:
    with pytest.raises(ValueError, match="a meaning"):
        Table(Door.OPEN, MOVES, {Door.OPEN: "who wants to may pass"})


def test_a_table_is_drawn() -> None:
    assert diagram(TABLE) == DIAGRAM


def test_a_document_gets_the_diagrams_that_it_names() -> None:
    named = "<!-- states of a.door:TABLE -->\n"
    text = f"Doors:\n{named}as they were\n<!-- end of states -->\nthat is all\n"
    tables = {("a.door", "TABLE"): TABLE}
    new = renewed(text, lambda *name: tables[name])
    assert new == f"Doors:\n{named}\n{described(TABLE)}\n<!-- end of states -->\nthat is all\n"
    assert renewed(new, lambda *name: tables[name]) == new
