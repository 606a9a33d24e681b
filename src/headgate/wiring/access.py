"""Who may come in, from the configuration; and the key that a coordinator leaves on its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headgate.adapters.embedded.folder import DataFolder, replace_file
from headgate.adapters.machine import THIS_MACHINE
from headgate.config import Config
from headgate.config.cluster_tokens import find_cluster_tokens
from headgate.decide.access.claims import ClaimRules
from headgate.decide.access.grants import all_parsed
from headgate.decide.links.passes import Called
from headgate.errors import DataFolderError, InvalidConfig, InvalidRequest
from headgate.services.principals import AccessOptions, KnownPrincipals, digest_of

if TYPE_CHECKING:
    from headgate.adapters.jwt import JwtRules
    from headgate.ports.access import SignedClaims


class AdminKey(msgspec.Struct, frozen=True):
    """Where the coordinator of a data folder is asked, and what to say there."""

    url: str
    key: str


def access_options(config: Config) -> AccessOptions:
    """Raises InvalidConfig for grants that are none."""
    settings, jwt = config.security, config.security.jwt
    try:
        grants = all_parsed(text for text in jwt.grants.split(";") if text.strip())
    except InvalidRequest as error:
        raise InvalidConfig(f"security.jwt.grants: {error}", key="security.jwt.grants") from error
    return AccessOptions(
        digest_of(settings.admin_token) if settings.admin_token else "",
        ClaimRules(grants, jwt.grants_claim, jwt.tenant_claim, jwt.name_claim),
        leeway_ms=round(jwt.leeway * 1_000),
    )


def known_principals(config: Config, role: Called) -> KnownPrincipals | None:
    """What knows the credentials of callers of `role`. None where callers need none."""
    if not config.security.is_on:
        return None
    tokens = find_cluster_tokens(config.security.cluster.tokens)
    return KnownPrincipals(
        access_options(config), THIS_MACHINE, signed_claims(config), tokens.keeper(role)
    )


def jwt_rules(config: Config) -> JwtRules:
    from headgate.adapters.jwt import JwtRules

    jwt = config.security.jwt
    return JwtRules(
        issuer=jwt.issuer,
        audience=jwt.audience,
        algorithms=tuple(jwt.algorithms.split(",")),
        secret=jwt.secret,
        keys_file=jwt.keys,
        jwks_url=jwt.jwks,
        refresh_s=jwt.refresh,
        leeway_s=jwt.leeway,
    )


def signed_claims(config: Config) -> SignedClaims | None:
    """None where no JWTs are taken."""
    if not config.security.jwt.issuer:
        return None
    from headgate.adapters.http.calls import PooledCalls
    from headgate.adapters.jwt import KEYS_BYTES, JwtVerifier

    calls = PooledCalls(max_answer_bytes=KEYS_BYTES)
    return JwtVerifier(jwt_rules(config), calls, THIS_MACHINE)


def leave_admin_key(folder: DataFolder, url: str, key: str) -> None:
    """Only its owner can read it."""
    try:
        replace_file(folder.admin_key_file, msgspec.json.encode(AdminKey(url, key)))
    except OSError as error:
        raise DataFolderError(
            f"{folder.admin_key_file} can't be written ({error.strerror}); check its permissions",
            path=str(folder.admin_key_file),
        ) from error


def admin_key(folder: DataFolder) -> AdminKey:
    """What the coordinator of this folder has left. Raises DataFolderError."""
    path = folder.admin_key_file
    try:
        return msgspec.json.decode(path.read_bytes(), type=AdminKey)
    except FileNotFoundError as error:
        raise DataFolderError(
            f"{folder.root} has no key of a coordinator: start the coordinator of this folder with "
            "security.enabled, on this machine, and try again",
            path=str(path),
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise DataFolderError(
            f"{path} can't be read: do this as the user whom the coordinator runs as, on its "
            "machine",
            path=str(path),
        ) from error
