"""What errors of MongoDB and PyMongo mean, as far as all who use it ask."""

from __future__ import annotations

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

UNAUTHORIZED = 13
AUTHENTICATION_FAILED = 18
_NO_PRIMARY = frozenset({64, 91, 189, 10107, 11600, 11602, 13435, 13436})
"""A server that stops or steps down, or that no majority follows."""
_NOISE = (", full error:", " (configured timeouts:", ", Timeout:", ", Topology Description:")
"""What follows the reason in PyMongo's messages."""


def reason_of(error: Exception) -> str:
    """The first line of what it says, without what only a developer of PyMongo reads."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    for noise in _NOISE:
        reason = reason.partition(noise)[0]
    return reason


def code_of(error: Exception) -> int | None:
    return error.code if isinstance(error, OperationFailure) else None


def is_away(error: PyMongoError) -> bool:
    """The servers can't be reached, or none of them is primary; trying again may help."""
    return isinstance(error, ConnectionFailure) or error.timeout or code_of(error) in _NO_PRIMARY
