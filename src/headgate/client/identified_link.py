"""A connection that shows its credential before it is used, and renews it in place.

Implements ports.connection.Link around another one, and listens in its stead. Invariants: the owner
of the link hears `opened` once the gateway knows who this is, and nothing of how that went; it also
hears what the gateway says right behind that, which is often a redirect; a token that is refused
while another one can be had makes a new connection, not a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import msgspec

from headgate import errors
from headgate.client.credentials import Credentials
from headgate.model.api import ErrorAnswer
from headgate.model.refusals import rebuild
from headgate.ports.connection import Link, LinkListener, OpenLink
from headgate.ports.machine import Machine
from headgate.tasks import Crew

ANSWER_TIMEOUT_S = 10.0
RENEW_AT = 0.8
"""Of the time that a token has left, so that there is some for a second try."""
RENEW_PAUSE_S = 1.0
RENEW_LATE_S = 60.0
"""Where a token that was just taken is over by the clock here, which is ahead then."""
_AUTHENTICATED = b'{"type":"authenticated"'
_ERROR = b'{"type":"error"'


class _Authenticated(msgspec.Struct, tag_field="type", tag="authenticated"):
    expires_at_ms: int | None = None


_decode = msgspec.json.Decoder(_Authenticated).decode
_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


def identified(open_link: OpenLink, credentials: Credentials, machine: Machine) -> OpenLink:
    return partial(IdentifiedLink, open_link, credentials, machine)


class IdentifiedLink:
    def __init__(
        self,
        open_link: OpenLink,
        credentials: Credentials,
        machine: Machine,
        listener: LinkListener,
        silence_s: float,
    ) -> None:
        self._credentials = credentials
        self._machine = machine
        self._listener = listener
        self._inner = open_link(self, silence_s)
        self._token = ""
        self._answer: asyncio.Future[None] | None = None
        self._is_open = False
        self._renewal: asyncio.TimerHandle | None = None
        self._expires_at_ms = 0
        self._crew = Crew("renewing")

    # --- by its owner ----------------------------------------------------------------------------

    async def connect(self, url: str) -> None:
        await self._inner.connect(url)
        try:
            await self._identify()
        except BaseException:
            self._inner.abort()  # nobody else has it
            raise

    async def _identify(self) -> None:
        self._token = await self._credentials.current()
        try:
            await self._say(self._token)
        except errors.Unauthorized as refused:
            if not self._credentials.can_renew:
                raise
            if await self._credentials.renewed(self._token) == self._token:
                raise
            raise errors.PeerUnreachable("the token was renewed; try again") from refused

    async def _say(self, token: str) -> None:
        """Until the gateway knows who this is."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._inner.send(_auth(token))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await answer
        except TimeoutError as error:
            raise errors.PeerUnreachable("the gateway didn't say whether it knows us") from error
        finally:
            self._answer = None

    def send(self, message: bytes) -> None:
        self._inner.send(message)

    def pause(self) -> None:
        self._inner.pause()

    def resume(self) -> None:
        self._inner.resume()

    def close(self) -> None:
        self._end()
        self._inner.close()

    def abort(self) -> None:
        self._end()
        self._inner.abort()

    async def wait_closed(self) -> None:
        await self._crew.close()
        await self._inner.wait_closed()

    def _end(self) -> None:
        self._is_open = False
        self._crew.cancel()
        if self._renewal is not None:
            self._renewal.cancel()

    # --- the connection --------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """Nobody is told yet."""

    def heard(self, message: bytes) -> None:
        if self._answer is not None:
            self._answered(message, self._answer)
        elif message.startswith(_AUTHENTICATED):
            self._renew_before(_decode(message))
        elif message.startswith(_ERROR) and self._is_over(message):
            self._token_ended()
        else:
            self._listener.heard(message)

    def _answered(self, message: bytes, answer: asyncio.Future[None]) -> None:
        if answer.done():
            return
        try:
            said = _decode(message)
        except msgspec.DecodeError:
            answer.set_exception(_error_in(message))
            return
        # At once, and not when `connect` goes on: the next message may be there already.
        self._answer, self._is_open = None, True
        answer.set_result(None)
        self._renew_before(said)
        self._listener.opened(self)

    def lost(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(
                errors.PeerUnreachable("the gateway closed the connection; try again")
            )
        was_open = self._is_open
        self._end()
        if was_open:
            self._listener.lost()

    # --- renewal ---------------------------------------------------------------------------------

    def _is_over(self, message: bytes) -> bool:
        """Whether the gateway ends the connection because of the token, and there is another."""
        return self._credentials.can_renew and isinstance(_error_in(message), errors.Unauthorized)

    def _token_ended(self) -> None:
        self._end()
        self._inner.abort()
        self._credentials.forget(self._token)
        self._listener.lost()

    def _renew_before(self, said: _Authenticated) -> None:
        if said.expires_at_ms is None or not self._credentials.can_renew:
            return
        self._expires_at_ms = said.expires_at_ms
        self._renew_later()

    def _renew_later(self) -> None:
        left_s = (self._expires_at_ms - self._machine.wall_ms()) / 1_000
        after_s = max(RENEW_PAUSE_S, left_s * RENEW_AT) if left_s > 0 else RENEW_LATE_S
        if self._renewal is not None:
            self._renewal.cancel()
        loop = asyncio.get_running_loop()
        self._renewal = loop.call_later(after_s, self._begin_renewal)

    def _begin_renewal(self) -> None:
        if self._is_open:
            self._crew.start("renewing", self._renew())

    async def _renew(self) -> None:
        token = self._token
        with contextlib.suppress(errors.HeadgateError):
            token = await self._credentials.renewed(token)
        if not self._is_open:
            return
        if token == self._token:
            self._renew_later()
            return
        self._token = token
        self._inner.send(_auth(token))


def _auth(token: str) -> bytes:
    return msgspec.json.encode({"type": "auth", "token": token})


def _error_in(message: bytes) -> errors.HeadgateError:
    try:
        body = _decode_error(message).error
    except msgspec.DecodeError:
        return errors.PeerUnreachable("the gateway answered with something else; try again")
    return rebuild(body)
