"""Looking at the records of a topic, as people do it: nothing is consumed or moved."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from headgate.errors import StorageFailed
from headgate.model.browse_api import MASKED, BrowseAnswer
from headgate.model.event import PartitionRef
from headgate.services.gateway.public import browsing
from tests.services.gateway.world import World, running, until

FIRST = PartitionRef("flights", 0)


@pytest.fixture
async def filled(world: World) -> World:
    """Ten records, in turn in two partitions; `n` counts them, and so does their time."""
    for n in range(10):
        world.log.append({"n": n}, partition=n % 2, time_ms=1_000 * n, key=f"k{n % 5}")
    return world


async def asked(world: World, topic: str = "flights", **query: object) -> tuple[int, bytes]:
    named = {name.rstrip("_"): value for name, value in query.items()}
    url = f"{world.gateway.url}/v1/topics/{topic}/records?{urlencode(named)}"
    answer = await world.client.get(url).build().send()
    return answer.status, bytes(await answer.bytes())


async def get(world: World, **query: Any) -> tuple[int, Any]:
    status, body = await asked(world, **query)
    return status, msgspec.json.decode(body)


async def look(world: World, **query: Any) -> BrowseAnswer:
    status, body = await asked(world, **query)
    assert status == 200, body
    return msgspec.json.decode(body, type=BrowseAnswer)


def numbers(answer: BrowseAnswer) -> list[int]:
    return [msgspec.json.decode(record.document)["n"] for record in answer.records]


async def test_the_newest_come_first(filled: World) -> None:
    answer = await look(filled, limit=4)
    assert (numbers(answer), answer.direction, answer.stopped) == (
        [9, 8, 7, 6],
        "backward",
        "limit",
    )
    older = await look(filled, limit=7, cursor=answer.cursor)
    assert (numbers(older), older.more, older.stopped) == ([5, 4, 3, 2, 1, 0], False, "end")


async def test_whoever_looks_on_sees_what_has_come_since(filled: World) -> None:
    answer = await look(filled, from_="earliest")
    assert (numbers(answer), answer.more) == ([*range(10)], False)
    filled.log.append({"n": 10}, partition=1)
    assert numbers(await look(filled, cursor=answer.cursor)) == [10]
    now = await look(filled, from_="now")
    filled.log.append({"n": 11})
    assert (numbers(now), numbers(await look(filled, cursor=now.cursor))) == ([], [11])


async def test_it_begins_at_a_time_or_a_position(filled: World) -> None:
    since = "1970-01-01T00:00:06.5Z"
    assert numbers(await look(filled, from_=since)) == [7, 8, 9]
    before = await look(filled, from_=since, direction="backward")
    assert numbers(before) == [6, 5, 4, 3, 2, 1, 0]
    assert numbers(await look(filled, from_="0:4,1:5")) == [6, 8, 9]


async def test_it_shows_what_is_wanted_and_how_much_it_looked_at(filled: World) -> None:
    by_filter = await look(filled, where="n > 3 && n < 7", from_="earliest")
    assert (numbers(by_filter), by_filter.scanned) == ([4, 5, 6], 10)
    assert numbers(await look(filled, key="k2")) == [7, 2]
    one = await look(filled, partition=1, from_="earliest")
    assert numbers(one) == [1, 3, 5, 7, 9]
    assert [part.partition for part in one.partitions] == [1]
    assert (await look(filled, where="1 / n == 1")).filter_errors == 1


async def test_a_record_is_shown_with_all_it_has(world: World) -> None:
    world.log.append(
        {"a": 1}, key="k", op="update", earlier={"a": 0}, headers={"h": "ü"}, time_ms=7
    )
    _, body = await get(world)
    assert body["records"] == [
        {
            "partition": 0,
            "seq": 1,
            "version": 1,
            "event_id": "flights:0-1",
            "op": "update",
            "time_ms": 7,
            "size_bytes": 7,
            "document": {"a": 1},
            "key": "k",
            "headers": {"h": "ü"},
            "earlier": {"a": 0},
        }
    ]


async def test_what_is_not_there_any_more_is_said_in_its_place(filled: World) -> None:
    filled.log.lose(FIRST, [2, 3])
    filled.log.flip(FIRST, 5)
    for direction in ("forward", "backward"):
        answer = await look(filled, direction=direction)
        found = sorted((one.first, one.last, one.why) for one in answer.missing)
        assert found == [(2, 3, "gone"), (5, 5, "corrupt")]
        assert sorted(numbers(answer)) == [0, 1, 3, 5, 6, 7, 9]
    filled.log.keep_from(FIRST, 4)
    assert (await look(filled, from_="earliest")).missing[0].why == "corrupt"
    wanted = (await look(filled, from_="0:1")).missing
    assert [(one.first, one.last) for one in wanted if one.why == "gone"] == [(1, 3)]


async def test_retention_that_overtakes_somebody_who_looks_on_is_said(filled: World) -> None:
    answer = await look(filled, from_="earliest", partition=0, limit=1)
    filled.log.keep_from(FIRST, 4)
    on = await look(filled, cursor=answer.cursor, partition=0)
    assert [(one.first, one.last, one.why) for one in on.missing] == [(2, 3, "gone")]


@pytest.mark.parametrize("stopped", ["limit", "max_bytes", "timeout", "scanned"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
async def test_whatever_ends_a_request_the_next_ones_lose_nothing(
    filled: World, stopped: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: dict[str, object] = {"limit": 3} if stopped == "limit" else {}
    if stopped == "max_bytes":
        bound = {"max_bytes": 1}
    elif stopped == "scanned":
        monkeypatch.setattr(browsing, "SCANNED_MAX", 2)
    elif stopped == "timeout":
        late = iter(range(10_000_000))
        monkeypatch.setattr(type(filled.clock), "__call__", lambda _: float(next(late)))
    answer = await look(filled, direction=direction, **bound)
    assert (answer.stopped, answer.more) == (stopped, True)
    seen = numbers(answer)
    while answer.more:
        answer = await look(filled, cursor=answer.cursor, **bound)
        assert answer.scanned
        seen += numbers(answer)
    if stopped == "timeout":  # whatever was not come to in time has the next turn
        assert sorted(seen) == [*range(10)]
    else:
        assert seen == ([*range(10)] if direction == "forward" else [*range(9, -1, -1)])


async def test_what_it_holds_is_bounded(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "HELD_BYTES", 1)
    answer, seen = await look(filled, from_="earliest"), list[int]()
    assert answer.stopped == "max_bytes"
    for _ in range(30):
        seen += numbers(answer)
        if not answer.more:
            break
        answer = await look(filled, cursor=answer.cursor)
    assert sorted(seen) == [*range(10)]


async def test_masked_values_leave_the_gateway_in_no_way() -> None:
    async with running(masked=("card.number",)) as world:
        document = {"n": 1, "card": {"number": "4111"}}
        world.log.append(document, earlier=document)
        _, body = await get(world)
        assert body["records"][0]["document"] == {"n": 1, "card": {"number": MASKED}}
        assert body["records"][0]["earlier"] == {"n": 1, "card": {"number": MASKED}}
        assert body["records"][0]["masked"] == ["card.number"]
        assert not (await look(world, where='card.number == "4111"')).records


@pytest.mark.parametrize(
    ("query", "status", "named"),
    [
        ({"topic": "flihgts"}, 404, "did you mean flights?"),
        ({"where": "n >"}, 400, "position"),
        ({"from_": "7:1"}, 400, "has no partition 7"),
        ({"partition": 7}, 400, "it has 0 to 1"),
        ({"limit": "many"}, 400, "limit"),
    ],
)
async def test_what_cannot_be_shown_is_refused_in_a_sentence(
    filled: World, query: dict[str, Any], status: int, named: str
) -> None:
    got, body = await get(filled, **query)
    assert got == status
    assert named in str(body)


async def test_a_log_that_cannot_be_read_is_said(filled: World) -> None:
    filled.log.failing = StorageFailed("the disk is gone")
    status, body = await get(filled)
    assert (status, body["error"]["message"]) == (503, "the disk is gone")


async def test_only_so_many_look_at_a_time(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "WAITING_MAX", 1)
    filled.log.gate = asyncio.Event()
    asking = [asyncio.create_task(get(filled)) for _ in range(browsing.AT_ONCE)]
    await until(lambda: filled.log.reads == browsing.AT_ONCE)
    more = [asyncio.create_task(get(filled)) for _ in range(2)]
    done, _ = await asyncio.wait(more, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    [(status, body)] = [one.result() for one in done]
    assert (status, body["error"]["code"]) == (503, "overloaded")
    filled.log.gate.set()
    answers = await asyncio.gather(*asking, *more)
    assert sorted(status for status, _ in answers) == [200, 200, 200, 503]
