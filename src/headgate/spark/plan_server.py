"""Where Spark's source, a process of its own, fetches the plan of the next window.

On the loopback only. Nothing is decided here: whoever asks gets what the router plans, or an empty
answer, which means: ask again.
"""

from __future__ import annotations

import msgspec

from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.decide.web_pages import WebPages
from headgate.model.http import Request, Response, Route
from headgate.ports.windows import Plans
from headgate.spark.windows import PLAN_PATH

HOST = "127.0.0.1"


class PlanServer:
    """While `plans` is None, there is no window for anybody."""

    def __init__(self) -> None:
        self._server = HttpServer()
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

    async def _next_window(self, _request: Request) -> Response:
        plan = None if self.plans is None else await self.plans.next_plan()
        return Response(200, b"" if plan is None else msgspec.json.encode(plan))
