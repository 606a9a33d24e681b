"""The coordinator over HTTP: topics, nodes, plans and the state of everything.

Invariant: only the leader answers; any other coordinator says who leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable

import msgspec
import structlog

from headgate.decide.access.deciding import check, visible
from headgate.decide.access.showing import routed_by
from headgate.decide.console.overview import overview_of
from headgate.decide.coordination.effects import Effect, Refuse
from headgate.decide.coordination.failures import TermFailures
from headgate.decide.coordination.sources import resetting
from headgate.decide.coordination.topics import operating, repartitioning
from headgate.decide.coordination.views.status import (
    Stored,
    describe,
    describe_topic,
    planned_moves,
    repartition_plan,
)
from headgate.decide.produce.unknown_topic import unknown_topic
from headgate.errors import Fenced, HeadgateError, NotFound, NotNow, StorageFailed
from headgate.model import api
from headgate.model.control.reports import Latencies
from headgate.model.event import PartitionRef
from headgate.model.http import Request, Response, Route, json_response
from headgate.model.settings_api import SettingInfo
from headgate.ports.letters import Fences
from headgate.ports.machine import Machine
from headgate.release import release
from headgate.services.coordinator.connectors import ConnectorRoutes
from headgate.services.coordinator.evidence import EvidenceRoutes
from headgate.services.coordinator.groups import GroupRoutes
from headgate.services.coordinator.letters import LetterRoutes
from headgate.services.coordinator.subscriptions import SubscriptionRoutes
from headgate.services.coordinator.term import Term
from headgate.services.coordinator.tokens import TokenRoutes
from headgate.services.coordinator.vitals import Vitals
from headgate.services.principals import KnownPrincipals
from headgate.services.settings import SettingRoutes
from headgate.telemetry import LogLine

log = structlog.get_logger()

TOPIC_READY_TIMEOUT_S = 10.0
RESET_TIMEOUT_S = 30.0
"""Above what a router may take to let go of a partition."""
MAX_BODY_BYTES = 64 * 1024


class CoordinatorRoutes:
    """`term` is the present leadership; it raises NotNow where another coordinator leads."""

    def __init__(
        self,
        *,
        node_id: str,
        default_partitions: int,
        term: Callable[[], Term],
        letters: LetterRoutes,
        evidence: EvidenceRoutes,
        groups: GroupRoutes,
        machine: Machine,
        failures: TermFailures,
        principals: KnownPrincipals | None = None,
        settings: tuple[SettingInfo, ...] = (),
    ) -> None:
        self._node_id = node_id
        self._default_partitions = default_partitions
        self._term = term
        self._letters = letters
        self._connectors = ConnectorRoutes(term, machine)
        self._tokens = TokenRoutes(term, principals, machine)
        self._subscriptions = SubscriptionRoutes(term, machine)
        self._evidence = evidence
        self._groups = groups
        self._settings = SettingRoutes(node_id, "coordinator", settings)
        self._machine = machine
        self.vitals = Vitals(term, self._described, failures, machine)
        self.url = ""
        self.client_address = ""

    def table(self) -> list[Route]:
        return [
            Route("POST", "/v1/topics", self._create_topic),
            Route("GET", "/v1/topics", self._list_topics),
            Route("GET", "/v1/topics/{name}", self._describe_topic),
            Route("DELETE", "/v1/topics/{name}", self._delete_topic),
            Route("POST", "/v1/topics/{name}/repartition", self._repartition),
            Route("POST", "/v1/topics/{name}/partitions/{number}/reset", self._reset),
            Route("GET", "/v1/status", self._status),
            Route("GET", "/v1/overview", self._overview),
            Route("GET", "/v1/topology", self._topology),
            Route("POST", "/v1/rebalance", self._rebalance),
            Route("POST", "/v1/nodes/{name}/drain", self._drain),
            Route("DELETE", "/v1/nodes/{name}/drain", self._end_drain),
            Route("POST", "/v1/nodes/{name}/restart", self._restart),
            *self.vitals.table(),
            *self._letters.table(),
            *self._connectors.table(),
            *self._tokens.table(),
            *self._subscriptions.table(),
            *self._evidence.table(),
            *self._groups.table(),
            *self._settings.table(),
        ]

    # --- topics --------------------------------------------------------------------------------

    async def _create_topic(self, request: Request) -> Response:
        term = self._term()
        body = msgspec.json.decode(await request.body(MAX_BODY_BYTES), type=api.CreateTopic)
        check(request.principal, "write", "topics", topic=body.name)
        partitions = self._default_partitions if body.partitions is None else body.partitions
        with contextlib.suppress(TimeoutError):
            await term.until(
                lambda: term.cluster.is_dropped(body.name), timeout_s=TOPIC_READY_TIMEOUT_S
            )
        former = await self._forget_former(term, body.name)

        def decide(_now_ms: int) -> list[Effect]:
            if operating.left_behind(term.cluster, body.name) != former:
                return [Refuse(_comes_and_goes(body.name))]
            return term.cluster.create_topic(body.name, partitions, body.placement)

        await term.apply(decide)
        log.info(LogLine.TOPIC_CREATED, topic=body.name, partitions=partitions)
        await self._served(term, body.name)
        return json_response(await self._topic_info(term, body.name), 201)

    async def _forget_former(self, term: Term, name: str) -> Fences:
        """No lane may find letters of a former topic of this name: that is over before the new one
        has lanes. Returns under which epochs the former one was deleted."""
        former = (await term.left_behind()).get(name, {})
        try:
            async with asyncio.timeout(TOPIC_READY_TIMEOUT_S):
                await self._letters.forget(former)
        except Fenced:
            raise _comes_and_goes(name) from None
        except (StorageFailed, TimeoutError) as error:
            why = str(error) or "there are many"
            raise NotNow(
                f"the letters of the former topic {name} are not forgotten yet ({why}); try again",
                name=name,
            ) from error
        return former

    async def _served(self, term: Term, name: str) -> None:
        """Wait until ingest nodes serve the topic, so that a produce right after this works."""
        topic = term.cluster.topics[name]
        try:
            await term.until(
                lambda: term.cluster.logs_adopted(topic), timeout_s=TOPIC_READY_TIMEOUT_S
            )
        except TimeoutError:
            raise NotNow(
                f"topic {name} is created, but no ingest node serves it yet; start one with "
                "`headgate ingest`"
            ) from None

    async def _delete_topic(self, request: Request) -> Response:
        term, name = self._term(), request.params["name"]
        await term.apply(lambda _: term.cluster.delete_topic(name))
        try:
            await self._letters.forget((await term.left_behind()).get(name, {}))
        except HeadgateError as error:  # the next sweep will, or creating the topic again
            log.warning(LogLine.SWEEP_FAILED, error=error.message)
        log.info(LogLine.TOPIC_DELETED, topic=name)
        return Response(204)

    async def _list_topics(self, request: Request) -> Response:
        term = self._term()
        stored = await term.stored()
        names = visible(request.principal, "read", "topics", sorted(term.cluster.topics))
        topics = [self._described_topic(term, name, stored) for name in names]
        return json_response(api.TopicList(topics))

    async def _describe_topic(self, request: Request) -> Response:
        return json_response(await self._topic_info(self._term(), request.params["name"]))

    async def _topic_info(self, term: Term, name: str) -> api.TopicInfo:
        return self._described_topic(term, name, await term.stored())

    def _described_topic(self, term: Term, name: str, stored: Stored) -> api.TopicInfo:
        topic = term.cluster.topics.get(name)
        if topic is None:
            raise unknown_topic(name, term.cluster.topics, is_wanted=False)
        return describe_topic(
            term.cluster,
            topic,
            stored=stored,
            now_ms=term.now_ms(),
            wall_ms=self._machine.wall_ms(),
        )

    async def _repartition(self, request: Request) -> Response:
        """Answers with the plan of the repartition, once it has begun; `GET /v1/topics/{name}` says
        how far it is."""
        term, name = self._term(), request.params["name"]
        body = msgspec.json.decode(await request.body(MAX_BODY_BYTES), type=api.RepartitionTopic)
        if (learning := operating.learning_refusal(term.cluster)) is not None:
            raise learning  # The node may not know the topic yet, or its owners.
        info = await self._topic_info(term, name)

        def decide(now_ms: int) -> list[Effect]:
            cluster = term.cluster
            if not body.dry_run:
                return cluster.repartition(name, body.partitions, now_ms)
            error = repartitioning.refusal(cluster, name, body.partitions)
            return [] if error is None else [Refuse(error)]

        await term.apply(decide)
        plan = repartition_plan(term.cluster, info, body.partitions, now_ms=term.now_ms())
        if not body.dry_run:
            log.info(LogLine.TOPIC_REPARTITIONED, topic=name, partitions=body.partitions)
        return json_response(plan, 200 if body.dry_run else 202)

    async def _reset(self, request: Request) -> Response:
        """Put the position of a partition elsewhere; answers when it is there."""
        term, ref = self._term(), _partition(request)
        body = msgspec.json.decode(await request.body(MAX_BODY_BYTES), type=api.ResetPartition)
        if (error := resetting.refusal(term.cluster, ref)) is not None:
            raise error
        info = await self._topic_info(term, ref.topic)
        extent = await term.extent(ref)
        settled = info.details[ref.partition].settled
        plan = resetting.plan(
            ref,
            body.to,
            earliest=extent.earliest,
            head=extent.head,
            settled=settled,
            resync=body.resync,
        )
        reset = resetting.wanted(term.cluster, ref, body.to, plan, resync=body.resync)
        if (error := resetting.refusal(term.cluster, ref, reset)) is not None:
            raise error
        if plan.repeats:
            await term.check_groups(ref)
        if not body.dry_run:
            await term.apply(lambda now: term.cluster.reset(ref, reset, now))
            await self._is_reset(term, ref)
        return json_response(
            api.ResetAnswer(
                topic=ref.topic,
                partition=ref.partition,
                settled=settled,
                next_seq=plan.settled + 1,
                repeats=plan.repeats,
                skips=plan.skips,
                resync=body.resync,
                dry_run=body.dry_run,
            )
        )

    async def _is_reset(self, term: Term, ref: PartitionRef) -> None:
        try:
            await term.until(
                lambda: resetting.is_done(term.cluster, ref), timeout_s=RESET_TIMEOUT_S
            )
        except TimeoutError:
            raise NotNow(
                f"the router of {ref} or the store of positions doesn't answer; {ref} is reset "
                "when they do, and read on after that"
            ) from None

    # --- nodes and plans -----------------------------------------------------------------------

    async def _rebalance(self, request: Request) -> Response:
        """What a plan moves, and unless it is a dry run, the beginning of it."""
        term = self._term()
        body = msgspec.json.decode(
            await request.body(MAX_BODY_BYTES) or b"{}", type=api.RebalanceRequest
        )
        planned: list[api.PlannedMove] = []

        def decide(now_ms: int) -> list[Effect]:
            if (error := operating.learning_refusal(term.cluster)) is not None:
                return [Refuse(error)]
            planned.extend(planned_moves(term.cluster))
            return [] if body.dry_run else term.cluster.rebalance(now_ms)

        await term.apply(decide)
        return json_response(api.RebalanceAnswer(planned, body.dry_run))

    async def _drain(self, request: Request) -> Response:
        return await self._set_draining(request, draining=True)

    async def _end_drain(self, request: Request) -> Response:
        return await self._set_draining(request, draining=False)

    async def _set_draining(self, request: Request, *, draining: bool) -> Response:
        term, node_id = self._term(), request.params["name"]
        await term.apply(lambda now: term.cluster.drain(node_id, now, draining=draining))
        log.info(LogLine.DRAINING, node=node_id, draining=draining)
        status = await self._described(term)
        return json_response(next(node for node in status.nodes if node.id == node_id))

    async def _restart(self, request: Request) -> Response:
        term, node_id = self._term(), request.params["name"]
        await term.apply(lambda _: term.cluster.restart(node_id))
        log.info(LogLine.RESTARTING, node=node_id)
        status = await self._described(term)
        return json_response(next(node for node in status.nodes if node.id == node_id))

    # --- everything ----------------------------------------------------------------------------

    async def _status(self, _request: Request) -> Response:
        return json_response(await self._described(self._term()))

    async def _described(self, term: Term) -> api.Status:
        stored = await term.stored()
        status = describe(
            term.cluster,
            version=release(),
            stored=stored,
            now_ms=term.now_ms(),
            wall_ms=self._machine.wall_ms(),
        )
        me = api.NodeStatus(
            self._node_id, "coordinator", "ready", self.url, pid=self._machine.pid()
        )
        letters, letters_error = await self._letters.counted()
        return msgspec.structs.replace(
            status,
            nodes=[me, *status.nodes],
            letters=letters,
            letters_error=letters_error,
            checkpoints_error=term.positions_error,
        )

    async def _overview(self, _request: Request) -> Response:
        term = self._term()
        status = await self._described(term)
        routers = term.cluster.lane_totals.routers.values()
        return json_response(
            overview_of(status, [one.latencies.get("routing", Latencies()) for one in routers])
        )

    async def _topology(self, request: Request) -> Response:
        """Of the topics that the principal may know of. Where callers need a credential, nobody can
        follow it: what is pushed to clients is the same for all."""
        topology = self._term().cluster.topology()
        if request.principal is None:
            return json_response(api.TopologyAnswer(topology, self.client_address))
        return json_response(api.TopologyAnswer(routed_by(request.principal, topology), ""))


def _partition(request: Request) -> PartitionRef:
    number = request.params["number"]
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise NotFound(f"{number!r} is no number of a partition", name=number)
    return PartitionRef(request.params["name"], int(number))


def _comes_and_goes(name: str) -> NotNow:
    return NotNow(f"another request creates or deletes topic {name} just now; try again", name=name)
