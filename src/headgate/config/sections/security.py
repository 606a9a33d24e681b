"""What principals may do, and what is written down about it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headgate.config.sections.section import Section
from headgate.config.units import DurationUnit, SizeUnit, seconds, size_bytes
from headgate.config.value_types import (
    AdminToken,
    ClaimName,
    ClusterTokenReferences,
    Duration,
    JwksAddress,
    JwtAlgorithms,
    JwtSecret,
    Size,
)


class ClusterSettings(Section):
    tokens: ClusterTokenReferences = ""
    """What the roles of a cluster show each other, the same everywhere (empty: they show nothing).
    Of two both are taken, and the first is shown; see docs/security.md."""


class JwtSettings(Section):
    issuer: str = ""
    """Who makes the JWTs that are taken: their `iss` (empty: none are taken)."""
    audience: str = ""
    """Whom they must be made for: one of their `aud`."""
    algorithms: JwtAlgorithms = "RS256,ES256,EdDSA"
    """Signatures that are taken."""
    secret: JwtSecret = ""
    """The secret shared with the issuer, for HS256."""
    keys: str = ""
    """File of the issuer's public keys, as PEM or as a JWK set."""
    jwks: JwksAddress = ""
    """Address of the issuer's JWK set, whose keys may change; fetched when a new one is met."""
    refresh: Annotated[Duration, Field(ge=seconds("1s"))] = seconds("10m")
    """Time after which that address is asked again, so that a withdrawn key counts no more."""
    leeway: Annotated[float, DurationUnit(), Field(ge=0, le=300)] = seconds("5s")
    """How far the issuer's clock may be from ours."""
    grants: str = ""
    """The grants of every JWT of this issuer; several with semicolons in between."""
    grants_claim: ClaimName = "grants"
    """Claim that has more grants, as a list of texts (empty: none)."""
    tenant_claim: ClaimName = "tenant"
    """Claim that names the tenant (empty: none)."""
    name_claim: Annotated[ClaimName, Field(min_length=1)] = "sub"
    """Claim that names who it is."""


class AuditSettings(Section):
    folder: str = ""
    """Folder of the audit trail, a file per node (empty: audit, in the data folder)."""
    max_size: Size = size_bytes("16MiB")
    """Size of a file above which it is begun anew."""
    keep: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Former files of each node that are kept."""


class LimitSettings(Section):
    produce_events: Annotated[int, Field(ge=0)] = 0
    """Most events per second that an ingest node takes of one principal, or of one address where
    nobody says who they are; a token's own limit counts before this (0: no limit)."""
    produce_bytes: Annotated[int, SizeUnit(), Field(ge=0)] = 0
    """The same in bytes of their requests."""
    connections: Annotated[int, Field(ge=0)] = 0
    """Most connections of subscribers, consumers and watching pages that a gateway takes of one
    principal, or of one address where nobody says who they are, or hasn't yet; a token's own limit
    counts before this (0: no limit)."""
    subscriptions: Annotated[int, Field(ge=0)] = 0
    """The same for subscriptions; a consumer of a group is one."""
    filter_cost: Annotated[float, DurationUnit(), Field(ge=0)] = 0.0
    """The same for the time that the filters of those may take together for one document, at
    worst."""


class SecuritySettings(Section):
    enabled: bool = False
    """Callers need a credential; also so where `admin_token` or a `jwt.issuer` is set."""
    admin_token: AdminToken = ""
    """An administrator's token, beside those of `headgate token create`."""
    jwt: JwtSettings = JwtSettings()
    cluster: ClusterSettings = ClusterSettings()
    limits: LimitSettings = LimitSettings()
    audit: AuditSettings = AuditSettings()

    @property
    def is_on(self) -> bool:
        """Whether callers need a credential."""
        return self.enabled or bool(self.admin_token) or bool(self.jwt.issuer)
