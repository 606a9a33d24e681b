"""What browsers fetch here: the pages under `/ui/`, and `/client.js` for any page.

Invariant: files come from the package and from nowhere else; nothing about the system is in them,
so what a principal may read is decided where the pages ask for it.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate import errors
from headgate.decide.http.web_files import (
    AT_THE_ROOT,
    file_answer,
    found,
    page_headers,
    wants_a_page,
)
from headgate.model.http import Request, Response, Route, json_response
from headgate.model.web_files import WebFiles

START = "/ui/"


DEMO = "demo"
WHERE_THE_DEMO_IS = "demo.json"


class WebFileRoutes:
    """`ws_url` says where this gateway takes subscribers, `demo` where the demo that runs this
    system takes what its page asks for: without one there is no such page."""

    def __init__(self, files: WebFiles, *, ws_url: Callable[[], str], demo: str = "") -> None:
        self._files = files
        self._ws_url = ws_url
        self._demo = demo

    def table(self) -> list[Route]:
        return [
            Route("GET", "/", self._root, public=False),
            Route("GET", "/ui", self._start, public=False),
            Route("GET", START, self._page, public=False),
            Route("GET", f"{START}{{name}}", self._page, public=False),
            Route("GET", f"{START}{{folder}}/{{name}}", self._page, public=False),
            *(Route("GET", f"/{name}", self._module, public=False) for name in AT_THE_ROOT),
        ]

    async def _root(self, request: Request) -> Response:
        if wants_a_page(request.headers.get("accept")):
            return await self._start(request)
        raise errors.NotFound(
            f"there is no / here; /openapi.json lists what there is, and browsers find {START}"
        )

    async def _start(self, _request: Request) -> Response:
        return Response(307, b"", "", {"location": START, "cache-control": "no-store"})

    async def _page(self, request: Request) -> Response:
        path = "/".join(request.params.values())
        is_demo = path.partition("/")[0].partition(".")[0] == DEMO
        if is_demo and not self._demo:
            raise _no_demo()
        if path == WHERE_THE_DEMO_IS:
            return json_response({"control": self._demo}, headers={"cache-control": "no-store"})
        file = found(self._files, path)
        if file is None:
            raise errors.NotFound(f"there is no page {request.path} here; they begin at {START}")
        headers: dict[str, str] = {}
        if file.media_type.startswith("text/html"):
            headers = page_headers(
                ws_url=self._ws_url(),
                host=request.headers.get("host"),
                also=[self._demo] if is_demo else [],
            )
        return file_answer(request, file, headers)

    async def _module(self, request: Request) -> Response:
        file = self._files.get(request.path.removeprefix("/"))
        if file is None:
            raise errors.NotFound(f"there is no {request.path} here")
        return file_answer(request, file, {})


def _no_demo() -> errors.NotFound:
    return errors.NotFound(
        f"{START}{DEMO} belongs to `headgate demo`: start that, and it names its page's address"
    )
