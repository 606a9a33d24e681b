"""Names for what MongoDB tells: the position of a change, the key of a document, the event's id.

A position is the change's resume token as text: its `_data`, which is hexadecimal and sorts like
the stream, and behind a dot its `_typeBits`, where it has some. The token holds cluster time and
increment, the index in a transaction, the collection's UUID and the document's key, so it is the
change's full identity: the same whenever it is read, and from every member.
"""

from __future__ import annotations

import base64
import binascii
import re
from hashlib import blake2b
from typing import Any

import msgspec
from bson import ObjectId, Timestamp

from headgate.adapters.mongo.bson_json import Document, to_json
from headgate.errors import OriginRefused

ID_BYTES = 12

_HEX = re.compile(r"82[0-9A-F]{16}(?:[0-9A-F]{2})+").fullmatch
_BEFORE_ALL = "29296E04"
"""How a token ends that names no change: of type 0, with neither index, collection nor key."""
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_READS_AS_ANOTHER = re.compile(
    rf'[0-9a-f]{{24}}|["{{\[].*|true|false|null|{_NUMBER}|', re.DOTALL
).fullmatch
_LONG_MAX = 2**63


def position_of(token: Document) -> str:
    data: str = token["_data"]
    bits: bytes | None = token.get("_typeBits")
    return data if bits is None else f"{data}.{base64.urlsafe_b64encode(bits).decode()}"


def token_of(position: str) -> Document:
    """The inverse; OriginRefused for a text that is no position of MongoDB."""
    data, dot, bits = position.partition(".")
    try:
        if _HEX(data):
            token: Document = {"_data": data}
            if dot:
                token["_typeBits"] = base64.b64decode(bits, altchars=b"-_", validate=True)
            return token
    except binascii.Error:
        pass  # as below
    raise OriginRefused(
        f"{position!r} is no position of a MongoDB change stream: take the `source` of a record, "
        "or begin at `now` or at a time",
        position=position,
    )


def time_of(position: str) -> Timestamp:
    """The cluster time of a position that `token_of` takes."""
    return Timestamp(int(position[2:10], 16), int(position[10:18], 16))


def is_change(position: str) -> bool:
    """Whether it is a change's; else it stands before all changes of its cluster time."""
    return not position.endswith(_BEFORE_ALL)


def key_of(identifier: object) -> str:
    """The text of an `_id`, another for each: an ObjectId's digits, a text as it is, anything else
    as extended JSON. A text that reads like one of the others is put in quotes. 5 and 5.0 are one
    `_id` to MongoDB, so they have one key."""
    kind = type(identifier)
    if kind is ObjectId:
        return str(identifier)
    if kind is str:
        text: Any = identifier
        return msgspec.json.encode(text).decode() if _READS_AS_ANOTHER(text) else text
    if isinstance(identifier, float) and -_LONG_MAX <= identifier < _LONG_MAX:
        whole = int(identifier)
        if whole == identifier:
            return str(whole)
    return to_json(identifier).decode()


def event_id_of(backend: str, namespace: str, position: str) -> str:
    """Begins with the cluster time, so that ids grow with time as the index over them wants."""
    identity = f"{backend}\0{namespace}\0{position}".encode()
    return f"{position[2:18].lower()}-{blake2b(identity, digest_size=ID_BYTES).hexdigest()}"
