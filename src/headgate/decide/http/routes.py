"""Which route a request is for.

Invariant: pure; the first route of the table that fits is the one. A web page that may not call
finds none, nor does a body that its route doesn't read, nor a path that leads elsewhere once it is
tidied up: a request that is passed on would be another one there than was judged here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from headgate import errors
from headgate.decide.http.page_requests import check_body, refusal_of
from headgate.decide.http.web_pages import WebPages
from headgate.model.http import Request, Route


class RouteTable:
    """`pages` may call it, besides programs."""

    def __init__(self, routes: Iterable[Route], pages: WebPages) -> None:
        self._table = [(_pattern(route.path), route) for route in routes]
        self._pages = pages

    def find(self, request: Request) -> tuple[Route, Request]:
        """The route of `request`, which has its params then; raises where there is none, or none
        for a page like this or a body like this."""
        refusal = refusal_of(self._pages, request)
        if refusal is not None:
            raise refusal
        if _leads_elsewhere(request.path):
            raise _nowhere(request)
        allowed: set[str] = set()
        for pattern, route in self._table:
            match = pattern.fullmatch(request.path)
            if match is None:
                continue
            if route.method == request.method:
                check_body(request, route)
                return route, msgspec.structs.replace(request, params=match.groupdict())
            allowed.add(route.method)
        if allowed:
            methods = ", ".join(sorted(allowed))
            raise errors.MethodNotAllowed(
                f"{request.path} does not take {request.method}; use {methods}", allow=methods
            )
        raise _nowhere(request)


def _leads_elsewhere(path: str) -> bool:
    """Clients of HTTP take a backslash for a slash, and `..` for a way up."""
    return "\\" in path or ("/." in path and not {".", ".."}.isdisjoint(path.split("/")))


def _nowhere(request: Request) -> errors.NotFound:
    return errors.NotFound(f"there is no {request.path} here; /openapi.json lists what there is")


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    regex = "".join(
        f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )
    return re.compile(regex)
