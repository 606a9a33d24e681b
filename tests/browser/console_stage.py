"""A gateway for the dashboard: real where pages depend on the details (the stream, the records, the
letters), and otherwise answering as the test wants; it writes down what it was asked to do."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec.structs import replace
from playwright.async_api import Locator, Page

from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.server import HttpServer
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.web_files import packaged_files
from headgate.answering import HttpApp
from headgate.decide.console.overview import overview_of
from headgate.decide.operations.letter_queries import by_gateway
from headgate.decide.operations.subscription_queries import SubscriptionSearch, question_of
from headgate.decide.produce.room import Room
from headgate.model import api
from headgate.model.access import ApiToken
from headgate.model.connectors_api import ConnectorInfo, FedTopic, SnapshotInfo
from headgate.model.control.reports import LATENCY_BUCKETS_S, GatewayLink, Latencies
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.explain_api import (
    ExplainedCondition,
    ExplainedEvidence,
    ExplainedSubscription,
    Explanation,
    FieldValue,
)
from headgate.model.groups_api import (
    GroupInfo,
    GroupPartition,
    GroupPartitionReset,
    GroupReset,
    GroupTarget,
)
from headgate.model.http import Request, Response, Route, json_response
from headgate.model.letters import NewLetter
from headgate.model.settings_api import NodeSettings, SettingInfo
from headgate.model.subscription import SlowSubscriber, Subscription
from headgate.model.subscriptions_api import SubscriptionList
from headgate.model.topology import Topic, Topology
from headgate.services.coordinator.letters import LetterRoutes
from headgate.services.gateway.public.browsing import Browsing
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.leader_calls import LeaderCalls
from headgate.services.gateway.public.sessions import SessionRoutes
from headgate.services.gateway.public.watching import Watching
from headgate.services.gateway.public.web_files import WebFileRoutes
from headgate.services.gateway.rights import Rights
from headgate.tasks import Crew
from tests.services.gateway.access import knowing
from tests.written_log import WrittenLog

NOW_MS = 1_790_000_000_000
PARTITIONS = 1_000
SUBSCRIPTIONS = 100_000


class Console:
    """`status` is what the coordinator says; `done` is what pages wanted done, in order."""

    def __init__(self, *tokens: ApiToken) -> None:
        self.machine = ScriptedMachine(begins_ms=NOW_MS)
        self.principals = knowing(self.machine, *tokens) if tokens else None
        self._rights = None if self.principals is None else Rights(self.principals)
        self.log = WrittenLog()
        self.letters = MemoryLetterStore()
        self.topology = Topology(1, (Topic("flights", 2), Topic("wide", PARTITIONS)))
        self.status = healthy()
        self.subscriptions = [
            Subscription(f"s{n}", f"gateway-{n % 2 + 1}", "flights", f"altitude > {n}")
            for n in range(SUBSCRIPTIONS)
        ]
        self.planned = [api.PlannedMove("log", "flights", 1, "ingest-1", "ingest-2")]
        self.done: list[tuple[str, Any]] = []
        self._counted = [7] * (len(LATENCY_BUCKETS_S) + 1)
        self._crew = Crew("console")
        self._calls = PooledCalls()
        self._server = HttpServer()
        room = Room(1_000_000, setting="gateway.waiting_memory")
        forwarder = Forwarder(self._calls, body_limit_bytes=1_000_000, room=room)
        leader = LeaderCalls(forwarder, lambda: self.url, timeout_s=5)
        self.watching = Watching(leader, crew=self._crew, machine=self.machine)
        self.watching.rights = self._rights
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- life ------------------------------------------------------------------------------------

    async def begin(self) -> None:
        self._server = HttpServer()
        self.port = await self._server.start(self._app(), "127.0.0.1", self.port)

    async def go_away(self) -> None:
        """As a gateway that is stopped; `begin` brings it back at the same address."""
        await self._server.stop(0.2)

    async def end(self) -> None:
        self.watching.end()
        await self._server.stop(0.2)
        await self._crew.close()
        await self._calls.close()

    def _app(self) -> HttpApp:
        return HttpApp(self._table(), gate=self.principals)

    def look_at_rights(self) -> None:
        assert self._rights is not None
        self._rights.look()

    def _table(self) -> list[Route]:
        browsing = Browsing(
            self.log, topology=lambda: self.topology, machine=self.machine, masked=("secret",)
        )
        letters = LetterRoutes(
            self.letters,
            check_leads=lambda: None,
            on_revived=self._revived,
            is_target=lambda _name: True,
            machine=self.machine,
        )
        connector = "/v1/connectors/{name}/"
        return [
            Route("GET", "/v1/overview", self._overview),
            Route("GET", "/v1/subscriptions", self._subscriptions),
            Route("GET", "/v1/topics", self._topics),
            Route("GET", "/v1/topics/{name}", self._topic),
            Route("POST", "/v1/topics/{name}/repartition", self._repartition),
            Route("POST", "/v1/rebalance", self._rebalance),
            Route("POST", "/v1/nodes/{name}/drain", self._note),
            Route("DELETE", "/v1/nodes/{name}/drain", self._note),
            Route("POST", "/v1/nodes/{name}/restart", self._note),
            *(
                Route("POST", connector + what, self._connector)
                for what in ("pause", "resume", "reset", "skip", "snapshot")
            ),
            Route("DELETE", connector + "snapshot", self._connector),
            Route("GET", "/v1/groups/{name}/{group}", self._group),
            Route("POST", "/v1/groups/{name}/{group}/reset", self._reset_group),
            Route("GET", "/v1/explain", self._explain),
            *browsing.table(),
            *letters.table(),
            *self.watching.table(),
            *SessionRoutes(lambda: self._rights, self.machine).table(),
            Route("GET", "/v1/settings", self._settings),
            *WebFileRoutes(packaged_files(), ws_url=lambda: "").table(),
        ]

    # --- what the system says --------------------------------------------------------------------

    async def _overview(self, _request: Request) -> Response:
        self._counted = [one + 3 for one in self._counted]
        counts = by_gateway(await self.letters.counts(), now_ms=self.machine.wall_ms())
        status = replace(self.status, letters=counts, subscriptions=len(self.subscriptions))
        return json_response(overview_of(status, [Latencies(tuple(self._counted), 1.0)]))

    async def _topics(self, _request: Request) -> Response:
        return json_response(api.TopicList(self.status.topics))

    async def _topic(self, request: Request) -> Response:
        return json_response(self._found(request))

    def _found(self, request: Request) -> api.TopicInfo:
        name = request.params["name"]
        return next(one for one in self.status.topics if one.name == name)

    async def _subscriptions(self, request: Request) -> Response:
        search = SubscriptionSearch(question_of(request.query))
        search.look_at(tuple(self.subscriptions))
        return json_response(
            SubscriptionList(
                search.found,
                search.question.offset,
                search.matching,
                total=len(self.subscriptions),
                revision=1,
            )
        )

    async def _group(self, _request: Request) -> Response:
        [known] = self.status.groups
        owners = {n: one for one in known.consumers for n in one.targets}
        targets = [
            GroupTarget(n, one.id, one.gateway, 2)
            if (one := owners.get(n))
            else GroupTarget(n, "", "", 3)
            for n in range(known.targets)
        ]
        partitions = [GroupPartition(n, 1_000, 900 - n, 1_000, 100 + n) for n in range(PARTITIONS)]
        where = "altitude > 3"
        return json_response(
            GroupInfo(known.topic, known.group, where, targets, known.consumers, partitions)
        )

    async def _settings(self, request: Request) -> Response:
        node = request.query.get("node") or "gateway-1"
        settings = [SettingInfo(f"section.key{n}", str(n), "default") for n in range(300)]
        settings[7] = SettingInfo("section.key7", "debug", "file headgate.yaml")
        settings[8] = SettingInfo("section.name", node, "environment HEADGATE_SECTION__NAME")
        return json_response(NodeSettings(node, "gateway", tuple(settings)))

    async def _explain(self, request: Request) -> Response:
        topic, partition, seq = request.query["record"].split(":")
        condition = ExplainedCondition("n > 5", "no match", [FieldValue("n", "1")])
        one = ExplainedSubscription(
            "s1", "not_matched", "n > 5 doesn't hold", "no match", conditions=[condition]
        )
        evidence = ExplainedEvidence(NOW_MS, 2, notes=["A lane began anew."])
        why = "it is settled: unmatched"
        return json_response(
            Explanation(
                "settled",
                why,
                topic,
                int(partition),
                int(seq),
                "unmatched",
                subscriptions=[one],
                evidence=evidence,
            )
        )

    # --- what it is asked to do ------------------------------------------------------------------

    async def _read(self, request: Request) -> Any:
        body = await request.body(100_000)
        return msgspec.json.decode(body) if body else None

    async def _note(self, request: Request) -> Response:
        self.done.append((f"{request.method} {request.path}", await self._read(request)))
        return json_response(self.status.nodes[0])

    async def _repartition(self, request: Request) -> Response:
        body, info = await self._read(request), self._found(request)
        if not body["dry_run"] if "dry_run" in body else True:
            self.done.append((f"POST {request.path}", body))
        plan = api.RepartitionPlan(
            info.name,
            info.partitions,
            body["partitions"],
            moved_share=0.5,
            waits=[api.Predecessors(2, [0])],
            backlog=120,
            settled_per_s=60.0,
            drain_s=2.0,
        )
        return json_response(plan)

    async def _rebalance(self, request: Request) -> Response:
        body = await self._read(request)
        if not body["dry_run"]:
            self.done.append((f"POST {request.path}", body))
        return json_response(api.RebalanceAnswer(self.planned, body["dry_run"]))

    async def _reset_group(self, request: Request) -> Response:
        """Its only partition was processed up to 900 of 1,000."""
        body = await self._read(request)
        is_dry = body.get("dry_run", False)
        if not is_dry:
            self.done.append((f"POST {request.path}", body))
        repeats, skips = (0, 100) if body["to"] == "latest" else (900, 0)
        next_seq = 1_001 if skips else 1
        here = GroupPartitionReset(0, next_seq, 900, 900, repeats, skips)
        return json_response(GroupReset("flights", "radar", [here], is_dry))

    async def _connector(self, request: Request) -> Response:
        self.done.append((f"{request.method} {request.path}", await self._read(request)))
        what = request.path.rpartition("/")[2]
        [known] = self.status.connectors
        state = {"pause": "paused", "resume": "running"}.get(what, "starting")
        now = replace(known, state=state, paused=what == "pause", stopped_at="", stopped_what="")
        if what == "snapshot":
            asked = [SnapshotInfo(id=1, state="reading", collection="public.a", of=2, rows=7)]
            now = replace(now, state="running", snapshots=asked if request.method == "POST" else [])
        self.status = replace(self.status, connectors=[now])
        return json_response(now)

    async def _revived(self, _refs: frozenset[PartitionRef]) -> None:
        """A lane delivers all of them."""
        stored = self.letters.stored.letters
        for name in [name for name, letter in stored.items() if letter.state == "parked"]:
            del stored[name]

    async def letter(self, seq: int, *, error: str = "400: no", reason: str = "rejected") -> None:
        document = msgspec.Raw(b'{"altitude": 5}')
        event = Delivery(
            "flights", 0, seq, f"e{seq}", "4ca", "pos", "update", document, ("s1",), 7, NOW_MS
        )
        new = NewLetter("gateway-1", "dead", reason, event, attempts=3, error=error)  # type: ignore[arg-type]
        await self.letters.put([new], {PartitionRef("flights", 0): Fence(1)}, now_ms=NOW_MS)


def healthy() -> api.Status:
    """One ingest node, router and gateway; `wide` has a thousand partitions."""
    nodes = [
        api.NodeStatus("coordinator-1", "coordinator", "ready"),
        api.NodeStatus("ingest-1", "ingest", "ready", url="http://10.0.0.1:1", partitions=2),
        api.NodeStatus("ingest-2", "ingest", "draining", url="http://10.0.0.2:1", partitions=3),
        api.NodeStatus("router-1", "router", "ready", partitions=2),
        api.NodeStatus("gateway-1", "gateway", "ready"),
    ]

    def details(count: int) -> list[api.TopicPartition]:
        return [
            api.TopicPartition(n, 100, 90, 10, 5, "ingest-1", "router-1", 1, rate=25.0)
            for n in range(count)
        ]

    totals = api.Totals(appended=200, settled=180, waiting=20, acknowledged=170, unmatched=10)
    lanes = [
        api.LaneStatus(
            *("router-1", 0, 1, 0, 4242, ["flights:0", "flights:1"], 180, 170, 170, 0, 1),
            links=[GatewayLink("gateway-1", acknowledged=170)],
        )
    ]
    connector = ConnectorInfo(
        name="orders",
        type="postgresql",
        state="stopped",
        reason="it can't take a change at 0/16B3748",
        node="ingest-1",
        topics=[FedTopic("flights", ["public.*"], exists=True)],
        position="0/16B3740",
        stopped_at="0/16B3748",
        stopped_what="public.flights",
    )
    return api.Status(
        version="0.1.0",
        generation=3,
        revision=4,
        nodes=nodes,
        topics=[
            api.TopicInfo("flights", 2, "keyed", 1, details(2), totals=totals),
            api.TopicInfo("wide", PARTITIONS, "keyed", 1, details(PARTITIONS)),
        ],
        lanes=lanes,
        gateways=[
            api.GatewayStatus(
                *("gateway-1", 4, 2, 170),
                slowest=[SlowSubscriber("lazy", "flights", 900, catching_up=True)],
            )
        ],
        windows=[api.WindowStatus("router-1", "ready", 1, 90.0)],
        subscriptions=0,
        leader="coordinator-1",
        totals=totals,
        connectors=[connector],
        groups=[
            api.GroupStatus(
                *("flights", "radar", 4, None),
                moving=0,
                unowned=1,
                consumers=[api.ConsumerStatus("c1", "gateway-1", "connected", [0, 1, 2])],
            )
        ],
        filters=[api.FilterStatus("flights", "a && b", 4, 40, 10, ["gateway-1"])],
    )


@contextlib.asynccontextmanager
async def serving(*tokens: ApiToken) -> AsyncIterator[Console]:
    """With `tokens` everybody has to say who they are."""
    console = Console(*tokens)
    await console.begin()
    try:
        yield console
    finally:
        await console.end()


class Dashboard:
    """A tab with the dashboard, and what a person does there."""

    def __init__(self, page: Page, console: Console) -> None:
        self.page = page
        self.console = console

    async def see(self, where: str) -> None:
        """A page of it, once it shows what is so now."""
        await self.page.goto(f"{self.console.url}/ui/#/{where}")
        await self.page.locator("#link", has_text="live").wait_for()
        await self.page.locator("main h1").wait_for()

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def rows(self) -> Locator:
        return self.page.locator("main .virtual-space > .virtual-row")

    async def shows(self, text: str) -> None:
        await self.page.locator("main, dialog").get_by_text(text).first.wait_for()

    async def confirm(self, name: str) -> str:
        """Do what a dialog asks for; returns what came of it."""
        dialog = self.page.locator("dialog")
        await dialog.get_by_role("button", name=name, exact=True).click()
        await dialog.locator("footer").get_by_role("button", name="Close").wait_for()
        outcome = await dialog.locator(".outcome").inner_text()
        await self.page.keyboard.press("Escape")
        await dialog.wait_for(state="detached")
        return outcome
