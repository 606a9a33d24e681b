"""What a regular expression says: RE2's syntax, as CEL asks for, less what docs/filters.md lists.

Invariant: what comes out is bounded (length, nesting, repetitions), and whatever isn't understood
is refused with its place in the pattern. How it is searched for is automaton.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_PATTERN_CHARS = 256
MAX_PATTERN_DEPTH = 16
MAX_REPEAT = 255

_LAST_CHAR = 0x10FFFF
_DIGITS = ((48, 57),)
_WORDS = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACES = ((9, 10), (12, 13), (32, 32))
_CONTROL = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}

Ranges = tuple[tuple[int, int], ...]


class PatternRefused(Exception):
    """`offset` is the place in the pattern."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem


# --- what a pattern says -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chars:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Edge:
    side: Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`most` None: without end."""

    part: Part
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Concat:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    parts: tuple[Part, ...]


Part = Chars | Edge | Repeat | Concat | Choice


def _complement(ranges: Ranges) -> Ranges:
    gaps: list[tuple[int, int]] = []
    begin = 0
    for low, high in sorted(ranges):
        if begin < low:
            gaps.append((begin, low - 1))
        begin = max(begin, high + 1)
    if begin <= _LAST_CHAR:
        gaps.append((begin, _LAST_CHAR))
    return tuple(gaps)


_CLASSES: dict[str, Ranges] = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CLASSES |= {name.upper(): _complement(ranges) for name, ranges in _CLASSES.items()}
_ANY_BUT_NEWLINE = _complement(((10, 10),))


def read_pattern(pattern: str) -> Part:
    """Raises PatternRefused."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternRefused(MAX_PATTERN_CHARS, f"it is over {MAX_PATTERN_CHARS} characters")
    return _Reader(pattern).read()


class _Reader:
    """Recursive descent over the pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def read(self) -> Part:
        part = self._choice(0)
        if self._at < len(self._pattern):
            raise self._refused("found ) without (")
        return part

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _refused(self, problem: str) -> PatternRefused:
        return PatternRefused(self._at, problem)

    def _choice(self, depth: int) -> Part:
        if depth > MAX_PATTERN_DEPTH:
            raise self._refused(f"groups nest deeper than {MAX_PATTERN_DEPTH} levels")
        parts = [self._concat(depth)]
        while self._peek() == "|":
            self._take()
            parts.append(self._concat(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _concat(self, depth: int) -> Part:
        parts: list[Part] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _repeated(self, part: Part) -> Part:
        char = self._peek()
        if char not in ("*", "+", "?", "{"):
            return part
        if isinstance(part, Edge):
            raise self._refused(f"found {char} behind ^ or $, expected something to repeat")
        self._take()
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) or self._counts()
        if self._peek() == "?":
            self._take()  # lazy or greedy is the same when only "is there a match" is asked
        if self._peek() in ("*", "+", "?", "{"):
            raise self._refused(f"found {self._peek()} behind another repetition")
        return Repeat(part, least, most)

    def _counts(self) -> tuple[int, int | None]:
        """The inside of {m}, {m,} or {m,n}; the { is taken."""
        begin = self._at - 1
        closing = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at : max(closing, self._at)].partition(",")
        plain = all(digits.isascii() and digits.isdigit() for digits in (low, high) if digits)
        if not low or not plain:
            raise PatternRefused(begin, "expected {m}, {m,} or {m,n}; write \\{ for the character")
        least = int(low)
        most = least if not comma else (int(high) if high else None)
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise PatternRefused(begin, f"expected {{m,n}} with m ≤ n ≤ {MAX_REPEAT}")
        self._at = closing + 1
        return least, most

    def _atom(self, depth: int) -> Part:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._char_class()
        if char == ".":
            return Chars(_ANY_BUT_NEWLINE)
        if char in ("^", "$"):
            return Edge("start" if char == "^" else "end")
        if char == "\\":
            if self._peek() in ("A", "z"):
                return Edge("start" if self._take() == "A" else "end")
            return Chars(self._escape())
        if char in ("*", "+", "?", "{"):
            self._at -= 1
            raise self._refused(f"found {char} with nothing before it to repeat")
        return Chars(((ord(char), ord(char)),))

    def _group(self, depth: int) -> Part:
        begin = self._at - 1
        if self._peek() == "?":
            if not self._pattern.startswith("?:", self._at):
                raise self._refused("only ( and (?: start a group: no flags, names or lookaround")
            self._at += 2
        inside = self._choice(depth + 1)
        if self._take() != ")":
            raise PatternRefused(begin, "the group has no closing )")
        return inside

    def _escape(self) -> Ranges:
        """What the backslash that was just taken begins."""
        begin, char = self._at - 1, self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROL:
            return ((_CONTROL[char], _CONTROL[char]),)
        if char == "x":
            return self._hexadecimal(begin)
        if char.isascii() and char.isdigit():
            raise PatternRefused(begin, "backreferences and octal escapes aren't supported")
        if not char or char.isalnum():
            raise PatternRefused(begin, f"\\{char} isn't supported")
        return ((ord(char), ord(char)),)

    def _hexadecimal(self, begin: int) -> Ranges:
        braced = self._peek() == "{"
        closing = self._pattern.find("}", self._at) if braced else self._at + 2
        digits = self._pattern[self._at + braced : max(closing, self._at)]
        hexadecimal = digits.isascii() and digits.isalnum() and len(digits) in range(1, 9)
        try:
            code = int(digits, 16) if hexadecimal else -1
        except ValueError:
            code = -1
        if not 0 <= code <= _LAST_CHAR or (not braced and len(digits) != 2):
            raise PatternRefused(begin, "expected \\xHH or \\x{H…}")
        self._at = closing + braced
        return ((code, code),)

    def _char_class(self) -> Part:
        begin = self._at - 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._class_item(begin)
            if len(low) != 1 or low[0][0] != low[0][1] or not self._dash():
                ranges.extend(low)
                continue
            self._take()
            high = self._class_item(begin)
            if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                raise self._refused("expected a range such as a-z")
            ranges.append((low[0][0], high[0][0]))
        self._take()
        return Chars(_complement(tuple(ranges)) if negated else tuple(ranges))

    def _dash(self) -> bool:
        """Is the next character the dash of a range, and not one at the end of the class?"""
        return self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", "")

    def _class_item(self, begin: int) -> Ranges:
        if self._peek() == "":
            raise PatternRefused(begin, "the character class has no closing ]")
        if self._pattern.startswith(("[:", "[.", "[="), self._at):
            raise self._refused("classes such as [:alpha:] aren't supported")
        char = self._take()
        return self._escape() if char == "\\" else ((ord(char), ord(char)),)
