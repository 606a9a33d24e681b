"""What an error of PostgreSQL means to a connector: away for now, its history is lost, or refused.

Invariant: none of the sentences holds a secret, whatever psycopg quotes.
"""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from headgate.errors import (
    UNREACHABLE,
    HeadgateError,
    OriginHistoryLost,
    OriginRefused,
    OriginUnavailable,
)

SLOT_IN_USE = "55006"
"""object_in_use: another one reads the slot."""
NO_SUCH_OBJECT = "42704"
DUPLICATE = "42710"
_NO_SLOTS = "53400"
NOT_READY = "55000"
"""object_not_in_prerequisite_state: wal_level, or a slot that has lost its history."""
_LOST_WORDS = (
    "can no longer access",
    "can no longer get changes",
    "has been invalidated",
    "requested WAL segment",
)
_INTERNAL = "XX"
"""The server is there, and something in it is wrong."""
_NOT_ALLOWED = "42501"
_BAD_AUTH = frozenset({"28000", "28P01"})
_DENIED = "permission denied"
"""Who isn't let in is told no code."""
_NO_DATABASE = "3D000"
_AUTH_WORDS = ("password authentication failed", "no password supplied", "fe_sendauth")
_HIDDEN = "…"


def reason_of(error: BaseException) -> str:
    """The first line of what it says."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return (primary or str(error)).strip().partition("\n")[0] or type(error).__name__


def origin_error(
    error: BaseException,
    secrets: Collection[str] = (),
    *,
    sqlstate: str | None = None,
    reason: str = "",
) -> HeadgateError:
    """The error to raise from `error`; `sqlstate` and `reason` where it doesn't say them itself."""
    if isinstance(error, HeadgateError):
        return error
    state = sqlstate or getattr(error, "sqlstate", None) or ""
    reason = hidden(reason or reason_of(error), secrets)
    if state in _BAD_AUTH or any(words in reason for words in _AUTH_WORDS):
        return OriginRefused(
            f"PostgreSQL doesn't let the user of the setting dsn in ({reason}): check the user, "
            "the password and pg_hba.conf",
            reason=reason,
        )
    if state == _NOT_ALLOWED or _DENIED in reason:
        return OriginRefused(
            f"the user of the setting dsn may not do that ({reason}): grant it the attribute "
            "REPLICATION, SELECT on the tables, and, for a publication of its own, CREATE on the "
            "database and ownership of the tables",
            reason=reason,
        )
    if any(words in reason for words in _LOST_WORDS):
        return history_lost(reason)
    if state == NOT_READY and "wal_level" in reason:
        return OriginRefused(WAL_LEVEL, reason=reason)
    if state == _NO_SLOTS:
        return OriginRefused(
            f"PostgreSQL has no free replication slot ({reason}): raise max_replication_slots, or "
            "drop one that nobody reads",
            reason=reason,
        )
    if state == _NO_DATABASE:
        return OriginRefused(f"{reason}: correct the setting dsn", reason=reason)
    if state == NO_SUCH_OBJECT:
        return OriginRefused(f"{reason}: create it, or reset the connector", reason=reason)
    if state == SLOT_IN_USE:
        return OriginUnavailable(f"somebody else reads the slot ({reason})", reason=reason)
    is_away = isinstance(error, psycopg.OperationalError) and state[:2] != _INTERNAL
    if not state or state[:2] in ("08", "57") or is_away:
        return OriginUnavailable(f"PostgreSQL {UNREACHABLE} ({reason})", reason=reason)
    return OriginUnavailable(f"PostgreSQL reports an error ({reason})", reason=reason)


def history_lost(reason: str) -> OriginHistoryLost:
    return OriginHistoryLost(
        f"PostgreSQL no longer has the changes that come next: {reason}",
        reason=reason,
    )


WAL_LEVEL = (
    "the server doesn't write what replication needs: set wal_level = logical in postgresql.conf "
    "and restart it"
)


def hidden(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return text
