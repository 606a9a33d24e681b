"""A record's key and collection as filters see them: the fields `_key` and `_collection`.

So a subscription to one key or to one collection is an equality like any other, and hangs in the
index on it. A document that has a field of such a name itself keeps it; a record without a key, or
without a collection, has no such field.
"""

from __future__ import annotations

KEY_FIELD = "_key"
COLLECTION_FIELD = "_collection"


def with_record_fields(document: object, key: str | None, collection: str) -> object:
    """`document`, decoded for nobody else, with the key and the collection of its record."""
    if type(document) is dict:
        if key is not None:
            document.setdefault(KEY_FIELD, key)
        if collection:
            document.setdefault(COLLECTION_FIELD, collection)
    return document
