"""GET /v1/settings at the public address: this gateway's own, or passed on to the node that is
meant."""

from __future__ import annotations

from collections.abc import Callable

from headgate.decide.links.passes import Called
from headgate.model.http import Request, Response, Route
from headgate.model.settings_api import NodeSettings
from headgate.model.topology import Topology
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.leader_calls import LeaderCalls
from headgate.services.settings import NODE, PATH, SUMMARY, SettingRoutes

TIMEOUT_S = 10.0


class PublicSettings:
    """`leader` is the coordinator that leads: the one node that no topology names."""

    def __init__(
        self,
        own: SettingRoutes,
        forwarder: Forwarder,
        leader: LeaderCalls,
        *,
        topology: Callable[[], Topology],
    ) -> None:
        self._own = own
        self._forwarder = forwarder
        self._leader = leader
        self._topology = topology

    def table(self) -> list[Route]:
        return [Route("GET", PATH, self._show, SUMMARY, response=NodeSettings, parameters=(NODE,))]

    async def _show(self, request: Request) -> Response:
        if self._own.is_about_me(request):
            return await self._own.show(request)
        url, role = self._place_of(request.query[NODE.name])
        if not url:
            return await self._leader.forward(request)
        return await self._forwarder.forward(request, url, to=role, timeout_s=TIMEOUT_S)

    def _place_of(self, name: str) -> tuple[str, Called]:
        for node in self._topology().nodes:
            if node.id == name and node.role == "gateway":
                return node.public_url, node.role
            if node.id == name:
                return node.url, node.role
        return "", "coordinator"
