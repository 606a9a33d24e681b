"""GET /v1/settings of every role: what this node runs with, and where each value came from."""

from __future__ import annotations

from headgate import errors
from headgate.model.http import Parameter, Request, Response, Route, json_response
from headgate.model.settings_api import NodeSettings, SettingInfo

PATH = "/v1/settings"
NODE = Parameter("node", "The node, as `headgate node list` names it (default: this one).")
SUMMARY = "What a node runs with, without its secrets, and where each value came from."


class SettingRoutes:
    def __init__(self, node: str, role: str, settings: tuple[SettingInfo, ...] = ()) -> None:
        self._shown = NodeSettings(node, role, settings)

    def table(self) -> list[Route]:
        return [Route("GET", PATH, self.show, SUMMARY, response=NodeSettings, parameters=(NODE,))]

    def is_about_me(self, request: Request) -> bool:
        return request.query.get(NODE.name, "") in ("", self._shown.node)

    async def show(self, request: Request) -> Response:
        """Raises NotFound where another node is meant."""
        if not self.is_about_me(request):
            name = request.query[NODE.name][:100]
            raise errors.NotFound(
                f"there is no node {name!r}: `headgate node list` names them", node=name
            )
        return json_response(self._shown)
