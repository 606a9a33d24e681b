"""Which settings a connector to PostgreSQL takes, and that none of them shows a secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.connectors.postgres_settings import (
    TableName,
    check_settings,
    own_name,
    read_settings,
)
from headgate.decide.connectors.rules import settings_refusal
from headgate.errors import InvalidRequest

DSN = "postgresql://reader:${PG_PASSWORD}@db-1:5432/shop"


@pytest.mark.parametrize(
    "settings",
    [
        {"dsn": DSN},
        {"dsn": "${PG_DSN}"},
        {"dsn": "postgresql://reader@db-1,db-2/shop?sslmode=verify-full"},
        {"dsn": "host=db-1 user=reader password=${file:/run/pg} dbname=shop"},
        {"dsn": "host=db-1 password='${P}'"},
        {"dsn": DSN, "tables": "public.orders, public.items,audit.*"},
        {"dsn": DSN, "publication": "given", "slot": "given_1", "failover": "off"},
        {"dsn": DSN, "messages": "said", "numeric": "text"},
    ],
)
def test_settings_that_are_taken(settings: dict[str, str]) -> None:
    assert check_settings(settings) == settings
    assert settings_refusal("postgresql", settings) is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "setting dsn"),
        ({"dsn": "postgresql://me:hunter2@db-1/shop"}, "password|shown"),
        ({"dsn": "postgresql://me@db-1/shop?password=hunter2"}, "password|shown"),
        ({"dsn": "host=db-1 password=hunter2"}, "password"),
        ({"dsn": "host=db-1 PASSWORD = 'hunter two'"}, "password"),
        ({"dsn": "host=db-1 password=x${P}"}, "password"),
        ({"dsn": "host=db-1 replication=true"}, "leave replication out"),
        ({"dsn": "host=db-1 options='-c x=y'"}, "leave options out"),
        ({"dsn": DSN, "table": "public.t"}, "did you mean tables"),
        ({"dsn": DSN, "tables": "orders"}, "with its schema"),
        ({"dsn": DSN, "tables": ".t"}, "with its schema"),
        ({"dsn": DSN, "tables": "public.t", "publication": "p"}, "leave one of them out"),
        ({"dsn": DSN, "slot": "Not-a-slot"}, "slot"),
        ({"dsn": DSN, "publication": "p" * 64}, "63 bytes"),
        ({"dsn": DSN, "numeric": "float"}, "one of number, text"),
        ({"dsn": DSN, "messages": "a\0"}, "NUL"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        check_settings(settings)
    assert "hunter" not in str(refused.value)
    assert settings_refusal("postgresql", settings) is not None


def test_tables_are_named_once_and_with_their_schema() -> None:
    found = read_settings({"dsn": DSN, "tables": "a.t,a.t, b.x ,b.*"}).tables
    assert found == (TableName("a", "t"), TableName("b", "*"))


NAMES = st.text("abcXYZ-_.09", min_size=1, max_size=100)


@given(NAMES, NAMES)
def test_every_connector_has_a_slot_of_its_own(one: str, other: str) -> None:
    names = own_name(one), own_name(other)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") for name in names)
    assert all(len(name) <= 63 for name in names)
    assert (names[0] == names[1]) == (one == other)
