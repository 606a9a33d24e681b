"""Who a caller is, and what it may do.

A principal is the holder of a credential: of an API token, of a JWT, or, as a role, of a pass made
of the cluster's own secret. Its grants say what it may do; a need is what a route, a message or a
stream asks for. Invariant: a value here never holds a secret, only what is known of one; nothing
here decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

Action = Literal["produce", "subscribe", "consume", "metrics", "read", "write"]
"""The last two are of an area."""
Area = Literal["topics", "nodes", "letters", "connectors", "groups", "tokens", "settings"]
TOPICAL_AREAS: frozenset[Area] = frozenset({"topics", "letters"})
"""Those whose grants may be about some topics only; the others are about the whole cluster."""
PrincipalKind = Literal["nobody", "token", "jwt", "role"]
EVERY = ("*",)

TOKEN_PREFIX = "hg_"  # noqa: S105  # of every token, so none itself
"""Begins every API token, so that one is recognised wherever it was left by mistake."""
TOKEN_BYTES = 32
TOKENS_MAX = 10_000
LIMIT_MAX = 10**12


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """What may be done, or with `deny` may not, with the topics and groups that one of the
    patterns fits (`*` stands for any characters). With `where` only records for which that CEL
    expression holds are shown; `claims.NAME` in it is a claim of the principal."""

    action: Action
    area: Area | None = None
    topics: tuple[str, ...] = EVERY
    groups: tuple[str, ...] = EVERY
    where: str | None = None
    deny: bool = False


Limit = Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MAX)]


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a principal may produce at each ingest node, and have at each gateway; 0: what the
    configuration says. The cost is that of its filters together, for one document, at worst."""

    events_per_s: Limit = 0
    bytes_per_s: Limit = 0
    connections: Limit = 0
    subscriptions: Limit = 0
    filter_cost_us: Limit = 0


NO_LIMITS = Limits()


class ApiToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the cluster keeps of an API token: not the token itself, but its SHA-256 as hexadecimal
    digits. No two have the same name."""

    name: str
    digest: str
    grants: tuple[Grant, ...] = ()
    tenant: str = ""
    limits: Limits = Limits()
    created_ms: int = 0
    expires_ms: int = 0
    """When it ends by itself (0: never)."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a caller is. `credential` tells the credential apart from every other one of the same
    name, and is no secret; `role` is what a node of the cluster is; `claims` are what the grants'
    filters may name; after `expires_ms` (0: never) the credential is worth nothing any more."""

    name: str
    kind: PrincipalKind
    grants: tuple[Grant, ...] = ()
    tenant: str = ""
    claims: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = NO_LIMITS
    role: str = ""
    credential: str = ""
    expires_ms: int = 0


NOBODY = Principal("nobody", "nobody")
"""A caller that has shown no credential where callers have to."""


Scope = Literal["named", "asked", "cluster"]
"""How it is known which topic a need is about: it stands in the path, the request or message says
it (then the service that answers judges it, and leaves out the topics that the principal has no
grant for), or the need isn't about topics at all."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a caller must be granted, to be answered. `status_only`: everybody is, those without a
    grant to read about nodes by the status alone. `open` is for everybody; `roles` for nodes of the
    cluster of one of these roles, and nobody else."""

    action: Action | None = None
    area: Area | None = None
    scope: Scope = "cluster"
    open: bool = False
    status_only: bool = False
    roles: tuple[str, ...] = ()
