"""Who is who, in a run in which everybody has to say so: API tokens, which the coordinator keeps
and operators revoke, and JWTs, which expire and are renewed.

What a grant shows is said twice, to the product and in Python: nobody may ever be shown anything
else. Whoever comes asks for its token each time it needs one, as programs do with a file or an
issuer, and gets the newest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.adapters.memory.machine import BEGINS_MS
from headgate.client.credentials import Credentials, credentials
from headgate.config import Config
from headgate.config.cluster_tokens import find_cluster_tokens
from headgate.decide.access.claims import ClaimRules
from headgate.decide.links.passes import Called
from headgate.errors import HeadgateError, NotFound, TokenExists, Unauthorized
from headgate.model.access_api import CreatedToken, CreateToken
from headgate.ports.machine import Machine
from headgate.services.principals import AccessOptions, KnownPrincipals, digest_of
from tests.sim.oracle import Wanted

if TYPE_CHECKING:
    from tests.sim.world import World

ADMIN: Final = "the-administrator-of-a-simulation"
SECURITY: Final = {
    "admin_token": ADMIN,
    "cluster": {"tokens": "what-the-roles-of-a-simulation-share"},
}
GUARDED: Final = 0.5
"""Of the runs, in how many everybody has to say who they are."""
LEEWAY_MS: Final = 5_000
LIVES_S: Final = (3.0, 10.0, 3_600.0)
"""Of a JWT; the last one outlives every clock that jumps."""
SOON_S: Final = 5.0
"""Who asks again within that was refused: the next one lives long."""
AGAIN_S: Final = 0.5
JWT: Final = "jwt."


@dataclass(frozen=True)
class Sight:
    """What a grant shows, in the product's language and in Python."""

    name: str
    where: str | None
    sees: Wanted


SIGHTS: Final = (
    Sight("all", None, lambda _: True),
    Sight("not-c", "kind != 'c'", lambda document: document["kind"] != "c"),
    Sight("odd", "number % 2 == 1", lambda document: document["number"] % 2 == 1),
    Sight("only-b", "kind == 'b'", lambda document: document["kind"] == "b"),
)
BY_CLAIM: Final = {"kind == 'b'": "kind == claims.kind"}
"""Said by what a JWT claims of whoever has it."""


class Issuer:
    """Implements ports.access.SignedClaims: what it has said counts, as a signature would show."""

    def recognises(self, credential: str) -> bool:
        return credential.startswith(JWT)

    async def verified(self, credential: str) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = msgspec.json.decode(
                bytes.fromhex(credential.removeprefix(JWT)), type=dict[str, Any]
            )
        except (ValueError, msgspec.DecodeError) as error:
            raise Unauthorized("that is no JWT of this issuer") from error
        return claims

    async def close(self) -> None: ...


class Identity:
    """Somebody with grants: `token` is what its programs say now."""

    def __init__(self, name: str, grants: list[str], tenant: str) -> None:
        self.name = name
        self.grants = grants
        self.tenant = tenant

    async def token(self) -> str:
        raise NotImplementedError


class Bearer(Identity):
    """By an API token, one after the other."""

    def __init__(self, world: World, name: str, grants: list[str], tenant: str) -> None:
        super().__init__(name, grants, tenant)
        self._world = world
        self.said = ""
        """Empty: there is none."""
        self._is_asked_for = True
        """Somebody makes one, or replaces it: nobody else does meanwhile."""
        world.client("operator", self._create)

    async def token(self) -> str:
        # As a program that looks into a file: nobody tells it that something is there.
        while not self.said:  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)
        return self.said

    async def _create(self) -> None:
        world = self._world
        wanted = CreateToken(self.name, self.grants, self.tenant)
        while not self.said:
            try:
                async with world.cluster.http(world.urls[0]) as client:
                    made = await client.post("/v1/tokens", wanted, CreatedToken)
                    self.said = made.token
            except TokenExists:
                # It was made, and nobody heard which: away with it.
                await self._revoke(again=True)
            except HeadgateError:
                await asyncio.sleep(AGAIN_S)
        self._is_asked_for = False

    async def _revoke(self, *, again: bool = False) -> None:
        world = self._world
        while True:
            try:
                async with world.cluster.http(world.urls[0]) as client:
                    await client.delete(f"/v1/tokens/{self.name}")
            except NotFound:
                return
            except HeadgateError:
                await asyncio.sleep(AGAIN_S)
            else:
                if not again:
                    world.meets("a token is revoked")
                return

    def replaced(self, after_s: float) -> None:
        """Its token is revoked, and there is another one a while after that."""

        async def replaces() -> None:
            await self._revoke()
            self.said = ""
            await asyncio.sleep(after_s)
            await self._create()

        if not self._is_asked_for:
            self._is_asked_for = True
            self._world.client("operator", replaces)


class Claimant(Identity):
    """By JWTs, as many as it wants."""

    def __init__(self, world: World, name: str, grants: list[str], tenant: str) -> None:
        super().__init__(name, grants, tenant)
        self._world = world
        self._chance = random.Random(f"claims of {name} {world.seed}")
        self._asked_s = -SOON_S

    async def token(self) -> str:
        now_s = self._world.scheduler.now_s
        was_refused = now_s - self._asked_s < SOON_S
        self._asked_s = now_s
        lives_s = LIVES_S[-1] if was_refused else self._chance.choice(LIVES_S)
        claims = {
            "sub": self.name,
            "kind": "b",
            "grants": self.grants,
            "tenant": self.tenant,
            "exp": BEGINS_MS / 1_000 + now_s + lives_s,
        }
        self._world.meets("a JWT is issued")
        return JWT + msgspec.json.encode(claims).hex()


class Identities:
    """Of one run."""

    def __init__(self, world: World, *, is_on: bool) -> None:
        self.is_on = is_on
        self._world = world
        self._chance = random.Random(f"identities {world.seed}")
        self._known: dict[str, Identity] = {}

    def reader(self, sight: Sight, tenant: str) -> Identity:
        name = f"reader-{sight.name}{tenant and f'-of-{tenant}'}"
        return self._identity(name, "subscribe", sight.where, tenant)

    def consumer(self, sight: Sight) -> Identity:
        return self._identity(f"packer-{sight.name}", "consume", sight.where)

    def producer(self) -> Identity:
        return self._identity("producer", "produce")

    def bearers(self) -> list[Bearer]:
        """Those with a token that can be revoked."""
        return [one for one in self._known.values() if isinstance(one, Bearer)]

    def _identity(
        self, name: str, action: str, where: str | None = None, tenant: str = ""
    ) -> Identity:
        if name not in self._known:
            kind = self._chance.choice((Bearer, Claimant))
            if where is not None and kind is Claimant:
                where = BY_CLAIM.get(where, where)
            grant = action if where is None else f"{action} where {where}"
            self._known[name] = kind(self._world, name, [grant], tenant)
        return self._known[name]


def of_operators() -> Credentials | None:
    return credentials(ADMIN)


def known_principals(config: Config, machine: Machine, role: Called) -> KnownPrincipals | None:
    """To whoever calls `role`, as wiring/access.py makes them."""
    if not config.security.is_on:
        return None
    claims = ClaimRules((), "grants", "tenant", "sub")
    options = AccessOptions(digest_of(ADMIN), claims, leeway_ms=LEEWAY_MS)
    keeper = find_cluster_tokens(config.security.cluster.tokens).keeper(role)
    return KnownPrincipals(options, machine, Issuer(), keeper)
