"""Dead letters at the coordinator: over HTTP, in its status, and swept while it leads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.answering import HttpApp
from headgate.errors import NotNow, StorageFailed
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.http import Request, Response
from headgate.model.letters import GatewayLetters, LetterQuery, LetterReason, LetterState, NewLetter
from headgate.model.letters_api import LetterInfo, LetterList, LettersChanged
from headgate.ports.letters import Fences
from headgate.services.coordinator.letters import LetterRoutes
from headgate.services.coordinator.sweeping import CHUNK, SWEEP_EVERY_S, sweep_letters
from tests.virtual_time import run_virtual

NOW_MS = 10_000_000
HELD = {PartitionRef("flights", partition): Fence(7) for partition in range(4)}
BASE = "/v1/dead-letters"


def letter(
    seq: int,
    *,
    partition: int = 0,
    gateway: str = "g1",
    state: LetterState = "dead",
    reason: LetterReason = "rejected",
) -> NewLetter:
    document = msgspec.Raw(b'{"alt": 5}')
    event = Delivery(
        "flights", partition, seq, f"e{seq}", "4ca", "pos", "update", document, ("s1",), 7, 123
    )
    return NewLetter(gateway, state, reason, event, attempts=3, error="400: no")


class Api:
    """Calls the routes as a client would, without a socket."""

    def __init__(self, store: EmbeddedLetterStore) -> None:
        self.store = store
        self.leads = True
        self.revived: list[frozenset[PartitionRef]] = []
        self.targets: set[str] = set()
        """The names of all that consumers can own."""
        self.lane: Callable[[], Awaitable[None]] | None = None
        """What a lane does that is told."""
        routes = LetterRoutes(
            store,
            check_leads=self._check_leads,
            on_revived=self._on_revived,
            is_target=self.targets.__contains__,
            machine=ScriptedMachine(begins_ms=NOW_MS),
        )
        self.counted = routes.counted
        self._app = HttpApp(routes.table())

    def _check_leads(self) -> None:
        if not self.leads:
            raise NotNow("this coordinator doesn't lead")

    async def _on_revived(self, refs: frozenset[PartitionRef]) -> None:
        self.revived.append(refs)
        if self.lane is not None:
            await self.lane()

    async def call(self, method: str, path: str, body: object = None) -> Response:
        async def receive() -> Mapping[str, Any]:
            return {
                "type": "http.request",
                "body": b"" if body is None else msgspec.json.encode(body),
            }

        path, _, query = path.partition("?")
        answer = await self._app.answer(Request(method, path, receive=receive, query_string=query))
        assert isinstance(answer, Response)
        return answer

    async def list(self, query: str = "") -> LetterList:
        answer = await self.call("GET", f"{BASE}{query}")
        assert answer.status == 200, answer.body
        return msgspec.json.decode(answer.body, type=LetterList)

    async def change(self, what: str, **body: object) -> LettersChanged:
        answer = await self.call("POST", f"{BASE}/{what}", body)
        assert answer.status == 200, answer.body
        return msgspec.json.decode(answer.body, type=LettersChanged)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    store = EmbeddedLetterStore(DataFolder.open(tmp_path / "data"))
    yield Api(store)
    await store.close()


async def test_the_list_has_pages_and_documents_only_when_asked_for(api: Api) -> None:
    await api.store.put([letter(seq) for seq in range(1, 6)], HELD, now_ms=NOW_MS)
    await api.store.put([letter(9, state="parked", reason="unreachable")], HELD, now_ms=NOW_MS)
    first = await api.list("?limit=3")
    assert [one.seq for one in first.letters] == [1, 2, 3]
    assert first.more
    assert first.letters[0].document is msgspec.UNSET
    rest = await api.list(f"?limit=3&after={first.last_id}&documents=true")
    assert [one.seq for one in rest.letters] == [4, 5]
    assert not rest.more
    assert bytes(rest.letters[0].document) == b'{"alt": 5}'  # type: ignore[arg-type]
    assert [one.seq for one in (await api.list("?state=parked")).letters] == [9]


async def test_the_list_is_filtered(api: Api) -> None:
    await api.store.put([letter(1), letter(2, gateway="g2")], HELD, now_ms=NOW_MS - 7_200_000)
    await api.store.put([letter(3, partition=1, reason="shed")], HELD, now_ms=NOW_MS - 60_000)
    for query, seqs in {
        "?gateway=g2": [2],
        "?topic=flights": [1, 2, 3],
        "?topic=none": [],
        "?partition=1": [3],
        "?key=4ca": [1, 2, 3],
        "?reason=shed": [3],
        "?older_than=1h": [1, 2],
        "?newer_than=1h": [3],
        "?older_than=1h&gateway=g1": [1],
    }.items():
        assert [one.seq for one in (await api.list(query)).letters] == seqs, query


async def test_a_letter_is_shown_whole(api: Api) -> None:
    await api.store.put([letter(1)], HELD, now_ms=NOW_MS)
    [listed] = (await api.list()).letters
    answer = await api.call("GET", f"{BASE}/{listed.id}")
    shown = msgspec.json.decode(answer.body, type=LetterInfo)
    assert (shown.reason, shown.attempts, shown.error) == ("rejected", 3, "400: no")
    assert (shown.event_id, shown.time_ms, shown.subscriptions) == ("e1", 123, ["s1"])
    assert bytes(shown.document) == b'{"alt": 5}'  # type: ignore[arg-type]


async def test_a_retried_letter_is_parked_again_and_its_partition_told(api: Api) -> None:
    await api.store.put([letter(1, partition=3)], HELD, now_ms=1)
    [listed] = (await api.list()).letters
    answer = await api.call("POST", f"{BASE}/{listed.id}/retry")
    again = msgspec.json.decode(answer.body, type=LetterInfo)
    assert (again.state, again.redelivery, again.at_ms) == ("parked", True, NOW_MS)
    assert api.revived == [frozenset({PartitionRef("flights", 3)})]
    for method, path in [("POST", f"{BASE}/{listed.id}/retry"), ("DELETE", f"{BASE}/{listed.id}")]:
        answer = await api.call(method, path)
        assert answer.status == 400
        assert b"is parked, not dead" in answer.body


async def test_a_deleted_letter_is_gone(api: Api) -> None:
    await api.store.put([letter(1)], HELD, now_ms=1)
    [listed] = (await api.list()).letters
    assert (await api.call("DELETE", f"{BASE}/{listed.id}")).status == 204
    for method, path in [
        ("DELETE", f"{BASE}/{listed.id}"),
        ("GET", f"{BASE}/{listed.id}"),
        ("POST", f"{BASE}/{listed.id}/retry"),
    ]:
        assert (await api.call(method, path)).status == 404


async def test_who_waits_hears_what_became_of_the_letters(api: Api) -> None:
    """A lane delivers one, finds nobody for the next, and hasn't got round to the third."""
    await api.store.put([letter(seq) for seq in (1, 2, 3)], HELD, now_ms=1)

    async def lane() -> None:
        again = await api.store.revived(HELD, after_id=0, limit=9)
        await api.store.remove(again[:1], HELD)
        unwanted = msgspec.structs.replace(again[1], error="nobody wants it")
        await api.store.bury([unwanted], HELD, now_ms=2)

    api.lane = lane
    changed = await api.change("retry", filter={}, wait="500ms")
    assert (changed.count, changed.delivered, changed.dead_again) == (3, 1, 1)
    assert changed.errors == ["nobody wants it"]


