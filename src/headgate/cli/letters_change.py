"""Changes many dead letters, chunk by chunk, and shows how far that is.

Invariant: whatever ends it in the middle, it says how many letters are done and the command that
goes on with the others. Doing a chunk twice does it once, so that command repeats what was under
way. On a terminal a bar, anywhere else a line now and then; all on standard error.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Self

import msgspec
from msgspec import UNSET

from headgate.cli.output import calls_to, counting_bar, say
from headgate.cli.views.tables import plural
from headgate.client.http import HttpClient
from headgate.config import server_url
from headgate.errors import HeadgateError, NotFound
from headgate.model.letters_api import CHANGED_MAX, LetterFilter, LettersChanged, LetterSelection

WAIT = "2s"
LINES_MAX = 10
"""About how many lines a long change says where there is no bar."""


@dataclass(frozen=True, slots=True)
class Change:
    """`verb` is the command and the path, `done` what it has done; `options` it was given. It
    `waits` for a moment to hear how the letters were answered."""

    verb: str
    done: str
    options: tuple[str, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """Letters by `ids`, or where there are none, by `wanted`; `after`: only higher ids."""

    ids: tuple[int, ...]
    wanted: LetterFilter
    after: int = 0

    def words(self) -> list[str]:
        """The same choice, as it is written on the command line."""
        if self.ids:
            return [str(one) for one in self.ids if one > self.after]
        given = msgspec.to_builtins(self.wanted)
        words = [
            word
            for name, value in given.items()
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        return [*(words or ["--all"]), *(["--after", str(self.after)] if self.after else [])]


class Progress:
    """`total` letters are to be changed, as far as is known."""

    def __init__(self, change: Change, total: int) -> None:
        self._change = change
        self._total = total
        self._said = 0
        self._watched = sys.stderr.isatty()
        self._bar = counting_bar(change.done, remaining=True)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def at(self, count: int, *, more: bool) -> None:
        self._total = max(self._total, count)
        self._bar.update(self._task, completed=count, total=self._total)
        if more and not self._watched and count - self._said >= self._total / LINES_MAX:
            self._said = count
            say(f"{self._change.done} {count:,} of {plural(self._total, 'letter')}")


async def run_change(url: str, change: Change, chosen: Chosen, *, dry_run: bool) -> LettersChanged:
    async with calls_to(url) as client:
        total = await _count(client, change, chosen)
        if dry_run:
            return LettersChanged(total, 0, more=False, dry_run=True)
        if chosen.ids and not total:
            raise NotFound("none of these is a dead letter: see `headgate dlq list`")
        with Progress(change, total) as progress:
            changed = await _change(client, change, chosen, progress)
    say(f"{change.done} {plural(changed.count, 'letter')}{_what_became(changed)}")
    for error in changed.errors or ():
        say(f"dead again: {error}")
    return changed


def _what_became(changed: LettersChanged) -> str:
    if not changed.count or changed.delivered is UNSET or changed.dead_again is UNSET:
        return ""
    counts = {
        "delivered": changed.delivered,
        "still dead": changed.dead_again,
        "on their way": changed.count - changed.delivered - changed.dead_again,
    }
    return ": " + ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


async def _change(
    client: HttpClient, change: Change, chosen: Chosen, progress: Progress
) -> LettersChanged:
    so_far = LettersChanged(0, chosen.after, more=True)
    try:
        async for one in _chunks(client, change, chosen):
            so_far = _sum(so_far, one)
            progress.at(so_far.count, more=one.more)
    except (HeadgateError, asyncio.CancelledError):
        words = ["headgate", "dlq", change.verb, *replace(chosen, after=so_far.last_id).words()]
        words += change.options
        if client.url != server_url(None).rstrip("/"):
            words += ["--url", client.url]
        say(f"{change.done} {plural(so_far.count, 'letter')}; to go on: {shlex.join(words)}")
        raise
    return so_far


async def _chunks(
    client: HttpClient, change: Change, chosen: Chosen
) -> AsyncIterator[LettersChanged]:
    """Change one bounded chunk after the other; yields the answer to each."""
    wait = WAIT if change.waits else None
    if chosen.ids:
        for ids in _id_chunks(chosen):
            selection = LetterSelection(ids=ids, limit=len(ids), wait=wait)
            changed = await _post(client, change, selection)
            wait = wait if _something_became(changed) else None
            more = ids[-1] < chosen.ids[-1]
            yield msgspec.structs.replace(changed, last_id=ids[-1], more=more)
        return
    after, more = chosen.after, True
    while more:
        selection = LetterSelection(filter=chosen.wanted, after=after, wait=wait)
        changed = await _post(client, change, selection)
        after, more = changed.last_id, changed.more
        wait = wait if _something_became(changed) else None
        yield changed


def _something_became(changed: LettersChanged) -> bool:
    """Of these letters; where nothing does, the next ones aren't waited for."""
    return bool(changed.delivered) or bool(changed.dead_again)


def _sum(so_far: LettersChanged, one: LettersChanged) -> LettersChanged:
    both = LettersChanged(so_far.count + one.count, one.last_id, one.more)
    if (so_far.delivered, one.delivered) == (UNSET, UNSET):
        return both
    return msgspec.structs.replace(
        both,
        delivered=(so_far.delivered or 0) + (one.delivered or 0),
        dead_again=(so_far.dead_again or 0) + (one.dead_again or 0),
        errors=sorted({*(so_far.errors or ()), *(one.errors or ())}),
    )


async def _count(client: HttpClient, change: Change, chosen: Chosen) -> int:
    """How many dead letters are meant; those that were changed before aren't dead any more."""
    if not chosen.ids:
        dry = LetterSelection(filter=chosen.wanted, dry_run=True)
        return (await _post(client, change, dry)).count
    selections = [LetterSelection(ids=ids, dry_run=True) for ids in _id_chunks(chosen)]
    return sum([(await _post(client, change, one)).count for one in selections])


def _id_chunks(chosen: Chosen) -> Iterator[list[int]]:
    ids = [one for one in chosen.ids if one > chosen.after]
    for start in range(0, len(ids), CHANGED_MAX):
        yield ids[start : start + CHANGED_MAX]


async def _post(client: HttpClient, change: Change, selection: LetterSelection) -> LettersChanged:
    return await client.post(f"/v1/dead-letters/{change.verb}", selection, LettersChanged)
