"""Patterns that can't explode and can't hoard: RE2, with a bound on what one search may cost.

A search takes at most (steps x bytes of the text) work, whatever the pattern and the text: RE2
walks all ways through a pattern at once. What is left to bound is that product. So a pattern has at
most MAX_STEPS steps, and the more it has, the shorter the texts it looks at: `longest_bytes`.
A search in a longer text fails, which is for the caller to count.

Memory: RE2 may remember MEMORY_BYTES per pattern. That is little on purpose: the automaton of an
ordinary pattern fits, and for one that doesn't RE2 soon gives up building it and takes the way that
costs the same for every text. With more memory the worst texts take four times as long.
"""

from __future__ import annotations

import re2

MAX_PATTERN_CHARS = 256
MAX_STEPS = 128
MAX_SUBJECT_BYTES = 4_096
MAX_WORK = 131_072
"""Steps x bytes: 32 steps may look at MAX_SUBJECT_BYTES, MAX_STEPS at a quarter of that."""
MEMORY_BYTES = 32 * 1024


class PatternRefused(Exception):
    """`problem` says what is wrong, to go on with a sentence."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class Pattern:
    """A compiled pattern. Raises PatternRefused for what isn't RE2, and what is too much of it."""

    __slots__ = ("_search", "longest_bytes", "steps")

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise PatternRefused(
                f"it has {len(pattern)} characters, at most {MAX_PATTERN_CHARS} are allowed"
            )
        try:
            compiled = re2.compile(pattern.encode(), _options())
        except UnicodeEncodeError:
            raise PatternRefused("it has half a character (a lone surrogate)") from None
        except re2.error as error:
            raise PatternRefused(_problem(error)) from None
        self.steps: int = compiled.programsize
        if self.steps > MAX_STEPS:
            raise PatternRefused(
                f"with its repetitions and classes written out it needs {self.steps} steps, "
                f"at most {MAX_STEPS} are allowed"
            )
        self.longest_bytes: int = min(MAX_SUBJECT_BYTES, MAX_WORK // self.steps)
        self._search = compiled.search

    @property
    def work(self) -> int:
        """Of the longest search, in steps x bytes."""
        return self.steps * self.longest_bytes

    def found_in(self, text: str) -> bool | None:
        """Does the pattern match anywhere in `text`? None: it is too long to be looked at."""
        if len(text) > self.longest_bytes:
            return None
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            return None  # half a character, which no document in UTF-8 has
        if len(encoded) > self.longest_bytes:
            return None
        return self._search(encoded) is not None


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.never_capture = True
    options.log_errors = False
    return options


def _problem(error: re2.error) -> str:
    """RE2's own words, which come as bytes and name the part of the pattern that they are about."""
    words = error.args[0] if error.args else "it isn't understood"
    text = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    if text.startswith("pattern too large"):
        return (
            f"with its repetitions and classes written out it needs far more than {MAX_STEPS} steps"
        )
    return text
