"""A web page's log-in: the token is kept by the browser in a cookie that no script reads.

A browser sends a cookie along with whatever a page asks for, whichever page that is; so a request
that changes something and is judged by a cookie must carry a header, too, that only a page of this
very address can add (another one's browser would ask first, and be refused).

Invariants: pure; a cookie is sent by pages of this address alone, and never over a link that the
browser was called from; the token stands in no answer and in no URL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from headgate.decide.access.deciding import may
from headgate.errors import Forbidden, InvalidRequest
from headgate.model.access import Action, Area, Principal

COOKIE = "headgate_session"
PAGE_HEADER = "x-headgate-page"
SAFE_METHODS = frozenset({"GET", "HEAD"})
ATTRIBUTES = "Path=/; HttpOnly; SameSite=Strict"
AREAS: Sequence[Area] = get_args(Area)
PLAIN: Sequence[Action] = ("produce", "subscribe", "consume", "metrics")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,4000}")
"""What a cookie can hold as it stands; every API token and every JWT is of this kind."""


def token_in(cookies: str) -> str:
    """The token of a log-in, from a `Cookie` header; empty where there is none."""
    for part in cookies.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value if _TOKEN.fullmatch(value) else ""
    return ""


def check_page(method: str, said: str) -> None:
    """Raises Forbidden where a request that changes something may be another page's doing."""
    if method not in SAFE_METHODS and not said:
        raise Forbidden(
            f"a log-in doesn't count for a request that changes something without the header "
            f"{PAGE_HEADER}: send it, or the token itself as Authorization: Bearer",
            needs=PAGE_HEADER,
        )


def begun(token: str, *, lasts_s: int | None, encrypted: bool) -> str:
    """The `Set-Cookie` of a log-in that lasts until the browser is closed, or for so long."""
    if not _TOKEN.fullmatch(token):
        raise InvalidRequest("that is no token: paste the whole of it, and nothing else")
    parts = [f"{COOKIE}={token}", ATTRIBUTES]
    if lasts_s is not None:
        parts.append(f"Max-Age={lasts_s}")
    if encrypted:
        parts.append("Secure")
    return "; ".join(parts)


def ended() -> str:
    """The `Set-Cookie` of a log-out."""
    return f"{COOKIE}=; {ATTRIBUTES}; Max-Age=0"


def allowed(principal: Principal | None) -> list[str]:
    """What it may do, at least with some topics, such as `write:topics`."""
    plain = [action for action in PLAIN if may(principal, action)]
    areas = [
        f"{action}:{area}"
        for action in ("read", "write")
        for area in AREAS
        if may(principal, action, area)
    ]
    return [*plain, *areas]
