"""Dead letters over HTTP: found, shown, sent again and deleted, a bounded number at a time.

Invariant: a call changes one chunk and says where the next one begins, so that a caller that
changes many can show how far it is, stop, and go on later. Parked letters are shown, and otherwise
left alone: they are sent by themselves; but for damaged ones, which can't be sent, and may be
deleted by their ids. Never holds more than a chunk of events in memory. Lanes decide what becomes
of a letter that is sent again; the caller hears it if it waits. A letter of a group is sent again
only where its target is one that consumers can own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from headgate.decide.access.showing import Sight
from headgate.decide.operations.letter_queries import (
    by_gateway,
    described,
    is_damaged,
    letter_id,
    list_question,
    page_of,
    selected,
    wait_ms,
)
from headgate.errors import HeadgateError, InvalidRequest, NotFound
from headgate.model.access import Action
from headgate.model.event import PartitionRef
from headgate.model.groups import group_of
from headgate.model.http import Request, Response, Route, json_response
from headgate.model.letters import GatewayLetters, Letter, LetterQuery
from headgate.model.letters_api import CHUNK, LetterInfo, LettersChanged, LetterSelection
from headgate.ports.letters import Fences, LetterStore
from headgate.ports.machine import Machine
from headgate.services.coordinator.sweeping import forget_letters
from headgate.telemetry import LogLine

log = structlog.get_logger()

MAX_BODY_BYTES = 64 * 1024
SCANS = 50
"""Reads of the store for one answer to a principal that may not see everything in it."""
COUNT_TIMEOUT_S = 1.0
"""A request for the status is to be answered at once."""

LOOK_FIRST_S, LOOK_LAST_S = 0.02, 0.4
"""The first and the longest pause between two looks at what became of letters."""

_Change = Callable[[Sequence[Letter]], Awaitable[list[int]]]
"""Changes dead letters; returns the ids of those that still were."""


class LetterRoutes:
    """`check_leads` raises NotNow where another coordinator leads; `on_revived` is told which
    partitions have letters to send again; `is_target` knows the names of all groups' targets."""

    def __init__(
        self,
        store: LetterStore,
        *,
        check_leads: Callable[[], object],
        on_revived: Callable[[frozenset[PartitionRef]], Awaitable[None]],
        is_target: Callable[[str], bool],
        machine: Machine,
    ) -> None:
        self._store = store
        self._check_leads = check_leads
        self._on_revived = on_revived
        self._is_target = is_target
        self._machine = machine

    def table(self) -> list[Route]:
        return [
            Route("GET", "/v1/dead-letters", self._list),
            Route("POST", "/v1/dead-letters/retry", self._retry_some),
            Route("POST", "/v1/dead-letters/delete", self._delete_some),
            Route("GET", "/v1/dead-letters/{id}", self._show),
            Route("DELETE", "/v1/dead-letters/{id}", self._delete),
            Route("POST", "/v1/dead-letters/{id}/retry", self._retry),
        ]

    async def counted(self) -> tuple[list[GatewayLetters], str]:
        """The letters by gateway, or what keeps them from being counted."""
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                counts = await self._store.counts()
        except TimeoutError:
            return [], f"the letters couldn't be counted within {COUNT_TIMEOUT_S:g} s"
        except HeadgateError as error:
            return [], error.message
        return by_gateway(counts, now_ms=self._machine.wall_ms()), ""

    async def forget(self, fences: Fences) -> None:
        """What a deleted topic has left behind."""
        if fences:
            await forget_letters(self._store, fences)

    # --- looking -------------------------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        self._check_leads()
        question = list_question(request.query, now_ms=self._machine.wall_ms())
        eyes = Sight(request.principal, "read")
        found, scanned_id = await self._seen(
            eyes, question.query, after_id=question.after_id, limit=question.limit + 1
        )
        page = page_of(found, question)
        if scanned_id and not page.more:  # nothing was found for long: the next page goes on there
            page = msgspec.structs.replace(page, last_id=scanned_id, more=True)
        return json_response(page)

    async def _seen(
        self, eyes: Sight, query: LetterQuery, *, after_id: int, limit: int
    ) -> tuple[list[Letter], int]:
        """Those that the principal may know of; the id of the last one that was looked at, where
        there may be more behind it and the caller shouldn't have to wait for them."""
        if eyes.see_all:
            return await self._store.find(query, after_id=after_id, limit=limit), 0
        seen: list[Letter] = []
        for _ in range(SCANS):
            found = await self._store.find(query, after_id=after_id, limit=CHUNK)
            seen += [letter for letter in found if eyes.sees(letter)]
            if len(found) < CHUNK or len(seen) >= limit:
                return seen[:limit], 0
            after_id = found[-1].id
        return seen, after_id

    async def _show(self, request: Request) -> Response:
        self._check_leads()
        return json_response(described(await self._found(request, "read")))

    async def _found(self, request: Request, action: Action = "write") -> Letter:
        """For a principal that mayn't know of it the letter isn't there."""
        wanted = letter_id(request.params["id"])
        found = await self._store.find(LetterQuery(state=None, ids=(wanted,)), limit=1)
        if not found or not Sight(request.principal, action).sees(found[0]):
            raise NotFound(
                f"there is no letter {wanted}: it was delivered, deleted or joined with another "
                "of its record, or never there",
                id=wanted,
            )
        return found[0]

    # --- changing one --------------------------------------------------------------------------

    async def _retry(self, request: Request) -> Response:
        self._check_leads()
        letter = await self._found(request)
        if why := self._why_not(letter):
            raise InvalidRequest(f"letter {letter.id} can't be sent again: {why}", id=letter.id)
        if not await self._revive([letter]):
            letter = await self._found(request)
            raise _is_parked(letter, "it is sent by itself as soon as its gateway takes it")
        delivery = msgspec.structs.replace(letter.delivery, redelivery=True)
        again = msgspec.structs.replace(
            letter, state="parked", at_ms=self._machine.wall_ms(), delivery=delivery
        )
        return json_response(_as_seen(again, request))

    async def _delete(self, request: Request) -> Response:
        self._check_leads()
        letter = await self._found(request)
        if not await self._forget([letter]):
            why = "only dead letters can be deleted, and damaged ones"
            raise _is_parked(await self._found(request), why)
        return Response(204)

    # --- changing many -------------------------------------------------------------------------

    async def _retry_some(self, request: Request) -> Response:
        return await self._change_some(request, self._revive, waits=True)

    async def _delete_some(self, request: Request) -> Response:
        return await self._change_some(request, self._forget, damaged=True)

    async def _change_some(
        self, request: Request, change: _Change, *, waits: bool = False, damaged: bool = False
    ) -> Response:
        """Dead ones; of those that are named also the parked ones that are `damaged`."""
        self._check_leads()
        selection = await request.decode(LetterSelection, MAX_BODY_BYTES)
        query, asked_ms = selected(selection, now_ms=self._machine.wall_ms()), wait_ms(selection)
        if damaged and query.ids:
            query = msgspec.structs.replace(query, state=None)
        eyes = Sight(request.principal, "write")
        if selection.dry_run:
            count, more = await self._counted(eyes, query)
            return json_response(LettersChanged(count, 0, more=more, dry_run=True))
        found, scanned_id = await self._seen(
            eyes, query, after_id=selection.after, limit=selection.limit
        )
        ids = await change(found)
        last_id = scanned_id or (found[-1].id if found else selection.after)
        more = bool(scanned_id) or len(found) == selection.limit
        changed = LettersChanged(len(ids), last_id, more=more)
        stay = [why for letter in found if (why := self._why_not(letter))] if waits else []
        if (waits and asked_ms) or stay:
            left = await self._left_of(ids, asked_ms / 1_000)
            dead = [letter for letter in left if letter.state == "dead"]
            changed = msgspec.structs.replace(
                changed,
                count=changed.count + len(stay),
                delivered=len(ids) - len(left),
                dead_again=len(dead) + len(stay),
                errors=sorted({*(one.error for one in dead), *stay}),
            )
        return json_response(changed)

    async def _counted(self, eyes: Sight, query: LetterQuery) -> tuple[int, bool]:
        """How many the principal may change, and whether there may be more."""
        if query.state is None:
            found, _ = await self._seen(eyes, query, after_id=0, limit=len(query.ids))
            return sum(_may_go(letter) for letter in found), False
        if eyes.see_all:
            return await self._store.count(query), False
        count, after_id = 0, 0
        for _ in range(SCANS):
            found = await self._store.find(query, after_id=after_id, limit=CHUNK)
            count += sum(eyes.sees(letter) for letter in found)
            if len(found) < CHUNK:
                return count, False
            after_id = found[-1].id
        return count, True

    async def _left_of(self, ids: Sequence[int], timeout_s: float) -> list[Letter]:
        """Those that are still here when none is on its way any more, or nobody waits longer."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        pause_s = LOOK_FIRST_S
        query = LetterQuery(state=None, ids=tuple(ids))
        while ids:
            left = await self._store.find(query, limit=len(ids))
            on_their_way = any(letter.state == "parked" for letter in left)
            if not on_their_way or asyncio.get_running_loop().time() + pause_s > deadline_s:
                return left
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LOOK_LAST_S)
        return []

    def _why_not(self, letter: Letter) -> str:
        """Why it can't be sent again, where it can't: as parked it would wait for ever. Nobody can
        read one that is damaged, and no consumer can own some targets."""
        if letter.damage:
            return is_damaged(letter)
        if group_of(letter.gateway_id) and not self._is_target(letter.gateway_id):
            return f"it {_is_nobodys(letter)}"
        return ""

    async def _revive(self, letters: Sequence[Letter]) -> list[int]:
        ids = [one.id for one in letters if not self._why_not(one)]
        revived = await self._store.revive(ids, now_ms=self._machine.wall_ms())
        if revived:
            log.info(LogLine.LETTERS_REVIVED, count=len(revived))
            again = set(revived)
            refs = (letter.ref for letter in letters if letter.id in again)
            await self._on_revived(frozenset(refs))
        return revived

    async def _forget(self, letters: Sequence[Letter]) -> list[int]:
        deleted = await self._store.delete([one.id for one in letters])
        if deleted:
            log.info(LogLine.LETTERS_DELETED, count=len(deleted))
        return deleted


def _as_seen(letter: Letter, request: Request) -> LetterInfo:
    """What the principal may read of a letter that it may change: its event, or only that it is
    there."""
    if Sight(request.principal, "read").sees(letter):
        return described(letter)
    return msgspec.structs.replace(described(letter, documents=False), headers={})


def _is_nobodys(letter: Letter) -> str:
    target = letter.gateway_id.rpartition("/")[2].replace("-of-", " of ")
    return (
        f"was given up by target {target} of group {group_of(letter.gateway_id)}, which has "
        "another number of targets now, or no consumer yet: start one, or produce the event again"
    )


def _may_go(letter: Letter) -> bool:
    return letter.state == "dead" or bool(letter.damage)


def _is_parked(letter: Letter, why: str) -> InvalidRequest:
    return InvalidRequest(f"letter {letter.id} is parked, not dead: {why}", id=letter.id)