async def test_a_letter_of_a_group_is_sent_again_where_somebody_can_own_its_target(
    api: Api,
) -> None:
    mine, old = "@group/flights/radar/1-of-4", "@group/flights/radar/1-of-8"
    fences = {PartitionRef(name, 0): Fence(3) for name in (mine, old)}
    letters = [letter(1, gateway=mine, reason="failed"), letter(2, gateway=old, reason="failed")]
    await api.store.put(letters, fences, now_ms=NOW_MS)
    api.targets.add(mine)
    said = await api.change("retry", filter={"group": "radar"}, wait="0.1s")
    assert (said.count, said.delivered, said.dead_again) == (2, 0, 1)
    [error] = said.errors or []
    assert error.startswith("it was given up by target 1 of 8 of group radar, which has another")
    assert [one.seq for one in (await api.list("?state=parked")).letters] == [1]
    [stranded] = (await api.list("?state=dead")).letters
    answer = await api.call("POST", f"{BASE}/{stranded.id}/retry")
    assert answer.status == 400
    assert b"target 1 of 8 of group radar" in answer.body
    api.targets.add(old)
    assert (await api.call("POST", f"{BASE}/{stranded.id}/retry")).status == 200


async def test_a_damaged_letter_is_shown_and_keeps_nobody_from_the_others(
    api: Api, tmp_path: Path
) -> None:
    await api.store.put([letter(seq) for seq in (1, 2, 3)], HELD, now_ms=NOW_MS)
    with contextlib.closing(apsw.Connection(str(tmp_path / "data" / "letters.db"))) as connection:
        connection.execute("UPDATE letters SET delivery = x'7b00', error = x'ff' WHERE seq = 2")
    first, damaged, last = (await api.list("?documents=true")).letters
    assert (first.damaged, damaged.damaged, last.damaged) == (False, True, False)
    assert (damaged.gateway, damaged.seq, damaged.document) == ("g1", 2, msgspec.UNSET)
    remedy = f"or give it up with `headgate dlq delete {damaged.id}`"
    assert remedy in damaged.error
    answer = await api.call("POST", f"{BASE}/{damaged.id}/retry")
    assert answer.status == 400
    assert remedy.encode() in answer.body
    said = await api.change("retry", filter={})
    assert (said.count, said.delivered, said.dead_again) == (3, 0, 1)
    assert [remedy in one for one in said.errors or []] == [True]
    assert [one.seq for one in (await api.list("?state=parked")).letters] == [1, 3]
    assert (await api.call("DELETE", f"{BASE}/{damaged.id}")).status == 204
    assert (await api.list()).letters == []


