"""Tokens for tests: what they say, and what a gateway knows of them."""

from __future__ import annotations

from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.access.grants import all_parsed
from headgate.model.access import NO_LIMITS, ApiToken, Limits
from headgate.ports.access import SignedClaims
from headgate.services.principals import AccessOptions, KnownPrincipals, digest_of


def token(
    name: str,
    *grants: str,
    tenant: str = "",
    expires_ms: int = 0,
    limits: Limits = NO_LIMITS,
) -> ApiToken:
    """Whoever says `secret_of(name)` is this."""
    return ApiToken(
        name,
        digest_of(secret_of(name)),
        all_parsed(grants),
        tenant=tenant,
        limits=limits,
        expires_ms=expires_ms,
    )


def secret_of(name: str) -> str:
    return f"hg_{name}"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret_of(name)}"}


def knowing(
    machine: ScriptedMachine, *tokens: ApiToken, jwt: SignedClaims | None = None
) -> KnownPrincipals:
    known = KnownPrincipals(AccessOptions(), machine, jwt)
    known.learn(tokens, 1)
    return known
