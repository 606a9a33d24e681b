"""The audit trail on the disk, and what of a request comes into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headgate.adapters.audit_file import REFUSALS_PER_S, AuditFile
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.answering import HttpApp
from headgate.decide.links.passes import ClusterTokens
from headgate.decide.operations.auditing import TEXT_CHARS, cleaned
from headgate.errors import Forbidden, Unauthorized, UnknownTopic
from headgate.model.audit import AuditLine
from headgate.model.http import Headers, Request, Response, Route
from headgate.telemetry import LogLine

SECRET = "planted-secret-token"


def trail(path: Path, *, max_bytes: int = 1 << 20, keep: int = 2) -> AuditFile:
    return AuditFile(
        path,
        machine=ScriptedMachine(),
        max_bytes=max_bytes,
        keep=keep,
        role="gateway",
        node_id="gateway-1",
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def line(outcome: Any = "done", **said: Any) -> AuditLine:
    return AuditLine(**{"who": "ops", "what": "DELETE /v1/topics/{name}", **said}, outcome=outcome)


class Noted:
    def __init__(self) -> None:
        self.lines: list[AuditLine] = []

    def note(self, line: AuditLine) -> None:
        self.lines.append(line)


def request(method: str, path: str, headers: Mapping[str, str] | None = None) -> Request:
    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    sent = Headers((headers or {"authorization": f"Bearer {SECRET}"}).items())
    return Request(method, path, receive, path, headers=sent, peer="10.0.0.7")


def test_a_line_says_who_what_where_from_and_what_came_of_it(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "gateway-1.jsonl"
    trail(path).note(line(on={"name": "flights"}, from_="10.0.0.7", status=204))
    [said] = lines(path)
    assert said.pop("time").startswith("20")
    assert said == {
        "role": "gateway",
        "node": "gateway-1",
        "who": "ops",
        "what": "DELETE /v1/topics/{name}",
        "outcome": "done",
        "on": {"name": "flights"},
        "from": "10.0.0.7",
        "status": 204,
    }
    assert path.stat().st_mode & 0o077 == 0, "for its owner alone"


def test_a_large_file_is_begun_anew_and_so_many_former_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    kept = trail(path, max_bytes=400, keep=2)
    for number in range(20):
        kept.note(line(on={"name": str(number)}))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.1", "a.jsonl.2"]
    assert all(file.stat().st_size <= 400 for file in tmp_path.iterdir())
    assert lines(path)[-1]["on"] == {"name": "19"}


def test_a_flood_of_refusals_is_counted_and_no_act_is_left_out(tmp_path: Path) -> None:
    path, machine = tmp_path / "a.jsonl", ScriptedMachine()
    kept = AuditFile(path, machine=machine, max_bytes=1 << 20, keep=1, role="r", node_id="n")
    for _ in range(REFUSALS_PER_S + 50):
        kept.note(line("refused"))
    kept.note(line("done"))
    assert len(lines(path)) == REFUSALS_PER_S + 1
    assert lines(path)[-1]["outcome"] == "done"


def test_a_trail_that_cant_be_written_is_said_once_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = trail(tmp_path / "file" / "a.jsonl")
    with capture_logs() as said:
        for _ in range(3):
            kept.note(line())
    assert [one["event"] for one in said] == [LogLine.AUDIT_FAILED]


@given(st.text())
def test_nobody_writes_a_second_line_or_to_a_terminal(text: str) -> None:
    shown = cleaned(text)
    assert len(shown) <= TEXT_CHARS
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1


async def fine(_request: Request) -> Response:
    return Response(204)


async def refuse(_request: Request) -> Response:
    raise Forbidden("shop is not granted write:topics", principal="shop")


async def unknown(_request: Request) -> Response:
    raise UnknownTopic("there is no such topic")


async def stranger(_request: Request) -> Response:
    raise Unauthorized("say who you are")


@pytest.mark.parametrize(
    ("method", "path", "handler", "noted"),
    [
        ("DELETE", "/v1/topics/{name}", fine, ("nobody", "done", 204, "")),
        ("DELETE", "/v1/topics/{name}", unknown, ("nobody", "failed", 404, "unknown_topic")),
        ("DELETE", "/v1/topics/{name}", refuse, ("shop", "refused", 403, "forbidden")),
        ("GET", "/v1/topics/{name}", refuse, ("shop", "refused", 403, "forbidden")),
        ("POST", "/v1/topics/{name}/produce", stranger, ("nobody", "refused", 401, "unauthorized")),
        ("POST", "/v1/topics/{name}/produce", fine, None),
        ("GET", "/v1/topics/{name}", fine, None),
        ("GET", "/v1/topics/{name}", unknown, None),
    ],
)
async def test_every_act_and_every_refusal_is_noted_and_nothing_else(
    method: str, path: str, handler: Any, noted: tuple[object, ...] | None
) -> None:
    audit = Noted()
    app = HttpApp([Route(method, path, handler)], audit=audit)
    await app.answer(request(method, path.format(name="a%0Ab\x1b[2J")))
    if noted is None:
        assert not audit.lines
        return
    [one] = audit.lines
    assert (one.who, one.outcome, one.status, one.code) == noted
    assert (one.what, one.from_) == (f"{method} {path}", "10.0.0.7")
    assert "\x1b" not in one.on["name"]
    assert SECRET not in str(one)


async def test_a_page_that_may_not_call_and_a_stranger_among_roles_are_noted() -> None:
    audit, keeper = Noted(), ClusterTokens(("a-token-of-this-cluster",)).keeper("ingest")
    inner = Route("POST", "/internal/v1/x", fine, callers=("gateway",))
    app = HttpApp([inner, Route("GET", "/v1/topics", fine)], keeper=keeper, audit=audit)
    await app.answer(request("GET", "/v1/topics", {"origin": "http://evil.example", "host": "x"}))
    await app.answer(request("POST", "/internal/v1/x"))
    assert [(one.code, one.status) for one in audit.lines] == [
        ("foreign_origin", 403),
        ("unauthorized", 401),
    ]
