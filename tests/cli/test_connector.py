"""`headgate connector` against a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from headgate import errors
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.cli.connector_wishes import from_file
from headgate.model.connectors_api import (
    ConnectorInfo,
    ConnectorList,
    CreateConnector,
    DeletedConnector,
    FedTopic,
    OriginChecked,
    OriginFinding,
    OriginSettings,
    ResetConnector,
    RouteInfo,
    SkipChange,
    SkippedInfo,
    SnapshotConnector,
    SnapshotInfo,
)
from headgate.model.http import Request, Response, Route, json_response
from tests.cli.command import headgate
from tests.cli.operated import OperatedServer, status

URI = "mongodb://reader:${PASSWORD}@db-1"
RUNNING = ConnectorInfo(
    name="orders",
    type="mongodb",
    state="running",
    since_ms=90_000,
    node="ingest-1",
    epoch=2,
    topics=[FedTopic("changes", ["o*", "*"], True), FedTopic("gone", ["g*"], False)],
    routes=[RouteInfo("changes", "o*")],
    settings={"uri": URI, "database": "shop"},
    begin_at="now",
    begun=True,
    position="8265A1",
    taken=1_234,
    left_out=5,
    lag_ms=2_500,
    lag_records=17,
    history_ms=1_800_000,
    warning="the origin keeps only 30 min of history; let it keep more",
    skipped=[SkippedInfo("8264", "a document of 20 MB", 1_795_000_000_000)],
)
WELL = OriginChecked(True, [OriginFinding("replica set", "ok")])
ILL = OriginChecked(
    False, [OriginFinding("rights", "failed", "grant find on shop to reader"), *WELL.findings]
)


class Server:
    """Answers with what is scripted, and remembers what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.connectors = {"orders": RUNNING}
        self.checked = WELL
        self.left = ""
        self.snapshots: list[ConnectorInfo] = []
        """What is answered to who wants one."""
        self.looked_at: list[ConnectorInfo] = []
        """How it is, look by look."""
        self.calls: list[tuple[str, object]] = []

    def routes(self) -> list[Route]:
        one = "/v1/connectors/{name}"
        return [
            Route("GET", "/v1/connectors", self._list),
            Route("POST", "/v1/connectors", self._create),
            Route("POST", "/v1/connectors/check", self._check),
            Route("GET", one, self._describe),
            Route("DELETE", one, self._delete),
            *(
                Route("POST", f"{one}/{a}", self._act)
                for a in ("pause", "resume", "skip", "reset", "snapshot")
            ),
            Route("DELETE", f"{one}/snapshot", self._cancel),
        ]

    async def _list(self, _request: Request) -> Response:
        return json_response(ConnectorList(list(self.connectors.values())))

    async def _create(self, request: Request) -> Response:
        body = await request.decode(CreateConnector, 10_000)
        if not self.checked.ok and request.query.get("check") != "false":
            findings = msgspec.to_builtins(self.checked.findings)
            raise errors.InvalidRequest("nothing was created", findings=findings)
        self.calls.append(("create", body))
        made = msgspec.structs.replace(RUNNING, name=body.name, state="starting")
        return json_response(made, 201)

    async def _check(self, request: Request) -> Response:
        self.calls.append(("check", await request.decode(OriginSettings, 10_000)))
        return json_response(self.checked)

    def _found(self, request: Request) -> ConnectorInfo:
        name = request.params["name"]
        if self.looked_at:
            self.connectors["orders"] = self.looked_at.pop(0)
        if name not in self.connectors:
            raise errors.NotFound(f"there is no connector {name}")
        return self.connectors[name]

    async def _describe(self, request: Request) -> Response:
        return json_response(self._found(request))

    async def _act(self, request: Request) -> Response:
        found, action = self._found(request), request.path.rpartition("/")[2]
        body: object = None
        if action == "skip":
            body = await request.decode(SkipChange, 10_000)
        elif action == "reset":
            body = await request.decode(ResetConnector, 10_000)
        elif action == "snapshot":
            body = await request.decode(SnapshotConnector, 10_000)
            found = self.snapshots.pop(0)
            self.connectors["orders"] = found
        self.calls.append((action, body))
        return json_response(found)

    async def _cancel(self, request: Request) -> Response:
        self.calls.append(("cancel", self._found(request).name))
        return json_response(RUNNING)

    async def _delete(self, request: Request) -> Response:
        del self.connectors[self._found(request).name]
        return json_response(DeletedConnector("orders", self.left)) if self.left else Response(204)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server, http = Server(), HttpServer()
    port = await http.start(HttpApp(server.routes()), "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await http.stop(1.0)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as running:
        yield running


OPTIONS = (
    "orders", "--type", "mongodb", "--uri", URI, "--database", "shop", "--collection", "o",
    "--topic", "changes", "--route", "o_*=orders", "--set", "full_documents=lookup",
    "--from", "2026-11-01T00:00:00Z",
)  # fmt: skip


async def test_options_become_a_connector(server: Server) -> None:
    result = await headgate("connector", "create", *OPTIONS, url=server.url)
    assert (result.code, result.out, result.err) == (
        0,
        "created orders: mongodb into changes, gone, starting\n",
        "",
    )
    settings = {"uri": URI, "database": "shop", "collection": "o", "full_documents": "lookup"}
    routes = [RouteInfo("orders", "o_*"), RouteInfo("changes", "*")]
    wanted = CreateConnector("orders", "mongodb", settings, routes, "2026-11-01T00:00:00Z")
    assert server.calls == [("create", wanted)]


async def test_a_failed_check_shows_what_to_do_and_creates_nothing(server: Server) -> None:
    server.checked = ILL
    result = await headgate("connector", "create", *OPTIONS, url=server.url)
    assert result.code == 2
    rows = [line.split() for line in result.err.splitlines()]
    assert ["rights", "failed", "grant", "find", "on", "shop", "to", "reader"] in rows
    assert result.err.endswith("headgate: nothing was created\n")
    assert server.calls == []
    again = await headgate("connector", "create", *OPTIONS, "--no-check", url=server.url)
    assert again.code == 0


async def test_a_check_creates_nothing_and_its_code_says_how_it_went(server: Server) -> None:
    well = await headgate("connector", "check", "--uri", URI, url=server.url)
    assert (well.code, well.shows("replica set ok")) == (0, True)
    assert server.calls == [("check", OriginSettings("mongodb", {"uri": URI}))]
    server.checked = ILL
    ill = await headgate("connector", "check", "--uri", URI, "--json", url=server.url)
    assert (ill.code, cast("dict[str, Any]", ill.json)["ok"]) == (1, False)


FILE = f"""
connectors:
  - name: orders
    uri: {URI}
    database: shop
    settings: {{batch: 500, soft_deletes: true}}
    routes: {{"o*": changes}}
    topic: rest
  - name: users
    type: mongodb
    uri: ${{file:/etc/uri}}
    topic: users
    from: 2026-11-01T00:00:00Z
"""


async def test_a_file_names_several(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "connectors.yaml"
    path.write_text(FILE.replace("from: 2026-11-01T00:00:00Z", 'from: "2026-11-01T00:00:00Z"'))
    result = await headgate("connector", "create", "--file", str(path), "--json", url=server.url)
    assert result.code == 0
    orders, users = (cast("CreateConnector", body) for _, body in server.calls)
    assert orders.settings == {
        "uri": URI,
        "database": "shop",
        "batch": "500",
        "soft_deletes": "true",
    }
    assert orders.routes == [RouteInfo("changes", "o*"), RouteInfo("rest", "*")]
    assert (users.name, users.begin_at) == ("users", "2026-11-01T00:00:00Z")
    checked = await headgate("connector", "check", "--file", str(path), url=server.url)
    assert (checked.code, checked.out.count("replica set")) == (0, 2)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "names no connectors"),
        ("[]", "names no connectors"),
        ("name: a\nuri: u", "connector a leads nowhere"),
        ("name: a\nuri: u\ntopics: x", "unknown field `topics`"),
        ("uri: u\ntopic: x", "missing required field `name`"),
        ("3", "a connector in"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "connectors.yaml"
    path.write_text(content)
    with pytest.raises(errors.InvalidRequest, match=sentence):
        from_file(path)


def test_a_time_needs_no_quotes_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "connectors.yaml"
    path.write_text(FILE)
    assert [one.begin_at for one in from_file(path)] == ["now", "2026-11-01T00:00:00+00:00"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create"], "name the connector, or say --file"),
        (["create", "a", "--topic", "t"], "say where the database is: --uri"),
        (["create", "a", "--uri", "u"], "say which topic gets the changes"),
        (["create", "a", "--uri", "u", "--route", "x"], "has not the form PATTERN=TOPIC"),
        (["create", "a", "--uri", "u", "--topic", "t", "--set", "x"], "has not the form KEY=VALUE"),
        (["create", "a", "--file", "x.yaml"], "the file says it all"),
        (["create", "--file", "/nowhere/x.yaml"], "/nowhere/x.yaml"),
        (["describe", "a/b"], "'a/b' can't be a connector"),
        (["describe", "nope"], "there is no connector nope"),
        (["delete", "orders"], "add --yes"),
        (["reset", "orders", "--to", "now"], "add --yes"),
    ],
)
async def test_a_mistake_is_one_sentence_and_code_2(
    server: Server, arguments: list[str], sentence: str
) -> None:
    result = await headgate("connector", *arguments, url=server.url)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert server.calls == []


async def test_it_is_described_in_full(server: Server) -> None:
    result = await headgate("connector", "describe", "orders", url=server.url)
    assert result.out == (
        "orders: mongodb, running for 1.5 min on ingest-1\n"
        "database: shop\n"
        "uri: mongodb://reader:${PASSWORD}@db-1\n"
        "begins at: now\n"
        "position: 8265A1\n"
        "lag: 17 records, 2.5 s behind\n"
        "history left at the origin: 30 min\n"
        "  the origin keeps only 30 min of history; let it keep more\n"
        "taken: 1,234, left out: 5 (since its reader began)\n"
        "o*, * -> changes\n"
        "g* -> gone (there is no such topic)\n"
        "skipped a document of 20 MB at 8264 (2026-11-18 11:06:40Z)\n"
    )
    as_json = await headgate("connector", "describe", "orders", "--json", url=server.url)
    assert msgspec.convert(as_json.json, ConnectorInfo) == RUNNING


async def test_all_are_listed(server: Server) -> None:
    result = await headgate("connector", "list", url=server.url)
    assert result.shows("orders running ingest-1 changes, gone 17 2.5 s 30 min 1,234 mongodb")
    server.connectors.clear()
    empty = await headgate("connector", "list", url=server.url)
    assert (empty.out, "headgate connector create" in empty.err) == ("", True)


async def test_it_is_paused_resumed_reset_and_deleted(server: Server) -> None:
    for action, said in (("pause", "orders is paused\n"), ("resume", "orders goes on\n")):
        result = await headgate("connector", action, "orders", url=server.url)
        assert (result.code, result.out) == (0, said)
    reset = await headgate("connector", "reset", "orders", "--to", "now", "-y", url=server.url)
    assert (reset.code, reset.out) == (0, "orders begins anew at now\n")
    assert "stands at 8265A1" in reset.err
    assert server.calls == [("pause", None), ("resume", None), ("reset", ResetConnector("now"))]
    deleted = await headgate("connector", "delete", "orders", "--yes", "--json", url=server.url)
    assert deleted.json == {"deleted": "orders"}
    assert server.connectors == {}


async def test_what_is_left_at_the_database_is_said(server: Server) -> None:
    server.left = "the slot headgate_orders is still there"
    deleted = await headgate("connector", "delete", "orders", "--yes", url=server.url)
    assert (deleted.code, deleted.out) == (0, "deleted orders\n")
    assert server.left in deleted.err


async def test_postgresql_has_a_dsn_and_tables(server: Server) -> None:
    dsn = "postgresql://reader:${PG}@db-1/shop"
    made = await headgate(
        *("connector", "create", "orders", "--type", "postgresql", "--dsn", dsn),
        *("--table", "public.orders", "--table", "audit.*", "--topic", "changes"),
        url=server.url,
    )
    assert made.code == 0
    settings = {"dsn": dsn, "tables": "public.orders,audit.*"}
    wanted = CreateConnector("orders", "postgresql", settings, [RouteInfo("changes", "*")], "now")
    assert server.calls == [("create", wanted)]
    refused = await headgate(
        "connector", "create", "o", "--type", "postgresql", "--topic", "t", url=server.url
    )
    assert "--dsn DSN" in refused.err


async def test_only_the_change_that_was_seen_is_skipped(server: Server) -> None:
    stopped = msgspec.structs.replace(
        RUNNING, state="stopped", stopped_at="p7", stopped_what="a document of 20 MB"
    )
    server.connectors["orders"] = stopped
    refused = await headgate("connector", "skip", "orders", url=server.url)
    assert (refused.code, refused.err.endswith("add --yes\n")) == (2, True)
    result = await headgate("connector", "skip", "orders", "--yes", url=server.url)
    assert (result.code, result.out) == (0, "orders leaves it out\n")
    assert "orders has stopped at a document of 20 MB (p7)" in result.err
    assert server.calls == [("skip", SkipChange("p7"))]


@pytest.mark.parametrize("state", ["running", "stopped"])
async def test_where_no_change_was_seen_none_is_skipped(server: Server, state: Any) -> None:
    """It may have stopped at one by now, which nobody has looked at."""
    server.connectors["orders"] = msgspec.structs.replace(RUNNING, state=state)
    result = await headgate("connector", "skip", "orders", "--yes", url=server.url)
    assert result.code == 2
    assert "hasn't stopped at a change" in result.err
    assert server.calls == []


async def test_status_has_a_line_for_what_is_not_well(operated: OperatedServer) -> None:
    lost = msgspec.structs.replace(
        RUNNING, name="users", state="history-lost", reason="it is gone; reset it", warning=""
    )
    well = msgspec.structs.replace(RUNNING, name="visits", warning="")
    operated.now = status(connectors=[RUNNING, lost, well])
    result = await headgate("status", url=operated.url)
    lines = result.out.splitlines()
    assert "connector users is history-lost: it is gone; reset it" in lines
    assert "connector orders: the origin keeps only 30 min of history; let it keep more" in lines
    assert not any(line.startswith("connector visits") for line in lines)
    assert result.shows("visits running ingest-1 changes, gone 17 2.5 s 30 min 1,234 mongodb")


def taking(**fields: Any) -> ConnectorInfo:
    return msgspec.structs.replace(RUNNING, snapshots=[SnapshotInfo(id=3, **fields)])


async def test_a_snapshot_is_followed_until_it_is_over(server: Server) -> None:
    waiting = taking(collections=["items", "orders"])
    server.snapshots = [waiting]
    server.looked_at = [
        waiting,
        taking(collections=["items", "orders"], state="reading", collection="items", rows=10),
        taking(collections=["items", "orders"], state="failing", reason="no: do that", rows=20),
        RUNNING,
    ]
    wanted = ("--table", "items", "--collection", "orders")
    result = await headgate("connector", "snapshot", "orders", *wanted, url=server.url)
    assert (result.code, server.calls) == (
        0,
        [("snapshot", SnapshotConnector(["items", "orders"]))],
    )
    assert result.out == "orders: the snapshot is over, 20 rows were seen to be handed in\n"
    assert "orders: items" in result.err
    assert "no: do that; it is tried again" in result.err


async def test_a_snapshot_that_is_over_at_once_is_not_said_to_have_had_no_rows(
    server: Server,
) -> None:
    server.snapshots = [taking()]
    server.looked_at = [taking(), RUNNING]
    result = await headgate("connector", "snapshot", "orders", url=server.url)
    assert result.out == "orders: the snapshot is over\n"


async def test_a_snapshot_is_asked_for_and_left_alone_or_ended(server: Server) -> None:
    server.snapshots = [taking()]
    asked = await headgate("connector", "snapshot", "orders", "--no-wait", url=server.url)
    assert (asked.code, asked.out) == (0, "orders reads what is there\n")
    ended = await headgate("connector", "snapshot", "orders", "--cancel", url=server.url)
    assert (ended.code, ended.out) == (0, "orders reads changes alone\n")
    assert [what for what, _ in server.calls] == ["snapshot", "cancel"]
    both = ("--cancel", "--table", "public.t")
    mistaken = await headgate("connector", "snapshot", "orders", *both, url=server.url)
    assert (mistaken.code, "leave the others out" in mistaken.err) == (2, True)


async def test_what_a_snapshot_does_is_described(server: Server) -> None:
    server.connectors["orders"] = taking(
        state="reading", collection="items", through=1, of=3, rows=1_500, expected=9_000
    )
    result = await headgate("connector", "describe", "orders", url=server.url)
    assert (
        "snapshot of everything: 1,500 of about 9,000 rows, in items (1 of 3 done)\n" in result.out
    )