async def test_who_does_not_wait_is_answered_at_once(api: Api) -> None:
    await api.store.put([letter(1)], HELD, now_ms=1)
    answer = await api.call("POST", f"{BASE}/retry", {"filter": {}})
    assert msgspec.json.decode(answer.body) == {
        "count": 1, "last_id": 1, "more": False, "dry_run": False,
    }  # fmt: skip


@pytest.mark.parametrize("what", ["retry", "delete"])
async def test_a_bulk_change_goes_on_chunk_by_chunk(api: Api, what: str) -> None:
    await api.store.put([letter(seq) for seq in range(1, 8)], HELD, now_ms=1)
    await api.store.put([letter(1, gateway="g2")], HELD, now_ms=1)
    chosen = {"gateway": "g1"}
    dry = await api.change(what, filter=chosen, dry_run=True)
    assert (dry.count, dry.more, dry.dry_run) == (7, False, True)
    assert await api.store.count(LetterQuery()) == 8
    counts, after, more = [], 0, True
    while more:
        changed = await api.change(what, filter=chosen, limit=3, after=after)
        counts.append(changed.count)
        after, more = changed.last_id, changed.more
    assert counts == [3, 3, 1]
    assert [one.gateway for one in (await api.list()).letters] == ["g2"]
    again = await api.change(what, filter=chosen, limit=3)
    assert (again.count, again.more) == (0, False)


