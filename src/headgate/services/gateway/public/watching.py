"""Shows people how the whole system fares, for as long as they look: GET /v1/overview/stream.

One look per second, or fewer where it takes long, for everybody who watches, and none where nobody
does. Invariants: a slow reader gets the newest state and no backlog of older ones, so nothing is
kept for it; while the coordinator is away everybody hears so, with what was seen last; a chunk
comes at least every `EVERY_S_MAX` and `LOOK_TIMEOUT_S` together, so silence means that the
connection is lost; a watcher that may not look any more is told at once and waits for no look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from headgate import errors
from headgate.decide.console.looks import Looks, pause_s
from headgate.decide.limits.holdings import Holdings
from headgate.model.http import Headers, Request, Response, Route, StreamResponse
from headgate.ports.machine import Machine
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.public.leader_calls import LeaderCalls
from headgate.services.gateway.rights import Rights, Stay
from headgate.services.gateway.subscriptions.sse import HEADERS
from headgate.services.gateway.wire import sse_event
from headgate.services.principals import identifying
from headgate.tasks import Crew

LOOK_TIMEOUT_S = 5.0
WATCHERS_MAX = 200
"""A browser needs one, however many pages it shows."""
REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
LEADERLESS = "no coordinator leads at the moment; what is shown is from before"
SILENT = "the coordinator doesn't answer; what is shown is from before, and events flow on"


class Watching:
    """`leader` is asked, by a task that `crew` owns."""

    def __init__(
        self,
        leader: LeaderCalls,
        *,
        crew: Crew,
        machine: Machine,
        holdings: Callable[[], Holdings] = Holdings,
    ) -> None:
        self._holdings = holdings
        self._leader = leader
        self._crew = crew
        self._machine = machine
        self._watchers: dict[Watcher, None] = {}
        self.rights: Rights | None = None
        """Of the watchers, where callers need a credential."""
        self._looking: asyncio.Task[None] | None = None
        self._looks = Looks()
        self._looked = asyncio.Event()
        """Set by the next look, and replaced then."""
        self._is_over = False

    def table(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/overview/stream",
                self._stream,
                "The overview as server-sent events: all of it, then the fields that change.",
                response_content_type="text/event-stream",
            ),
        ]

    async def _stream(self, request: Request) -> StreamResponse:
        if len(self._watchers) >= WATCHERS_MAX:
            raise errors.Overloaded(
                f"{WATCHERS_MAX} browsers watch this gateway already; close some, or use another"
            )
        entry = Entry(self._holdings(), request.principal)
        entry.begin(request.peer)
        watcher = Watcher(self, entry, identifying(request))
        return StreamResponse(200, dict(HEADERS), watcher)

    # --- watchers --------------------------------------------------------------------------------

    def joined(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None
        if self.rights is not None and watcher.principal is not None:
            watcher.stay = self.rights.begin(watcher.principal, watcher.leave)
        if self._looking is None or self._looking.done():
            self._looks = Looks()  # what was seen when somebody last watched is too old to show
            self._looking = self._crew.start("looking", self._look_on())

    def left(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        if self.rights is not None and watcher.stay is not None:
            self.rights.over(watcher.stay)
        if not self._watchers and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def after(self, number: int, watcher: Watcher) -> tuple[int, bytes] | None:
        """The number of the last look, once there is one after `number`, and what is new in it;
        None where there won't be one for the watcher."""
        while self._looks.number == number and not (self._is_over or watcher.has_left):
            await self._looked.wait()
        if self._is_over or watcher.has_left:
            return None
        return self._looks.number, self._looks.since(number)

    def stir(self) -> None:
        """Have every watcher that waits for a look see whether it still may, however long the look
        takes."""
        self._looked.set()
        self._looked = asyncio.Event()

    def end(self) -> None:
        """The gateway goes away: its watchers have to look elsewhere."""
        self._is_over = True
        self._looked.set()

    # --- looks -----------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while True:
            began_s = self._machine.monotonic_s()
            await self._look()
            if self._is_over:
                self._looked.set()
                return
            self.stir()
            await asyncio.sleep(pause_s(self._machine.monotonic_s() - began_s))

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                answer = await self._asked()
        except (errors.HeadgateError, TimeoutError):
            self._looks.missed(SILENT)
            return
        if answer is None:
            return
        if answer.status != HTTPStatus.OK:
            self._looks.missed(LEADERLESS)
            return
        try:
            fields = msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            self._looks.missed(SILENT)
            return
        self._looks.saw(fields, now_ms=self._machine.wall_ms())

    async def _asked(self) -> Response | None:
        """Every watcher may see it; the coordinator checks the credential again, any watcher's will
        do. None where it takes none of them any more, which this gateway is about to hear."""
        for said in dict.fromkeys(tuple(one.said) for one in reversed(self._watchers)):
            look = Request.to("GET", "/v1/overview", "", _for_ever, Headers(said))
            answer = await self._leader.pass_on(look, b"")
            if answer.status not in REFUSED:
                return answer
        return None


async def _for_ever() -> Mapping[str, Any]:
    """The look's own request has no client that could go away."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


class Watcher:
    """The chunks of one browser; `said` are the headers with its credential."""

    def __init__(self, watching: Watching, entry: Entry, said: Sequence[tuple[str, str]]) -> None:
        self.principal = entry.principal
        self._entry = entry
        self.said = said
        self.stay: Stay | None = None
        self._watching = watching
        self._seen = 0
        self._has_joined = False
        self.has_left = False

    def leave(self, _why: errors.HeadgateError) -> None:
        """This watcher may not look any more; asked again, the gateway says why."""
        self.has_left = True
        self._watching.stir()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._has_joined:
            self._has_joined = True
            self._watching.joined(self)
        look = await self._watching.after(self._seen, self)
        if look is None:
            raise StopAsyncIteration
        self._seen, news = look
        return sse_event("overview", news)

    async def aclose(self) -> None:
        self._entry.end()
        if self._has_joined:
            self._has_joined = False
            self._watching.left(self)
