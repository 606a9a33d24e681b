"""What web pages may do over HTTP, with the headers that browsers send, over real sockets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import errors
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.decide.http.web_pages import WebPages
from headgate.model.http import NDJSON, Request, Response, Route, StreamResponse, json_response
from tests.adapters.http.wire import LOOPBACK, Wire

APP = "https://app.example.com"
FOREIGN = "https://evil.example"
JSON_BODY = ("content-type: application/json",)

Answered = tuple[int, dict[str, str], bytes]


class Site:
    """A server of either kind whose handlers say how often they were called."""

    def __init__(self, kind: type[HttpServer | Http1Server]) -> None:
        self._server = kind()
        self.port = 0
        self.calls: list[str] = []

    async def start(self) -> None:
        routes = [
            Route(
                "POST",
                "/write/{name}",
                self._write,
                accepts=("application/json",),
            ),
            Route("POST", "/lines", self._write, accepts=("application/json", NDJSON)),
            Route("GET", "/read", self._read),
            Route("DELETE", "/read", self._read),
            Route("GET", "/busy", self._busy),
            Route("GET", "/follow", self._follow),
        ]
        app = HttpApp(routes, WebPages.of(LOOPBACK, origins=[APP]))
        self.port = await self._server.start(app, LOOPBACK, 0)

    async def stop(self) -> None:
        await self._server.stop(1.0)

    @property
    def own(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    async def _write(self, request: Request) -> Response:
        await request.body(1_000)
        self.calls.append("loop")
        return json_response(request.method)

    async def _read(self, request: Request) -> Response:
        self.calls.append(request.method)
        return json_response(request.method)

    async def _busy(self, _request: Request) -> Response:
        raise errors.Overloaded("too much at once; try again")

    async def _follow(self, _request: Request) -> StreamResponse:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"

        return StreamResponse(200, {"content-type": "text/event-stream"}, chunks())

    async def ask(self, line: str, *fields: str, body: bytes = b"") -> Answered:
        wire = await Wire.dial(self.port)
        try:
            return await self.say(wire, line, *fields, body=body)
        finally:
            await wire.close()

    async def say(self, wire: Wire, line: str, *fields: str, body: bytes = b"") -> Answered:
        host = () if _has(fields, "host") else (f"host: {LOOPBACK}:{self.port}",)
        length = (f"content-length: {len(body)}",) if body else ()
        wire.send(
            "\r\n".join([f"{line} HTTP/1.1", *host, *fields, *length, "", ""]).encode() + body
        )
        return await wire.answer()


def _has(fields: tuple[str, ...], name: str) -> bool:
    return any(field.startswith(f"{name}:") for field in fields)


def leave_of(answer: Answered) -> tuple[str | None, str | None]:
    """Who may read it, and whether caches know that."""
    return answer[1].get("access-control-allow-origin"), answer[1].get("vary")


def error_of(answer: Answered) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer[2])["error"]
    return error


@contextlib.asynccontextmanager
async def serving(kind: type[HttpServer | Http1Server]) -> AsyncIterator[Site]:
    made = Site(kind)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture(params=[HttpServer, Http1Server], ids=["granian", "own"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async with serving(request.param) as made:
        yield made


# --- who may call --------------------------------------------------------------------------------

EVERYWHERE = ["GET /read", "DELETE /read", "GET /follow", "GET /nowhere", "POST /read"]


@pytest.mark.parametrize("line", EVERYWHERE)
async def test_a_foreign_page_is_refused_wherever_it_calls(site: Site, line: str) -> None:
    answer = await site.ask(line, f"origin: {FOREIGN}")
    assert answer[0] == 403
    assert error_of(answer)["code"] == "foreign_origin"
    assert f"add {FOREIGN} to public.origins" in error_of(answer)["message"]
    assert leave_of(answer) == (None, "origin")
    assert site.calls == []


async def test_a_foreign_page_writes_nothing(site: Site) -> None:
    for kind in ("text/plain", "application/json"):
        fields = (f"origin: {FOREIGN}", f"content-type: {kind}")
        assert (await site.ask("POST /write/a", *fields, body=b"{}"))[0] == 403
    assert site.calls == []


async def test_a_name_that_was_made_to_mean_this_machine_reads_nothing(site: Site) -> None:
    """A page of that name would send no origin here: to its browser this is its own."""
    answer = await site.ask("GET /read", f"host: evil.example:{site.port}")
    assert answer[0] == 403
    assert "isn't known as evil.example" in error_of(answer)["message"]
    assert site.calls == []


async def test_a_foreign_page_loads_nothing_as_a_part_of_itself(site: Site) -> None:
    fields = ("sec-fetch-site: cross-site", "sec-fetch-mode: no-cors", "sec-fetch-dest: image")
    assert (await site.ask("GET /follow", *fields))[0] == 403


async def test_whoever_is_no_page_is_told_nothing_of_pages(site: Site) -> None:
    answer = await site.ask("POST /write/a", *JSON_BODY, body=b"{}")
    assert answer[0] == 200
    assert leave_of(answer) == (None, None)


@pytest.mark.parametrize("line", EVERYWHERE)
async def test_a_named_page_may_read_every_answer(site: Site, line: str) -> None:
    answer = await site.ask(line, f"origin: {APP}")
    assert answer[0] in (200, 404, 405)
    assert leave_of(answer) == (APP, "origin")


async def test_its_own_page_calls_it(site: Site) -> None:
    fields = (f"origin: {site.own}", *JSON_BODY)
    assert (await site.ask("POST /write/a", *fields, body=b"{}"))[0] == 200


async def test_a_named_page_may_read_errors_and_when_to_come_again(site: Site) -> None:
    answer = await site.ask("GET /busy", f"origin: {APP}")
    assert (answer[0], answer[1]["retry-after"]) == (503, "1")
    assert leave_of(answer) == (APP, "origin")
    assert answer[1]["access-control-expose-headers"] == "retry-after"


# --- what a page may send ------------------------------------------------------------------------


async def test_a_preflight_of_a_named_page_says_what_it_may_send(site: Site) -> None:
    asks = ("access-control-request-method: POST", "access-control-request-headers: content-type")
    status, fields, body = await site.ask("OPTIONS /write/a", f"origin: {APP}", *asks)
    assert (status, body) == (204, b"")
    assert fields["access-control-allow-origin"] == APP
    assert fields["vary"] == "origin"
    assert fields["access-control-allow-methods"] == "POST"
    assert fields["access-control-allow-headers"] == "authorization, content-type, last-event-id"
    assert fields["access-control-max-age"] == "600"
    assert "access-control-allow-private-network" not in fields
    assert site.calls == []


async def test_a_preflight_names_all_methods_of_its_path(site: Site) -> None:
    asks = (f"origin: {APP}", "access-control-request-method: DELETE")
    fields = (await site.ask("OPTIONS /read", *asks))[1]
    assert fields["access-control-allow-methods"] == "DELETE, GET"


async def test_a_named_page_of_the_internet_may_call_this_machine(site: Site) -> None:
    asks = ("access-control-request-method: POST", "access-control-request-private-network: true")
    fields = (await site.ask("OPTIONS /write/a", f"origin: {APP}", *asks))[1]
    assert fields["access-control-allow-private-network"] == "true"


async def test_a_preflight_of_a_foreign_page_is_refused(site: Site) -> None:
    asks = ("access-control-request-method: POST", "access-control-request-private-network: true")
    answer = await site.ask("OPTIONS /write/a", f"origin: {FOREIGN}", *asks)
    assert answer[0] == 403
    assert not [name for name in answer[1] if name.startswith("access-control-allow")]


@pytest.mark.parametrize(
    "fields",
    [(), (f"origin: {APP}",), ("access-control-request-method: POST",)],
    ids=["nothing", "origin alone", "method alone"],
)
async def test_options_that_are_no_preflight_are_no_method(
    site: Site, fields: tuple[str, ...]
) -> None:
    answer = await site.ask("OPTIONS /write/a", *fields)
    assert (answer[0], answer[1]["allow"]) == (405, "POST")


# --- what a body may be --------------------------------------------------------------------------

NO_JSON = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]


@pytest.mark.parametrize("kind", NO_JSON, ids=[*NO_JSON[:-1], "none"])
async def test_a_body_of_another_kind_is_refused_with_what_to_send(site: Site, kind: str) -> None:
    fields = (f"content-type: {kind}",) if kind else ()
    answer = await site.ask("POST /write/a", *fields, body=b"{}")
    assert answer[0] == 415
    assert error_of(answer)["code"] == "unsupported_media_type"
    assert (kind.partition(";")[0] or "of no type") in error_of(answer)["message"]
    assert "-H 'Content-Type: application/json'" in error_of(answer)["message"]
    assert site.calls == []


async def test_a_body_in_chunks_needs_its_kind_as_well(site: Site) -> None:
    wire = await Wire.dial(site.port)
    wire.send(b"POST /write/a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    wire.send(b"2\r\n{}\r\n0\r\n\r\n")
    assert (await wire.answer())[0] == 415
    await wire.close()


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON", "application/json; charset=utf-8"]
)
async def test_json_may_be_written_in_several_ways(site: Site, kind: str) -> None:
    answer = await site.ask("POST /write/a", f"content-type: {kind}", body=b"{}")
    assert answer[0] == 200


@pytest.mark.parametrize(("path", "status"), [("/lines", 200), ("/write/a", 415)])
async def test_lines_of_json_are_taken_where_they_are_meant(
    site: Site, path: str, status: int
) -> None:
    assert (await site.ask(f"POST {path}", f"content-type: {NDJSON}", body=b"{}"))[0] == status


@pytest.mark.parametrize(
    "fields",
    [(), ("content-length: 0",), ("content-length: 0", "content-type: text/plain")],
    ids=["nothing", "empty", "empty text"],
)
async def test_no_body_is_of_no_kind(site: Site, fields: tuple[str, ...]) -> None:
    assert (await site.ask("POST /write/a", *fields))[0] == 200


async def test_a_named_page_may_read_that_its_body_was_refused(site: Site) -> None:
    fields = (f"origin: {APP}", "content-type: text/plain")
    answer = await site.ask("POST /write/a", *fields, body=b"{}")
    assert (answer[0], leave_of(answer)) == (415, (APP, "origin"))
