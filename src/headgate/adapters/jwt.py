"""JWTs, checked with joserfc: signature, issuer, audience and time.

Implements ports.access.SignedClaims. Invariants: the header chooses neither an algorithm that isn't
allowed nor a key of another kind than its algorithm's, so that no public key ever serves as a
secret; a key that isn't known is asked for at the issuer's address, but not more often than every
`ASK_AGAIN_S`, for all callers together; keys that are known go on while that address is away, or
takes long; a caller may leave, and what was asked for comes all the same.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog
from joserfc import jwk, jwt
from joserfc.errors import JoseError, SecurityWarning

from headgate.decide.links.concealing import without_passwords
from headgate.errors import HeadgateError, InvalidConfig, NotNow, Unauthorized
from headgate.model.http import Response
from headgate.ports.http import HttpCalls
from headgate.ports.machine import Machine
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()

ASK_AGAIN_S = 1.0
ASK_TIMEOUT_S = 5.0
REFRESH_WAIT_S = 1.0
"""So long a caller with a known key waits to hear whether it still counts."""
AWAY_S = 5.0
"""So long after the address failed to answer nobody waits for it: it is asked all the same."""
KEYS_BYTES = 256 * 1024
KEYS_MAX = 64
KEY_KINDS: Mapping[str, str] = {"HS256": "oct", "RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
CURVES: Mapping[str, str] = {"ES256": "P-256", "EdDSA": "Ed25519"}
UNREADABLE = (
    JoseError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    msgspec.MsgspecError,
)
"""What joserfc and msgspec raise for tokens and keys that aren't what they should be, or are of a
kind that they don't know."""


@dataclass(frozen=True, slots=True)
class JwtRules:
    """`keys_file` is PEM or a JWK set, `jwks_url` where the issuer serves one; after `refresh_s`
    that is asked again."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    secret: str = ""
    keys_file: str = ""
    jwks_url: str = ""
    refresh_s: float = 600.0
    leeway_s: float = 5.0

    def __repr__(self) -> str:
        return f"JwtRules(issuer={self.issuer!r})"  # and never the secret


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None


class JwtVerifier:
    """Raises InvalidConfig where the keys in the configuration can't be read."""

    def __init__(self, rules: JwtRules, calls: HttpCalls, machine: Machine) -> None:
        self._rules = rules
        self._calls = calls
        self._machine = machine
        self._fixed = _configured(rules)
        self._fetched: list[jwk.Key] = []
        self._fetched_s = -math.inf
        self._asked_s = -math.inf
        self._failed_s = -math.inf
        """When nothing came of the last question, if that is so."""
        self._crew = Crew("jwt")
        self._asking: asyncio.Task[None] | None = None

    def recognises(self, credential: str) -> bool:
        return credential.count(".") == 2 and credential.startswith("ey")

    async def verified(self, credential: str) -> Mapping[str, Any]:
        header = _header_of(credential)
        if header is None or header.alg not in self._rules.algorithms:
            raise _refused("it isn't signed in a way that is taken here")
        claims = self._signed(credential, header, await self._keys(header))
        if (problem := self._problem(claims)) is not None:
            raise _refused(problem)
        return claims

    async def close(self) -> None:
        await self._crew.close()
        await self._calls.close()

    # --- the signature ---------------------------------------------------------------------------

    def _signed(
        self, credential: str, header: _Header, keys: Sequence[jwk.Key]
    ) -> Mapping[str, Any]:
        with warnings.catch_warnings():
            # The name EdDSA is on its way out; which curve it is, is looked at here.
            warnings.simplefilter("ignore", SecurityWarning)
            for key in keys:
                try:
                    return jwt.decode(credential, key, algorithms=[header.alg]).claims
                except UNREADABLE:
                    continue  # none says why: a forger learns nothing
        raise _refused("its signature is none of the issuer's")

    async def _keys(self, header: _Header) -> list[jwk.Key]:
        """Those that may have signed it."""
        known = self._known(header)
        if not self._rules.jwks_url or header.alg == "HS256":
            return known
        if not known:
            asked = self._asked()
            await asyncio.shield(asked)
            known = self._known(header)
            if self._failed_s > -math.inf and not known:
                raise NotNow("the issuer's keys can't be fetched at the moment; try again")
        elif self._machine.monotonic_s() - self._fetched_s > self._rules.refresh_s:
            asked = self._asked()
            if self._machine.monotonic_s() - self._failed_s > AWAY_S:
                await asyncio.wait([asked], timeout=REFRESH_WAIT_S)
        return self._known(header)

    def _known(self, header: _Header) -> list[jwk.Key]:
        return _fitting([*self._fixed, *self._fetched], header)

    def _asked(self) -> asyncio.Task[None]:
        """The issuer is asked once for all who want to know: nobody can end that by leaving."""
        if self._asking is None or self._asking.done():
            self._asking = self._crew.start("fetching keys", self._fetch())
        return self._asking

    async def _fetch(self) -> None:
        since_s = self._machine.monotonic_s() - self._asked_s
        if since_s < ASK_AGAIN_S:
            await asyncio.sleep(ASK_AGAIN_S - since_s)
        self._asked_s = self._machine.monotonic_s()
        try:
            answer = await self._calls.send("GET", self._rules.jwks_url, timeout_s=ASK_TIMEOUT_S)
            self._fetched = _keys_in_answer(answer)
        except HeadgateError as error:
            self._failed_s = self._machine.monotonic_s()
            url, why = self._rules.jwks_url, without_passwords(str(error))
            log.warning(LogLine.KEYS_NOT_FETCHED, url=without_passwords(url), error=why)
        else:
            self._failed_s = -math.inf
            self._fetched_s = self._asked_s

    # --- the claims ------------------------------------------------------------------------------

    def _problem(self, claims: Mapping[str, Any]) -> str | None:
        """What is wrong with them."""
        now_s, leeway_s = self._machine.wall_ms() / 1_000, self._rules.leeway_s
        audience = claims.get("aud")
        if claims.get("iss") != self._rules.issuer:
            return "it is of another issuer"
        if self._rules.audience not in (audience if isinstance(audience, list) else [audience]):
            return "it is made for another audience"
        if not _is_time(claims.get("exp")):
            return "it doesn't say when it ends"
        if claims["exp"] + leeway_s <= now_s:
            return "it has expired"
        for name in ("nbf", "iat"):
            begins = claims.get(name)
            if begins is not None and (not _is_time(begins) or begins - leeway_s > now_s):
                return "it isn't good yet"
        return None


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < 1e12  # type: ignore[operator]  # NaN is neither


