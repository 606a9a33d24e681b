"""What stands behind what in a consumer's hands."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from headgate.decide.key_lines import FEW, KeyLines


def standing() -> KeyLines:
    lines = KeyLines()
    for seq in range(1, 5):
        lines.stand((0, seq), (0, "", "a"), seq, redelivery=False)
    lines.stand((0, 5), (0, "", "b"), 5, redelivery=False)
    lines.stand((0, 6), (0, "planes", "a"), 6, redelivery=False)
    lines.stand((1, 7), (1, "", "a"), 7, redelivery=False)
    lines.stand("mark", (0, "", "a"), 3, redelivery=True)
    return lines


@pytest.mark.parametrize(
    ("first", "behind"),
    [
        pytest.param([], set(), id="nothing"),
        pytest.param([(0, 2)], {(0, 3), (0, 4), "mark"}, id="of its key alone"),
        pytest.param([(0, 4)], set(), id="the last one"),
        pytest.param([(0, 4), (0, 3)], {(0, 4)}, id="behind the first of several"),
        pytest.param(["mark"], {(0, 3), (0, 4)}, id="a redelivery before the record"),
        pytest.param([(0, 3)], {(0, 4)}, id="and not behind it"),
        pytest.param([(0, 9)], set(), id="without a key"),
    ],
)
def test_those_of_one_key_stand_behind_one_another(
    first: list[Hashable], behind: set[Hashable]
) -> None:
    assert standing().behind(first) == behind


def test_what_is_gone_is_forgotten_sooner_or_later() -> None:
    lines = KeyLines()
    for seq in range(3 * FEW):
        lines.stand((0, seq), (0, "", "a"), seq, redelivery=False)
    lines.forget(lambda thing: thing != (0, FEW))
    assert lines.behind([(0, 0)]) == set()
    lines.stand((0, 0), (0, "", "a"), 0, redelivery=False)
    assert lines.behind([(0, 0)]) == {(0, FEW)}
