"""Answers the requests of a role: finds the route, asks the gate, calls the handler, and turns
every outcome into an answer.

Invariant: each request is answered exactly once, errors with the documented body; a traceback goes
to the log and never to the client; no handler is called for a web page that may not call, nor,
where there is a gate, for a caller that the gate refuses, nor, where there is a cluster token, for
a caller that isn't a role. A caller that is refused again and again gets its answer later and
later, and costs the others less. A server, or a test, hands each request to `answer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from headgate import errors
from headgate.decide.http.page_requests import is_preflight, leave, preflight
from headgate.decide.http.role_requests import check_caller
from headgate.decide.http.routes import RouteTable
from headgate.decide.http.web_pages import WebPages
from headgate.decide.limits.addresses import counted_as
from headgate.decide.limits.rates import Rate
from headgate.decide.links.passes import PassKeeper
from headgate.decide.operations.auditing import line_of
from headgate.model.http import Answer, Request, Route, error_response
from headgate.ports.access import Gate
from headgate.ports.audit import AuditTrail, NoAuditTrail

log = logging.getLogger(__name__)

REFUSALS = (401, 429)
REFUSALS_PER_S = 20.0
"""To one address; twice as many at once. What is beyond that is held back, each for as long as it
would take to be among them, and for `HELD_S` at most."""
HELD_S = 1.0


class HttpApp:
    """Implements ports.http.App over a fixed route table. `pages` may call it, besides programs;
    without a `gate` nobody has to say who they are; `keeper` knows what other roles have to show,
    and `audit` is where acts and refusals are written down."""

    def __init__(
        self,
        routes: Iterable[Route],
        pages: WebPages | None = None,
        gate: Gate | None = None,
        keeper: PassKeeper | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self._audit = audit or NoAuditTrail()
        self._gate = gate
        self._keeper = keeper or PassKeeper()
        self._pages = pages or WebPages()
        self._table = RouteTable(self.routes, self._pages)
        self._refusals = Rate()

    async def answer(self, request: Request) -> Answer:
        """The answer to `request`, whatever happens."""
        answer: Answer
        found, route = request, None
        try:
            route, found = self._table.find(request)
            if route.callers:
                check_caller(self._keeper, route, request)
            if self._gate is None:
                answer = await route.handler(found)
            else:
                found = await self._gate.admit(route, found)
                answer = self._gate.shown(route, found, await route.handler(found))
        except errors.MethodNotAllowed as error:
            asked = is_preflight(request)
            answer = preflight(request, error.allow) if asked else error_response(error)
        except errors.UnknownTopic as error:
            answer = error_response(
                error if self._gate is None else self._gate.error_for(found, error)
            )
        except errors.HeadgateError as error:
            if error.status >= 500 and not isinstance(error, errors.NotNow):
                log.warning("%s %s failed: %s", request.method, request.path, error)
            answer = error_response(error)
        except RecursionError:
            answer = error_response(
                errors.InvalidRequest("the request nests too deeply to be read")
            )
        except msgspec.DecodeError as error:
            answer = error_response(errors.InvalidRequest(f"the request is not valid: {error}"))
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            answer = error_response(
                errors.HeadgateError("something went wrong inside the server; its log says what")
            )
        if request.headers.get("origin"):
            headers = {**answer.headers, **leave(self._pages, request)}
            answer = msgspec.structs.replace(answer, headers=headers)
        if (line := line_of(found, route, answer)) is not None:
            self._audit.note(line)
        if answer.status in REFUSALS:
            await self._hold_back(counted_as(request.peer))
        return answer

    async def _hold_back(self, who: str) -> None:
        now_s = asyncio.get_running_loop().time()
        wait_s = self._refusals.wait_s(who, REFUSALS_PER_S, now_s)
        self._refusals.take(who, 1.0, REFUSALS_PER_S, now_s)
        if wait_s:
            await asyncio.sleep(min(wait_s, HELD_S))
