"""Prose names what it speaks of: a newcomer needn't guess whom "whoever" means.

Decisions that were written down (docs/adr) stay as they are.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIDDLE = re.compile(
    r"\b(whoever|whomever|somebody\W+newer|what\W+comes?\W+of\W+(it|them|that))\b", re.IGNORECASE
)
"""Over the end of a line, too, and the mark of a comment."""


def prose() -> list[Path]:
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for kind in ("py", "js", "html", "proto"):
        found += (ROOT / "src").rglob(f"*.{kind}")
    return [one for one in found if (ROOT / "docs" / "adr") not in one.parents]


def riddles(text: str) -> list[str]:
    """Each with its line."""
    found = ((text.count("\n", 0, one.start()) + 1, one.group()) for one in RIDDLE.finditer(text))
    return [f"line {number}: {words}" for number, words in found]


def test_prose_names_the_caller_the_lane_or_the_owner() -> None:
    found = [
        f"{one.relative_to(ROOT)} {riddle}"
        for one in prose()
        for riddle in riddles(one.read_text(encoding="utf-8"))
    ]
    assert not found, "say who or what is meant:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["Whoever asks", "it is for\n    # whoever asks", "and what comes\n# of it", "somebody newer"],
)
def test_a_riddle_is_found(text: str) -> None:
    assert riddles(text)


def test_other_words_are_none() -> None:
    assert not riddles("what comes of age, and whichever node it is")
