"""Letters for whoever may see some of them: what a grant excludes isn't there, is neither shown nor
counted nor changed, and who may change letters isn't shown what is in them for that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headgate.adapters.memory.http import receive_of
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.answering import HttpApp
from headgate.model.delivery import Delivery
from headgate.model.event import Fence
from headgate.model.http import Headers, Request, Response
from headgate.model.letters import NewLetter
from headgate.services.coordinator.letters import LetterRoutes
from tests.services.gateway.access import bearer, knowing, token

BY_TENANT = "on flights where tenant == claims.tenant"
TOKENS = (
    token("mine", f"read:letters {BY_TENANT}", f"write:letters {BY_TENANT}", tenant="mine"),
    token("reads-mine", f"read:letters {BY_TENANT}", "write:letters", tenant="mine"),
    token("claimless", f"read:letters {BY_TENANT}", f"write:letters {BY_TENANT}"),
    token("elsewhere", "read:letters on other", "write:letters on other"),
    token("writes", "write:letters"),
    token("all", "read:letters", "write:letters"),
    token("shop", "read:letters on flights where _collection == 'shop' && tenant == 'mine'"),
    token("but", "read:letters", "deny read:letters where tenant == 'theirs'"),
)
BASE = "/v1/dead-letters"
MINE, THEIRS, OTHERS = 1, 2, 3
"""The ids of the letters: of my tenant, of another one, and of another topic."""


class Api:
    def __init__(self) -> None:
        self.store = MemoryLetterStore()
        self._machine = ScriptedMachine()

    async def begin(self) -> None:
        for seq, (topic, tenant) in enumerate(
            [("flights", "mine"), ("flights", "theirs"), ("other", "theirs")], start=1
        ):
            document = msgspec.Raw(msgspec.json.encode({"tenant": tenant, "said": "s3cret"}))
            headers = msgspec.Raw(b'{"h": "s3cret"}')
            event = Delivery(
                topic, 0, seq, f"e{seq}", tenant, "", "insert", document, ("s1",), 1,
                headers=headers,
            )  # fmt: skip
            one = NewLetter("g1", "dead", "rejected", event, error="no")
            await self.store.put([one], {one.fenced_by: Fence(1)}, now_ms=1)

    async def ask(self, who: str, method: str, path: str, body: object = None) -> Response:
        async def revived(_refs: object) -> None:
            """No lane is there to be told."""

        routes = LetterRoutes(
            self.store,
            check_leads=lambda: None,
            on_revived=revived,
            is_target=lambda _: False,
            machine=self._machine,
        )
        app = HttpApp(routes.table(), gate=knowing(self._machine, *TOKENS))
        content = b"" if body is None else msgspec.json.encode(body)
        path, _, query = path.partition("?")
        request = Request.to(method, path, query, receive_of(content), Headers(bearer(who).items()))
        answer = await app.answer(request)
        assert isinstance(answer, Response)
        return answer

    async def json(self, who: str, method: str, path: str, body: object = None) -> Any:
        answer = await self.ask(who, method, path, body)
        assert answer.status == 200, answer.body
        return msgspec.json.decode(answer.body)


@pytest.fixture
async def api() -> Api:
    made = Api()
    await made.begin()
    return made


SEEN = {
    "mine": {MINE},
    "reads-mine": {MINE},
    "claimless": set(),
    "elsewhere": {OTHERS},
    "all": {MINE, THEIRS, OTHERS},
    "but": {MINE},
}


@pytest.mark.parametrize("who", SEEN)
async def test_whoever_reads_letters_sees_those_of_their_grant(api: Api, who: str) -> None:
    listed = await api.json(who, "GET", f"{BASE}?documents=true")
    assert {one["id"] for one in listed["letters"]} == SEEN[who]
    for wanted in (MINE, THEIRS, OTHERS):
        answer = await api.ask(who, "GET", f"{BASE}/{wanted}")
        if wanted in SEEN[who]:
            assert (answer.status, b"s3cret" in answer.body) == (200, True)
            continue
        never = (await api.ask(who, "GET", f"{BASE}/99")).body.replace(b"99", b"N")
        assert (answer.status, answer.body.replace(b"%d" % wanted, b"N")) == (404, never)


@pytest.mark.parametrize(("who", "seen"), [("mine", set()), ("all", {MINE, THEIRS, OTHERS})])
async def test_of_a_damaged_letter_no_filter_can_tell_whether_it_may_be_seen(
    api: Api, who: str, seen: set[int]
) -> None:
    damaged = msgspec.structs.replace(api.store.stored.letters[MINE], damage="a bit has flipped")
    api.store.stored.letters[MINE] = damaged
    listed = await api.json(who, "GET", BASE)
    assert {one["id"] for one in listed["letters"]} == seen


async def test_what_is_about_a_whole_collection_is_there_unless_the_grant_excludes_that() -> None:
    api = Api()
    for seq, collection in enumerate(("shop", "theirs"), start=1):
        event = Delivery(
            "flights", 0, seq, f"e{seq}", None, collection, "drop", msgspec.Raw(b"null"), ("s1",), 1
        )
        one = NewLetter("g1", "dead", "rejected", event)
        await api.store.put([one], {one.fenced_by: Fence(1)}, now_ms=1)
    listed = await api.json("shop", "GET", BASE)
    assert [one["id"] for one in listed["letters"]] == [1]


CHANGED = {"mine": {MINE}, "claimless": set(), "elsewhere": {OTHERS}, "writes": {1, 2, 3}}


@pytest.mark.parametrize("who", CHANGED)
@pytest.mark.parametrize("what", ["retry", "delete"])
async def test_whoever_changes_letters_changes_those_of_their_grant(
    api: Api, who: str, what: str
) -> None:
    counted = await api.json(who, "POST", f"{BASE}/{what}", {"filter": {}, "dry_run": True})
    assert counted["count"] == len(CHANGED[who])
    changed = await api.json(who, "POST", f"{BASE}/{what}", {"filter": {}})
    assert changed["count"] == len(CHANGED[who])
    untouched = {one.id for one in api.store.stored.letters.values() if one.state == "dead"}
    assert untouched == {MINE, THEIRS, OTHERS} - CHANGED[who]


@pytest.mark.parametrize("who", CHANGED)
@pytest.mark.parametrize("what", ["retry", "delete"])
@pytest.mark.parametrize("wanted", [MINE, THEIRS, OTHERS])
async def test_what_is_excluded_is_in_no_sum_nor_place(
    api: Api, who: str, what: str, wanted: int
) -> None:
    """Whoever may change some letters asks for others by what they guess of them."""
    event = api.store.stored.letters[wanted].delivery
    chosen = {"topic": event.topic, "key": event.key}
    asked = {"filter": chosen, "limit": 1}
    answer = await api.json(who, "POST", f"{BASE}/{what}", asked)
    is_theirs = wanted in CHANGED[who]
    seen = {"count": 1, "last_id": wanted, "more": True, "dry_run": False}
    nothing = {"count": 0, "last_id": 0, "more": False, "dry_run": False}
    assert answer == (seen if is_theirs else nothing)


@pytest.mark.parametrize("who", CHANGED)
@pytest.mark.parametrize(("method", "path"), [("POST", "/retry"), ("DELETE", "")])
async def test_a_letter_that_is_excluded_is_not_there_to_be_changed(
    api: Api, who: str, method: str, path: str
) -> None:
    for wanted in (MINE, THEIRS, OTHERS):
        status = (await api.ask(who, method, f"{BASE}/{wanted}{path}")).status
        assert (status < 300) == (wanted in CHANGED[who])
        assert (status == 404) == (wanted not in CHANGED[who])


@pytest.mark.parametrize(
    ("who", "shown"), [("writes", set()), ("reads-mine", {MINE}), ("all", {1, 2, 3})]
)
async def test_sending_a_letter_again_shows_its_event_to_whom_reading_would(
    api: Api, who: str, shown: set[int]
) -> None:
    for wanted in (MINE, THEIRS, OTHERS):
        answer = await api.json(who, "POST", f"{BASE}/{wanted}/retry")
        assert (answer["id"], answer["state"]) == (wanted, "parked")
        assert ("s3cret" in str(answer)) == (wanted in shown)
