"""What each error of MongoDB means to a connector, and that none shows a secret."""

from __future__ import annotations

import pytest
from pymongo.errors import (
    ConfigurationError,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from headgate.adapters.mongo.deployment import resolved
from headgate.adapters.mongo.origin_errors import origin_error, too_old
from headgate.decide.connectors.mongo_settings import MongoSettings
from headgate.errors import HeadgateError, OriginHistoryLost, OriginRefused, OriginUnavailable

SETTINGS = MongoSettings(uri="mongodb://host", database="shop")


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (OperationFailure("x", 286), OriginHistoryLost, "oplog"),
        (OperationFailure("x", 136), OriginHistoryLost, "oplog"),
        (OperationFailure("x", 280), OriginHistoryLost, "is of a collection"),
        (OperationFailure("x", 13), OriginRefused, 'role: "read", db: "shop"'),
        (OperationFailure("x", 18), OriginRefused, "password"),
        (OperationFailure("x", 8000), OriginRefused, "password"),
        (OperationFailure("x", 40573), OriginRefused, "--replSet"),
        (OperationFailure("x", 260), OriginRefused, "reset"),
        (OperationFailure("x", 47), OriginRefused, "when_available"),
        (ConfigurationError("x"), OriginRefused, "uri"),
        (OperationFailure("x", 43), OriginUnavailable, "reports an error"),
        (OperationFailure("x", 11600), OriginUnavailable, "can't be reached"),
        (NotPrimaryError("x"), OriginUnavailable, "can't be reached"),
        (NetworkTimeout("x"), OriginUnavailable, "can't be reached"),
        (ServerSelectionTimeoutError("x, Timeout: 5s"), OriginUnavailable, r"reached \(x\)"),
        (PyMongoError("x"), OriginUnavailable, "reports an error"),
    ],
)
def test_errors_mean_what_to_do(error: Exception, kind: type[HeadgateError], told: str) -> None:
    meant = origin_error(error, SETTINGS)
    assert type(meant) is kind
    with pytest.raises(kind, match=told):
        raise meant


def test_no_secret_is_quoted() -> None:
    uri, secrets = resolved("mongodb://u:${S}@host/", lambda _: "p@ss")
    assert uri == "mongodb://u:p%40ss@host/"
    for quoted in (uri, "p@ss", "p%40ss"):
        meant = origin_error(PyMongoError(f"can't use {quoted}"), SETTINGS, secrets)
        assert "ss" not in f"{meant} {meant.details}".replace("class", "")


def test_a_whole_address_is_taken_as_it_is_and_its_password_is_a_secret() -> None:
    uri, secrets = resolved("${U}", lambda _: "mongodb://u:p%40ss@host/?tls=true")
    assert uri == "mongodb://u:p%40ss@host/?tls=true"
    assert "p%40ss" in secrets


@pytest.mark.parametrize(
    ("version", "earlier", "document", "fits"),
    [
        ((5, 0, 9), "when_available", "lookup", False),
        ((5, 0, 9), "off", "when_available", False),
        ((5, 0, 9), "off", "lookup", True),
        ((6, 0, 0), "required", "required", True),
    ],
)
def test_servers_before_images_are_told_what_to_set(
    version: tuple[int, ...], earlier: str, document: str, fits: bool
) -> None:
    settings = MongoSettings(uri="", earlier=earlier, document=document)  # type: ignore[arg-type]
    assert (too_old(version, settings) == "") == fits
