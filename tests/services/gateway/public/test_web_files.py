"""What browsers fetch from a gateway: pages, modules, and what they are told about them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from pyreqwest.client import ClientBuilder
from pyreqwest.response import Response

from headgate.adapters.web_files import packaged_files
from headgate.decide.http.web_files import web_file
from tests.services.gateway.world import World, running

FILES = {
    "index.html": web_file("index.html", b"<!doctype html>start"),
    "radar.html": web_file("radar.html", b"<!doctype html>radar"),
    "lib/table.js": web_file("lib/table.js", b"export const table = 1;"),
    "client.js": web_file("client.js", b"export class Headgate {}"),
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running(web_files=FILES) as made:
        yield made


async def fetch(world: World, path: str, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with ClientBuilder().follow_redirects(False).build() as client:
        return await client.get(world.gateway.url + path).headers(named).build().send()


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        ("/ui/", b"<!doctype html>start", "text/html; charset=utf-8"),
        ("/ui/radar", b"<!doctype html>radar", "text/html; charset=utf-8"),
        ("/ui/radar.html", b"<!doctype html>radar", "text/html; charset=utf-8"),
        ("/ui/lib/table.js", b"export const table = 1;", "text/javascript; charset=utf-8"),
        ("/client.js", b"export class Headgate {}", "text/javascript; charset=utf-8"),
    ],
)
async def test_a_file_of_the_package_is_served_with_its_kind(
    world: World, path: str, content: bytes, kind: str
) -> None:
    answer = await fetch(world, path)
    assert answer.status == 200
    assert bytes(await answer.bytes()) == content
    assert answer.get_header("content-type") == kind
    assert answer.get_header("x-content-type-options") == "nosniff"


@pytest.mark.parametrize("said", ["{etag}", "W/{etag}", '"other", {etag}', "*"])
async def test_who_has_a_file_is_told_that_it_has_not_changed(world: World, said: str) -> None:
    first = await fetch(world, "/ui/")
    etag = first.get_header("etag")
    assert etag
    assert first.get_header("cache-control") == "no-cache"
    again = await fetch(world, "/ui/", if_none_match=said.format(etag=etag))
    assert again.status == 304
    assert bytes(await again.bytes()) == b""
    assert again.get_header("etag") == etag
    assert "default-src 'none'" in (again.get_header("content-security-policy") or "")
    other = await fetch(world, "/ui/", if_none_match='"other"')
    assert other.status == 200


@pytest.mark.parametrize("accept", ["text/html,application/xhtml+xml,*/*;q=0.8", "TEXT/HTML"])
async def test_the_root_leads_a_browser_to_the_start(world: World, accept: str) -> None:
    answer = await fetch(world, "/", accept=accept)
    assert (answer.status, answer.get_header("location")) == (307, "/ui/")
    assert (await fetch(world, "/ui")).get_header("location") == "/ui/"


async def test_the_root_tells_a_program_what_there_is(world: World) -> None:
    for accept in ("*/*", "application/json"):
        answer = await fetch(world, "/", accept=accept)
        assert answer.status == 404
        assert "/openapi.json" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nowhere",
        "/ui/client.js",  # a second address would be a second module
        "/ui/client.d.ts",
        "/ui/../client.js",
        "/ui/%2e%2e/config.py",
        "/ui/lib",
        "/ui/lib/",
        "/ui/a/b/c",
        "/client.d.ts",
    ],
)
async def test_nothing_else_is_there(world: World, path: str) -> None:
    answer = await fetch(world, path)
    # A client may have put the dots right before it asked.
    assert answer.status == 404 or path == "/ui/../client.js"


async def test_a_page_may_connect_to_its_gateway_and_run_its_modules_alone(world: World) -> None:
    port = world.gateway.ws_url.split("/")[2].rpartition(":")[2]
    answer = await fetch(world, "/ui/", host=f"localhost:{port}")
    policy = answer.get_header("content-security-policy") or ""
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["script-src"] == "'self'"
    assert parts["style-src"] == "'self'"
    assert parts["require-trusted-types-for"] == "'script'"
    assert parts["trusted-types"] == "headgate"
    assert parts["frame-ancestors"] == "'none'"
    sockets = {f"{way}://{name}:{port}" for way in ("ws", "wss") for name in PLACES}
    assert set(parts["connect-src"].split()) == {"'self'", *sockets}
    assert "content-security-policy" not in await headers_of(world, "/client.js")


POLICY = "content-security-policy"
PLACES = ("127.0.0.1", "localhost")


async def headers_of(world: World, path: str) -> set[str]:
    return set((await fetch(world, path)).headers)


async def test_a_host_that_is_no_name_stands_in_no_policy(world: World) -> None:
    for host in ("evil;script-src *", "a b", "x'y"):
        answer = await fetch(world, "/ui/", host=host)
        assert host not in (answer.get_header("content-security-policy") or "")


async def test_the_page_of_the_demo_is_there_in_a_demo_alone(world: World) -> None:
    for path in ("/ui/demo", "/ui/demo.json", "/ui/demo.html", "/ui/demo/main.js"):
        answer = await fetch(world, path)
        assert answer.status == 404
        assert "belongs to `headgate demo`" in (await answer.json())["error"]["message"]
    control = "http://127.0.0.1:43210"
    async with running(web_files=packaged_files(), demo=control) as shown:
        page = await fetch(shown, "/ui/demo")
        assert page.status == 200
        policy = page.get_header("content-security-policy") or ""
        assert f" {control};" in policy
        assert control not in ((await fetch(shown, "/ui/")).get_header(POLICY) or "")
        assert await (await fetch(shown, "/ui/demo.json")).json() == {"control": control}


async def test_a_gateway_without_files_says_so(world: World) -> None:
    async with running() as bare:
        answer = await fetch(bare, "/ui/")
        assert answer.status == 404
        assert "/ui/" in (await answer.json())["error"]["message"]


def test_every_file_of_the_package_comes_from_the_package_alone() -> None:
    """Pages are shown offline: what they name is here."""
    files = packaged_files()
    assert {"index.html", "styles.css"} <= set(files)
    for name, file in files.items():
        text = file.content.decode()
        outside = [part for part in text.split('"') if part.startswith(("http://", "https://"))]
        allowed = ("http://www.w3.org/", "http://127.0.0.1:8780")
        assert [one for one in outside if not one.startswith(allowed)] == [], name
        if name.endswith(".html"):
            assert "style=" not in text, name
            assert "<script>" not in text, name
            assert re.search(r"\son\w+=", text) is None, name


async def test_the_gateway_itself_says_where_it_takes_subscribers(world: World) -> None:
    answer = await fetch(world, "/v1/gateway")
    assert await answer.json() == {"ws_url": world.gateway.ws_url}
