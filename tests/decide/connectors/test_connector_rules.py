"""Which connectors may be created: no secret is shown, and nobody begins at nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.connectors import rules as connector_rules
from headgate.decide.connectors.rules import begin_at, made, refusal, settings_refusal
from headgate.errors import InvalidRequest
from headgate.model.connector import Connector, ConnectorRoute
from headgate.model.connectors_api import CreateConnector, RouteInfo

NOON_MS = 1_795_000_000_000
"""In November 2026."""
ALL = (ConnectorRoute("*", "changes"),)


def connector(**fields: object) -> Connector:
    given: dict[str, object] = {
        "name": "orders",
        "type": "mongodb",
        "routes": ALL,
        "settings": {"uri": "mongodb://db-1"},
    }
    return Connector(**{**given, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "a b"}, "is not allowed"),
        ({"name": ""}, "is not allowed"),
        ({"routes": ()}, "1 to 100 routes, not 0"),
        ({"routes": ALL * 101}, "not 101"),
        ({"routes": (ConnectorRoute("", "changes"),)}, "needs a pattern"),
        ({"settings": {}}, "the setting uri of a connector to MongoDB must be"),
        ({"settings": {"uri": "mongodb://db-1", "colour": "red"}}, "has no setting 'colour'"),
        ({"settings": {"uri": "x" * 5_000}}, "up to 4096 characters"),
        ({"settings": {"uri": "x"} | {f"k{n}": "" for n in range(50)}}, "up to 50 settings"),
        ({"type": "oracle"}, "there is no connector type 'oracle': use mongodb"),
    ],
)
def test_what_no_connector_can_be_is_refused(wrong: dict[str, object], sentence: str) -> None:
    error = refusal(connector(**wrong))
    assert error is not None
    assert sentence in error.message
    assert refusal(connector()) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"uri": "mongodb://db-1,db-2:27017/?replicaSet=rs0"},
        {"uri": "mongodb://reader@db-1/"},
        {"uri": "mongodb://reader:${PASSWORD}@db-1/shop"},
        {"uri": "mongodb://reader:${file:/run/secrets/db@1}@db-1:27017/?tls=true"},
        {"uri": "${file:/etc/headgate/uri}"},
        {"uri": "mongodb://db-1/?tlsCertificateKeyFilePassword=${KEY}&x=1"},
    ],
)
def test_references_are_what_a_secret_may_be(settings: dict[str, str]) -> None:
    assert settings_refusal("mongodb", settings) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"uri": "mongodb://reader:hunter2@db-1/shop"},
        {"uri": "mongodb+srv://reader:hunter2@db-1"},
        {"uri": "mongodb://reader:hunter2/@db-1/shop"},
        {"uri": "mongodb://reader:hunter2?@db-1/shop"},
        {"uri": "mongodb://reader:hunter2@x@db-1/shop"},
        {"uri": "mongodb://reader:hunter2${X}@db-1"},
        {"uri": "mongodb://reader:$@db-1"},
        {"uri": "mongodb://reader:\0@db-1"},
        {"uri": "mongodb://reader:${X}hunter2@db-1"},
        {"uri": "mongodb://db-1/?tlsCertificateKeyFilePassword=hunter2"},
        {"uri": "mongodb://db-1", "password": "hunter2"},
        {"uri": "mongodb://db-1", "AuthToken": "hunter2"},
        {"uri": "mongodb://db-1", "proxy": "socks5://me:hunter2@proxy"},
    ],
)
def test_a_secret_that_everybody_could_read_is_refused_and_not_repeated(
    settings: dict[str, str],
) -> None:
    error = settings_refusal("mongodb", settings)
    assert error is not None
    assert "would be shown to everybody" in error.message
    assert "hunter2" not in error.message
    assert "hunter2" not in str(error.details)


@given(user=st.text("ab:/@?#$", max_size=6), password=st.text("xyz:/@?#&={}$\0\1", min_size=1))
def test_no_password_gets_through_whatever_it_is_made_of(user: str, password: str) -> None:
    user = user.replace("@", "").replace(":", "")
    uri = f"mongodb://{user}:{password}@db-1/shop"
    is_reference = connector_rules._REFERENCE.fullmatch(password) is not None
    assert (connector_rules._shown_secret({"uri": uri}) == "") is is_reference


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("now", "now"),
        ("2026-11-01T12:00:00Z", "time:2026-11-01T12:00:00Z"),
        ("2026-11-01T12:00:00+02:00", "time:2026-11-01T10:00:00Z"),
        ("time:2026-11-01T12:00:00.250Z", "time:2026-11-01T12:00:00.250000Z"),
        ("position:p3", "position:p3"),
        ("8265A1B2C3000000012B0229296E04", "position:8265A1B2C3000000012B0229296E04"),
    ],
)
def test_where_to_begin_is_understood(text: str, begins: str) -> None:
    assert begin_at(text, wall_ms=NOON_MS) == begins
    assert begin_at(begins, wall_ms=NOON_MS) == begins


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "nobody can begin at ''"),
        ("yesterday", "nobody can begin at"),
        ("NOW", "nobody can begin at"),
        ("5m", "nobody can begin at"),
        ("position:", "nobody can begin at"),
        ("position:a b", "nobody can begin at"),
        ("82 65A1B2C3", "nobody can begin at"),
        ("2026-13-45T00:00:00Z", "is no time"),
        ("time:soon", "is no time"),
        ("2026-11-01", "is a day"),
        ("2026-11-01T12:00:00", "in which zone"),
        ("2126-11-01T12:00:00Z", "is in the future"),
        ("0001-01-01T00:00:00+14:00", "is no time"),
    ],
)
def test_nonsense_is_no_beginning(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        begin_at(text, wall_ms=NOON_MS)


@given(st.text(max_size=40))
def test_whatever_is_written_begins_somewhere_or_is_refused(text: str) -> None:
    try:
        found = begin_at(text, wall_ms=NOON_MS)
    except InvalidRequest:
        return
    assert found == "now" or found.startswith(("time:", "position:"))


def test_a_request_becomes_a_connector() -> None:
    body = CreateConnector("orders", "mongodb", {"uri": "u"}, [RouteInfo("changes", "o*")], "now")
    assert made(body, wall_ms=NOON_MS) == Connector(
        "orders", "mongodb", (ConnectorRoute("o*", "changes"),), {"uri": "u"}
    )
    with pytest.raises(InvalidRequest, match="no connector type"):
        made(CreateConnector("orders", "csv", {}, []), wall_ms=NOON_MS)
