"""Logging a browser in at the public address, and what its cookie counts for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headgate.decide.access.sessions import COOKIE, PAGE_HEADER
from headgate.errors import Unauthorized
from tests.services.gateway.access import bearer, knowing, secret_of, token
from tests.services.gateway.world import World, running

TOKENS = (token("boss", "admin"), token("looker", "read:nodes"), token("late", "admin"))
COOKIES = {"cookie": f"{COOKIE}={secret_of('boss')}"}


@pytest.fixture
async def guarded() -> AsyncIterator[World]:
    async with running(make_principals=lambda machine: knowing(machine, *TOKENS)) as made:
        yield made


async def call(
    world: World, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, Any, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = world.client.request(method, world.gateway.url + path).headers(named)
    if body is not None:
        request = request.body_json(body)
    answer = await request.build().send()
    found = msgspec.json.decode(bytes(await answer.bytes()) or b"null")
    return answer.status, found, answer.get_header("set-cookie") or ""


async def test_a_log_in_is_a_cookie_that_no_script_reads(guarded: World) -> None:
    said = {"token": secret_of("looker")}
    status, session, cookie = await call(guarded, "POST", "/v1/session", said)
    assert (status, session) == (200, {"required": True, "may": ["read:nodes"], "name": "looker"})
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    name = cookie.partition(";")[0]
    _, session, _ = await call(guarded, "GET", "/v1/session", cookie=name)
    assert session["name"] == "looker"
    status, session, cookie = await call(guarded, "DELETE", "/v1/session", cookie=name)
    assert (status, session["name"], cookie.partition(";")[0]) == (200, "", f"{COOKIE}=")


@pytest.mark.parametrize("said", ["hg_nobody", "x y", "hg_a\r\nset-cookie: x=y"])
async def test_a_token_that_nobody_knows_makes_no_session(guarded: World, said: str) -> None:
    status, body, cookie = await call(guarded, "POST", "/v1/session", {"token": said})
    assert (status, body["error"]["code"], cookie) == (401, Unauthorized.code, "")


async def test_a_cookie_counts_for_a_change_only_where_one_of_our_pages_sends_it(
    guarded: World,
) -> None:
    path = "/v1/tickets"
    status, body, _ = await call(guarded, "POST", path, **COOKIES)
    assert (status, PAGE_HEADER in body["error"]["message"]) == (403, True)
    assert (await call(guarded, "POST", path, x_headgate_page="1", **COOKIES))[0] == 201
    assert (await call(guarded, "POST", path, **bearer("boss")))[0] == 201
    assert (await call(guarded, "GET", "/v1/topics/flights/records", **COOKIES))[0] == 200


async def test_a_page_of_another_origin_logs_nobody_in_or_out(guarded: World) -> None:
    said = {"token": secret_of("looker")}
    for method, body in (("POST", said), ("DELETE", None)):
        status, _, cookie = await call(
            guarded, method, "/v1/session", body, origin="http://evil.example"
        )
        assert (status, cookie) == (403, "")


async def test_a_header_counts_before_a_cookie(guarded: World) -> None:
    said = {**COOKIES, **bearer("looker")}
    assert (await call(guarded, "GET", "/v1/session", **said))[1]["name"] == "looker"
    said = {**COOKIES, "authorization": "Basic eDp5"}
    assert (await call(guarded, "GET", "/v1/topics/flights/records", **said))[0] == 401


async def test_where_nobody_is_asked_there_is_no_log_in(world: World) -> None:
    _, session, _ = await call(world, "GET", "/v1/session")
    assert (session["required"], session["name"]) == (False, "")
    assert "write:nodes" in session["may"]
    status, body, _ = await call(world, "POST", "/v1/session", {"token": "x"})
    assert (status, "nobody has to log in here" in body["error"]["message"]) == (400, True)
