"""Where Spark's source, a process of its own, fetches the plan of the next window.

On the loopback only, and for that source alone: every local user reaches a port, and each question
opens a window. So it takes a secret that is made anew with every start. Nothing is decided here:
the answer is what the router plans, or empty, which means: ask again.

Invariant: no answer holds a password. Spark keeps plans on its disk, as offsets; the settings of
lanes, which do, reach the tasks with the query itself (windows.py).
"""

from __future__ import annotations

import msgspec

from headgate.adapters.delivery_wire import AUTHORIZATION
from headgate.adapters.http.server import HttpServer
from headgate.adapters.machine import THIS_MACHINE
from headgate.answering import HttpApp
from headgate.decide.http.web_pages import WebPages
from headgate.decide.links.passes import of_bearer, same_secret
from headgate.errors import Unauthorized
from headgate.model.http import Request, Response, Route
from headgate.model.lanes import LaneSettings, WindowPlan
from headgate.ports.windows import Plans
from headgate.spark.windows.source import PLAN_PATH

HOST = "127.0.0.1"
SECRET_BYTES = 16


class PlanServer:
    """While `plans` is None, there is no window. A caller has to know `secret`."""

    def __init__(self) -> None:
        self._server = HttpServer()
        self.secret = THIS_MACHINE.token(SECRET_BYTES)
        self.plans: Plans | None = None

    async def start(self) -> str:
        """Returns the address to ask at."""
        app = HttpApp([Route("GET", PLAN_PATH, self._next_window)], WebPages.of(HOST))
        port = await self._server.start(app, HOST, 0)
        return f"http://{HOST}:{port}{PLAN_PATH}"

    async def failed(self) -> None:
        await self._server.failed()

    async def stop(self) -> None:
        await self._server.stop(1.0)

    async def _next_window(self, request: Request) -> Response:
        if not same_secret(of_bearer(request.headers.get(AUTHORIZATION)), self.secret):
            raise Unauthorized("the plans of a router are for its own Spark application")
        plan = None if self.plans is None else await self.plans.next_plan()
        return Response(200, b"" if plan is None else msgspec.json.encode(_without_settings(plan)))


def _without_settings(plan: WindowPlan) -> WindowPlan:
    bare = tuple(msgspec.structs.replace(lane, settings=LaneSettings()) for lane in plan.lanes)
    return msgspec.structs.replace(plan, lanes=bare)