def _header_of(credential: str) -> _Header | None:
    head = credential.partition(".")[0]
    try:
        raw = msgspec.json.decode(f'"{head}"', type=str).encode("ascii")
        return msgspec.json.decode(_unpadded(raw), type=_Header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _unpadded(text: bytes) -> bytes:
    return urlsafe_b64decode(text + b"=" * (-len(text) % 4))


def _fitting(keys: Sequence[jwk.Key], header: _Header) -> list[jwk.Key]:
    """Of the kind that the algorithm takes, and the one that is named, where one is."""
    kind, curve = KEY_KINDS[header.alg], CURVES.get(header.alg)
    found = [
        key
        for key in keys
        if key.key_type == kind
        and (curve is None or key.dict_value.get("crv") == curve)
        and key.dict_value.get("use", "sig") == "sig"
        and key.dict_value.get("alg", header.alg) == header.alg
    ]
    named = [key for key in found if key.dict_value.get("kid") == header.kid]
    if header.kid is not None and (named or any("kid" in key.dict_value for key in found)):
        return named
    return found


def _configured(rules: JwtRules) -> list[jwk.Key]:
    keys: list[jwk.Key] = []
    if rules.secret:
        keys.append(jwk.OctKey.import_key(rules.secret))
    if rules.keys_file:
        path = Path(rules.keys_file).expanduser()
        try:
            keys += _public(path.read_bytes())
        except (OSError, *UNREADABLE) as error:
            raise InvalidConfig(
                f"security.jwt.keys: {path} can't be read, or has no public key in it: it must be "
                "PEM or a JWK set",
                key="security.jwt.keys",
            ) from error
    return keys


def _public(content: bytes) -> list[jwk.Key]:
    if content.lstrip().startswith(b"{"):
        return _in_set(content)
    kinds: tuple[Literal["RSA", "EC", "OKP"], ...] = ("RSA", "EC", "OKP")
    for kind in kinds:
        try:
            return [jwk.import_key(content, kind)]
        except UNREADABLE:
            continue
    raise ValueError("no key of a kind that is known")


def _in_set(content: bytes) -> list[jwk.Key]:
    """Never a secret: every reader of the set could sign with that."""
    listed = msgspec.json.decode(content, type=dict[str, Any]).get("keys", [])
    if not isinstance(listed, list):
        raise TypeError("a JWK set has a list of keys")
    keys: list[jwk.Key] = []
    import_one: Callable[[Any], jwk.Key] = jwk.import_key
    for one in listed[:KEYS_MAX]:
        try:
            if isinstance(one, dict) and one.get("kty") in ("RSA", "EC", "OKP"):
                keys.append(import_one(one))
        except UNREADABLE:
            continue  # a key that can't be understood hides none of the others
    if not keys:
        raise ValueError("no key of a kind that is known")
    return keys


def _keys_in_answer(answer: Response) -> list[jwk.Key]:
    if answer.status != 200:
        raise NotNow(f"the issuer answered {answer.status} instead of its keys")
    try:
        return _in_set(answer.body)
    except UNREADABLE as error:
        raise NotNow("what the issuer answered is no JWK set") from error


def _refused(problem: str) -> Unauthorized:
    return Unauthorized(f"the JWT is refused: {problem}", reason="jwt")
