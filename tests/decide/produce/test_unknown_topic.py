"""Whoever misspells a topic is told which one they meant, everybody else how to make it."""

from __future__ import annotations

import pytest

from headgate.decide.produce.unknown_topic import unknown_topic


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("flight", "did you mean flights?"),
        ("flughts", "did you mean flights?"),
        ("Flights", "did you mean flights?"),
        ("ships", "create it: headgate topic create ships"),
        ("x" * 300, f"create it: headgate topic create {'x' * 100}"),
    ],
)
def test_what_is_said_of_a_topic_that_isnt_there(name: str, advice: str) -> None:
    error = unknown_topic(name, ["orders", "flights"])
    assert error.message == f"there is no topic {name[:100]}; {advice}"
    assert error.details == {"topic": name[:100]}


@pytest.mark.parametrize(
    ("name", "advice"),
    [("fligths", "did you mean flights?"), ("x", "headgate topic list shows which there are")],
)
def test_nobody_who_deletes_is_told_to_create(name: str, advice: str) -> None:
    error = unknown_topic(name, ["orders", "flights"], is_wanted=False)
    assert error.message == f"there is no topic {name}; {advice}"
