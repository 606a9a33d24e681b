"""`headgate token`, and how every command is told who asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.access.test_tokens_end_to_end import cluster, known_everywhere
from tests.cli.command import Ended, headgate

WAIT_S = 30.0


@dataclass(frozen=True)
class Place:
    """`root` is a file with the first administrator's token."""

    url: str
    data: Path
    root: Path

    async def said(self, token: str | Path, *arguments: str) -> Ended:
        """By whoever has that token, or that file."""
        variable = "HEADGATE_TOKEN" if isinstance(token, str) else "HEADGATE_TOKEN_FILE"
        return await headgate(*arguments, url=self.url, variables={variable: str(token)})

    async def made(self, name: str, *grants: str) -> str:
        options = [part for grant in grants for part in ("--grant", grant)]
        done = await self.said(self.root, "token", "create", name, *options, "--json")
        answer: Any = done.json
        await known_everywhere(self.url, answer["token"])
        return str(answer["token"])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    data, root = tmp_path / "data", tmp_path / "root"
    async with cluster(data) as (url, _):
        first = await headgate("token", "create", "root", "--first", "--data", str(data))
        assert (first.code, first.out[:3]) == (0, "hg_"), first.err
        assert first.out.strip() not in first.err
        root.write_text(first.out)
        await known_everywhere(url, first.out.strip())
        yield Place(url, data, root)


async def test_tokens_are_made_listed_and_revoked(place: Place) -> None:
    again = await headgate("token", "create", "x", "--first", "--data", str(place.data))
    assert (again.code, again.out) == (2, "")
    assert "root is an administrator already" in again.err
    options = ("--expires", "1h", "--tenant", "acme", "--events-per-s", "5", "--filter-cost", "5ms")
    grants = ("--grant", "read:topics", "--grant", "subscribe on a where tenant == claims.tenant")
    made = await place.said(place.root, "token", "create", "reader", *grants, *options)
    secret = made.out.strip()
    assert made.code == 0
    await known_everywhere(place.url, secret)
    assert (await place.said(secret, "topic", "list")).code == 0
    listed = await place.said(place.root, "token", "list")
    assert "subscribe on a where tenant == claims.tenant" in " ".join(listed.out.split())
    assert secret not in listed.out
    known: Any = (await place.said(place.root, "token", "list", "--json")).json
    reader = next(one for one in known["tokens"] if one["name"] == "reader")
    assert reader["limits"] == {"events_per_s": 5, "filter_cost_us": 5_000}
    assert reader["expires_ms"] - reader["created_ms"] == 3_600_000
    assert (await place.said(place.root, "token", "revoke", "reader")).code == 0
    async with asyncio.timeout(WAIT_S):
        while (refused := await place.said(secret, "topic", "list")).code == 0:
            pass
    assert "the token is unknown, wrong or not valid any more" in refused.err
    assert secret not in refused.err
    gone = await place.said(place.root, "token", "revoke", "reader")
    assert (gone.code, "there is no token reader" in gone.err) == (2, True)


async def test_a_command_says_the_token_that_is_nearest(place: Place, tmp_path: Path) -> None:
    """`--token-file`, then HEADGATE_TOKEN_FILE, then HEADGATE_TOKEN."""
    secret = await place.made("reader", "read:topics")
    file = tmp_path / "reader"
    file.write_text(f"{secret}\n")
    create = ("topic", "create", "flights")
    nobody = await headgate("topic", "list", url=place.url)
    assert (nobody.code, "say who you are" in nobody.err) == (2, True)
    named = await place.said(place.root, *create, "--token-file", str(file))
    assert "reader is not granted write:topics" in named.err
    both = {"HEADGATE_TOKEN_FILE": str(file), "HEADGATE_TOKEN": place.root.read_text().strip()}
    by_file = await headgate(*create, url=place.url, variables=both)
    assert "reader is not granted write:topics" in by_file.err
    assert (await place.said(secret, *create, "--token-file", str(place.root))).code == 0
    absent = await place.said(tmp_path / "absent", "topic", "list")
    assert (absent.code, str(tmp_path / "absent") in absent.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "x"), "say what it may do with --grant"),
        (("create", "x", "--grant", "rule"), "'rule' is no grant"),
        (("create", "x", "--grant", "produce", "--expires", "soon"), "expires"),
        (("create", "a b", "--grant", "produce"), "name"),
        (("create", "root", "--grant", "produce"), "there is a token root already"),
    ],
)
async def test_what_cant_be_is_one_sentence(
    place: Place, arguments: tuple[str, ...], words: str
) -> None:
    done = await place.said(place.root, "token", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert len(done.err.splitlines()) == 1
