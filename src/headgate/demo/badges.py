"""The tokens of a run in which everybody needs one.

The demo is the administrator, and has a token made for every other client, with the grants that it
needs and no more. A subscriber asks for everything then: that it gets what its watch says is its
grant's doing. Invariants: no client but the administrator has a token of another one; where no
credentials are needed, none are made and none are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from headgate import errors
from headgate.client.credentials import Credentials, Token, credentials
from headgate.client.http import HttpClient
from headgate.model.access_api import CreatedToken, CreateToken, Session

PRODUCER = "producer"


class Badges:
    """`admin` is the administrator's token; empty: no credentials are needed."""

    def __init__(self, address: str, admin: str = "") -> None:
        self._address = address
        self.admin: Token | None = admin or None
        self._tokens: dict[str, str] = {}

    def of(self, name: str) -> Token | None:
        """What `name` says; it is asked for when everybody has got theirs."""
        return None if self.admin is None else partial(self._tokens.__getitem__, name)

    def client(self) -> HttpClient:
        """The administrator's."""
        return HttpClient(self._address, credentials=credentials(self.admin))

    async def hand_out(self, grants: Mapping[str, str]) -> None:
        """A token for each name, of which the gateway has heard. Again after NotNow: who has one
        keeps it."""
        if self.admin is None:
            return
        async with self.client() as http:
            for name, grant in grants.items():
                if name not in self._tokens:
                    self._tokens[name] = await _made(http, name, grant)
        for token in self._tokens.values():
            async with HttpClient(self._address, credentials=Credentials(token)) as http:
                if not (await http.get("/v1/session", Session)).name:
                    raise errors.NotNow("the gateway hasn't heard of all tokens yet; try again")


async def _made(http: HttpClient, name: str, grant: str) -> str:
    wanted = CreateToken(name, [grant])
    try:
        return (await http.post("/v1/tokens", wanted, CreatedToken)).token
    except errors.TokenExists:  # an earlier try got through without its answer
        await http.delete(f"/v1/tokens/{name}")
        return (await http.post("/v1/tokens", wanted, CreatedToken)).token
