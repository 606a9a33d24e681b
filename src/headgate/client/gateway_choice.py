"""Which gateway a subscriber connects to, and where it goes from there.

Any of the HTTP addresses it knows says where gateways take subscribers. A gateway may answer that
the subscriber belongs to another one; when that one can't be reached, the subscriber comes back and
says so, and is sent to the next one, or taken.

Invariants: every way has an end (`MOST_STEPS`); nobody is visited twice for being sent there; a way
that ended in vain is followed by one that begins elsewhere, if there is anywhere else; the
subscriber's id is the same for all its life, so that it belongs to the same gateway whenever it
comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from urllib.parse import urlencode

from headgate import errors
from headgate.client.credentials import Credentials
from headgate.client.http import HttpClient
from headgate.model.api import Status, WhereToSubscribe
from headgate.ports.http import OpenCalls
from headgate.ports.machine import Machine

MOST_STEPS = 16
"""Connections that are tried for one opening, redirects and dead gateways included."""


class Doors:
    """`url` is one address, or several, in a sequence or with commas in between."""

    def __init__(
        self,
        url: str | Sequence[str],
        subscriber_id: str | None = None,
        *,
        open_calls: OpenCalls,
        machine: Machine,
        credentials: Credentials | None = None,
    ) -> None:
        urls = url.split(",") if isinstance(url, str) else list(url)
        self._clients = deque(
            HttpClient(one.strip(), open_calls=open_calls, credentials=credentials) for one in urls
        )
        self._credentials = credentials
        self.subscriber_id = subscriber_id or machine.token(12)
        self._known: list[str] = []
        self._refused = ""
        """Where the last way ended in vain."""

    async def close(self) -> None:
        if self._credentials is not None:
            await self._credentials.close()
        for client in self._clients:
            await client.close()

    async def way_in(self) -> Way:
        """Ask where gateways are; raises NotNow when nobody knows."""
        try:
            found = dict.fromkeys(await self._found())
        except errors.NotNow:
            # Subscribing needs the coordinator too, but the addresses we had may serve us again.
            if not self._known:
                raise
        else:
            self._known = list(found) or self._known
        if not self._known:
            raise errors.NotNow("no gateway takes subscribers at the moment; try again")
        return Way(sorted(self._known, key=self._refused.__eq__), self.subscriber_id)

    async def _found(self) -> list[str]:
        """The addresses for WebSocket; one, where who asks may not know of all."""
        try:
            status = await self._status()
        except errors.Forbidden:
            here = await self._clients[0].get("/v1/gateway", WhereToSubscribe)
            return [here.ws_url] if here.ws_url else []
        ready = [node.ws_url for node in status.nodes if node.state != "lost"]
        return [url for url in (status.ws_url, *ready) if url]

    def refused(self, door: str) -> None:
        """A way ended there in vain: the gateway is there, and full, stopping or cut off. The next
        one begins elsewhere."""
        self._refused = door
        self._clients.rotate(-1)

    async def _status(self) -> Status:
        """From the first address that answers; that one is asked first the next time. One where
        something else answers is passed over like one where nothing does: while trying again may
        help with any of them, that is what is raised."""
        failure: errors.HeadgateError | None = None
        for _ in range(len(self._clients)):
            try:
                return await self._clients[0].get("/v1/status", Status)
            except (errors.Unauthorized, errors.Forbidden):
                raise  # it answers, and others won't answer otherwise
            except errors.HeadgateError as error:
                self._clients.rotate(-1)
                if failure is None or isinstance(error, errors.NotNow):
                    failure = error
        assert failure is not None, "there is an address"
        raise failure


class Way:
    """One way in, step by step: connect to `url`, then tell how that went."""

    def __init__(self, doors: Sequence[str], subscriber_id: str) -> None:
        self._doors = deque(doors)
        self._subscriber_id = subscriber_id
        self._steps = 0
        self._unreachable: list[str] = []
        self._visited: set[str] = set()
        self._sent_to = ""
        self._sent_by = ""
        self.door = self._doors.popleft()
        """The address to connect to, without its parameters."""

    @property
    def url(self) -> str:
        asked = {"v": "1", "id": self._subscriber_id}
        if self._unreachable:
            asked["unreachable"] = ",".join(self._unreachable)
        return f"{self.door}?{urlencode(asked)}"

    def failed(self, error: errors.PeerUnreachable) -> None:
        """Nobody is there; raises `error` when there is nowhere else to go."""
        self._step()
        if self._sent_to:
            self._unreachable.append(self._sent_to)
            self.door, self._sent_to = self._sent_by, ""
        elif self._doors:
            self.door = self._doors.popleft()
        else:
            raise error

    def redirected(self, url: str, gateway: str) -> None:
        """The gateway there says that another one is the right one."""
        self._step()
        if gateway in self._visited:
            # Two gateways of two minds: the last one is asked to make do.
            self._unreachable.append(gateway)
            return
        self._visited.add(gateway)
        self._sent_by, self._sent_to, self.door = self.door, gateway, url

    def _step(self) -> None:
        self._steps += 1
        if self._steps >= MOST_STEPS:
            raise errors.NotNow(
                f"after {MOST_STEPS} tries no gateway had taken this subscriber; try again"
            )
