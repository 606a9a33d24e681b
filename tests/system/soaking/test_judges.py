"""Who judges `make soak` finds what it is there to find."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.system.soaking.flood import KEYS, Flood, Violation
from tests.system.soaking.group import IN_HAND_MAX, GroupJudge, Work
from tests.system.soaking.judge import REPEATS_WITHIN_S, Account

SENT = 3 * KEYS


def account() -> Account:
    flood = cast("Flood", SimpleNamespace(sent_at_s=[0.0] * SENT))
    return Account("somebody", flood, lambda: 0.0)


def work(number: int, **changes: Any) -> Work:
    usual = Work(
        at_ns=number,
        consumer="one",
        process=1,
        key=f"k{number % KEYS}",
        number=number,
        partition=0,
        seq=number + 1,
        target=0,
        epoch=1,
    )
    return usual._replace(**changes)


@pytest.mark.parametrize(
    ("taken", "what"),
    [
        pytest.param([("k5", KEYS + 5, (0, 2), 1.0)], "lost or out of order", id="one is left out"),
        pytest.param([("k5", SENT + 5, (0, 2), 1.0)], "nobody sent", id="made up"),
        pytest.param([("k6", 5, (0, 2), 1.0)], "nobody sent", id="another key's"),
        pytest.param([("k5", 5, (0, 2), 1.0), ("k5", 5, (1, 2), 1.0)], "at", id="at two positions"),
        pytest.param(
            [("k5", 5, (0, 2), 1.0), ("k5", 5, (0, 2), REPEATS_WITHIN_S + 1)],
            "after the last fault",
            id="again without a reason",
        ),
    ],
)
def test_what_a_reader_must_not_get(
    taken: list[tuple[str, int, tuple[int, int], float]], what: str
) -> None:
    reader = account()
    *fine, wrong = taken
    for one in fine:
        assert reader.take(*one)
    with pytest.raises(Violation, match=what):
        reader.take(*wrong)


def test_a_repeat_soon_after_a_fault_is_counted() -> None:
    reader = account()
    assert reader.take("k5", 5, (0, 2), 1.0)
    assert not reader.take("k5", 5, (0, 2), 2.0)
    assert (reader.count, reader.repeats) == (1, 1)


@pytest.mark.parametrize(
    ("did", "what"),
    [
        pytest.param(
            [work(1), work(2, consumer="two")], "under that epoch", id="two have one epoch"
        ),
        pytest.param([work(1), work(1)], "came after", id="again under the same epoch"),
        pytest.param([work(1), work(KEYS * 2 + 1)], "lost or out of order", id="a key's next one"),
        pytest.param(
            [work(0, consumer="two", epoch=2), *(work(n) for n in range(1, IN_HAND_MAX + 2))],
            "since long",
            id="more than was in hand",
        ),
    ],
)
def test_what_a_group_must_not_do(did: list[Work], what: str) -> None:
    judge = GroupJudge(account())
    *fine, wrong = did
    for one in fine:
        judge.judge(one)
    with pytest.raises(Violation, match=what):
        judge.judge(wrong)


def test_who_is_replaced_may_finish_what_was_in_hand() -> None:
    judge = GroupJudge(account())
    judge.judge(work(0, consumer="two", epoch=2))
    for number in range(1, IN_HAND_MAX + 1):
        judge.judge(work(number))
    assert judge.overlaps == IN_HAND_MAX
