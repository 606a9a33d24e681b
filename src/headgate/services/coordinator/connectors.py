"""Connectors over HTTP: created, looked at, paused, skipped, reset and deleted.

Invariant: what an answer says is durable. Nothing here talks to an origin: whether one can be read
is looked at by an ingest node, before (`/v1/connectors/check` of a gateway).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from headgate.decide.connectors import rules as connector_rules
from headgate.decide.connectors.unknown_connector import unknown_connector
from headgate.decide.coordination.connectors import connecting
from headgate.decide.coordination.views.connector_status import (
    describe_connector,
    describe_connectors,
)
from headgate.model import connectors_api as api
from headgate.model.connector import BEGIN_NOW
from headgate.model.http import Request, Response, Route, json_response
from headgate.ports.machine import Machine
from headgate.services.coordinator.term import Term
from headgate.telemetry import LogLine

log = structlog.get_logger()

TO_SNAPSHOT = "snapshot"
"""Where a reset leads that reads everything anew."""
MAX_BODY_BYTES = 512 * 1024
"""Routes and settings, each as large as one may be, and the rest."""


class ConnectorRoutes:
    """`term` is the present leadership; it raises NotNow where another coordinator leads."""

    def __init__(self, term: Callable[[], Term], machine: Machine) -> None:
        self._term = term
        self._wall_ms = machine.wall_ms

    def table(self) -> list[Route]:
        one = "/v1/connectors/{name}"
        return [
            Route("GET", "/v1/connectors", self._list),
            Route("POST", "/v1/connectors", self._create),
            Route("GET", one, self._describe),
            Route("DELETE", one, self._delete),
            Route("POST", f"{one}/pause", self._pause),
            Route("POST", f"{one}/resume", self._resume),
            Route("POST", f"{one}/skip", self._skip),
            Route("POST", f"{one}/reset", self._reset),
            Route("POST", f"{one}/snapshot", self._snapshot),
            Route("DELETE", f"{one}/snapshot", self._cancel),
        ]

    async def _list(self, _request: Request) -> Response:
        term = self._term()
        found = describe_connectors(term.cluster, now_ms=term.now_ms())
        return json_response(api.ConnectorList(found))

    async def _describe(self, request: Request) -> Response:
        return self._shown(self._term(), request.params["name"])

    async def _create(self, request: Request) -> Response:
        term = self._term()
        body = msgspec.json.decode(await request.body(MAX_BODY_BYTES), type=api.CreateConnector)
        connector = connector_rules.made(body, wall_ms=self._wall_ms())
        await self._wish(term, connecting.Create(connector, body.snapshot))
        log.info(LogLine.CONNECTOR_CREATED, connector=body.name, topics=list(connector.topics))
        return self._shown(term, body.name, 201)

    async def _pause(self, request: Request) -> Response:
        return await self._set_paused(request, paused=True)

    async def _resume(self, request: Request) -> Response:
        return await self._set_paused(request, paused=False)

    async def _set_paused(self, request: Request, *, paused: bool) -> Response:
        term, name = self._term(), request.params["name"]
        await self._wish(term, connecting.Pause(name, paused))
        log.info(LogLine.CONNECTOR_PAUSED, connector=name, paused=paused)
        return self._shown(term, name)

    async def _skip(self, request: Request) -> Response:
        term, name = self._term(), request.params["name"]
        raw = await request.body(MAX_BODY_BYTES) or b"{}"
        body = msgspec.json.decode(raw, type=api.SkipChange)
        await self._wish(term, connecting.Skip(name, self._wall_ms(), body.position))
        skip = term.cluster.connectors[name].skip if name in term.cluster.connectors else ""
        log.warning(LogLine.CHANGE_SKIPPED, connector=name, position=skip)
        return self._shown(term, name)

    async def _reset(self, request: Request) -> Response:
        term, name = self._term(), request.params["name"]
        body = msgspec.json.decode(await request.body(MAX_BODY_BYTES), type=api.ResetConnector)
        snapshot = body.to == TO_SNAPSHOT
        wanted = BEGIN_NOW if snapshot else body.to
        begin_at = connector_rules.begin_at(wanted, wall_ms=self._wall_ms())
        await self._wish(term, connecting.Reset(name, begin_at, snapshot))
        log.warning(LogLine.CONNECTOR_RESET, connector=name, begin_at=begin_at)
        return self._shown(term, name)

    async def _snapshot(self, request: Request) -> Response:
        term, name = self._term(), request.params["name"]
        raw = await request.body(MAX_BODY_BYTES) or b"{}"
        body = msgspec.json.decode(raw, type=api.SnapshotConnector)
        collections = tuple(dict.fromkeys(body.collections))
        await self._wish(term, connecting.TakeSnapshot(name, collections))
        log.info(LogLine.SNAPSHOT_WANTED, connector=name, collections=list(collections))
        return self._shown(term, name)

    async def _cancel(self, request: Request) -> Response:
        term, name = self._term(), request.params["name"]
        await self._wish(term, connecting.CancelSnapshots(name))
        log.info(LogLine.SNAPSHOTS_CANCELLED, connector=name)
        return self._shown(term, name)

    async def _delete(self, request: Request) -> Response:
        term, name = self._term(), request.params["name"]
        await self._wish(term, connecting.Delete(name))
        log.info(LogLine.CONNECTOR_DELETED, connector=name)
        return Response(204)

    async def _wish(self, term: Term, wish: connecting.Wish) -> None:
        await term.apply(lambda _: term.cluster.operate_connector(wish))

    def _shown(self, term: Term, name: str, status: int = 200) -> Response:
        if name not in term.cluster.connectors:
            raise unknown_connector(name, term.cluster.connectors)
        return json_response(describe_connector(term.cluster, name, now_ms=term.now_ms()), status)
