"""Which grant each route, each message and each stream needs: the one table of it.

Invariant: what isn't in the table is refused to all, where callers need a credential. A new route
gets its row here; a test derives the routes from the code and fails for one without.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.model.access import Action, Area, Need, Scope
from headgate.model.account import ACCOUNT_PATH, SUBSCRIPTIONS_PATH

OPEN = Need(open=True)
STATUS_ONLY = Need(open=True, status_only=True)


def _granted(action: Action, area: Area | None = None, scope: Scope = "cluster") -> Need:
    return Need(action, area, scope)


_SUBSCRIBE = _granted("subscribe", scope="named")
_READ_TOPIC, _WRITE_TOPIC = (
    _granted("read", "topics", "named"),
    _granted("write", "topics", "named"),
)
_READ_LETTERS, _WRITE_LETTERS = (
    _granted("read", "letters", "asked"),
    _granted("write", "letters", "asked"),
)
_READ_CONNECTORS, _WRITE_CONNECTORS = (
    _granted("read", "connectors"),
    _granted("write", "connectors"),
)

ROUTES: Mapping[tuple[str, str], Need] = {
    ("GET", "/health"): STATUS_ONLY,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/v1/gateway"): OPEN,
    ("GET", "/v1/session"): OPEN,
    ("POST", "/v1/session"): OPEN,
    ("DELETE", "/v1/session"): OPEN,
    # --- pages, which are the same for everybody and know nothing
    ("GET", "/"): OPEN,
    ("GET", "/client.js"): OPEN,
    ("GET", "/client.d.ts"): OPEN,
    ("GET", "/ui"): OPEN,
    ("GET", "/ui/"): OPEN,
    ("GET", "/ui/{name}"): OPEN,
    ("GET", "/ui/{folder}/{name}"): OPEN,
    # --- how the system is
    ("GET", "/metrics"): _granted("metrics"),
    # --- records
    ("POST", "/v1/topics/{name}/produce"): _granted("produce", scope="named"),
    ("GET", "/v1/topics/{name}/records"): _SUBSCRIBE,
    ("GET", "/v1/subscribe"): _granted("subscribe", scope="asked"),
    ("GET", "/v1/explain"): _granted("subscribe", scope="asked"),
    ("POST", "/v1/explain"): _granted("subscribe", scope="asked"),
    # --- topics
    ("GET", "/v1/topics"): _granted("read", "topics", "asked"),
    ("POST", "/v1/topics"): _granted("write", "topics", "asked"),
    ("GET", "/v1/topics/{name}"): _READ_TOPIC,
    ("DELETE", "/v1/topics/{name}"): _WRITE_TOPIC,
    ("POST", "/v1/topics/{name}/repartition"): _WRITE_TOPIC,
    ("POST", "/v1/topics/{name}/partitions/{number}/reset"): _WRITE_TOPIC,
    ("GET", "/v1/topology"): Need("produce", scope="asked"),
    # --- nodes
    ("GET", "/v1/status"): _granted("read", "nodes"),
    ("GET", "/v1/overview"): _granted("read", "nodes"),
    ("GET", "/v1/overview/stream"): _granted("read", "nodes"),
    ("GET", "/v1/subscriptions"): _granted("read", "nodes"),
    ("POST", "/v1/rebalance"): _granted("write", "nodes"),
    ("POST", "/v1/nodes/{name}/drain"): _granted("write", "nodes"),
    ("DELETE", "/v1/nodes/{name}/drain"): _granted("write", "nodes"),
    ("POST", "/v1/nodes/{name}/restart"): _granted("write", "nodes"),
    ("GET", "/v1/settings"): _granted("read", "settings"),
    # --- consumer groups
    ("GET", "/v1/groups"): _granted("read", "groups"),
    ("GET", "/v1/groups/{name}/{group}"): _granted("read", "groups"),
    ("POST", "/v1/groups/{name}/{group}/reset"): _granted("write", "groups"),
    # --- letters
    ("GET", "/v1/dead-letters"): _READ_LETTERS,
    ("GET", "/v1/dead-letters/{id}"): _READ_LETTERS,
    ("POST", "/v1/dead-letters/retry"): _WRITE_LETTERS,
    ("POST", "/v1/dead-letters/delete"): _WRITE_LETTERS,
    ("POST", "/v1/dead-letters/{id}/retry"): _WRITE_LETTERS,
    ("DELETE", "/v1/dead-letters/{id}"): _WRITE_LETTERS,
    # --- connectors
    ("GET", "/v1/connectors"): _READ_CONNECTORS,
    ("POST", "/v1/connectors"): _WRITE_CONNECTORS,
    ("POST", "/v1/connectors/check"): _WRITE_CONNECTORS,
    ("GET", "/v1/connectors/{name}"): _READ_CONNECTORS,
    ("DELETE", "/v1/connectors/{name}"): _WRITE_CONNECTORS,
    ("POST", "/v1/connectors/{name}/pause"): _WRITE_CONNECTORS,
    ("POST", "/v1/connectors/{name}/resume"): _WRITE_CONNECTORS,
    ("POST", "/v1/connectors/{name}/skip"): _WRITE_CONNECTORS,
    ("POST", "/v1/connectors/{name}/reset"): _WRITE_CONNECTORS,
    ("POST", "/v1/connectors/{name}/snapshot"): _WRITE_CONNECTORS,
    ("DELETE", "/v1/connectors/{name}/snapshot"): _WRITE_CONNECTORS,
    # --- who may come in
    ("GET", "/v1/tokens"): _granted("read", "tokens"),
    ("POST", "/v1/tokens"): _granted("write", "tokens"),
    ("DELETE", "/v1/tokens/{name}"): _granted("write", "tokens"),
    ("POST", "/v1/tickets"): _granted("subscribe", scope="asked"),
}
"""By method and path, of every role; where two roles serve the same one, it needs the same."""

BETWEEN_ROLES: Mapping[tuple[str, str], Need] = {
    # A gateway asks with the credential of the principal that wants a record explained.
    ("POST", ACCOUNT_PATH): _granted("read", "nodes"),
    ("GET", SUBSCRIPTIONS_PATH): _granted("read", "nodes"),
}
"""Routes that only nodes of the cluster call; /internal/ is before all of them."""
INTERNAL = "/internal/"


def need_of(method: str, path: str) -> Need | None:
    """Of the route with that template; None where it has no row, and where it is between roles and
    nobody has said of which."""
    return ROUTES.get((method, path)) or BETWEEN_ROLES.get((method, path))
