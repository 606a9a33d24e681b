"""Errors that came over the wire, as the classes that were raised on the other side."""

from __future__ import annotations

from collections.abc import Iterator

from headgate import errors
from headgate.model.api import ErrorBody


def rebuild(body: ErrorBody, status: int = 0) -> errors.HeadgateError:
    """The error that `body` describes, as the class that the server raised."""
    kind = _KINDS.get(body.code) or _kind_of_status(status)
    error = kind(body.message)
    error.details.update(body.details)
    return error


def _kind_of_status(status: int) -> type[errors.HeadgateError]:
    """For a code that only a newer server knows."""
    if status in (errors.NotNow.status, errors.TooMany.status):
        return errors.NotNow
    return errors.InvalidRequest if 400 <= status < 500 else errors.HeadgateError


def _tree(kind: type[errors.HeadgateError]) -> Iterator[type[errors.HeadgateError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


_KINDS: dict[str, type[errors.HeadgateError]] = {
    **{kind.code: kind for kind in _tree(errors.HeadgateError) if "code" in vars(kind)},
    errors.InvalidRequest.code: errors.InvalidRequest,
}
"""Error classes by code; where a child keeps its parent's, the parent. A caller's mistake of no
kind of its own is one in the request."""
