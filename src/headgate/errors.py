"""Every error of Headgate on one screen, grouped by who must act.

Invariant: `str(error)` is one sentence a user can act on, and an error survives pickling (Spark
carries it between processes) with its fields. `code` is what the HTTP contract shows; `status` and
`exit_code` are how the two outer edges, HTTP and the command line, answer it.
"""

from __future__ import annotations

from typing import ClassVar


class HeadgateError(Exception):
    """The root: one sentence plus the fields that made it."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.details))


ANOTHER_ADDRESS = "name another address"
"""How a sentence ends that is about an address of the user's choice; the command line adds how."""

SAME_IDS_AGAIN = "send the same event ids again to find out"
"""What a program does about a write of unknown outcome; the command line, which gives the ids, says
something else."""
UNREACHABLE = "can't be reached"
"""Is part of every sentence about a server that Headgate needs and that is away."""


def _rebuild(kind: type[HeadgateError], message: str, details: dict[str, object]) -> HeadgateError:
    return kind(message, **details)


# --- the caller must act ------------------------------------------------------------------------


class CallerError(HeadgateError):
    """What was asked for can't be done as it was asked."""

    code = "invalid"
    status = 400
    exit_code = 2


class InvalidRequest(CallerError):
    """A malformed body, field or argument."""


class InvalidFilter(CallerError):
    """A filter that doesn't parse; `position` (0-based offset into the text) says where."""

    code = "invalid_filter"


class InvalidConfig(CallerError):
    """An unknown key or an impossible value; `key` names it. Of several, each has its line, and
    `keys` names them all."""

    code = "invalid_config"


class UnknownTopic(CallerError):
    code = "unknown_topic"
    status = 404


class NotFound(CallerError):
    code = "not_found"
    status = 404


class MethodNotAllowed(CallerError):
    """There is something at that path, for other methods."""

    code = "method_not_allowed"
    status = 405

    @property
    def allow(self) -> str:
        """Those, as HTTP lists them."""
        return str(self.details.get("allow", ""))


class TopicExists(CallerError):
    code = "topic_exists"
    status = 409


class TokenExists(CallerError):
    code = "token_exists"
    status = 409


class ConnectorExists(CallerError):
    code = "connector_exists"
    status = 409


class StaleVersion(CallerError):
    """A keyed produce was routed under another partitioning version than the present one.

    The details say how to route it now: `version`, `partitions` and `owners` (the address per
    partition number, as text). The caller places the events anew; it doesn't send them again to
    the same place.
    """

    code = "stale_version"
    status = 409


class TooLarge(CallerError):
    code = "too_large"
    status = 413


class Unauthorized(CallerError):
    """The token that came with a request is missing or wrong, or not valid any more."""

    code = "unauthorized"
    status = 401


class Forbidden(CallerError):
    """The principal is known, and none of its grants allows it."""

    code = "forbidden"
    status = 403


class ForeignOrigin(CallerError):
    """A web page that nobody has named calls, or a name is called that nobody has given us."""

    code = "foreign_origin"
    status = 403


class UnsupportedMediaType(CallerError):
    """The body isn't said to be what this address reads."""

    code = "unsupported_media_type"
    status = 415


# --- a peer must recover; trying again may help --------------------------------------------------


class NotNow(HeadgateError):
    """Nothing is wrong with the request; the same one may succeed later."""

    code = "unavailable"
    status = 503

    @property
    def retry_after_s(self) -> float:
        return 1.0


class RateLimited(NotNow):
    """Somebody sends more than is taken of one; the same later, at `retry_after_s`, is taken."""

    code = "rate_limited"
    status = 429

    @property
    def retry_after_s(self) -> float:
        told = self.details.get("retry_after_s")
        return float(told) if isinstance(told, int | float) else 1.0


class TooMany(NotNow):
    """Somebody has as much of something as one may have at a time (`limit`); when some of it is
    gone, the same is taken."""

    code = "too_many"
    status = 429


class Overloaded(NotNow):
    code = "overloaded"


class Timeout(NotNow):
    code = "timeout"


class Sealed(NotNow):
    """The partition takes nothing for the moment: its topic is being repartitioned."""

    code = "sealed"


class PeerUnreachable(NotNow):
    code = "unreachable"


class OutcomeUnknown(NotNow):
    """A write whose answer never came: it may or may not be in the log of `partition`."""

    code = "outcome_unknown"


class Fenced(HeadgateError):
    """A former owner was refused; it must stop, not retry."""

    code = "fenced"
    status = 409

    @property
    def epoch(self) -> int:
        """The epoch that holds what was asked for; 0 where nobody does, or nobody knows."""
        held = self.details.get("epoch")
        return held if isinstance(held, int) else 0


class ConnectorFenced(HeadgateError):
    """A reader of a connector was refused where a newer one has been; it must stop, not retry."""

    code = "connector_fenced"
    status = 409

    @property
    def epoch(self) -> int:
        """The epoch that has been there."""
        held = self.details.get("epoch")
        return held if isinstance(held, int) else 0


class IntakeGap(HeadgateError):
    """A connector's batch doesn't join what the partition has: it stands at `position`."""

    code = "intake_gap"
    status = 409


class OriginUnavailable(NotNow):
    """The database that a connector reads is away."""

    code = "origin_unavailable"


# --- the operator must act -----------------------------------------------------------------------


class OperatorError(HeadgateError):
    code = "operator"
    status = 500
    exit_code = 2


class PortInUse(OperatorError):
    code = "port_in_use"


class NoJava(OperatorError):
    code = "no_java"


class DataFolderError(OperatorError):
    """The data folder is of a newer format, in use, or can't be written."""

    code = "data_folder"


class HistoryLost(OperatorError):
    """A log ends before what its readers have settled, or its owner has acknowledged, or has other
    records there: its store was lost, or put back to an earlier state. `head` is where it ends, as
    far as that matters, `settled` how far it was."""

    code = "history_lost"


class StorageFailed(OperatorError):
    """The store refused a write for sure: nothing was written."""

    code = "storage_failed"
    status = 503
    exit_code = 1


class NoPosition(StorageFailed):
    """What is stored is no position: the store is there, and trying again helps only when somebody
    has mended that."""


class StoreChanged(StorageFailed):
    """The store of a partition isn't the one that was opened, or has gone back: it failed over, was
    restored or is lost. Nothing was written; its owner opens it again."""

    code = "store_changed"

    @property
    def given_out(self) -> int:
        """The last seq that was given out, where the store ends before it; else 0."""
        last = self.details.get("given_out")
        return last if isinstance(last, int) else 0


class CorruptRecord(OperatorError):
    """What is stored of record `seq` isn't what was appended: nobody gets it. Those before it can
    be read, and those behind it, too, by a reader that goes past it on purpose."""

    code = "corrupt_record"

    @property
    def seq(self) -> int:
        found = self.details.get("seq")
        return found if isinstance(found, int) else 0


class OriginRefused(OperatorError):
    """The database that a connector reads won't let it, or isn't set up for it."""

    code = "origin_refused"


class OriginHistoryLost(OperatorError):
    """The database no longer has the changes that a connector must read next."""

    code = "origin_history_lost"


class ChangeTooLarge(OperatorError):
    """The next change can't be handed out: the one at `position`, which is `what`."""

    code = "change_too_large"

    @property
    def position(self) -> str:
        return str(self.details.get("position", ""))

    @property
    def what(self) -> str:
        return str(self.details.get("what", ""))
