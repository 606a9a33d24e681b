"""From what a caller has proved to the principal that it is.

Invariant: a name says which kind of credential it came from nowhere else than in `kind`; what a
claim says wrongly (a grant that is none) makes no principal, instead of one with fewer rights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.decide.access.grants import all_parsed, everything
from headgate.errors import InvalidRequest, Unauthorized
from headgate.model.access import ApiToken, Grant, Principal

NAME_CHARS = 128
CLAIMS_OF_TOKENS = ("name", "tenant")


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """What the claims of a JWT stand for; an empty name: nothing does."""

    grants: tuple[Grant, ...] = ()
    grants_claim: str = ""
    tenant_claim: str = ""
    name_claim: str = "sub"


def of_token(token: ApiToken) -> Principal:
    claims = {"name": token.name} | ({"tenant": token.tenant} if token.tenant else {})
    return Principal(
        token.name,
        "token",
        token.grants,
        token.tenant,
        claims,
        token.limits,
        credential=token.digest,
        expires_ms=token.expires_ms,
    )


def of_administrator(digest: str) -> Principal:
    """The holder of the configuration's own token, or of the key that a coordinator left on its
    machine."""
    return Principal("admin", "token", everything(), claims={"name": "admin"}, credential=digest)


def of_claims(
    claims: Mapping[str, Any], rules: ClaimRules, *, digest: str, leeway_ms: int
) -> Principal:
    """Raises Unauthorized for claims that name no principal, or aren't what they should be."""
    if not _are_texts(claims):
        raise Unauthorized("the JWT has a text in it that is none: a half of a character")
    name = claims.get(rules.name_claim)
    if not isinstance(name, str) or not name:
        raise Unauthorized(f"the JWT doesn't say who it is: it needs the claim {rules.name_claim}")
    tenant = claims.get(rules.tenant_claim, "") if rules.tenant_claim else ""
    if not isinstance(tenant, str):
        raise Unauthorized(f"the JWT's claim {rules.tenant_claim} is not a text")
    expires = claims.get("exp")
    if isinstance(expires, bool) or not isinstance(expires, int | float):
        raise Unauthorized("the JWT doesn't say when it ends: it needs the claim exp")
    return Principal(
        _printable(name),
        "jwt",
        (*rules.grants, *_granted(claims, rules)),
        tenant,
        dict(claims),
        credential=digest,
        expires_ms=round(expires * 1_000) + leeway_ms,
    )


def _granted(claims: Mapping[str, Any], rules: ClaimRules) -> tuple[Grant, ...]:
    found = claims.get(rules.grants_claim, []) if rules.grants_claim else []
    texts = [found] if isinstance(found, str) else found
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Unauthorized(f"the JWT's claim {rules.grants_claim} is not a list of grants")
    try:
        return all_parsed(texts)
    except InvalidRequest as error:
        raise Unauthorized(
            f"the JWT's claim {rules.grants_claim} has a grant that is none: {error.message}"
        ) from error


def _are_texts(claims: Mapping[str, Any]) -> bool:
    """JSON can name halves of characters, which can be told to nobody."""
    try:
        json.dumps(dict(claims), ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _printable(name: str) -> str:
    """A name goes into logs and sentences: nothing in it may look like anything else there."""
    return "".join(char if char.isprintable() else "?" for char in name[:NAME_CHARS])
