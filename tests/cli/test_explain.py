"""`headgate explain`: what it asks, and how it shows the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.errors import NotFound
from headgate.model.browse_api import BrowsedRecord
from headgate.model.evidence import Attempt
from headgate.model.explain_api import (
    DryRun,
    ExplainedCondition,
    ExplainedEvidence,
    ExplainedGroup,
    ExplainedPlace,
    ExplainedSubscription,
    Explanation,
    FieldValue,
)
from headgate.model.http import Request, Response, Route, json_response
from tests.cli.command import Ended, headgate

RECORD = BrowsedRecord(
    3, 512, 1, "report-1", "update", 1_790_000_000_000, 16, msgspec.Raw(b'{"altitude":9000}'), "a"
)
ONE = ExplainedSubscription(
    "s-1",
    "not_matched",
    "its filter is false: altitude < 3000 (altitude is 9000)",
    "no match",
    "gateway-1",
    "altitude < 3000",
    conditions=[
        ExplainedCondition("altitude < 3000", "no match", [FieldValue("altitude", "9000")])
    ],
    route="gateway-1: its subscriber is connected there",
)
OTHER = ExplainedSubscription("s-2", "delivered", "gateway-1 took it", "match", "gateway-1")
ANSWER = Explanation(
    "settled",
    "flights:3:512 is settled: gateway-1 took it",
    "flights",
    3,
    512,
    "acknowledged",
    RECORD,
    "ingest-1",
    "router-1",
    520,
    515,
    subscriptions=[ONE, OTHER],
    groups=[ExplainedGroup("radar", "processed", "target 4 has processed it", 4)],
    attempts=[Attempt(1_790_000_000_001, "gateway-1", "accepted", ("s-2",))],
    examined=7,
    more=True,
    elsewhere=[ExplainedPlace("flights", 1, 9)],
    evidence=ExplainedEvidence(1, 4, ["gateway-2, which is cut off"], ["some said nothing"]),
)


@dataclass
class Explainer:
    """Gives one answer, and remembers what it was asked."""

    answer: Explanation = ANSWER
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    bodies: list[DryRun] = field(default_factory=list)

    async def explain(self, request: Request) -> Response:
        self.asked.append(request.query)
        if request.query["record"] == "nobody":
            raise NotFound("the log doesn't know the event id 'nobody' any more")
        return json_response(self.answer)

    async def dry_run(self, request: Request) -> Response:
        self.bodies.append(await request.decode(DryRun, 1_000_000))
        return json_response(self.answer)

    async def run(self, *arguments: str, given: bytes = b"") -> Ended:
        return await headgate("explain", *arguments, url=self.url, given=given)


@pytest.fixture
async def explainer() -> AsyncIterator[Explainer]:
    served, http = Explainer(), HttpServer()
    routes = [
        Route("GET", "/v1/explain", served.explain),
        Route("POST", "/v1/explain", served.dry_run),
    ]
    port = await http.start(HttpApp(routes), "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{port}"
    try:
        yield served
    finally:
        await http.stop(0.2)


async def test_it_shows_what_became_of_the_record_and_who_got_it(explainer: Explainer) -> None:
    result = await explainer.run("report-1")
    assert (result.code, result.err) == (0, "")
    assert explainer.asked == [{"record": "report-1", "limit": "20"}]
    assert result.out.startswith("flights:3:512 is settled: gateway-1 took it\n")
    assert result.shows("log ingest-1 router router-1 settled 515 of 520")
    assert result.shows("s-2 gateway-1 delivered gateway-1 took it")
    assert result.shows("2 of 7 that were asked are shown: add --matching, or --limit")
    assert result.shows("radar 4 processed target 4 has processed it")
    assert "gateway-1  accepted" in result.out
    assert result.shows("also at flights:1:9")
    assert result.shows("note: no answer: gateway-2, which is cut off")


async def test_one_subscription_is_shown_condition_by_condition(explainer: Explainer) -> None:
    explainer.answer = msgspec.structs.replace(ANSWER, subscriptions=[ONE])
    result = await explainer.run("flights:3:512", "--subscription", "s-1", "--matching")
    assert explainer.asked[0]["subscription"] == "s-1"
    assert explainer.asked[0]["show"] == "matching"
    assert result.shows("altitude < 3000 no altitude 9000")
    assert result.shows("route gateway-1: its subscriber is connected there")


async def test_it_prints_json(explainer: Explainer) -> None:
    result = await explainer.run("flights:3:512", "--json", "--where", "a == 1")
    assert explainer.asked[0]["where"] == "a == 1"
    assert msgspec.json.decode(result.out, type=Explanation).subscriptions == [ONE, OTHER]


async def test_a_document_is_asked_about_without_producing_it(
    explainer: Explainer, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(b'{"altitude": 1}')
    await explainer.run("--document", str(file), "--topic", "flights", "--key", "a")
    await explainer.run("--document", "-", "--topic", "flights", given=b'{"altitude": 2}')
    assert [(b.topic, bytes(b.document), b.key) for b in explainer.bodies] == [
        ("flights", b'{"altitude": 1}', "a"),
        ("flights", b'{"altitude": 2}', None),
    ]


async def test_what_others_wrote_moves_no_cursor(explainer: Explainer) -> None:
    evil = msgspec.structs.replace(OTHER, id="s", where='a == "\x1b[2J"', why="\x1b[2J")
    explainer.answer = msgspec.structs.replace(ANSWER, subscriptions=[evil], why="\x1b[2Jwhy")
    result = await explainer.run("report-1")
    assert "\x1b" not in result.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "which record? name TOPIC:PARTITION:SEQ or an event id"),
        (("e", "--document", "-"), "name a record, or give a --document: not both"),
        (("--document", "-"), "for which topic is the document? add --topic NAME"),
        (("--document", "-", "--topic", "t"), "standard input is not a JSON document"),
        (("--document", "/nowhere", "--topic", "t"), "/nowhere can't be read"),
        (("e", "--key", "a"), "--key and --collection are those of a --document"),
    ],
)
async def test_a_mistake_is_one_sentence(
    explainer: Explainer, arguments: tuple[str, ...], says: str
) -> None:
    result = await explainer.run(*arguments, given=b"{")
    assert result.code == 2
    assert result.err.startswith(f"headgate: {says}")
    assert len(result.err.splitlines()) == 1


async def test_an_unknown_event_is_one_sentence(explainer: Explainer) -> None:
    result = await explainer.run("nobody")
    assert result.code != 0
    assert result.err == "headgate: the log doesn't know the event id 'nobody' any more\n"
