"""Every route of every role × every kind of principal, with its answer.

The routes are derived from the code: from what each role serves. What is expected is written down
here once more, in words, and not taken from the table that is tested.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headgate.adapters.memory.http import receive_of
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.answering import HttpApp
from headgate.decide.access.needs import INTERNAL, need_of
from headgate.decide.access.needs import ROUTES as NEEDED
from headgate.model.account import ACCOUNT_PATH, SUBSCRIPTIONS_PATH
from headgate.model.http import Answer, Headers, Request, Response, Route, json_response
from headgate.services.coordinator.evidence import EvidenceRoutes
from headgate.services.coordinator.groups import GroupRoutes
from headgate.services.coordinator.letters import LetterRoutes
from headgate.services.coordinator.routes import CoordinatorRoutes
from headgate.services.principals import KnownPrincipals
from headgate.services.router.vitals import RouterVitals
from tests.api.serving import routes_of_gateway, routes_of_ingest
from tests.services.gateway.access import bearer, knowing, token

NOW_MS = ScriptedMachine().wall_ms()
ANY = {"name": "flights", "number": "0", "id": "1", "folder": "f", "partition": "0", "group": "g"}

TOKENS = (
    token("producer", "produce on flights"),
    token("elsewhere", "produce on other", "subscribe on other", "read:topics on other"),
    token("reader", "subscribe on flights where tenant == claims.tenant", tenant="t"),
    token("consumer", "consume on flights in g"),
    token("monitor", "metrics"),
    *(token(f"{how}-{area}", f"{how}:{area}") for how in ("read", "write") for area in (
        "topics", "nodes", "letters", "connectors", "groups", "tokens", "settings",
    )),
    token("admin", "admin"),
    token("admin-but", "admin", "deny write:tokens", "deny produce on flights"),
    token("expired", "admin", expires_ms=NOW_MS - 1),
    token("revoked", "admin"),
)  # fmt: skip

PAGES = {"GET /", "GET /client.js", "GET /client.d.ts", "GET /ui", "GET /ui/"} | {
    "GET /ui/{name}",
    "GET /ui/{folder}/{name}",
}
SESSION = {f"{method} /v1/session" for method in ("GET", "POST", "DELETE")}
EVERYBODY = PAGES | SESSION | {"GET /health", "GET /openapi.json", "GET /v1/gateway"}
EXPLAINS = {"GET /v1/explain", "POST /v1/explain"}
SUBSCRIBES = {
    "GET /v1/subscribe",
    "POST /v1/tickets",
    "GET /v1/topics/{name}/records",
} | EXPLAINS
LETTERS, ONE_LETTER = "/v1/dead-letters", "/v1/dead-letters/{id}"
CONNECTORS, CONNECTOR = "/v1/connectors", "/v1/connectors/{name}"
TOPIC = "/v1/topics/{name}"

GRANTED: dict[str, set[str]] = {
    "nobody": set(),
    "wrong": set(),
    "expired": set(),
    "revoked": set(),
    "producer": {f"POST {TOPIC}/produce", "GET /v1/topology"},
    # Of another topic: it may ask which there are, and hears of those that it may know of.
    "elsewhere": {"GET /v1/topology", "GET /v1/topics", "GET /v1/subscribe", "POST /v1/tickets"}
    | EXPLAINS,
    "reader": SUBSCRIBES,
    "consumer": set(),
    "monitor": {"GET /metrics"},
    "read-topics": {"GET /v1/topics", f"GET {TOPIC}"},
    "write-topics": {
        "POST /v1/topics",
        f"DELETE {TOPIC}",
        f"POST {TOPIC}/repartition",
        f"POST {TOPIC}/partitions/{{number}}/reset",
    },
    "read-nodes": {
        "GET /v1/status",
        "GET /v1/overview",
        "GET /v1/overview/stream",
        "GET /v1/subscriptions",
    },
    "write-nodes": {
        "POST /v1/rebalance",
        "POST /v1/nodes/{name}/drain",
        "DELETE /v1/nodes/{name}/drain",
        "POST /v1/nodes/{name}/restart",
    },
    "read-letters": {f"GET {LETTERS}", f"GET {ONE_LETTER}"},
    "write-letters": {
        f"POST {LETTERS}/retry",
        f"POST {LETTERS}/delete",
        f"DELETE {ONE_LETTER}",
        f"POST {ONE_LETTER}/retry",
    },
    "read-connectors": {f"GET {CONNECTORS}", f"GET {CONNECTOR}"},
    "write-connectors": {
        f"POST {CONNECTORS}",
        f"POST {CONNECTORS}/check",
        f"DELETE {CONNECTOR}",
        f"POST {CONNECTOR}/snapshot",
        f"DELETE {CONNECTOR}/snapshot",
        *(f"POST {CONNECTOR}/{what}" for what in ("pause", "resume", "skip", "reset")),
    },
    "read-groups": {"GET /v1/groups", "GET /v1/groups/{name}/{group}"},
    "write-groups": {"POST /v1/groups/{name}/{group}/reset"},
    "read-tokens": {"GET /v1/tokens"},
    "write-tokens": {"POST /v1/tokens", "DELETE /v1/tokens/{name}"},
    "read-settings": {"GET /v1/settings"},
    "write-settings": set(),
}
ALL = set().union(*GRANTED.values())
GRANTED["admin"] = ALL
GRANTED["admin-but"] = ALL - GRANTED["write-tokens"] - {f"POST {TOPIC}/produce"}


def routes() -> dict[str, Route]:
    nothing: Any = None
    machine = ScriptedMachine()
    coordinator = CoordinatorRoutes(
        node_id="c",
        default_partitions=1,
        term=nothing,
        letters=_letters(),
        evidence=EvidenceRoutes(nothing, nothing, machine),
        groups=GroupRoutes(nothing, nothing, nothing),
        machine=machine,
        failures=nothing,
    )
    served = [*routes_of_gateway(), *routes_of_ingest(), *coordinator.table(), *_of_router()]
    return {f"{route.method} {route.path}": route for route in served}


def _letters() -> Any:
    nothing: Any = None
    return LetterRoutes(
        nothing,
        check_leads=nothing,
        on_revived=nothing,
        is_target=nothing,
        machine=ScriptedMachine(),
    )


def _of_router() -> list[Route]:
    return RouterVitals.__new__(RouterVitals).table()  # what the handlers need isn't there


ROUTES = routes()
PUBLIC = sorted(name for name, route in ROUTES.items() if not route.path.startswith(INTERNAL))


async def _done(request: Request) -> Answer:
    return json_response({"status": "healthy", "uptime_s": 1, "topics": ["secrets"]})


def _principals() -> KnownPrincipals:
    known = knowing(ScriptedMachine(), *TOKENS)
    known.learn(tuple(one for one in TOKENS if one.name != "revoked"), 2)
    return known


def app() -> HttpApp:
    return HttpApp(
        [Route(route.method, route.path, _done) for route in ROUTES.values()], gate=_principals()
    )


async def ask(name: str, who: str) -> Response:
    route = ROUTES[name]
    path = route.path
    for parameter, value in ANY.items():
        path = path.replace(f"{{{parameter}}}", value)
    headers = {} if who == "nobody" else bearer(who)
    request = Request.to(
        route.method, path, "topic=flights", receive_of(b""), Headers(headers.items())
    )
    answer = await app().answer(request)
    assert isinstance(answer, Response)
    return answer


@pytest.mark.parametrize("name", PUBLIC)
def test_every_route_has_its_row(name: str) -> None:
    route = ROUTES[name]
    assert need_of(route.method, route.path) is not None, "add it to decide/access/needs.py"
    assert name in ALL | EVERYBODY, "say here who may call it"


def test_the_table_has_no_rows_of_routes_that_there_are_not() -> None:
    assert {f"{method} {path}" for method, path in NEEDED} == set(PUBLIC)


@pytest.mark.parametrize("who", GRANTED)
async def test_what_each_kind_of_principal_is_answered(who: str) -> None:
    answered = {name: (await ask(name, who)).status for name in PUBLIC}
    refused = 401 if who in ("nobody", "wrong", "expired", "revoked") else 403
    expected = {name: 200 if name in GRANTED[who] | EVERYBODY else refused for name in PUBLIC}
    assert answered == expected


@pytest.mark.parametrize("name", [f"POST {ACCOUNT_PATH}", f"GET {SUBSCRIPTIONS_PATH}"])
async def test_what_gateways_ask_for_others_is_for_who_may_read_nodes(name: str) -> None:
    answered = {who: (await ask(name, who)).status for who in GRANTED}
    granted = {"read-nodes", "admin", "admin-but"}
    assert {who for who, status in answered.items() if status == 200} == granted


async def test_everybody_hears_the_status_alone_who_is_not_granted_more() -> None:
    for who in ("nobody", "wrong", "revoked", "producer"):
        assert msgspec.json.decode((await ask("GET /health", who)).body) == {"status": "healthy"}
    whole = msgspec.json.decode((await ask("GET /health", "read-nodes")).body)
    assert whole["uptime_s"] == 1


async def test_no_refusal_says_more_than_what_is_missing() -> None:
    said = (await ask(f"GET {TOPIC}", "producer")).body
    assert b"secrets" not in said
    error = msgspec.json.decode(said)["error"]
    assert error["code"] == "forbidden"
    assert "read:topics on flights" in error["message"]


async def test_who_has_to_say_who_they_are_is_told_how() -> None:
    answer = await ask("GET /v1/topics", "nobody")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "Authorization: Bearer" in msgspec.json.decode(answer.body)["error"]["message"]


async def test_a_route_without_a_row_is_for_nobody() -> None:
    served = HttpApp([Route("GET", "/v1/new", _done)], gate=_principals())
    request = Request.to("GET", "/v1/new", "", receive_of(b""), Headers(bearer("admin").items()))
    answer = await served.answer(request)
    assert isinstance(answer, Response)
    assert answer.status == 403
