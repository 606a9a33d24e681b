"""What somebody with grants is told: of a record that is theirs to see, and nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from headgate.decide.access.grants import all_parsed
from headgate.errors import HeadgateError, NotFound
from headgate.model.access import Principal
from headgate.model.explain_api import DryRun, Explanation
from headgate.model.http import Request
from headgate.services.gateway.public.explaining import Explaining
from tests.explaining.world import SOON_S, TOPIC, ExplainWorld, always, world
from tests.virtual_time import run_virtual

OWN = f"subscribe on {TOPIC} where tenant == claims.tenant"
READER = Principal("ann", "token", all_parsed([OWN]), claims={"tenant": "a"})
OPERATOR = Principal("op", "token", all_parsed([OWN, "read:nodes"]), claims={"tenant": "a"})
NOBODYS = Principal("eve", "token", all_parsed(["subscribe on ships"]))


async def asked(made: ExplainWorld, who: Principal, record: str, **given: str) -> Explanation:
    query = urlencode({"record": record, **given})
    request = Request("GET", "/v1/explain", nothing, query_string=query, principal=who)
    answer = await explaining(made)._explain(request)
    return msgspec.json.decode(answer.body, type=Explanation)


def explaining(made: ExplainWorld) -> Explaining:
    return made.cluster.gateways[0]._routes._explaining


async def nothing() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("never")


def in_world(scenario: Callable[[ExplainWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        async with world() as made, asyncio.timeout(600):
            await scenario(made)

    run_virtual(run())


def test_their_own_record_is_shown_and_nobody_else() -> None:
    async def scenario(made: ExplainWorld) -> None:
        await made.subscribe("secret", where="salary > 1")
        place = await made.produce(tenant="a", salary=2)
        answer = await asked(made, READER, place)
        assert answer.status == "in_log"
        assert answer.record is not None
        assert b'"tenant":"a"' in bytes(answer.record.document)
        hidden = (answer.subscriptions, answer.groups, answer.letters, answer.attempts)
        assert hidden == ([], [], [], [])
        assert (answer.examined, answer.matched, answer.owner, answer.router) == (0, 0, "", "")
        assert answer.evidence.asked == 0
        [one] = (await asked(made, READER, place, where="salary > 1")).subscriptions
        assert one.status == "matches"

    in_world(scenario)


def test_what_the_grant_excludes_is_not_there() -> None:
    async def scenario(made: ExplainWorld) -> None:
        place = await made.produce(tenant="b", id_="theirs")
        for who in (READER, OPERATOR):
            with pytest.raises(NotFound, match="there is no record"):
                await asked(made, who, place)
            with pytest.raises(NotFound) as there:
                await asked(made, who, "theirs")
            with pytest.raises(NotFound) as never:
                await asked(made, who, "xheirs")
            assert there.value.message.replace("theirs", "xheirs") == never.value.message

    in_world(scenario)


def test_an_earlier_state_that_is_excluded_is_not_shown() -> None:
    async def scenario(made: ExplainWorld) -> None:
        place = await made.written(
            "update", key="k", document=b'{"tenant":"a"}', earlier=b'{"tenant":"b","salary":2}'
        )
        for who in (READER, OPERATOR):
            answer = await asked(made, who, place)
            assert b"salary" not in msgspec.json.encode(answer)

    in_world(scenario)


def test_who_may_read_some_letters_is_told_of_those_alone() -> None:
    granted = [f"subscribe on {TOPIC}", "read:nodes"]
    only = all_parsed([*granted, f"read:letters on {TOPIC} where tenant == claims.tenant"])
    but = all_parsed([*granted, "read:letters", "deny read:letters where tenant == 'b'"])
    lacking = all_parsed([*granted, "read:letters where tenant == claims.tenant"])

    async def scenario(made: ExplainWorld) -> None:
        await made.subscribe("s")
        async with made.answering(always("rejected")):
            theirs, others = (
                await made.produce("a", tenant="a"),
                await made.produce("b", tenant="b"),
            )
            await asyncio.sleep(SOON_S)
        for grants in (only, but):
            who = Principal("reader", "token", grants, claims={"tenant": "a"})
            assert (await asked(made, who, theirs)).letters != []
            hidden = await asked(made, who, others)
            assert (hidden.status, hidden.letters) == ("settled", [])
        nobody = Principal("lacking", "token", lacking)
        assert (await asked(made, nobody, theirs)).letters == []

    in_world(scenario)


def test_who_may_read_nodes_sees_who_is_subscribed_and_no_letters() -> None:
    async def scenario(made: ExplainWorld) -> None:
        name = await made.subscribe()
        async with made.answering(always("rejected")):
            place = await made.produce(tenant="a")
        answer = await asked(made, OPERATOR, place)
        assert [one.id for one in answer.subscriptions] == [name]
        assert answer.letters == []
        assert (await made.explain(place)).letters != [], "there is one"

    in_world(scenario)


def test_of_what_nobody_can_look_at_any_more_only_those_without_a_filter_are_told() -> None:
    free = all_parsed([f"subscribe on {TOPIC}", "read:nodes", "read:letters"])

    async def scenario(made: ExplainWorld) -> None:
        await made.subscribe()
        async with made.answering(always("rejected")):
            theirs = await made.produce(tenant="b")
        await made.produce(tenant="a")
        made.lose(theirs, retained=True)
        answer = await asked(made, OPERATOR, theirs)
        assert (answer.status, answer.attempts, answer.letters) == ("gone", [], [])
        answer = await asked(made, Principal("root", "token", free), theirs)
        assert answer.letters != []

    in_world(scenario)


def test_subscriptions_are_not_told_of_whether_they_are_there_or_not() -> None:
    async def scenario(made: ExplainWorld) -> None:
        name = await made.subscribe()
        place = await made.produce(tenant="a")
        said = set()
        for one in (name, "nobody"):
            with pytest.raises(NotFound) as refused:
                await asked(made, READER, place, subscription=one)
            said.add(refused.value.message)
        assert len(said) == 1
        await made.leave("s")
        with pytest.raises(NotFound) as refused:
            await asked(made, READER, place, subscription=name)
        assert refused.value.message in said

    in_world(scenario)


def test_a_topic_that_is_not_theirs_is_not_named() -> None:
    async def scenario(made: ExplainWorld) -> None:
        place = await made.produce(tenant="a")
        with pytest.raises(HeadgateError) as refused:
            await asked(made, NOBODYS, place)
        assert refused.value.message.startswith("there is no topic flights; headgate topic list")
        with pytest.raises(NotFound):
            await asked(made, NOBODYS, "any-id")

    in_world(scenario)


def test_a_dry_run_tells_them_nobody() -> None:
    async def scenario(made: ExplainWorld) -> None:
        await made.subscribe()
        body = msgspec.json.encode(DryRun(TOPIC, msgspec.Raw(b'{"tenant":"b"}')))

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        request = Request("POST", "/v1/explain", receive, principal=READER)
        raw = (await explaining(made)._dry_run(request)).body
        answer = msgspec.json.decode(raw, type=Explanation)
        assert (answer.subscriptions, answer.examined, answer.groups) == ([], 0, [])
        await asyncio.sleep(SOON_S)

    in_world(scenario)
