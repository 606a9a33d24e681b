"""The glossary and the code have the same words: a class that bears a word of the glossary is
listed there, under the entry whose meaning it has, and what is listed is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "headgate"
ROW = re.compile(
    r"^\| (?P<words>[a-z][a-z ]*) \| (?P<meaning>[^|]+) \|(?: (?P<classes>[^|]*) \|)?$"
)
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z0-9]*|[A-Z]+")


def entries() -> dict[str, set[str]]:
    """The classes that each entry lists."""
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    rows = [row for row in map(ROW.match, lines) if row is not None and row["words"] != "word"]
    return {row["words"]: set(re.findall("`([^`]+)`", row["classes"] or "")) for row in rows}


def public_classes() -> set[str]:
    return {
        node.name
        for file in SOURCES.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def same(word: str, written: str) -> bool:
    """True for a word of the glossary and the same in a name, plurals included."""
    plurals = {word + "s", word + "es", word.removesuffix("y") + "ies"}
    return written == word or written in plurals


def bears(name: str, entry: str) -> bool:
    """True when all words of an entry stand in a class's name, one behind the other."""
    written = [part.lower() for part in WORD.findall(name)]
    words = entry.split()
    return any(
        all(map(same, words, written[start:])) for start in range(len(written) - len(words) + 1)
    )


def unlisted(name: str, glossary: dict[str, set[str]]) -> list[str]:
    """The words that a class bears without being listed under them, or under a longer entry of
    which they are a part."""
    return [
        entry
        for entry in glossary
        if bears(name, entry)
        and not any(name in glossary[other] for other in glossary if entry in other)
    ]


def test_the_glossary_can_be_read() -> None:
    assert len(entries()) > 80


@pytest.mark.parametrize(
    ("name", "entry", "expected"),
    [
        ("LetterStore", "letter", True),
        ("LettersChanged", "letter", True),
        ("Deliveries", "delivery", True),
        ("WebPages", "web page", True),
        ("PageAtWeb", "web page", False),
        ("Logger", "log", False),
    ],
)
def test_a_class_bears_a_word(name: str, entry: str, expected: bool) -> None:
    assert bears(name, entry) is expected


def test_a_class_that_bears_a_word_is_listed_under_it_or_under_a_longer_one() -> None:
    glossary: dict[str, set[str]] = {"page": {"Page"}, "web page": {"WebPages"}}
    assert unlisted("WebPages", glossary) == []
    assert unlisted("PageSize", glossary) == ["page"]


def test_every_class_that_bears_a_word_of_the_glossary_is_listed_there() -> None:
    glossary = entries()
    missing = {name: unlisted(name, glossary) for name in sorted(public_classes())}
    assert {name: words for name, words in missing.items() if words} == {}


def test_what_the_glossary_lists_is_there() -> None:
    listed = set().union(*entries().values())
    assert listed - public_classes() == set()
