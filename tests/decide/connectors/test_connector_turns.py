"""What is handed in at once: nothing follows in any partition what belongs into all of them."""

from __future__ import annotations

import pytest

from headgate.decide.connectors.plan import in_turns
from headgate.model.event import Event, Op

OPS: dict[str, Op] = {"d": "drop", "t": "truncate", "r": "rename", "l": "lost", "u": "update"}


@pytest.mark.parametrize(
    ("ops", "turns"),
    [
        ("", [""]),
        ("uuu", ["uuu"]),
        ("uduu", ["ud", "uu"]),
        ("uddtuu", ["uddt", "uu"]),
        ("ud", ["ud"]),
        ("rr", ["r", "r"]),
        ("dru", ["d", "r", "u"]),
        ("rdu", ["r", "d", "u"]),
        ("ldu", ["l", "d", "u"]),
    ],
)
def test_turns(ops: str, turns: list[str]) -> None:
    events = [
        Event(str(at), b"null", "k" if op == "u" else None, OPS[op]) for at, op in enumerate(ops)
    ]
    names = {op: letter for letter, op in OPS.items()}
    found = in_turns(events)
    assert ["".join(names[one.op] for one in turn) for turn in found] == turns
    assert [one for turn in found for one in turn] == events
