"""What everybody who watches is told of the same looks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.console.looks import (
    AWAY,
    EVERY_S,
    EVERY_S_MAX,
    SEEN_MS,
    Looks,
    pause_s,
)

SEEN = st.dictionaries(st.sampled_from(["nodes", "lanes", "rate"]), st.integers(0, 3))


def fields(**values: object) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


def told(news: bytes) -> dict[str, object]:
    return dict(msgspec.json.decode(news, type=dict[str, object]))


def test_the_first_one_is_told_all_and_then_what_changes() -> None:
    looks = Looks()
    looks.saw(fields(nodes=[1], rate=5), now_ms=10)
    assert told(looks.since(0)) == {"nodes": [1], "rate": 5, AWAY: "", SEEN_MS: 10}
    looks.saw(fields(nodes=[1], rate=6), now_ms=20)
    assert told(looks.since(1)) == {"rate": 6, SEEN_MS: 20}


def test_whoever_missed_a_look_is_told_all() -> None:
    looks = Looks()
    for now_ms in range(1, 4):
        looks.saw(fields(nodes=[now_ms]), now_ms=now_ms)
    assert told(looks.since(1)) == {"nodes": [3], AWAY: "", SEEN_MS: 3}


def test_a_missed_look_keeps_what_was_seen_and_says_that_it_is_old() -> None:
    looks = Looks()
    looks.saw(fields(nodes=[1]), now_ms=10)
    looks.missed("nobody answers")
    assert told(looks.since(1)) == {AWAY: "nobody answers"}
    assert told(looks.since(0)) == {"nodes": [1], AWAY: "nobody answers", SEEN_MS: 10}
    looks.missed("nobody answers")
    assert told(looks.since(2)) == {}
    looks.saw(fields(nodes=[1]), now_ms=30)
    assert told(looks.since(3)) == {AWAY: "", SEEN_MS: 30}


@given(st.lists(st.one_of(st.none(), SEEN)), st.data())
def test_a_reader_of_any_pace_has_what_was_seen_last(
    looked: list[dict[str, int] | None], data: st.DataObject
) -> None:
    looks, number, known = Looks(), 0, dict[str, object]()
    wanted: dict[str, object] = {}
    for now_ms, seen in enumerate(looked):
        if seen is None:
            looks.missed("away")
            wanted = {**wanted, AWAY: "away"}
        else:
            looks.saw(fields(**seen), now_ms=now_ms)
            wanted = {**wanted, **seen, AWAY: "", SEEN_MS: now_ms}
        if data.draw(st.booleans()):
            known |= told(looks.since(number))
            number = looks.number
            assert known == wanted


@pytest.mark.parametrize(
    ("took_s", "wanted_s"), [(0.0, EVERY_S), (0.1, 2.0), (10.0, EVERY_S_MAX)], ids=str
)
def test_what_takes_long_is_done_less_often(took_s: float, wanted_s: float) -> None:
    assert pause_s(took_s) == pytest.approx(wanted_s)
