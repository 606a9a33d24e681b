"""What an error of MongoDB means to a connector: away for now, its history is lost, or refused.

Invariant: none of the sentences holds a secret, whatever PyMongo quotes.
"""

from __future__ import annotations

from collections.abc import Collection

from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError

from headgate.adapters.mongo.reasons import (
    AUTHENTICATION_FAILED,
    UNAUTHORIZED,
    code_of,
    is_away,
    reason_of,
)
from headgate.decide.connectors.mongo_settings import EXAMPLE, MongoSettings
from headgate.errors import (
    UNREACHABLE,
    HeadgateError,
    OriginHistoryLost,
    OriginRefused,
    OriginUnavailable,
)

TOO_LARGE = 10334
HISTORY_LOST = frozenset({136, 280, 286})
"""An open cursor, and a position, that the oplog has left behind; and a position that the oplog
doesn't hold although it has that time, as after a restore."""
WRONG_CREDENTIALS = frozenset({AUTHENTICATION_FAILED, 8000})
"""The latter is Atlas'."""
_NO_REPLICA_SET = 40573
_NO_IMAGE = 47
_BAD_POSITION = frozenset({15, 50811, 260})
_HIDDEN = "…"
IMAGES_SINCE = (6, 0, 0)


def origin_error(
    error: Exception, settings: MongoSettings, secrets: Collection[str] = ()
) -> HeadgateError:
    """The error to raise from `error`, which PyMongo raised."""
    reason = hidden(reason_of(error), secrets)
    code = code_of(error)
    if isinstance(error, ConfigurationError | InvalidURI | ValueError | TypeError):
        return OriginRefused(
            f"the setting uri isn't the address of a MongoDB replica set, such as {EXAMPLE}: "
            "correct it",
        )
    if code in HISTORY_LOST:
        return history_lost(reason)
    if code in WRONG_CREDENTIALS:
        return OriginRefused(
            "MongoDB doesn't accept the user and the password of the setting uri: check both, and "
            "authSource where the user isn't of the database admin",
            reason=reason,
        )
    if code == UNAUTHORIZED:
        return OriginRefused(f"the user of the setting uri may not read: {grant(settings)}")
    if code == _NO_REPLICA_SET:
        return OriginRefused(NO_REPLICA_SET)
    if code == _NO_IMAGE:
        return OriginRefused(
            "MongoDB lacks the state before or after the next change, which the settings earlier "
            "or document require: set them to when_available, or reset the connector behind it",
            reason=reason,
        )
    if code in _BAD_POSITION:
        return OriginRefused(
            f"MongoDB can't go on at the stored position ({reason}): reset the connector",
            reason=reason,
        )
    if isinstance(error, PyMongoError) and is_away(error):
        return OriginUnavailable(f"MongoDB {UNREACHABLE} ({reason})", reason=reason)
    return OriginUnavailable(f"MongoDB reports an error ({reason})", reason=reason)


def history_lost(reason: str) -> OriginHistoryLost:
    return OriginHistoryLost(
        "MongoDB no longer has the changes that come next: its oplog was too short for the "
        "time that nobody read, or was replaced, or the change to begin behind is of a collection "
        f"that this connector doesn't read; reset the connector, and enlarge the oplog ({reason})",
        reason=reason,
    )


NO_REPLICA_SET = (
    "MongoDB runs alone, and tells changes only as a replica set, which may have one member: start "
    "mongod with --replSet and call rs.initiate()"
)


def too_old(version: tuple[int, ...], settings: MongoSettings) -> str:
    """Why a server of this version can't do what the settings want; empty: it can."""
    wanted = settings.earlier != "off" or settings.document != "lookup"
    if not wanted or version >= IMAGES_SINCE:
        return ""
    return (
        f"MongoDB {'.'.join(map(str, version))} has no states before and after a change, which "
        "came with 6.0: set earlier to off and document to lookup"
    )


def grant(settings: MongoSettings) -> str:
    """What gives a user the right to read."""
    if not settings.database:
        return 'grant it the role readAnyDatabase: {role: "readAnyDatabase", db: "admin"}'
    database, collection = settings.database, settings.collection
    resource = f'{{db: "{database}", collection: "{collection}"}}'
    return (
        f'grant it the role read of the database: {{role: "read", db: "{database}"}}; or a role '
        f'with the actions "find" and "changeStream" on {resource}'
    )


def hidden(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return text
