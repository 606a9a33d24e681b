"""`matches`: RE2's answers, whatever the pattern, in time linear in the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.filter import automaton
from headgate.decide.filter.automaton import Pattern
from headgate.decide.filter.plan import compile_filter
from headgate.decide.filter.regex import PatternRefused

FOUND = {
    "empty pattern": ("", ""),
    "anywhere": ("b", "abc"),
    "start": ("^a", "ab"),
    "end": ("b$", "ab"),
    "empty text": ("^$", ""),
    "end before start": ("$^", ""),
    "start twice": ("^^a", "a"),
    "start within a choice": ("(^|x)a", "a"),
    "text edges": (r"\Aab\z", "ab"),
    "star of nothing": ("^(a*)*$", "aaa"),
    "plus of maybe nothing": ("^(a?)+b$", "b"),
    "counts": ("^a{2,3}$", "aaa"),
    "count zero": ("^a{0}b$", "b"),
    "open count": ("^a{2,}$", "aaaaa"),
    "lazy": ("^a+?b??$", "aa"),
    "class": ("^[a-c_]+$", "ab_c"),
    "negated class": ("^[^0-9]+$", "aé𝄞"),
    "] first in a class": ("^[]a]+$", "]a"),
    "- last in a class": ("^[a-]+$", "a-"),
    "class in a class": (r"^[\d\s]+$", "1 2"),
    "escapes": (r"^\.\*\[\]\{\}\\\/\x41\x{1F600}\t$", ".*[]{}\\/A😀\t"),
    "complement": (r"^\D\W\S$", "a-b"),
    "alternatives": ("^(ab|cd|)e$", "e"),
    "any character": ("^.$", "𝄞"),
    "non-capturing": ("^(?:ab)+$", "abab"),
}

NOT_FOUND = {
    "other": ("b", "ac"),
    "not at the start": ("^b", "ab"),
    "not at the end": ("a$", "ab"),
    "$ is the very end": ("a$", "a\n"),
    "^ is the very start": ("^b", "a\nb"),
    ". isn't a newline": ("^.$", "\n"),
    "too few": ("^a{2,3}$", "a"),
    "too many": ("^a{2,3}$", "aaaa"),
    "digits are ASCII": (r"\d", "٣"),
    "words are ASCII": (r"\w", "é"),
    "start in the middle": ("a^b", "ab"),
    "case matters": ("A", "a"),
    "overlapping ranges in a negated class": ("[^a-fb-c]", "de"),
}


@pytest.mark.parametrize(("pattern", "text"), FOUND.values(), ids=FOUND.keys())
def test_found(pattern: str, text: str) -> None:
    assert Pattern(pattern).found_in(text)


@pytest.mark.parametrize(("pattern", "text"), NOT_FOUND.values(), ids=NOT_FOUND.keys())
def test_not_found(pattern: str, text: str) -> None:
    assert not Pattern(pattern).found_in(text)


REFUSED = {
    "backreference": (r"(a)\1", 3),
    "lookahead": ("a(?=b)", 2),
    "lookbehind": ("(?<=a)b", 1),
    "flags": ("(?i)a", 1),
    "named group": ("(?P<x>a)", 1),
    "word boundary": (r"\bx", 0),
    "unicode class": (r"\pL", 0),
    "possessive": ("a*+", 2),
    "two repetitions": ("a**", 2),
    "nothing to repeat": ("*a", 0),
    "repeated edge": ("^*", 1),
    "open group": ("x(a", 1),
    "stray )": ("a)", 1),
    "open class": ("x[a", 1),
    "posix class": ("[[:alpha:]]", 1),
    "backward range": ("[z-a]", 4),
    "range of classes": (r"[a-\d]", 5),
    "bare brace": ("a{", 1),
    "bare brace with text": ("a{x}", 1),
    "counts backward": ("a{3,2}", 1),
    "count too large": ("a{256}", 1),
    "backslash at the end": ("a\\", 1),
    "bad hexadecimal": (r"\xZZ", 0),
    "too long": ("a" * 257, 256),
    "too deep": ("(" * 20 + "a" + ")" * 20, 17),
    "too many steps": ("(a{50}){50}", 0),
    "repeating nothing for ever": ("((((((){255}){255}){255}){255}){255}){255}", 0),
}


@pytest.mark.parametrize(("pattern", "offset"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_with_the_place(pattern: str, offset: int) -> None:
    with pytest.raises(PatternRefused) as caught:
        Pattern(pattern)
    assert caught.value.offset == offset


HOSTILE = {
    "nested": ("^(a+)+$", "a" * 4_000 + "b"),
    "nested thrice": ("^((a*)*)*$", "a" * 4_000 + "b"),
    "same alternatives": ("^(a|a)*$", "a" * 4_000 + "b"),
    "overlapping alternatives": ("^(a|aa)+$", "a" * 4_000 + "b"),
    "nothing nested": ("a?" * 60 + "a" * 60 + "b", "a" * 4_000),
    "polynomial": (".*a" * 40 + "b", "a" * 4_000),
    "many sets of states": ("[ab]*a[ab]{60}c", "abbabaab" * 500),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("pattern", "text"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_patterns_end(pattern: str, text: str) -> None:
    assert not Pattern(pattern).found_in(text)


def test_memory_of_moves_is_bounded_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["".join(chr(97 + (i * j) % 5) for i in range(50)) for j in range(20)]
    expected = [Pattern("a[b-d]{2,9}e").found_in(text) for text in texts]
    monkeypatch.setattr(automaton, "MAX_REMEMBERED", 3)
    pattern = Pattern("a[b-d]{2,9}e")
    assert [pattern.found_in(text) for text in texts] == expected
    assert True in expected
    assert False in expected


def test_a_text_too_long_to_search_fails() -> None:
    filter_ = compile_filter('a.matches("x")')
    assert filter_.evaluate({"a": "x" * automaton.MAX_SUBJECT_CHARS}) is True
    assert filter_.evaluate({"a": "x" * (automaton.MAX_SUBJECT_CHARS + 1)}) is None


_atoms = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^b]", r"\d", r"\w", "^", "$", "1", ""])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, repeats).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


@settings(max_examples=500, deadline=None)
@given(st.recursive(_atoms, _larger, max_leaves=6), st.text(st.sampled_from("abc1é"), max_size=8))
def test_says_what_a_backtracking_engine_says(pattern: str, text: str) -> None:
    try:
        compiled = Pattern(pattern)
    except PatternRefused:
        assert re.search(r"[\^$)][*+?{]", pattern) or "255" in pattern
        return
    assert compiled.found_in(text) is (re.search(pattern, text, re.ASCII) is not None)
