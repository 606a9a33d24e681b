"""A record's key as filters see it: the field `_key` of its document.

So a subscription to one key is an equality like any other, and hangs in the index on it. A document
that has a field of that name itself keeps it.
"""

from __future__ import annotations

KEY_FIELD = "_key"


def with_key(document: object, key: str | None) -> object:
    """`document`, decoded for nobody else, with the key of its record."""
    if key is not None and type(document) is dict:
        document.setdefault(KEY_FIELD, key)
    return document
