"""Text to tokens.

Invariant: the tokens cover the text in order, end with one `end` token, and every string and number
arrives decoded, so that nothing downstream looks at quotes, escapes or digits again. Must never
guess: what isn't a token of the language is refused with its position.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from headgate.decide.filter.syntax import MAX_TEXT_CHARS, fault

TokenKind = Literal["name", "quoted_name", "int", "uint", "double", "string", "symbol", "end"]


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is as written; `value` is the decoded name, number or string."""

    kind: TokenKind
    text: str
    position: int
    value: str | int | float = ""

    def shown(self) -> str:
        if self.kind == "end":
            return "the end of the filter"
        text = self.text if self.text.isprintable() else ascii(self.text)
        return text if len(text) <= 40 else text[:39] + "…"


KEYWORDS = frozenset({"true", "false", "null", "in"})

_BLANK = re.compile(r"(?:[ \t\n\f\r]+|//[^\n]*)+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED_NAME = re.compile(r"`([^`\n]+)`")
_STRING_START = re.compile(r"""([rRbB]{0,2})(\"\"\"|'''|"|')""")
_DOUBLE = re.compile(r"(?:[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)")
_INT = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)([uU]?)")
_SYMBOL = re.compile(r"&&|\|\||==|!=|<=|>=|[<>!+\-*/%?:.,()\[\]]")
_WORD_CHAR = re.compile(r"[A-Za-z0-9_]")

_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
_CODE_ESCAPES = {"x": 2, "X": 2, "u": 4, "U": 8}
_HEX = frozenset("0123456789abcdefABCDEF")
_OCTAL = frozenset("01234567")

_MISTAKES = {
    "=": "found =, expected an operator; use == to compare",
    "&": "found &, expected &&",
    "|": "found |, expected ||",
    ";": "found ;, expected an operator or the end of the filter",
    "{": "found {, and map literals aren't part of the filter language",
}


def tokenize(text: str) -> list[Token]:
    if len(text) > MAX_TEXT_CHARS:
        raise fault(
            MAX_TEXT_CHARS,
            f"it has {len(text)} characters, expected at most {MAX_TEXT_CHARS}",
            limit=MAX_TEXT_CHARS,
        )
    tokens: list[Token] = []
    at = 0
    while True:
        if blank := _BLANK.match(text, at):
            at = blank.end()
        if at == len(text):
            tokens.append(Token("end", "", at))
            return tokens
        token = _token(text, at)
        tokens.append(token)
        at += len(token.text)


def _token(text: str, at: int) -> Token:
    # Strings come before names, because r"…" starts like a name; numbers before symbols (.5).
    if start := _STRING_START.match(text, at):
        return _string(text, at, prefix=start[1].lower(), quote=start[2])
    if name := _NAME.match(text, at):
        return Token("symbol" if name[0] == "in" else "name", name[0], at, name[0])
    if number := (_DOUBLE.match(text, at) or _INT.match(text, at)):
        return _number(text, number)
    if quoted := _QUOTED_NAME.match(text, at):
        return Token("quoted_name", quoted[0], at, quoted[1])
    if symbol := _SYMBOL.match(text, at):
        return Token("symbol", symbol[0], at)
    raise _not_a_token(text, at)


def _not_a_token(text: str, at: int) -> Exception:
    found = text[at]
    if found == "`":
        return fault(at, "found ` without a closing one, expected `a field name`", found=found)
    if found.isalpha():
        problem = f"found {found}, expected ASCII letters; write other field names in `backticks`"
        return fault(at, problem, found=found)
    # repr, because what is unexpected may be invisible too.
    problem = _MISTAKES.get(found, f"found {found!r}, which isn't part of the filter language")
    return fault(at, problem, found=found)


def _number(text: str, number: re.Match[str]) -> Token:
    written, at = number[0], number.start()
    if _WORD_CHAR.match(text, number.end()):
        raise fault(
            number.end(),
            f"found {text[number.end()]} right behind the number {written}, expected an operator",
            found=text[number.end()],
        )
    if number.re is _DOUBLE:
        value = float(written)
        if math.isinf(value):
            raise fault(at, f"{written} is too large for a double", found=written)
        return Token("double", written, at, value)
    base = 16 if written[:2] in ("0x", "0X") else 10
    return Token("uint" if number[2] else "int", written, at, int(number[1], base))


def _string(text: str, at: int, *, prefix: str, quote: str) -> Token:
    if "b" in prefix:
        raise fault(at, "bytes literals aren't part of the filter language, expected a string")
    if len(prefix) > 1:
        raise fault(at, f"found {text[at : at + 2]}, expected r before a raw string")
    begin = at + len(prefix) + len(quote)
    parts: list[str] = []
    here = begin
    while not text.startswith(quote, here):
        if here == len(text) or (len(quote) == 1 and text[here] in "\r\n"):
            raise fault(at, f"the string has no closing {quote}", expected=quote)
        if text[here] == "\\" and not prefix:
            piece, here = _escape(text, here)
        else:
            piece, here = text[here], here + 1
        parts.append(piece)
    end = here + len(quote)
    return Token("string", text[at:end], at, "".join(parts))


def _escape(text: str, at: int) -> tuple[str, int]:
    """The character behind the backslash at `at`, and where the text goes on."""
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES:
        return _ESCAPES[letter], at + 2
    if letter in _CODE_ESCAPES:
        width = _CODE_ESCAPES[letter]
        digits = text[at + 2 : at + 2 + width]
        if len(digits) != width or not _HEX.issuperset(digits):
            raise fault(at, f"\\{letter} needs {width} hexadecimal digits", found=digits)
        return _character(int(digits, 16), at), at + 2 + width
    if letter in _OCTAL and letter:
        digits = text[at + 1 : at + 4]
        if len(digits) != 3 or not _OCTAL.issuperset(digits) or int(digits, 8) > 0o377:
            raise fault(at, "an octal escape needs three digits from \\000 to \\377", found=digits)
        return chr(int(digits, 8)), at + 4
    raise fault(
        at,
        f"found \\{letter}, expected an escape such as \\n, \\\\ or \\u00e9",
        found="\\" + letter,
    )


def _character(code: int, at: int) -> str:
    if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise fault(at, f"{code:X} is not the code of a Unicode character", found=f"{code:X}")
    return chr(code)
