"""The settings of a connector of type `mongodb`: what they mean, and what is wrong with them.

Invariant: settings that pass hold no secret. A secret stands in them as a reference, `${NAME}` for
a variable of the environment of the ingest node that reads, `${file:PATH}` for a file on it, which
that node looks up when it connects.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from headgate.decide.connectors.snapshots import pace
from headgate.errors import InvalidRequest

Earlier = Literal["off", "when_available", "required"]
"""The state before a change (MongoDB's pre-image): never asked for, taken where the collection
keeps it, or demanded."""
FullDocument = Literal["when_available", "lookup", "required"]
"""What an update's document is: its post-image where the collection keeps it and otherwise what is
stored when the change is read; always the latter; or the post-image and nothing else."""

REFERENCE = re.compile(r"\$\{([^{}]+)\}")
SCHEMES = ("mongodb://", "mongodb+srv://")
EXAMPLE = "mongodb://reader:${MONGO_PASSWORD}@host:27017,host2:27017/?replicaSet=name"

_CHOICES: dict[str, tuple[str, ...]] = {
    "earlier": ("off", "when_available", "required"),
    "document": ("when_available", "lookup", "required"),
}
_KEYS = ("uri", "database", "collection", *_CHOICES, pace.SETTING)
_SECRET_OPTIONS = frozenset({"tlscertificatekeyfilepassword", "authmechanismproperties"})
_NOT_IN_DATABASE = frozenset('/\\. "$*<>:|?\0')
_OWN_DATABASES = frozenset({"admin", "config", "local"})
"""MongoDB's own: it has no change streams of these."""


class MongoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Without a database it is about the whole deployment, without a collection about all of the
    database's."""

    uri: str
    database: str = ""
    collection: str = ""
    earlier: Earlier = "when_available"
    document: FullDocument = "when_available"


def check_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings as they are, or InvalidRequest; `key` in its details is the one to change."""
    read_settings(settings)
    return dict(settings)


def read_settings(settings: Mapping[str, str]) -> MongoSettings:
    """Raises InvalidRequest like `check_settings`."""
    for key, value in settings.items():
        if key not in _KEYS:
            raise _unknown(key)
        if key in _CHOICES and value not in _CHOICES[key]:
            raise _wrong(key, f"must be one of {', '.join(_CHOICES[key])}")
    _check_uri(settings.get("uri", ""))
    database, collection = settings.get("database", ""), settings.get("collection", "")
    if set(database) & _NOT_IN_DATABASE or database in _OWN_DATABASES:
        raise _wrong("database", "must be the name of a database whose changes MongoDB tells")
    if collection and not database:
        raise _wrong("collection", "needs a database: name that, too")
    if collection.startswith("system.") or set(collection) & {"$", "\0"}:
        raise _wrong("collection", "must be the name of a collection whose changes MongoDB tells")
    return MongoSettings(
        uri=settings["uri"],
        database=database,
        collection=collection,
        earlier=cast("Earlier", settings.get("earlier", "when_available")),
        document=cast("FullDocument", settings.get("document", "when_available")),
    )


def user_info(uri: str) -> tuple[int, int]:
    """From where to where in `uri` the user and the password are; nowhere: (0, 0).

    A reference may hold any character, so it doesn't end what it stands in.
    """
    bare = REFERENCE.sub(lambda found: "x" * len(found[0]), uri)
    scheme, separator, rest = bare.partition("://")
    hosts = re.split(r"[/?]", rest, maxsplit=1)[0]
    user, at, _ = hosts.rpartition("@")
    start = len(scheme) + len(separator)
    return (start, start + len(user)) if at else (0, 0)


def _check_uri(uri: str) -> None:
    if REFERENCE.fullmatch(uri):
        return
    if not uri.startswith(SCHEMES):
        raise _wrong("uri", f"must be the address of a MongoDB replica set, such as {EXAMPLE}")
    start, end = user_info(uri)
    _, has_password, password = uri[start:end].partition(":")
    # A reference to a file has a colon of its own: what precedes it is then no user.
    whole = REFERENCE.fullmatch(uri[start:end])
    if has_password and not whole and not REFERENCE.fullmatch(password):
        raise _wrong("uri", _REFER)
    for option in re.split("[&;]", uri[end:].partition("?")[2]):  # PyMongo takes either
        name, _, value = option.partition("=")
        if name.lower() in _SECRET_OPTIONS and _tells(name.lower(), value):
            raise _wrong("uri", f"{_REFER}; this is about its option {name}")
        if name.lower() == "readpreference" and value != "primary":
            raise _wrong("uri", "must leave readPreference out: connectors read from the primary")


_REFER = (
    "holds a password: write ${NAME} in its place for a variable in the environment of the ingest "
    "nodes, or ${file:/path/to/it} for a file on them"
)


def _tells(option: str, value: str) -> bool:
    if option == "authmechanismproperties":
        token = re.search(r"AWS_SESSION_TOKEN:([^,]*)", value, re.IGNORECASE)
        return token is not None and not REFERENCE.fullmatch(token[1])
    return not REFERENCE.fullmatch(value)


def _unknown(key: str) -> InvalidRequest:
    near = difflib.get_close_matches(key, _KEYS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_KEYS)}"
    return InvalidRequest(f"a connector to MongoDB has no setting {key!r}: {hint}", key=key)


def _wrong(key: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"the setting {key} of a connector to MongoDB {what}", key=key)