async def test_a_parked_letter_that_is_damaged_can_be_deleted_by_its_id_alone(
    api: Api, tmp_path: Path
) -> None:
    """What is behind it waits for it, and nobody can be sent it."""
    some = [letter(1), letter(2, state="parked"), letter(3, state="parked")]
    await api.store.put([*some, letter(4, state="parked")], HELD, now_ms=1)
    ids = {one.delivery.seq: one.id for one in await api.store.find(LetterQuery(state=None))}
    with contextlib.closing(apsw.Connection(str(tmp_path / "data" / "letters.db"))) as connection:
        connection.execute("UPDATE letters SET delivery = x'7b00' WHERE seq > 2")
    [_, shown, _] = (await api.list("?state=parked")).letters
    assert shown.damaged
    assert f"give it up with `headgate dlq delete {ids[3]}`" in shown.error
    assert (await api.call("POST", f"{BASE}/{ids[3]}/retry")).status == 400
    assert (await api.change("delete", filter={})).count == 1, "dead ones"
    assert (await api.change("delete", ids=[*ids.values()], dry_run=True)).count == 2
    assert (await api.call("DELETE", f"{BASE}/{ids[3]}")).status == 204
    assert (await api.call("DELETE", f"{BASE}/{ids[2]}")).status == 400
    assert (await api.change("delete", ids=[*ids.values()])).count == 1
    assert [one.id for one in await api.store.find(LetterQuery(state=None))] == [ids[2]]


async def test_a_bulk_change_of_ids_counts_those_that_were_dead(api: Api) -> None:
    await api.store.put([letter(1), letter(2, state="parked")], HELD, now_ms=1)
    ids = [one.id for one in await api.store.find(LetterQuery(state=None))]
    assert (await api.change("retry", ids=[*ids, 999], dry_run=True)).count == 1
    assert (await api.change("retry", ids=[*ids, 999])).count == 1
    assert (await api.change("retry", ids=ids)).count == 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("GET", f"{BASE}?colour=red", None, id="unknown parameter"),
        pytest.param("GET", f"{BASE}?older_than=1", None, id="age without a unit"),
        pytest.param("GET", f"{BASE}/none", None, id="no number"),
        pytest.param("POST", f"{BASE}/delete", {}, id="neither ids nor a filter"),
        pytest.param("POST", f"{BASE}/delete", {"filter": {"gatway": "g"}}, id="mistyped filter"),
        pytest.param("POST", f"{BASE}/delete", {"filter": {"reason": "x"}}, id="no reason"),
        pytest.param("POST", f"{BASE}/retry", {"filter": {}, "wait": "11s"}, id="long wait"),
        pytest.param("POST", f"{BASE}/retry", {"filter": {}, "wait": "soon"}, id="no time"),
        pytest.param("POST", f"{BASE}/retry", {"ids": [0]}, id="no id"),
        pytest.param("POST", f"{BASE}/retry", {"ids": [2**63]}, id="too large an id"),
        pytest.param("POST", f"{BASE}/retry", {"filter": {}, "limit": 501}, id="too many"),
        pytest.param("POST", f"{BASE}/retry", None, id="no body"),
    ],
)
async def test_what_cant_be_meant_is_refused(
    api: Api, method: str, path: str, body: object
) -> None:
    await api.store.put([letter(1)], HELD, now_ms=1)
    answer = await api.call(method, path, body)
    assert answer.status == 400, answer.body
    assert await api.store.count(LetterQuery()) == 1


async def test_only_the_leader_answers(api: Api) -> None:
    api.leads = False
    for method, path in [("GET", BASE), ("GET", f"{BASE}/1"), ("POST", f"{BASE}/retry")]:
        assert (await api.call(method, path, {"filter": {}})).status == 503


