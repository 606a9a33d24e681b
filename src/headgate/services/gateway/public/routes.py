"""What users call at the public address: subscribe is answered here, the rest is passed on.

Invariant: every public route of the system is in this table, with its types, so that /openapi.json
describes the whole contract from one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus

import msgspec

from headgate import errors
from headgate.decide.http.openapi import openapi
from headgate.decide.operations.health import http_status
from headgate.decide.operations.letter_queries import PARAMETERS as LETTER_PARAMETERS
from headgate.decide.operations.subscription_queries import (
    PARAMETERS as SUBSCRIPTION_PARAMETERS,
)
from headgate.metrics.roles import GatewayMetrics
from headgate.model.access_api import CreatedToken, CreateToken, Ticket, TokenList
from headgate.model.api import (
    CreateTopic,
    Health,
    NodeStatus,
    ProduceAnswer,
    ProduceRequest,
    RebalanceAnswer,
    RebalanceRequest,
    RepartitionPlan,
    RepartitionTopic,
    ResetAnswer,
    ResetPartition,
    Status,
    TopicInfo,
    TopicList,
    TopologyAnswer,
    WhereToSubscribe,
)
from headgate.model.groups_api import GroupInfo, GroupList, GroupReset, ResetGroup
from headgate.model.http import (
    JSON,
    Handler,
    Parameter,
    Request,
    Response,
    Route,
    StreamResponse,
    json_response,
)
from headgate.model.letters_api import (
    LetterInfo,
    LetterList,
    LettersChanged,
    LetterSelection,
)
from headgate.model.overview_api import Overview
from headgate.model.subscriptions_api import SubscriptionList
from headgate.model.web_files import WebFiles
from headgate.ports.machine import Machine
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.public.browsing import Browsing
from headgate.services.gateway.public.connectors import ConnectorRoutes
from headgate.services.gateway.public.explaining import Explaining
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.leader_calls import LeaderCalls
from headgate.services.gateway.public.producing import Producing
from headgate.services.gateway.public.sessions import SessionRoutes
from headgate.services.gateway.public.settings import PublicSettings
from headgate.services.gateway.public.watching import Watching
from headgate.services.gateway.public.web_files import WebFileRoutes
from headgate.services.gateway.rights import Rights
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.placing import Redirect, newcomer_of
from headgate.services.gateway.subscriptions.requests import SUBSCRIBE_PARAMETERS, question_of
from headgate.services.gateway.subscriptions.sse import OnEnd, sse_response
from headgate.services.gateway.subscriptions.subscriptions import Subscriptions
from headgate.tasks import Crew

COORDINATOR_TIMEOUT_S = 60.0
TICKET_BODY_BYTES = 1_024
TICKET = Parameter("ticket", "From POST /v1/tickets, for pages whose EventSource sends no header.")


class PublicRoutes:
    """`ingest_urls` names the nodes to produce to, by topic and request, the first one first;
    `knows` says whether this gateway has heard of a topic, and not of its end, `is_unheard` whether
    it remembers what the coordinator may have to hear from it; `crew` owns the task that looks at
    the system for the watchers."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        forwarder: Forwarder,
        *,
        coordinator_url: Callable[[], str],
        ingest_urls: Callable[[str, bytes], Sequence[str]],
        knows: Callable[[str], bool],
        is_unheard: Callable[[], bool],
        health: Callable[[], Health],
        metrics: GatewayMetrics,
        collect: Callable[[], None],
        browsing: Browsing,
        settings: PublicSettings,
        crew: Crew,
        machine: Machine,
        explaining: Explaining,
        version: str,
        keep_alive_s: float,
        web_files: WebFiles,
        demo: str,
    ) -> None:
        self._subscriptions = subscriptions
        self._forwarder = forwarder
        self._leader = LeaderCalls(forwarder, coordinator_url, timeout_s=COORDINATOR_TIMEOUT_S)
        self._producing = Producing(forwarder, ingest_urls=ingest_urls, knows=knows)
        self._is_unheard = is_unheard
        self._health = health
        self._metrics = metrics
        self._collect = collect
        self._browsing = browsing
        self._settings = settings
        self.watching = Watching(
            self._leader, crew=crew, machine=machine, holdings=lambda: subscriptions.holdings
        )
        self._explaining = explaining
        self._version = version
        self._keep_alive_s = keep_alive_s
        self._connectors = ConnectorRoutes(
            forwarder,
            leader=self._leader,
            ingest_urls=ingest_urls,
        )
        self._sessions = SessionRoutes(lambda: self.rights, machine)
        self._web_files = WebFileRoutes(web_files, ws_url=lambda: self.ws_url, demo=demo)
        self.ws_url = ""
        self.rights: Rights | None = None
        """Of the connections, where clients need a credential."""

    def table(self) -> list[Route]:
        ask = self._leader.forward
        own = self._own
        return [
            Route("GET", "/v1/topics", ask, "List the topics.", response=TopicList),
            Route(
                "POST",
                "/v1/topics",
                self._create_topic,
                "Create a topic.",
                CreateTopic,
                TopicInfo,
                status=201,
            ),
            Route("GET", "/v1/topics/{name}", ask, "Describe a topic.", response=TopicInfo),
            Route("DELETE", "/v1/topics/{name}", ask, "Delete a topic.", status=204),
            Route(
                "POST",
                "/v1/topics/{name}/produce",
                self._producing.produce,
                "Append events to a topic; the answer has their order.",
                ProduceRequest,
                ProduceAnswer,
                accepts=(JSON,),
            ),
            Route(
                "POST",
                "/v1/topics/{name}/repartition",
                ask,
                "Bring a topic to another number of partitions, or say what that means.",
                RepartitionTopic,
                RepartitionPlan,
                status=202,
            ),
            Route(
                "POST",
                "/v1/topics/{name}/partitions/{number}/reset",
                ask,
                "Let routers read a partition from elsewhere.",
                ResetPartition,
                ResetAnswer,
            ),
            Route(
                "GET",
                "/v1/status",
                self._status,
                "The state of the whole system; `ws_url` is this gateway's.",
                response=Status,
            ),
            Route(
                "GET",
                "/v1/overview",
                ask,
                "The state of the whole system in brief, with what needs attention first.",
                response=Overview,
            ),
            Route(
                "GET",
                "/v1/subscriptions",
                ask,
                "List the subscriptions.",
                response=SubscriptionList,
                parameters=tuple(Parameter(*one) for one in SUBSCRIPTION_PARAMETERS.items()),
            ),
            Route(
                "POST",
                "/v1/rebalance",
                ask,
                "Make a plan and carry it out.",
                RebalanceRequest,
                RebalanceAnswer,
            ),
            Route("POST", "/v1/nodes/{name}/drain", ask, "Drain a node.", response=NodeStatus),
            Route("POST", "/v1/nodes/{name}/restart", ask, "Restart a node.", response=NodeStatus),
            Route(
                "DELETE", "/v1/nodes/{name}/drain", ask, "End the draining.", response=NodeStatus
            ),
            Route(
                "GET", "/v1/topology", ask, "Who owns what, for clients.", response=TopologyAnswer
            ),
            *self._browsing.table(),
            *self._settings.table(),
            *self.watching.table(),
            *self._explaining.table(),
            *self._connectors.table(),
            *self._letters(),
            *self._groups(),
            *self._tokens(),
            *self._sessions.table(),
            Route(
                "GET",
                "/v1/subscribe",
                self._subscribe_sse,
                "Follow a topic, as server-sent events; WebSocket at the ws_url of /v1/status.",
                parameters=(*SUBSCRIBE_PARAMETERS, TICKET),
                response_content_type="text/event-stream",
            ),
            Route(
                "GET",
                "/v1/gateway",
                own(self._show_where),
                "Where this gateway takes subscribers over WebSocket.",
                response=WhereToSubscribe,
            ),
            Route(
                "GET",
                "/health",
                own(self._show_health),
                "How this node is.",
                response=Health,
                also_status=503,
            ),
            Route(
                "GET",
                "/metrics",
                own(self._show_metrics),
                "Counters and timings, in Prometheus' text format.",
                response_content_type="text/plain",
            ),
            Route(
                "GET", "/openapi.json", own(self._show_openapi), "This description.", response=dict
            ),
            *self._web_files.table(),
        ]

    def _letters(self) -> list[Route]:
        ask, base = self._leader.forward, "/v1/dead-letters"
        listed = tuple(Parameter(name, text) for name, text in LETTER_PARAMETERS.items())
        one, chosen, changed = base + "/{id}", LetterSelection, LettersChanged
        return [
            Route(
                "GET",
                base,
                ask,
                "List dead or parked letters.",
                response=LetterList,
                parameters=listed,
            ),
            Route("POST", f"{base}/retry", ask, "Send dead letters again.", chosen, changed),
            Route("POST", f"{base}/delete", ask, "Delete dead letters.", chosen, changed),
            Route("GET", one, ask, "Show a letter with its event.", response=LetterInfo),
            Route("DELETE", one, ask, "Delete a dead letter.", status=204),
            Route("POST", f"{one}/retry", ask, "Send a dead letter again.", response=LetterInfo),
        ]

    def _groups(self) -> list[Route]:
        ask, base = self._leader.forward, "/v1/groups"
        one = base + "/{name}/{group}"
        return [
            Route("GET", base, ask, "List the consumer groups.", response=GroupList),
            Route("GET", one, ask, "Describe a group of the topic.", response=GroupInfo),
            Route(
                "POST",
                f"{one}/reset",
                ask,
                "Have a group begin elsewhere, or say what that means.",
                ResetGroup,
                GroupReset,
            ),
        ]

    def _tokens(self) -> list[Route]:
        ask, base = self._leader.forward, "/v1/tokens"
        return [
            Route("GET", base, ask, "List the API tokens.", response=TokenList),
            Route(
                "POST",
                base,
                ask,
                "Make an API token; this answer is the only one that has it.",
                CreateToken,
                CreatedToken,
                status=201,
                accepts=(JSON,),
            ),
            Route("DELETE", f"{base}/{{name}}", ask, "Revoke an API token.", status=204),
            Route(
                "POST",
                "/v1/tickets",
                self._ticket,
                "Get a ticket, good for one subscription at this gateway within seconds.",
                response=Ticket,
                status=201,
            ),
        ]

    # --- subscribe -------------------------------------------------------------------------------

    async def _subscribe_sse(self, request: Request) -> StreamResponse | Response:
        if request.headers.get("upgrade").lower() == "websocket":
            raise errors.InvalidRequest(
                f"WebSocket subscribers connect to {self.ws_url}", ws_url=self.ws_url
            )
        query = {name: value for name, value in request.query.items() if name != "ticket"}
        question = question_of(query, request.headers.get("last-event-id"))
        admitted = self._subscriptions.placing.admit(
            newcomer_of(query), over_http=True, stays=bool(request.headers.get("origin"))
        )
        if isinstance(admitted, Redirect):
            return Response(307, headers={"location": admitted.http_url(query)})
        entry = Entry(self._subscriptions.holdings, request.principal)
        entry.begin(request.peer)
        try:
            subscriber = await self._subscriptions.subscribe(
                replace(
                    question,
                    subscriber=admitted,
                    principal=request.principal,
                    party=entry.party,
                )
            )
        except BaseException:
            entry.end()
            raise
        return sse_response(
            self._subscriptions,
            subscriber,
            keep_alive_s=self._keep_alive_s,
            on_end=self._stays(entry, subscriber),
        )

    def _stays(self, entry: Entry, subscriber: LiveSubscription) -> OnEnd:
        """It counts, and its rights are looked at, for as long as it is connected."""
        rights, principal = self.rights, entry.principal
        if rights is None or principal is None:
            return entry.end
        stay = rights.begin(principal, partial(subscriber.close, ends_connection=True))

        def over() -> None:
            entry.end()
            rights.over(stay)

        return over

    async def _ticket(self, request: Request) -> Response:
        """The body says nothing, and is read all the same: the connection goes on behind it."""
        await request.body(TICKET_BODY_BYTES)
        if self.rights is None or request.principal is None:
            raise errors.InvalidRequest(
                "this gateway asks for no token, so no ticket is needed: leave it out"
            )
        ticket, lasts_ms = self.rights.principals.ticket_for(request.principal)
        return json_response(Ticket(ticket, lasts_ms), 201)

    # --- passed on -------------------------------------------------------------------------------

    async def _create_topic(self, request: Request) -> Response:
        """Refused until the coordinator has heard what this gateway remembers: one that has lost
        its state believes no node any more once it has created something."""
        if self._is_unheard():
            raise errors.NotNow(
                "this gateway has lost the coordinator, which has to hear from it what there is "
                "before anything new comes; try again in a moment"
            )
        return await self._leader.forward(request)

    async def _status(self, request: Request) -> Response:
        """With this gateway's own `ws_url`, so that not all clients go to the same one."""
        answer = await self._leader.forward(request)
        if answer.status != HTTPStatus.OK:
            return answer
        status = msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw])
        status["ws_url"] = msgspec.Raw(msgspec.json.encode(self.ws_url))
        return json_response(status)

    # --- about this node -------------------------------------------------------------------------

    def _own(self, answer: Callable[[], Response]) -> Handler:
        async def handler(_request: Request) -> Response:
            return answer()

        return handler

    def _show_where(self) -> Response:
        return json_response(WhereToSubscribe(self.ws_url))

    def _show_health(self) -> Response:
        health = self._health()
        return json_response(health, http_status(health))

    def _show_metrics(self) -> Response:
        self._collect()
        return Response(200, self._metrics.exposed(), self._metrics.content_type)

    def _show_openapi(self) -> Response:
        return json_response(openapi(self.table(), title="Headgate", version=self._version))
