"""Errors that came over the wire are what was raised over there."""

from __future__ import annotations

import pytest

from headgate import errors
from headgate.model.api import ErrorBody
from headgate.model.refusals import rebuild


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.StorageFailed, 503),
        (errors.StoreChanged, 503),
        (errors.InvalidRequest, 400),
        (errors.StaleVersion, 409),
        (errors.OutcomeUnknown, 503),
        (errors.Sealed, 503),
    ],
)
def test_each_code_is_one_class(kind: type[errors.HeadgateError], status: int) -> None:
    rebuilt = rebuild(ErrorBody(str(kind.code), "because", {"partition": 3}), status)
    assert type(rebuilt) is kind
    assert (rebuilt.message, rebuilt.details) == ("because", {"partition": 3})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (503, errors.NotNow),
        (429, errors.NotNow),
        (404, errors.InvalidRequest),
        (500, errors.HeadgateError),
    ],
)
def test_a_code_that_only_a_newer_server_knows_goes_by_its_status(
    status: int, kind: type[errors.HeadgateError]
) -> None:
    assert type(rebuild(ErrorBody("newer", "because"), status)) is kind
