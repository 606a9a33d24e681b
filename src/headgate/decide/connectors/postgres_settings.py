"""The settings of a connector of type `postgresql`: what they mean, and what is wrong with them.

Invariant: settings that pass hold no secret. A secret stands in them as a reference, `${NAME}` for
a variable of the environment of the ingest node that reads, `${file:PATH}` for a file on it, which
that node looks up when it connects.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, cast

import msgspec

from headgate.decide.connectors.snapshots import pace
from headgate.errors import InvalidRequest

Numeric = Literal["number", "text"]
"""How `numeric` is written: as a number with all its digits, or as a text."""
Failover = Literal["auto", "on", "off"]
"""Whether the slot goes on at a standby: where the server can do it, or in any case, or not."""

REFERENCE = re.compile(r"\$\{([^{}]+)\}")
EXAMPLE = "postgresql://reader:${PG_PASSWORD}@host:5432/database"
ALL_OF_SCHEMA = "*"

_CHOICES: dict[str, tuple[str, ...]] = {
    "numeric": ("number", "text"),
    "failover": ("auto", "on", "off"),
}
_KEYS = ("dsn", "tables", "publication", "slot", "messages", *_CHOICES, pace.SETTING)
_SLOT = re.compile(r"[a-z0-9_]{1,63}").fullmatch
_NAME_MOST = 63
"""Of what PostgreSQL takes for a name, in bytes."""
_HIDDEN = re.compile(
    r"\b(password|sslpassword|oauth_client_secret)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]*)", re.IGNORECASE
)
_OURS = re.compile(r"\b(replication|options|client_encoding)\s*=", re.IGNORECASE)
_REFER = (
    "holds a password: write ${NAME} in its place for a variable in the environment of the ingest "
    "nodes, or ${file:/path/to/it} for a file on them"
)


class TableName(msgspec.Struct, frozen=True):
    """`table` may be ALL_OF_SCHEMA."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`tables` empty: all of the database. An empty `publication` or `slot` is one that the
    connector makes itself. `messages` is the collection of what is said with
    pg_logical_emit_message; empty: they are left out."""

    dsn: str
    tables: tuple[TableName, ...] = ()
    publication: str = ""
    slot: str = ""
    messages: str = ""
    numeric: Numeric = "number"
    failover: Failover = "auto"


def check_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings as they are, or InvalidRequest; `key` in its details is the one to change."""
    read_settings(settings)
    return dict(settings)


def read_settings(settings: Mapping[str, str]) -> PostgresSettings:
    """Raises InvalidRequest like `check_settings`."""
    for key, value in settings.items():
        if key not in _KEYS:
            raise _unknown(key)
        if key in _CHOICES and value not in _CHOICES[key]:
            raise _wrong(key, f"must be one of {', '.join(_CHOICES[key])}")
        if "\0" in value:
            raise _wrong(key, "has a character that no name has (NUL)")
    _check_dsn(settings.get("dsn", ""))
    publication, slot = settings.get("publication", ""), settings.get("slot", "")
    tables = _tables(settings.get("tables", ""))
    if publication and tables:
        raise _wrong("tables", "says what the publication says already: leave one of them out")
    if len(publication.encode()) > _NAME_MOST:
        raise _wrong("publication", f"has more than {_NAME_MOST} bytes, which no publication has")
    if slot and not _SLOT(slot):
        raise _wrong("slot", "must be a slot's name: 1 to 63 lower-case letters, digits and _")
    return PostgresSettings(
        dsn=settings["dsn"],
        tables=tables,
        publication=publication,
        slot=slot,
        messages=settings.get("messages", ""),
        numeric=cast("Numeric", settings.get("numeric", "number")),
        failover=cast("Failover", settings.get("failover", "auto")),
    )


def own_name(connector: str) -> str:
    """The slot and the publication that a connector makes for itself: a name that PostgreSQL takes,
    another for each connector."""
    if not connector:
        return "headgate"  # of one that is looked at before it has a name
    plain = "headgate_" + re.sub(r"[^a-z0-9_]", "_", connector.lower())
    if plain == f"headgate_{connector}" and len(plain) <= _NAME_MOST:
        return plain
    mark = blake2b(connector.encode(), digest_size=4).hexdigest()
    return f"{plain[: _NAME_MOST - len(mark) - 1]}_{mark}"


def _tables(text: str) -> tuple[TableName, ...]:
    found: list[TableName] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        schema, dot, table = name.partition(".")
        if not dot or not schema or not table:
            raise _wrong("tables", f"has {name[:100]!r}: name a table with its schema, as public.t")
        found.append(TableName(schema, table))
    whole = {one.schema for one in found if one.table == ALL_OF_SCHEMA}
    return tuple(
        dict.fromkeys(one for one in found if one.table == ALL_OF_SCHEMA or one.schema not in whole)
    )


def _check_dsn(dsn: str) -> None:
    if REFERENCE.fullmatch(dsn):
        return
    if not dsn:
        raise _wrong("dsn", f"must be the address of a PostgreSQL database, such as {EXAMPLE}")
    for found in _HIDDEN.finditer(dsn):
        if not REFERENCE.fullmatch(found[2].strip("'")):
            raise _wrong("dsn", _REFER)
    bare = REFERENCE.sub("", dsn)
    user = re.search(r"://([^/?]*)@", bare)
    if user and user[1].partition(":")[2]:
        raise _wrong("dsn", _REFER)
    if ours := _OURS.search(bare):
        raise _wrong("dsn", f"must leave {ours[1]} out: the connector sets it itself")


def _unknown(key: str) -> InvalidRequest:
    near = difflib.get_close_matches(key, _KEYS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_KEYS)}"
    return InvalidRequest(f"a connector to PostgreSQL has no setting {key!r}: {hint}", key=key)


def _wrong(key: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"the setting {key} of a connector to PostgreSQL {what}", key=key)
