"""`headgate dlq` against the coordinator's routes and a real store."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.http.server import HttpServer
from headgate.adapters.machine import THIS_MACHINE
from headgate.answering import HttpApp
from headgate.cli.views.letters import age, letter_view, letters_table
from headgate.decide.operations.letter_queries import described
from headgate.errors import StorageFailed
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.http import Request, Response, Route
from headgate.model.letters import Letter, LetterQuery, LetterReason, LetterState, NewLetter
from headgate.services.coordinator.letters import LetterRoutes
from tests.cli.command import Ended, ended, headgate, started

DEAD = LetterQuery()
REF = PartitionRef("flights", 2)
HELD = {REF: Fence(7)}
PARKED = LetterQuery(state="parked")


def letter(
    seq: int,
    *,
    gateway: str = "g-1",
    state: LetterState = "dead",
    reason: LetterReason = "rejected",
    key: str | None = "4ca",
) -> NewLetter:
    document = msgspec.Raw(b'{"alt":5,"note":"\\u001b[2J"}')
    event = Delivery(
        "flights", 2, seq, f"e{seq}", key, "positions", "update", document, ("s1", "s2"), 7, 123
    )
    return NewLetter(gateway, state, reason, event, attempts=3, error="400: no such field")


@dataclass
class Letters:
    """A Headgate that has only letters; `before_change` may hold up or fail a bulk change."""

    store: EmbeddedLetterStore
    url: str = ""
    changes: int = 0
    fail_from: int = 1_000
    wanted: frozenset[int] = frozenset()
    unwanted: frozenset[int] = frozenset()
    hold_from: int = 1_000

    def __post_init__(self) -> None:
        self.held = asyncio.Event()
        self._never = asyncio.Event()

    def routes(self) -> list[Route]:
        letters = LetterRoutes(
            self.store,
            check_leads=lambda: None,
            on_revived=self._told,
            is_target=lambda _: True,
            machine=THIS_MACHINE,
        )
        return [Route(route.method, route.path, self._watched(route)) for route in letters.table()]

    async def _told(self, refs: frozenset[PartitionRef]) -> None:
        """As a lane would: delivers some, and finds that nobody wants others."""
        again = await self.store.revived(refs, after_id=0, limit=1_000)
        await self.store.remove([one for one in again if one.delivery.seq in self.wanted], HELD)
        nobodys = [one for one in again if one.delivery.seq in self.unwanted]
        nobodys = [msgspec.structs.replace(one, error="nobody wants it") for one in nobodys]
        await self.store.bury(nobodys, HELD, now_ms=THIS_MACHINE.wall_ms())

    def _watched(self, route: Route) -> Any:
        async def handler(request: Request) -> Response:
            if not route.path.endswith(("/retry", "/delete")):
                return cast("Response", await route.handler(request))
            self.changes += 1
            if self.changes >= self.fail_from:
                raise StorageFailed("the disk is full; free some space")
            if self.changes >= self.hold_from:
                self.held.set()
                await self._never.wait()
            return cast("Response", await route.handler(request))

        return handler

    async def run(self, *arguments: str) -> Ended:
        return await headgate("dlq", *arguments, url=self.url)

    async def put(self, *letters: NewLetter, age_s: int = 0) -> None:
        await self.store.put(letters, HELD, now_ms=THIS_MACHINE.wall_ms() - age_s * 1_000)

    async def seqs(self, query: LetterQuery = DEAD) -> list[int]:
        return [one.delivery.seq for one in await self.store.find(query, limit=10_000)]

    async def ids(self) -> list[str]:
        return [str(one.id) for one in await self.store.find(DEAD, limit=10_000)]


@asynccontextmanager
async def serving(folder: DataFolder) -> AsyncIterator[Letters]:
    served, http = Letters(EmbeddedLetterStore(folder)), HttpServer()
    port = await http.start(HttpApp(served.routes()), "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{port}"
    try:
        yield served
    finally:
        await http.stop(0.2)
        await served.store.close()


@pytest.fixture
async def letters(tmp_path: Path) -> AsyncIterator[Letters]:
    async with serving(DataFolder.open(tmp_path / "data")) as served:
        yield served


# --- looking -------------------------------------------------------------------------------------


async def test_letters_are_listed(letters: Letters) -> None:
    await letters.put(letter(1), letter(2, gateway="g-2", reason="shed", key=None), age_s=7_200)
    await letters.put(letter(3, state="parked", reason="unreachable"))
    result = await letters.run("list")
    assert result.code == 0
    assert result.shows("1 rejected g-1 flights:2 1 2.0 h 3 4ca 400: no such field")
    assert result.shows("2 shed g-2 flights:2 2 2.0 h 3 - 400: no such field")
    assert len(result.out.splitlines()) == 3
    parked = await letters.run("list", "--parked")
    assert len(parked.out.splitlines()) == 2
    assert "unreachable" in parked.out


async def test_a_list_is_filtered_and_bounded(letters: Letters) -> None:
    await letters.put(*(letter(seq) for seq in range(1, 4)), age_s=7_200)
    await letters.put(letter(4, gateway="g-2", reason="shed", key="a b&c"))
    for arguments, seqs in {
        ("--gateway", "g-2"): [4],
        ("--topic", "none"): [],
        ("--partition", "2"): [1, 2, 3, 4],
        ("--key", "a b&c"): [4],
        ("--reason", "rejected"): [1, 2, 3],
        ("--older-than", "1h"): [1, 2, 3],
        ("--newer-than", "1h"): [4],
        ("--limit", "2"): [1, 2],
        ("--after", "2"): [3, 4],
    }.items():
        found = cast("dict[str, Any]", (await letters.run("list", "--json", *arguments)).json)
        assert [one["seq"] for one in found["letters"]] == seqs, arguments
        assert not any("document" in one for one in found["letters"])
    result = await letters.run("list", "--limit", "2")
    assert "there are more: add --after 2" in result.err


async def test_a_list_may_be_longer_than_a_page(letters: Letters) -> None:
    await letters.put(*(letter(seq) for seq in range(1, 701)))
    result = await letters.run("list", "--limit", "650", "--json", "--documents")
    found = cast("dict[str, Any]", result.json)
    assert [one["seq"] for one in found["letters"]] == list(range(1, 651))
    assert found["letters"][0]["document"]["alt"] == 5
    assert found["more"]


async def test_an_empty_list_says_so(letters: Letters) -> None:
    result = await letters.run("list", "--parked", "--gateway", "g-9")
    assert (result.code, result.out) == (0, "")
    assert result.err == "there are no parked letters of that kind\n"


async def test_a_letter_is_shown_whole(letters: Letters) -> None:
    await letters.put(letter(1))
    [number] = await letters.ids()
    result = await letters.run("show", number)
    assert result.code == 0
    for row in (
        "Letter 1: dead, rejected",
        "gateway g-1",
        "attempts 3",
        "last error 400: no such field",
        "topic flights, partition 2, seq 1",
        "event update e1",
        "event of 1970-01-01 00:00:00.123+00:00",
        "subscriptions s1, s2",
        '"alt": 5,',
    ):
        assert result.shows(row), row
    as_json = cast("dict[str, Any]", (await letters.run("show", number, "--json")).json)
    assert (as_json["reason"], as_json["document"]["alt"]) == ("rejected", 5)


async def test_a_letter_that_isnt_there_is_a_sentence(letters: Letters) -> None:
    result = await letters.run("show", "7")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("headgate: there is no letter 7")


def test_what_others_wrote_cant_move_the_cursor() -> None:
    evil = Delivery("t", 0, 1, "e\x1b[2J", "k\x07\x1b[2J", "c", "insert", msgspec.Raw(b"1"), (), 1)
    one = described(Letter(1, "g", "dead", "rejected", evil, 1, "no\x1b]0;x\x07", 5))
    out = StringIO()
    shown = Console(file=out, force_terminal=True, width=200)
    shown.print(letters_table([one], now_ms=10))
    shown.print(letter_view(one))
    assert not re.search(r"\x1b\[2J|\x1b\]|\x07", out.getvalue())


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0 ms"), (999, "999 ms"), (90_000, "1.5 min"), (3_600_000, "1.0 h"), (864e5, "1.0 d")],
)
def test_ages_are_in_the_largest_unit(ms: int, text: str) -> None:
    assert age(int(ms)) == text


# --- changing ------------------------------------------------------------------------------------


async def test_letters_are_retried_by_id(letters: Letters) -> None:
    await letters.put(*(letter(seq) for seq in range(1, 4)))
    first, second, _ = await letters.ids()
    result = await letters.run("retry", second, first, second)
    assert (result.code, result.out) == (0, "")
    assert result.err == "retried 2 letters: 2 on their way\n"
    assert await letters.seqs(PARKED) == [1, 2]
    again = await letters.run("retry", first)
    assert again.code == 2
    assert "none of these is a dead letter" in again.err


async def test_a_retry_says_what_became_of_the_letters(letters: Letters) -> None:
    letters.wanted, letters.unwanted = frozenset({1, 2}), frozenset({3})
    await letters.put(*(letter(seq) for seq in range(1, 4)))
    result = await letters.run("retry", "--all")
    assert result.err.splitlines() == [
        "retried 3 letters: 2 delivered, 1 still dead",
        "dead again: nobody wants it",
    ]
    assert result.code == 1
    assert await letters.seqs() == [3]


@pytest.mark.parametrize("verb", ["retry", "delete"])
async def test_letters_are_changed_by_filter_in_chunks_with_progress(
    letters: Letters, verb: str
) -> None:
    await letters.put(*(letter(seq) for seq in range(1, 251)))
    await letters.put(letter(1, gateway="g-2"))
    yes = ["--yes"] if verb == "delete" else []
    dry = await letters.run(verb, "--gateway", "g-1", "--dry-run")
    done = "retried" if verb == "retry" else "deleted"
    assert (dry.code, dry.out) == (0, f"250 dead letters would be {done}\n")
    assert len(await letters.seqs()) == 251
    result = await letters.run(verb, "--gateway", "g-1", *yes)
    assert result.code == 0
    assert result.err.splitlines() == [
        f"{done} 100 of 250 letters",
        f"{done} 200 of 250 letters",
        f"{done} 250 letters" + (": 250 on their way" if verb == "retry" else ""),
    ]
    assert await letters.seqs() == [1]


async def test_all_means_all_and_json_says_how_many(letters: Letters) -> None:
    await letters.put(letter(1), letter(2, gateway="g-2"))
    dry = await letters.run("retry", "--all", "--dry-run", "--json")
    assert dry.json == {"count": 2, "last_id": 0, "more": False, "dry_run": True}
    result = await letters.run("retry", "--all", "--json")
    counted = {"count": 2, "last_id": 2, "more": False, "dry_run": False}
    assert result.json == {**counted, "delivered": 0, "dead_again": 0, "errors": []}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["retry"], "say which letters", id="none"),
        pytest.param(["delete", "--yes"], "say which letters", id="none to delete"),
        pytest.param(["retry", "1", "--all"], "not both", id="ids and all"),
        pytest.param(["retry", "1", "--gateway", "g"], "not both", id="ids and a filter"),
        pytest.param(["retry", "--gateway", "g", "--all"], "leave it out", id="filter and all"),
        pytest.param(["retry", "0"], "0 is no letter's ID", id="no id"),
        pytest.param(["retry", "x"], "valid integer", id="no number"),
        pytest.param(["retry", "--reason", "x"], "'x'", id="no reason"),
        pytest.param(["retry", "--older-than", "1"], "not a duration", id="no age"),
        pytest.param(["list", "--newer-than", "soon"], "not a duration", id="no age in a list"),
        pytest.param(["retry", "--all", "--dry-run", "--after", "3"], "--after", id="dry, after"),
        pytest.param(["delete", "--all"], "add --yes", id="nobody to ask"),
        pytest.param(["delete", "--key", "4ca"], "add --yes", id="nobody to ask about a filter"),
    ],
)
async def test_what_cant_be_meant_is_one_sentence_and_code_2(
    letters: Letters, arguments: list[str], sentence: str
) -> None:
    await letters.put(letter(1))
    result = await letters.run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1
    assert await letters.seqs() == [1]


async def test_deleting_by_id_asks_nobody(letters: Letters) -> None:
    await letters.put(letter(1), letter(2))
    first, _ = await letters.ids()
    assert (await letters.run("delete", first)).err == "deleted 1 letter\n"
    assert await letters.seqs() == [2]


@pytest.mark.parametrize(("answer", "left"), [("y\n", []), ("n\n", [1, 2])], ids=["yes", "no"])
async def test_a_bulk_delete_is_asked_about(letters: Letters, answer: str, left: list[int]) -> None:
    await letters.put(letter(1), letter(2))
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headgate", "dlq", "delete", "--all"),
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HEADGATE_URL": letters.url},
        )
        _, said = await asyncio.wait_for(process.communicate(), 60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"Delete 2 dead letters for good?" in said
    assert process.returncode == (1 if left else 0)
    assert await letters.seqs() == left


# --- ended in the middle -------------------------------------------------------------------------


def _command_to_go_on(said: str) -> list[str]:
    [line] = [line for line in said.splitlines() if "to go on: " in line]
    program, group, *arguments = shlex.split(line.partition("to go on: ")[2])
    assert (program, group) == ("headgate", "dlq")
    return arguments


async def test_a_change_that_fails_in_the_middle_says_how_to_go_on(letters: Letters) -> None:
    await letters.put(*(letter(seq, gateway="g 1") for seq in range(1, 251)))
    letters.fail_from = 4
    result = await letters.run("delete", "--gateway", "g 1", "--yes")
    assert result.code == 1
    assert result.err.splitlines()[-2:] == [
        "deleted 200 letters; to go on: headgate dlq delete --gateway 'g 1' --after 200 --yes",
        "headgate: the disk is full; free some space",
    ]
    letters.fail_from = 1_000
    assert (await letters.run(*_command_to_go_on(result.err))).code == 0
    assert await letters.seqs() == []


async def test_ids_that_are_left_are_named(letters: Letters) -> None:
    await letters.put(*(letter(seq) for seq in range(1, 511)))
    letters.fail_from = 4
    result = await letters.run("retry", *(await letters.ids()))
    assert result.code == 1
    assert _command_to_go_on(result.err) == ["retry", *map(str, range(501, 511))]


async def test_an_interrupted_change_says_how_to_go_on(letters: Letters) -> None:
    await letters.put(*(letter(seq) for seq in range(1, 251)))
    letters.hold_from = 3
    process = await started("dlq", "retry", "--all", "--url", letters.url)
    await asyncio.wait_for(letters.held.wait(), 60)
    process.send_signal(signal.SIGINT)
    result = await ended(process)
    assert result.code == 130
    assert "Traceback" not in result.err
    arguments = _command_to_go_on(result.err)
    assert arguments == ["retry", "--all", "--after", "100", "--url", letters.url]
    letters.hold_from = 1_000
    assert (await headgate("dlq", *arguments)).code == 0
    assert await letters.seqs() == []
