"""What an address is shown as: never with what lets somebody in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.links.concealing import without_credentials, without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://10.0.0.1:4222,nats://10.0.0.2:4222", "nats://10.0.0.1:4222,nats://10.0.0.2:4222"),
        ("nats://me:hunter2@one:4222", "nats://me:***@one:4222"),
        ("nats://hunter2@one:4222,tls://hunter3@two", "nats://***@one:4222,tls://***@two"),
        ("nats://one:4222,nats://me:hunter2@two", "nats://one:***@two"),
        ("nats://hunter2@one,nats://me:hunter3@two", "nats://***@one,nats://me:***@two"),
        ("NATS at nats://me:hunter2@one is down", "NATS at nats://me:***@one is down"),
    ],
)
def test_servers_of_nats_are_shown_without_passwords_and_tokens(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:hunter2@id.example.com/keys.json", "https://me:***@id.example.com/keys.json"),
        (
            "https://id.example.com/keys?token=hunter2&v=1",
            "https://id.example.com/keys?token=***&v=1",
        ),
        ("host=db oauth_client_secret=hunter2 user=me", "host=db oauth_client_secret=*** user=me"),
        (
            "mongodb://one/?authMechanismProperties=AWS_SESSION_TOKEN:hunter2,OTHER:x",
            "mongodb://one/?authMechanismProperties=AWS_SESSION_TOKEN:***",
        ),
        ("postgresql://me@db:5432/x", "postgresql://me@db:5432/x"),
    ],
)
def test_what_lets_somebody_in_is_hidden_and_a_name_is_not(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_no_password_gets_through_whatever_it_is_made_of(password: str) -> None:
    marked = f"<<{password}>>"
    assert marked not in without_credentials(f"nats://me:{marked}@host:4222")
    assert "hunter2" not in without_credentials(f"nats://me:hunter2{password}hunter2@host:4222")
