"""Texts that a program gives: names, keys, ids, filters.

Invariant: what leaves here is a plain `str` that UTF-8 can write. A member of an enumeration is its
value everywhere: how it is formatted differs between versions of Python, and encoders differ in
what subclasses they take.
"""

from __future__ import annotations

from typing import Any

from headgate import errors


def plain(field: str, text: object) -> str:
    """`text`, which was given as `field`; raises InvalidRequest for what isn't a text."""
    if type(text) is str and text.isascii():
        return text
    if not isinstance(text, str):
        raise errors.InvalidRequest(f"{field} is {type_of(text)}: give it as str")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise errors.InvalidRequest(
                f"{field} has half a character (a lone surrogate) at {error.start}, which UTF-8 "
                "doesn't have: take it out"
            ) from error
    return str.__str__(text)


def unclassed(text: Any) -> Any:
    """The same text without its own class; what is no text stays as it is."""
    return str.__str__(text) if isinstance(text, str) else text


def type_of(value: object) -> str:
    return f"of type {type(value).__name__}"
