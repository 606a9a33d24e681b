from __future__ import annotations

import pytest

from headgate.decide.access.grants import all_written, everything, parsed, written
from headgate.errors import InvalidRequest
from headgate.model.access import Grant

TEXTS = {
    "produce": Grant("produce"),
    "produce on orders.*": Grant("produce", topics=("orders.*",)),
    "subscribe on a,b": Grant("subscribe", topics=("a", "b")),
    "subscribe on flights where tenant == claims.tenant": Grant(
        "subscribe", topics=("flights",), where="tenant == claims.tenant"
    ),
    "consume on flights in billing,audit-*": Grant(
        "consume", topics=("flights",), groups=("billing", "audit-*")
    ),
    "metrics": Grant("metrics"),
    "read:topics on orders": Grant("read", "topics", ("orders",)),
    "write:tokens": Grant("write", "tokens"),
    "read:letters where a == 1": Grant("read", "letters", where="a == 1"),
    "deny subscribe on secrets": Grant("subscribe", topics=("secrets",), deny=True),
    "deny subscribe where secret == true": Grant("subscribe", where="secret == true", deny=True),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_grant_is_read_as_it_is_written(text: str) -> None:
    assert parsed(text) == (TEXTS[text],)
    assert parsed(written(TEXTS[text])) == (TEXTS[text],)


def test_spaces_mean_nothing() -> None:
    assert parsed("  deny  produce  on a , b ") == (Grant("produce", topics=("a", "b"), deny=True),)


def test_admin_is_everything() -> None:
    assert parsed("admin") == everything()
    assert all_written(parsed("admin")) == ["admin"]
    assert all(parsed(written(one)) == (one,) for one in everything())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "everything",
        "read",
        "write:",
        "read:secrets",
        "produce:topics",
        "metrics:read",
        "PRODUCE",
        "produce on",
        "produce on a b",
        "produce on ../a",
        "produce on a in g",
        "read:nodes on a",
        "write:tokens on a",
        "admin on a",
        "admin where a == 1",
        "produce where a == 1",
        "read:topics where a == 1",
        "metrics where a == 1",
        "subscribe where a ==",
        "subscribe where",
        "subscribe; produce",
        "produce\non a\nwrite:tokens",
        "deny",
        "x" * 6_000,
    ],
)
def test_what_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parsed(text)
