"""What PostgreSQL's errors mean to Headgate.

Invariant: a sentence from here never shows the address with its password; a failed COMMIT counts as
void only when the server itself said so over a connection that lives on.
"""

from __future__ import annotations

import psycopg

from headgate.errors import UNREACHABLE, OutcomeUnknown, StorageFailed

_RETRIED = ("08", "57P", "53300")
"""Connection lost, server stopping or starting, too many clients: over soon, as a rule."""

_REASONS = {
    "53100": "the database's disk is full; free some space",
    "55P03": "another session has locked it for too long; find out which and end it",
    "57014": "the database took too long; find out what keeps it busy",
    "25P03": "the database took too long; find out what keeps it busy",
    "42501": "the user of log.dsn lacks a permission; grant it CREATE on the database",
    "25006": "the database is read-only; let log.dsn name the primary",
}

_UNSTORABLE = ("54000", "54001")
"""Too large for a column or an index."""


def is_lost(error: psycopg.Error) -> bool:
    """Whether another connection may do better."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_RETRIED)


def is_unstorable(error: psycopg.Error) -> bool:
    """Whether a value is to blame, and so only the request that brought it."""
    if isinstance(error, psycopg.DataError):
        return True  # psycopg itself refuses some, without asking the server
    return (error.sqlstate or "").startswith(_UNSTORABLE)


def storage_failed(error: psycopg.Error, what: str) -> StorageFailed:
    return StorageFailed(f"{what} failed: {reason_of(error)}", reason=_first_line(error))


def outcome_unknown(error: psycopg.Error, what: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{what} may or may not be stored: {reason_of(error)}", reason=_first_line(error)
    )


def is_definite(error: psycopg.Error, *, connected: bool) -> bool:
    """Whether a COMMIT that failed with `error` has written nothing for sure."""
    state = error.sqlstate
    # A server that stops or panics may have written the commit before it said so.
    return connected and state is not None and not state.startswith(("08", "57P", "58", "XX"))


def reason_of(error: psycopg.Error) -> str:
    """What is wrong and, after the last semicolon, what to do."""
    if is_lost(error):
        return f"PostgreSQL {UNREACHABLE} ({_first_line(error)}); check log.dsn and the server"
    known = _REASONS.get(error.sqlstate or "")
    return known or f"PostgreSQL reports an error ({_first_line(error)}); check the server"


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
