"""Before a WebSocket connection is used, the client that opens it has to show a credential.

With the request, as a program does (`Authorization: Bearer`), or with the first message, as a web
page must: {"type": "auth", "token": "…"}. The same message renews what has been said, in place.
Invariants: nothing of the connection's own is heard or said before that; a client that says nothing
for `HANDSHAKE_S`, or more than may wait, is cut off, and sooner where there is no room for
newcomers; a credential that renews has to be of the same principal with the same grants, or the
client has to connect anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec

from headgate import errors
from headgate.decide.access.deciding import who_are_you
from headgate.model.access import Principal
from headgate.ports.connection import Wire
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.rights import Rights, Stay
from headgate.services.gateway.text_messages import TextConnection, close_code, close_reason
from headgate.services.gateway.wire import authenticated_message, error_message
from headgate.services.principals import BEARER, CREDENTIAL_CHARS
from headgate.tasks import Crew

HANDSHAKE_S = 10.0
WAITING_MAX = 16
WAITING_MAX_BYTES = 64 * 1024
"""Messages that come behind the credential while it is looked at."""
ABORT_S = 5.0


class Auth(msgspec.Struct, tag_field="type", tag="auth", forbid_unknown_fields=True):
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=CREDENTIAL_CHARS)]


_decode = msgspec.json.Decoder(Auth).decode


class IdentifiedPeer:
    """Implements ports.connection.Peer in front of the connection that `make` makes for the
    principal. `said` is the header that came with the request (empty: none); `newcomers` has the
    connections whose principal isn't known yet; `entry` counts it for its address until then."""

    def __init__(
        self,
        rights: Rights,
        make: Callable[[Principal], TextConnection],
        *,
        said: str,
        crew: Crew,
        newcomers: dict[IdentifiedPeer, None],
        entry: Entry | None = None,
    ) -> None:
        self._entry = entry or Entry()
        self._rights = rights
        self._make = make
        self._said = said
        self._crew = crew
        self._newcomers = newcomers
        self._wire: Wire | None = None
        self._inner: TextConnection | None = None
        self._stay: Stay | None = None
        self._asking: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._is_over = False

    # --- what happens to it ----------------------------------------------------------------------

    def connected(self, wire: Wire) -> None:
        self._wire = wire
        try:
            self._entry.begin(wire.peer_address)
        except errors.TooMany as error:
            self.fail(error)
            return
        self._newcomers[self] = None
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._too_late)
        if self._said:
            credential = self._said[len(BEARER) :].strip()
            is_bearer = self._said[: len(BEARER)].lower() == BEARER
            self._ask(credential if is_bearer else "")

    def heard(self, message: bytes) -> None:
        if self._is_over:
            return
        credential = _credential_in(message)
        if credential is not None:
            self._ask(credential)
        elif self._inner is not None:
            self._inner.heard(message)
        elif self._asking is None:
            self.fail(who_are_you())
        elif self._has_room(message):
            self._waiting.append(message)
        else:
            self.fail(errors.Overloaded("wait for authenticated before you say so much"))

    def _has_room(self, message: bytes) -> bool:
        waiting_bytes = sum(map(len, self._waiting)) + len(message)
        return len(self._waiting) < WAITING_MAX and waiting_bytes <= WAITING_MAX_BYTES

    def paused(self) -> None:
        if self._inner is not None:
            self._inner.paused()

    def resumed(self) -> None:
        if self._inner is not None:
            self._inner.resumed()

    def leaving(self) -> None:
        self._is_over = True
        if self._inner is not None:
            self._inner.leaving()

    def fail(self, error: errors.HeadgateError) -> None:
        if self._inner is not None:
            self._inner.fail(error)
        elif self._wire is not None and not self._is_over:
            self._is_over = True
            self._waiting.clear()
            self._entry.refused(error)
            self._wire.send(error_message(error))
            self._wire.close(close_code(error), close_reason(error))
            asyncio.get_running_loop().call_later(ABORT_S, self._wire.abort)

    def give_way(self) -> None:
        """Gone at once, to make room for a newcomer: silence keeps nobody else out."""
        self._newcomers.pop(self, None)
        self.fail(
            errors.Unauthorized(
                "too many come in at the moment; send your token as soon as you are connected",
                reason="handshake",
            )
        )
        if self._wire is not None:
            self._wire.abort()

    def disconnected(self) -> None:
        self._is_over = True
        self._newcomers.pop(self, None)
        self._entry.end()
        if self._deadline is not None:
            self._deadline.cancel()
        if self._asking is not None:
            self._asking.cancel()
        if self._stay is not None:
            self._rights.over(self._stay)
        if self._inner is not None:
            self._inner.disconnected()

    # --- who it is -------------------------------------------------------------------------------

    def _too_late(self) -> None:
        if self._inner is None:
            self.fail(
                errors.Unauthorized(
                    f"no token came within {HANDSHAKE_S:g} s: send "
                    '{"type": "auth", "token": "…"} first',
                    reason="handshake",
                )
            )

    def _ask(self, credential: str) -> None:
        if self._asking is not None:
            self.fail(errors.InvalidRequest("one auth message at a time: wait for its answer"))
            return
        self._asking = self._crew.start("identifying", self._identify(credential))

    async def _identify(self, credential: str) -> None:
        try:
            principal = await self._rights.principals.principal_of(credential)
            if self._is_over:
                return
            if self._inner is None:
                self._come_in(principal)
            else:
                self._renew(principal)
        except errors.HeadgateError as error:
            self.fail(error)
        except Exception:
            self.fail(errors.HeadgateError("something went wrong here; the server's log says what"))
            raise
        finally:
            self._asking = None

    def _come_in(self, principal: Principal) -> None:
        assert self._wire is not None, "it is connected"
        if self._deadline is not None:
            self._deadline.cancel()
        self._newcomers.pop(self, None)
        self._entry.end()
        self._inner = self._make(principal)
        self._stay = self._rights.begin(principal, self._inner.fail)
        self._wire.send(authenticated_message(principal))
        self._inner.connected(self._wire)
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._inner.heard(message)

    def _renew(self, principal: Principal) -> None:
        assert self._stay is not None, "somebody came in"
        assert self._inner is not None, "with a connection"
        if not _is_same(self._stay.principal, principal):
            self.fail(
                errors.Unauthorized(
                    "the new token is another principal's, or is granted something else: "
                    "connect anew with it",
                    reason="changed",
                )
            )
            return
        self._stay.principal = principal
        self._inner.answer(authenticated_message(principal))


def _is_same(before: Principal, now: Principal) -> bool:
    """Whether what is under way would be granted still; until when, and by which token, may
    differ."""

    def essence(one: Principal) -> object:
        times = ("exp", "iat", "nbf", "jti", "auth_time")
        claims = {name: value for name, value in one.claims.items() if name not in times}
        return one.name, one.kind, one.grants, one.tenant, claims, one.limits

    return essence(before) == essence(now)


def _credential_in(message: bytes) -> str | None:
    """None for any other message."""
    if b'"auth"' not in message:
        return None
    try:
        return _decode(message).token
    except (msgspec.DecodeError, RecursionError):
        return None
