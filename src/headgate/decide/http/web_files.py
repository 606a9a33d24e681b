"""How the files of the package are answered to browsers: which one, with which headers.

Nothing comes from anywhere but this gateway, and a page runs no code but its modules: none that
stands in the page, and no text that it makes into markup. So whatever a document has in it, scripts
included, is text to a page.

Invariants: pure; a browser asks again before it uses what it has kept, so that an upgrade is seen
at once, and is told in a few bytes that nothing has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from headgate.model.http import Request, Response
from headgate.model.web_files import WebFile, WebFiles

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".json": "application/json",
}
INDEX = "index.html"
AT_THE_ROOT = ("client.js", "client.d.ts")
"""Served beside `/ui/`, under a path that users' pages import, and nowhere else: a second address
would be a second module."""

WORKER_POLICY = "headgate"
"""By the policy of this name a page may name the address of its worker (`ui/live.js`), and make
nothing else out of text."""

_HOST_NAME = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d+)?", re.ASCII)


def web_file(name: str, content: bytes) -> WebFile:
    """Raises KeyError for a kind of file that isn't served."""
    media_type = MEDIA_TYPES[name[name.rindex(".") :]]
    return WebFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def found(files: WebFiles, path: str) -> WebFile | None:
    """What is at `path` below `/ui/`; a page goes without its ending there."""
    if path in AT_THE_ROOT:
        return None
    return files.get(path or INDEX) or files.get(f"{path}.html")


def file_answer(request: Request, file: WebFile, headers: dict[str, str]) -> Response:
    """`headers` are those of this file alone."""
    common = {"etag": file.etag, "cache-control": "no-cache", "x-content-type-options": "nosniff"}
    if _is_known(request.headers.get("if-none-match"), file.etag):
        return Response(304, b"", "", {**common, **headers})
    return Response(200, file.content, file.media_type, {**common, **headers})


def _is_known(said: str, etag: str) -> bool:
    tags = (one.strip().removeprefix("W/") for one in said.split(","))
    return said.strip() == "*" or etag in tags


def page_headers(*, ws_url: str, host: str, also: Sequence[str] = ()) -> dict[str, str]:
    """For a page of a gateway that takes subscribers at `ws_url` and was called as `host`; the page
    may also connect to the addresses in `also`."""
    connect = " ".join(dict.fromkeys(["'self'", *_sockets(ws_url, host), *also]))
    policy = (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        f"connect-src {connect}",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        f"trusted-types {WORKER_POLICY}",
    )
    return {
        "content-security-policy": "; ".join(policy),
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
    }


def _sockets(ws_url: str, host: str) -> list[str]:
    """Where a page's WebSockets go: to the advertised address, and to the port of it under the name
    that the page was called by; both also encrypted, where something in between does that."""
    if not ws_url:
        return []
    name, _, port = ws_url.split("/")[2].rpartition(":")
    called = _HOST_NAME.fullmatch(host)
    names = dict.fromkeys([name, called[1] if called else name])
    return [f"{scheme}://{one}:{port}" for one in names for scheme in ("ws", "wss")]


def wants_a_page(accept: str) -> bool:
    """Is the sender of this `Accept` a browser that shows a page?"""
    return any(one.partition(";")[0].strip().lower() == "text/html" for one in accept.split(","))
