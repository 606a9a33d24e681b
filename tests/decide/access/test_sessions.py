"""The cookie of a log-in: what is in it, and when it counts."""

from __future__ import annotations

import pytest

from headgate.decide.access.grants import all_parsed
from headgate.decide.access.sessions import allowed, begun, check_page, ended, token_in
from headgate.errors import Forbidden, InvalidRequest
from headgate.model.access import NOBODY, Principal


@pytest.mark.parametrize(
    ("cookies", "token"),
    [
        ("headgate_session=hg_abc", "hg_abc"),
        ("a=1; headgate_session=hg_abc; b=2", "hg_abc"),
        ("headgate_session=e30.e30.sig-_", "e30.e30.sig-_"),
        ("headgate_session=", ""),
        ("other_headgate_session=hg_abc", ""),
        ("headgate_session=a b", ""),
        ("", ""),
    ],
)
def test_a_token_is_found_among_cookies(cookies: str, token: str) -> None:
    assert token_in(cookies) == token


def test_what_is_set_is_found_and_no_script_reads_it() -> None:
    cookie = begun("hg_abc", lasts_s=60, encrypted=True)
    assert token_in(cookie.partition(";")[0]) == "hg_abc"
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=60", "Secure"):
        assert part in cookie.split("; ")
    assert "Max-Age" not in begun("hg_abc", lasts_s=None, encrypted=False)
    assert "Max-Age=0" in ended()


@pytest.mark.parametrize("token", ["a b", "a;Path=/", "a\r\nset-cookie: x", "", "x" * 5_000])
def test_what_no_cookie_can_hold_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest, match="that is no token"):
        begun(token, lasts_s=None, encrypted=False)


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
def test_a_change_needs_a_header_that_only_our_pages_send(method: str) -> None:
    check_page(method, "1")
    with pytest.raises(Forbidden, match="x-headgate-page"):
        check_page(method, "")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_look_needs_none(method: str) -> None:
    check_page(method, "")


def test_what_somebody_may_is_named() -> None:
    looker = Principal("looker", "token", all_parsed(["read:nodes", "subscribe on flights"]))
    assert allowed(looker) == ["subscribe", "read:nodes"]
    assert allowed(NOBODY) == []
    assert {"write:nodes", "produce", "read:tokens"} <= set(allowed(None))
