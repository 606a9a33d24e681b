"""`matches`: RE2's answers, whatever the pattern, for texts that it may look at."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.filter.patterns import (
    MAX_STEPS,
    MAX_SUBJECT_BYTES,
    MAX_WORK,
    Pattern,
    PatternRefused,
)
from headgate.decide.filter.plan import compile_filter
from headgate.errors import InvalidFilter

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
    "flags": ("(?i)swr", "SWR12"),
    "named group": ("(?P<x>a)b", "ab"),
    "word boundary": (r"\bcargo\b", "no cargo here"),
    "unicode class": (r"^\p{Greek}+$", "αβγ"),
    "posix class": ("^[[:alpha:]]+$", "ab"),
    "newlines on demand": ("(?s)a.b", "a\nb"),
    "lines on demand": ("(?m)^b$", "a\nb\nc"),
    "literal brace": ("a{x}", "a{x}"),
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
    assert Pattern(pattern).found_in(text) is True


@pytest.mark.parametrize(("pattern", "text"), NOT_FOUND.values(), ids=NOT_FOUND.keys())
def test_not_found(pattern: str, text: str) -> None:
    assert Pattern(pattern).found_in(text) is False


REFUSED = {
    "backreference": (r"(a)\1", r"invalid escape sequence: \1"),
    "lookahead": ("a(?=b)", "invalid perl operator: (?="),
    "lookbehind": ("(?<=a)b", "invalid"),
    "possessive": ("a*+", "bad repetition operator: *+"),
    "two repetitions": ("a**", "bad repetition operator: **"),
    "nothing to repeat": ("*a", "no argument for repetition operator: *"),
    "open group": ("x(a", "missing ): x(a"),
    "stray )": ("a)", "unexpected ): a)"),
    "open class": ("x[a", "missing ]: [a"),
    "backward range": ("[z-a]", "invalid character class range: z-a"),
    "counts backward": ("a{3,2}", "invalid repetition size: {3,2}"),
    "count too large": ("a{1001}", "invalid repetition size: {1001}"),
    "backslash at the end": ("a\\", "trailing \\"),
    "half a character": ("a\ud800", "half a character"),
    "too long": ("a" * 257, "it has 257 characters, at most 256 are allowed"),
    "too many steps": ("a" * 200, "steps, at most 128 are allowed"),
    "far too many steps": (r"\pL{100}", "it needs far more than 128 steps"),
    "repeating nothing for ever": ("((((((){255}){255}){255}){255}){255}){255}", "invalid repetit"),
}


@pytest.mark.parametrize(("pattern", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_and_says_why(pattern: str, problem: str) -> None:
    with pytest.raises(PatternRefused) as caught:
        Pattern(pattern)
    assert problem in caught.value.problem


def test_a_filter_is_refused_in_one_sentence_with_the_place() -> None:
    with pytest.raises(InvalidFilter) as caught:
        compile_filter('a == 1 && b.matches("x(a")')
    message = "The filter is wrong at column 21: the pattern is refused: missing ): x(a."
    assert caught.value.message == message


HOSTILE = {
    "nested": ("^(a+)+$", "a" * 4_000 + "b"),
    "nested thrice": ("^((a*)*)*$", "a" * 4_000 + "b"),
    "same alternatives": ("^(a|a)*$", "a" * 4_000 + "b"),
    "overlapping alternatives": ("^(a|aa)+$", "a" * 4_000 + "b"),
    "nothing nested": ("a?" * 35 + "a" * 35 + "b", "a" * 1_000),
    "polynomial": (".*a" * 12 + "b", "a" * 1_000),
    "many sets of states": ("[ab]*a[ab]{60}c", "abbabaab" * 200),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("pattern", "text"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_patterns_end(pattern: str, text: str) -> None:
    assert Pattern(pattern).found_in(text) is False


LONGEST = {
    "few steps": ("x", MAX_SUBJECT_BYTES),
    "32 steps": ("x" * 28, MAX_SUBJECT_BYTES),
    "as many steps as may be": ("[ab]{123}x", MAX_WORK // MAX_STEPS),
}


@pytest.mark.parametrize(("pattern", "longest"), LONGEST.values(), ids=LONGEST.keys())
def test_the_more_steps_the_shorter_the_texts(pattern: str, longest: int) -> None:
    compiled = Pattern(pattern)
    assert compiled.longest_bytes == longest
    assert compiled.steps * compiled.longest_bytes <= MAX_WORK
    assert compiled.found_in("y" * longest) is False
    assert compiled.found_in("y" * (longest + 1)) is None


def test_a_text_too_long_to_search_fails() -> None:
    filter_ = compile_filter('a.matches("x")')
    assert filter_.evaluate({"a": "x" * MAX_SUBJECT_BYTES}) is True
    assert filter_.evaluate({"a": "x" * (MAX_SUBJECT_BYTES + 1)}) is None


def test_length_is_counted_in_bytes_of_utf_8() -> None:
    filter_ = compile_filter('a.matches("x")')
    assert filter_.evaluate({"a": "é" * (MAX_SUBJECT_BYTES // 2)}) is False
    assert filter_.evaluate({"a": "é" * (MAX_SUBJECT_BYTES // 2 + 1)}) is None


def test_half_a_character_in_a_text_fails() -> None:
    assert compile_filter('a.matches("x")').evaluate({"a": "x\ud800"}) is None


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
        return  # too many steps
    assert compiled.found_in(text) is (re.search(pattern, text, re.ASCII) is not None)
