"""The life of something as a table: in which state which event leads where.

A table is data. The object that lives by it keeps a `Life` and tells it what has happened; nobody
sets its state. An event that its present state doesn't know is a mistake of the program and raises.

The diagrams in docs/ are made from the tables (`diagram`, `renewed`); scripts/document_states.py
renews them, and a test says when that is due.

Invariant: every state can be reached from the first one, and every event leads somewhere. What
breaks that doesn't get past its import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from headgate.errors import HeadgateError

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)

MARKED = re.compile(r"(<!-- states of ([\w.]+):(\w+) -->\n).*?(<!-- end of states -->)", re.DOTALL)


class OutOfTurn(HeadgateError):
    """Something happened that can't happen in this state: a mistake of the program."""


@dataclass(frozen=True)
class Table(Generic[State, Event]):
    """`moves` has, for each state, what may happen in it and the state that follows. One without
    any is an end. `means` says what each state is, in a few words."""

    begins: State
    moves: Mapping[State, Mapping[Event, State]]
    means: Mapping[State, str]

    def __post_init__(self) -> None:
        states = set(type(self.begins))
        unreached = states - self._reached()
        if unreached or states != set(self.moves) or states != set(self.means):
            named = ", ".join(states)
            raise ValueError(f"each of these needs moves, a meaning and a way to it: {named}")
        used = [event for after in self.moves.values() for event in after]
        if used and (unused := set(type(used[0])) - set(used)):
            raise ValueError(f"nothing ever follows from: {', '.join(unused)}")

    def after(self, state: State, event: Event) -> State:
        """The state that follows; raises OutOfTurn where `event` can't happen in `state`."""
        if event not in self.moves[state]:
            raise OutOfTurn(f"{str(event)!r} can't happen in the state {str(state)!r}")
        return self.moves[state][event]

    def _reached(self) -> set[State]:
        reached, ahead = {self.begins}, [self.begins]
        while ahead:
            new = set(self.moves.get(ahead.pop(), {}).values()) - reached
            reached |= new
            ahead.extend(new)
        return reached


class Life(Generic[State, Event]):
    """Where something is in its table: `state` is for reading, `meets` the only way on."""

    def __init__(self, table: Table[State, Event]) -> None:
        self._table = table
        self._state = table.begins

    @property
    def state(self) -> State:
        return self._state

    def meets(self, event: Event) -> State:
        """`event` has happened: returns the state that it leads to, or raises OutOfTurn."""
        self._state = self._table.after(self._state, event)
        return self._state

    def may_meet(self, event: Event) -> bool:
        return event in self._table.moves[self._state]


# --- documents -----------------------------------------------------------------------------------


def diagram(table: Table[Any, Any]) -> str:
    """A state diagram in Mermaid's language; states and events are called by their values."""
    lines = [f"[*] --> {_id(table.begins)}"]
    for state, moves in table.moves.items():
        if _id(state) != state:
            lines.append(f'state "{state}" as {_id(state)}')
        lines += [f"{_id(state)} --> {_id(after)}: {event}" for event, after in moves.items()]
        if not moves:
            lines.append(f"{_id(state)} --> [*]")
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in lines)])


def described(table: Table[Any, Any]) -> str:
    """The diagram and what each state means, as Markdown."""
    rows = "".join(f"| {state} | {table.means[state]} |\n" for state in table.moves)
    return f"```mermaid\n{diagram(table)}\n```\n\n| state | meaning |\n|---|---|\n{rows}"


def renewed(document: str, table_of: Callable[[str, str], Table[Any, Any]]) -> str:
    """`document` with everything between such lines replaced by what the table says now:

        <!-- states of package.module:NAME -->
        <!-- end of states -->

    `table_of` finds a table by its module and name.
    """

    def renew(found: re.Match[str]) -> str:
        begin, module, name, end = found.groups()
        return f"{begin}\n{described(table_of(module, name))}\n{end}"

    return MARKED.sub(renew, document)


def _id(state: StrEnum) -> str:
    return re.sub(r"\W", "_", state)
