"""Requests that only other roles of the cluster may make."""

from __future__ import annotations

from headgate.decide.links.passes import PASS_HEADER, PassKeeper
from headgate.errors import Unauthorized
from headgate.model.http import Request, Route


def check_caller(keeper: PassKeeper, route: Route, request: Request) -> None:
    """Raises Unauthorized for a caller without the pass of a role that may call `route`."""
    if not keeper.asks:
        return
    caller = keeper.caller(request.headers.get(PASS_HEADER))
    if caller is None:
        raise Unauthorized(
            "only the cluster itself calls this, and the cluster token is missing or another one: "
            "set security.cluster.tokens as this role has"
        )
    if caller not in route.callers:
        raise Unauthorized(f"a {caller} has no business here")