async def test_a_store_that_is_away_is_503_and_the_status_says_why(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StorageFailed("writing letters.db failed: the disk is full; free some space")

    for name in ("find", "count", "counts", "revive", "delete"):
        monkeypatch.setattr(api.store, name, away)
    for method, path in [("GET", BASE), ("GET", f"{BASE}/1"), ("POST", f"{BASE}/retry")]:
        assert (await api.call(method, path, {"filter": {}})).status == 503
    assert await api.counted() == (
        [],
        "writing letters.db failed: the disk is full; free some space",
    )


async def test_the_status_adds_up_letters_by_gateway(api: Api) -> None:
    await api.store.put([letter(1), letter(2)], HELD, now_ms=NOW_MS - 5)
    await api.store.put([letter(3, state="parked")], HELD, now_ms=NOW_MS - 9)
    assert await api.counted() == (
        [GatewayLetters("g1", parked=1, parked_ms=9, dead=2, dead_ms=5)],
        "",
    )


# --- sweeping ------------------------------------------------------------------------------------


class Sweepable(MemoryLetterStore):
    """Says what it was asked, and when; fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, int, int]] = []
        self.failing = 0
        self.at_a_time = CHUNK

    async def sweep(self, *, before_ms: int, limit: int) -> int:
        self.asked.append((asyncio.get_running_loop().time(), before_ms, limit))
        if self.failing:
            self.failing -= 1
            raise StorageFailed("the disk is full")
        return await super().sweep(before_ms=before_ms, limit=min(limit, self.at_a_time))

    async def abandon(self, fences: Fences, *, limit: int) -> int:
        return await super().abandon(fences, limit=min(limit, self.at_a_time))


async def _sweep_for(store: Sweepable, seconds: float, *, dead: int) -> None:
    await store.put([letter(seq) for seq in range(1, dead + 1)], HELD, now_ms=1)

    machine = ScriptedMachine(begins_ms=1_000_000, clock=asyncio.get_running_loop().time)

    async def left_behind() -> Mapping[str, Fences]:
        return {"ships": {PartitionRef("ships", 0): Fence(8)}}

    task = asyncio.create_task(
        sweep_letters(store, max_age_s=100.0, left_behind=left_behind, machine=machine)
    )
    await asyncio.sleep(seconds)
    task.cancel()


def test_dead_letters_are_swept_in_chunks_every_minute() -> None:
    store = Sweepable()
    run_virtual(_sweep_for(store, 2 * SWEEP_EVERY_S + 1, dead=2 * CHUNK + 5))
    assert store.asked == [
        (0.0, 900_000, CHUNK),
        (0.0, 900_000, CHUNK),
        (0.0, 900_000, CHUNK),
        (0.0, 900_000, CHUNK),
        (60.0, 960_000, CHUNK),
        (120.0, 1_020_000, CHUNK),
    ]


def test_a_clock_that_jumps_ahead_makes_no_letter_old() -> None:
    store = Sweepable()

    async def run() -> None:
        await store.put([letter(1)], HELD, now_ms=1_000_000)
        machine = ScriptedMachine(begins_ms=1_000_000)
        asyncio.get_running_loop().call_later(30.0, machine.passes, 8 * 86_400.0)

        async def left_behind() -> Mapping[str, Fences]:
            return {}

        sweeping = asyncio.create_task(
            sweep_letters(store, max_age_s=1_000.0, left_behind=left_behind, machine=machine)
        )
        await asyncio.sleep(2 * SWEEP_EVERY_S + 1)
        sweeping.cancel()

    run_virtual(run())
    assert [before_ms for _, before_ms, _ in store.asked] == [0, 60_000, 120_000]


def test_a_store_that_is_away_is_swept_once_it_is_back() -> None:
    store = Sweepable()
    store.failing = 2
    run_virtual(_sweep_for(store, 2 * SWEEP_EVERY_S + 1, dead=3))
    assert [at for at, _, _ in store.asked] == [0.0, 60.0, 120.0, 120.0]
    assert store.stored.letters == {}


def test_letters_are_swept_until_none_is_left_however_few_go_at_a_time() -> None:
    store = Sweepable()
    store.at_a_time = 2
    run_virtual(_sweep_for(store, 1.0, dead=5))
    assert store.stored.letters == {}


@pytest.mark.parametrize("failing", [0, 10], ids=["well", "sweeping fails"])
def test_what_is_left_of_a_deleted_topic_is_swept(failing: int) -> None:
    async def swept() -> None:
        store = Sweepable()
        store.failing = failing
        refs = [PartitionRef("ships", 0), PartitionRef("flights", 0)]
        for ref in refs:
            new = letter(1, state="parked", reason="unreachable")
            delivery = msgspec.structs.replace(new.delivery, topic=ref.topic)
            kept = msgspec.structs.replace(new, delivery=delivery)
            await store.put([kept], dict.fromkeys(refs, Fence(7)), now_ms=1)
        await _sweep_for(store, 1.0, dead=0)
        assert [one.ref.topic for one in store.stored.letters.values()] == ["flights"]

    run_virtual(swept())
