"""What browsers and their pages are told in HTTP: who asks, and what a page may send and read.

Invariant: a page gets leave to read an answer only where it may call, and then every answer,
errors included; nothing here lets a page in that `decide.http.web_pages` refuses.
"""

from __future__ import annotations

from headgate import errors
from headgate.decide.http.web_pages import WebPages
from headgate.model.http import Request, Response, Route

READ_HEADERS = "authorization, content-type, last-event-id"
"""What a page may send: all that the public API reads."""
SHOWN_HEADERS = "retry-after"
"""What a page may read of an answer, besides what every page may."""
PREFLIGHT_S = 600
"""For so long a browser needn't ask again."""


def refusal_of(pages: WebPages, request: Request) -> errors.ForeignOrigin | None:
    """Why `request` isn't answered; None for one that is."""
    headers = request.headers
    host, origin = headers.get("host"), headers.get("origin")
    if origin or request.method == "POST":  # A browser never posts without an origin.
        return pages.refusal(host=host, origin=origin)
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    return pages.refusal(host=host, origin="", site=site, mode=mode)


def leave(pages: WebPages, request: Request) -> dict[str, str]:
    """Header fields of an answer to a web page: the permission to read it, where the page has
    it."""
    told = {"vary": "origin"}
    if refusal_of(pages, request) is None:
        told["access-control-allow-origin"] = request.headers.get("origin")
        told["access-control-expose-headers"] = SHOWN_HEADERS
    return told


def is_preflight(request: Request) -> bool:
    """A browser asks what a page may send before it sends that."""
    asked = request.headers.get("origin") and request.headers.get("access-control-request-method")
    return bool(asked) and request.method == "OPTIONS"


def preflight(request: Request, methods: str) -> Response:
    headers = {
        "access-control-allow-methods": methods,
        "access-control-allow-headers": READ_HEADERS,
        "access-control-max-age": str(PREFLIGHT_S),
    }
    if request.headers.get("access-control-request-private-network") == "true":
        headers["access-control-allow-private-network"] = "true"
    return Response(204, b"", "", headers)


def check_body(request: Request, route: Route) -> None:
    """Raises UnsupportedMediaType for a body that isn't said to be what the route reads."""
    if not route.accepts:
        return
    given = request.headers.get("content-type")
    if given in route.accepts or given.partition(";")[0].strip().lower() in route.accepts:
        return
    length = request.headers.get("content-length")
    if length == "0" or not (given or length or request.headers.get("transfer-encoding")):
        return
    shown = given.partition(";")[0][:100] if given else "of no type"
    accepted = " or ".join(route.accepts)
    raise errors.UnsupportedMediaType(
        f"the body is {shown}, but this reads {accepted}: send the header "
        f"Content-Type: {route.accepts[0]} (with curl: -H 'Content-Type: {route.accepts[0]}')",
        accepts=list(route.accepts),
    )
