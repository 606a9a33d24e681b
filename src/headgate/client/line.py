"""Carries a client's conversation: tells it what happens, and does what it decides, at once.

What a gateway says is taken in where it arrives, between the user's calls as well. Only getting a
connection takes time; one task does it, which belongs to the client and not to the call that
happens to wait. So a call only ever waits for something to be here: cancelling it changes nothing.

Invariants: there is one connection at most; when `room` items wait, or `room_bytes` of their
documents, the socket isn't read until half of them are taken; after `close` has returned, nothing
of the client is open or running, also when an earlier `close` was cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic

import msgspec

from headgate import errors
from headgate.client.gateway_choice import Doors, Way
from headgate.client.outages import Outages
from headgate.decide.conversation.common import Control, Conversation, Phase
from headgate.decide.conversation.effects import Connect, Effects, HangUp, Redirected, Remind, Send
from headgate.model.client_messages import Event, Item, Left, Resync
from headgate.ports.connection import Link, OpenLink
from headgate.ports.machine import Machine
from headgate.tasks import Crew

CONNECT_TIMEOUT_S = 5.0
"""For a gateway to answer at all, before another one is tried."""
BUFFER_BYTES = 64 * 1024 * 1024
"""Of documents, in a client that says nothing else."""
LEAVE_TIMEOUT_S = 10.0
"""For a gateway to save what was acknowledged."""
ITEMS = (Event, Left, Resync)

Caller = asyncio.Task[Any] | threading.Thread


class Line(Generic[Control]):
    """`url_of` says where to connect on a way in."""

    def __init__(
        self,
        conversation: Conversation[Control, Any],
        decode: Callable[[bytes], Item | Control],
        *,
        name: str,
        doors: Doors,
        url_of: Callable[[Way], str],
        room: int,
        room_bytes: int,
        open_timeout_s: float,
        silence_s: float,
        open_link: OpenLink,
        machine: Machine,
    ) -> None:
        self._machine = machine
        self._conversation = conversation
        self._decode = decode
        self.doors = doors
        self._url_of = url_of
        self._room = max(1, room)
        self._room_bytes = max(1, room_bytes)
        self._open_timeout_s = open_timeout_s
        self._silence_s = silence_s
        self.open_link = open_link
        self._crew = Crew(name)
        self._outages = Outages(name)
        self.link: Link | None = None
        self._news = asyncio.Event()
        """Set when there may be something for the tasks that wait."""
        self._is_paused = False
        self._wanted: Connect | None = None
        self._is_connecting = False
        self._redirected: Redirected | None = None
        self._reminder: asyncio.TimerHandle | None = None

    # --- calls -----------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Until the conversation is live; raises what is wrong, and leaves nothing open then."""
        conversation = self._conversation
        if conversation.phase is not Phase.NEW:
            raise errors.InvalidRequest("a client is entered once: make another one")
        try:
            self.do(conversation.enter())
            while not (conversation.has_begun or conversation.failure or conversation.is_over):
                await self._something_new()
        except BaseException:
            await self._close_for_nobody()
            raise
        if not conversation.has_begun:
            closed = errors.InvalidRequest("the client was closed while it was entered")
            failure = conversation.failure or closed
            await self._close_for_nobody()
            raise failure

    async def _close_for_nobody(self) -> None:
        """Also where this is cancelled: nobody has the client, to close it again."""
        try:
            await self.close()
        except asyncio.CancelledError:
            await self.close()
            raise

    def next(self, caller: Caller | None = None) -> Coroutine[Any, Any, Item]:
        """The next item, for `caller`: without one, for the task that asks, though another one may
        be made to wait. The caller is done with what it took before, already now."""
        asking = _asking_task() if caller is None else caller
        if asking is not None:
            self._done(asking)
        return self._next(asking)

    def _done(self, caller: Caller) -> None:
        conversation = self._conversation
        now_s = _now_s()
        if effects := conversation.done(caller, now_s):
            self.do(effects)
        if conversation.callers:
            # A caller that has ended asks for nothing any more.
            for one in [one for one in conversation.callers if _has_ended(one)]:
                self.do(conversation.done(one, now_s))

    async def _next(self, asking: Caller | None) -> Item:
        conversation = self._conversation
        if asking is None:
            asking = _asking_task()
            assert asking is not None, "it runs"
            self._done(asking)
        while True:
            item = conversation.take(asking)
            if self._is_paused:
                self._read_on()
            if item is not None:
                return item
            self.do(conversation.asked(_now_s()))
            if conversation.is_over:
                raise StopAsyncIteration
            await self._something_new()

    def put_back(self, caller: Caller) -> None:
        """Who never saw what they took: it is the next item."""
        self.do(self._conversation.put_back(caller, _now_s()))

    async def close(self) -> None:
        """All that can be done at once is done first, so that nothing stays open when this is
        cancelled; what it waits for, the next one waits for again."""
        conversation = self._conversation
        self.do(conversation.close())
        self._crew.cancel()
        if self._reminder is not None:
            self._reminder.cancel()
        self._wanted = None
        self._news.set()
        try:
            await self._crew.close()
            await self._left()
        finally:
            conversation.ended()
            if self.link is not None:
                self.link.close()
        if self.link is not None:
            await self.link.wait_closed()
        await self.doors.close()

    async def _left(self) -> None:
        """Until the gateway has said its last word, for a while."""
        if self._conversation.phase is not Phase.CLOSING:
            return
        if self.link is not None:
            self.link.resume()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                while self._conversation.phase is Phase.CLOSING:
                    await self._something_new()
        except TimeoutError:
            return

    async def _something_new(self) -> None:
        self._news.clear()
        await self._news.wait()

    # --- from the connection ---------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        self._hang_up()  # one of the same attempt that was too slow
        self.link = link
        self._is_paused = False
        self.do(self._conversation.opened())

    def heard(self, message: bytes) -> None:
        try:
            decoded = self._decode(message)
        except msgspec.DecodeError:
            self.do(self._conversation.misunderstood())
            self._news.set()
            return
        conversation = self._conversation
        if not isinstance(decoded, ITEMS):
            self.do(conversation.heard(decoded, _now_s()))
            if self._outages.is_out and conversation.phase is Phase.LIVE:
                self._outages.back(f"connected again; {conversation.goes_on()}", _now_s())
        elif not conversation.arrived(decoded):
            self.do(conversation.unexpected(_now_s()))
        self._news.set()
        waiting = conversation.waiting
        is_full = len(waiting) >= self._room or waiting.size_bytes >= self._room_bytes
        if is_full and not self._is_paused:
            self._bound()

    def lost(self) -> None:
        self.link = None
        self.do(self._conversation.lost(_now_s()))
        self._news.set()

    def _bound(self) -> None:
        """While the conversation opens, what it waits for may stand behind any number of items."""
        if self.link is not None and self._conversation.phase is Phase.LIVE:
            self._is_paused = True
            self.link.pause()

    def _read_on(self) -> None:
        waiting = self._conversation.waiting
        if 2 * len(waiting) <= self._room and 2 * waiting.size_bytes <= self._room_bytes:
            self._is_paused = False
            if self.link is not None:
                self.link.resume()

    # --- what the conversation decides -----------------------------------------------------------

    def do(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send():
                    if self.link is not None:
                        self.link.send(effect.message)
                case HangUp():
                    self._hang_up()
                case Redirected():
                    self._hang_up()
                    self._redirected = effect
                case Remind(after_s):
                    self._remind(after_s)
                case Connect(reason=reason):
                    self._wanted = effect
                    if reason and self._conversation.has_begun:
                        self._outages.lost(
                            "connection lost: ", reason, "connecting again", _now_s()
                        )
                    if not self._is_connecting:
                        self._is_connecting = True
                        self._crew.start("connecting", self._connect_on())
        if self._conversation.waiting:
            self._news.set()  # a call may have brought it back, while another one waits for it

    def _remind(self, after_s: float) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
        loop = asyncio.get_running_loop()
        self._reminder = loop.call_later(after_s, self._reminded)

    def _reminded(self) -> None:
        self._reminder = None
        self.do(self._conversation.reminded(_now_s()))
        self._news.set()

    def _hang_up(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.abort()

    # --- connecting ------------------------------------------------------------------------------

    async def _connect_on(self) -> None:
        """Attempt after attempt, for as long as the conversation wants another one."""
        try:
            while (wanted := self._wanted) is not None:
                await asyncio.sleep(wanted.pause_s * (0.5 + 0.5 * self._machine.jitter()))
                self._wanted = None
                try:
                    await self._attempt()
                except errors.HeadgateError as error:
                    self._failed(error)
        except Exception as error:
            # The tasks that wait must hear of a mistake in here, too.
            self._failed(errors.HeadgateError(f"the client failed: {error!r}; please report this"))
            raise
        finally:
            self._is_connecting = False

    def _failed(self, error: errors.HeadgateError) -> None:
        """Unless the conversation knows better: it may be live since, or want another attempt."""
        if self._wanted is None and self._conversation.phase in (Phase.CONNECTING, Phase.OPENING):
            self._hang_up()
            self.do(self._conversation.unreachable(error, _now_s()))
            self._news.set()

    async def _attempt(self) -> None:
        """Until the conversation is live, or wants another attempt."""
        way: Way | None = None
        try:
            async with asyncio.timeout(self._open_timeout_s):
                way = await self.doors.way_in()
                while (redirected := await self._asked_at(way)) is not None:
                    way.redirected(redirected.url, redirected.gateway)
        except TimeoutError as error:
            what = "no gateway answered" if way is None else f"{way.door} gave no answer"
            raise errors.Timeout(f"{what} within {self._open_timeout_s:g} s; try again") from error
        finally:
            if way is not None and self._conversation.phase is not Phase.LIVE:
                self.doors.refused(way.door)

    async def _asked_at(self, way: Way) -> Redirected | None:
        """Ask the next gateway that is there; returns where it sends us, if it does."""
        self._redirected = None
        while not await self._is_there(way):
            if self._wanted is not None:
                return None  # it was there, and is lost already
        while self._conversation.phase is Phase.OPENING:
            await self._something_new()
        return self._redirected

    async def _is_there(self, way: Way) -> bool:
        link = self.open_link(self, self._silence_s)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await link.connect(self._url_of(way))
        except TimeoutError:
            failure = errors.PeerUnreachable(f"{way.door} gave no answer", url=way.door)
        except errors.PeerUnreachable as error:
            failure = error
        else:
            return True
        if self._wanted is None:
            self._hang_up()
            way.failed(failure)
        return False


def _asking_task() -> asyncio.Task[Any] | None:
    """None where the loop doesn't run yet."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _has_ended(caller: Hashable) -> bool:
    match caller:
        case asyncio.Task():
            return caller.done()
        case threading.Thread():
            # One whose `join` was interrupted says that it isn't alive, and may be.
            return not caller.is_alive() and caller not in threading.enumerate()
    return False


def _now_s() -> float:
    return asyncio.get_running_loop().time()
