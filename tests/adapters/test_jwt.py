"""JWTs: who is taken for whom, and everything that was ever tried to be taken for somebody."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk, jwt
from joserfc.errors import SecurityWarning
from structlog.testing import capture_logs

from headgate.adapters.jwt import (
    ASK_AGAIN_S,
    ASK_TIMEOUT_S,
    AWAY_S,
    REFRESH_WAIT_S,
    JwtRules,
    JwtVerifier,
)
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.access.claims import ClaimRules
from headgate.decide.access.grants import all_parsed
from headgate.errors import InvalidConfig, NotNow, PeerUnreachable, Unauthorized
from headgate.model.http import Response
from headgate.services.principals import AccessOptions, KnownPrincipals
from headgate.tasks import Helpers
from tests.virtual_time import run_virtual

SECRET = "s" * 40
KEYS: dict[str, Any] = {
    "HS256": jwk.OctKey.import_key(SECRET),
    "RS256": jwk.RSAKey.generate_key(2048, {"kid": "r"}),
    "ES256": jwk.ECKey.generate_key("P-256", {"kid": "e"}),
    "EdDSA": jwk.OKPKey.generate_key("Ed25519", {"kid": "d"}),
}
OTHER_RSA = jwk.RSAKey.generate_key(2048, {"kid": "r"})
MACHINE = ScriptedMachine()
NOW_S = MACHINE.wall_ms() // 1_000
CLAIMS = {"iss": "us", "aud": "headgate", "sub": "ann", "exp": NOW_S + 60, "iat": NOW_S}


def public(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


class Issuer:
    """Implements ports.http.HttpCalls: serves `keys`, unless it `is_away`."""

    def __init__(self, *keys: Any) -> None:
        self.body = public(*keys)
        self.url = "https://issuer/keys"
        self.is_away = False
        self.asked = 0
        self.takes_s = 0.0

    async def send(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Response:
        assert (method, url) == ("GET", self.url)
        self.asked += 1
        await asyncio.sleep(self.takes_s)
        if self.is_away:
            raise PeerUnreachable(f"nothing answers at {url}")
        return Response(200, self.body)

    async def close(self) -> None: ...


def verifier(
    issuer: Issuer | None = None,
    *,
    algorithms: tuple[str, ...] = tuple(KEYS),
    machine: ScriptedMachine = MACHINE,
    **rules: Any,
) -> JwtVerifier:
    named = {"secret": SECRET, "jwks_url": "https://issuer/keys", **rules}
    made = JwtRules("us", "headgate", algorithms, **named)
    asymmetric = [KEYS[name] for name in ("RS256", "ES256", "EdDSA")]
    return JwtVerifier(made, issuer or Issuer(*asymmetric), machine)


def signed_by_hand(claims: bytes) -> str:
    """By HS256, whatever the claims are."""
    parts = [base64.urlsafe_b64encode(one).rstrip(b"=") for one in (b'{"alg":"HS256"}', claims)]
    mac = hmac.new(SECRET.encode(), b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()


def by_the_loop() -> ScriptedMachine:
    return ScriptedMachine(clock=asyncio.get_running_loop().time)


def signed(
    algorithm: str = "RS256", key: Any = None, header: dict[str, Any] | None = None, **claims: Any
) -> str:
    key = key or KEYS[algorithm]
    said = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    head = {"alg": algorithm, **({"kid": key.kid} if key.kid else {}), **(header or {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        return jwt.encode(head, said, key, algorithms=[algorithm])


@pytest.mark.parametrize("algorithm", KEYS)
async def test_every_algorithm_is_verified(algorithm: str) -> None:
    assert (await verifier().verified(signed(algorithm)))["sub"] == "ann"


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "them"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"aud": ["another"]},
        {"aud": []},
        {"exp": NOW_S - 6},
        {"exp": None},
        {"exp": True},
        {"exp": "never"},
        {"exp": 1e300},
        {"nbf": NOW_S + 6},
        {"nbf": "then"},
        {"iat": NOW_S + 6},
    ],
    ids=str,
)
async def test_claims_that_are_not_for_us_or_not_for_now_are_refused(
    claims: dict[str, Any],
) -> None:
    with pytest.raises(Unauthorized):
        await verifier().verified(signed(**claims))


@pytest.mark.parametrize(
    "claims",
    [{"aud": ["x", "headgate"]}, {"exp": NOW_S - 4}, {"nbf": NOW_S + 4}, {"iat": None}],
    ids=str,
)
async def test_clocks_may_differ_a_little_and_there_may_be_several_audiences(
    claims: dict[str, Any],
) -> None:
    assert await verifier().verified(signed(**claims))


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _none(alg: str) -> str:
    return f"{_part({'alg': alg})}.{_part(CLAIMS)}."


def _confused() -> str:
    """Signed with the public key, as if that were the secret."""
    pem = KEYS["RS256"].as_pem(private=False)
    body = f"{_part({'alg': 'HS256', 'kid': 'r'})}.{_part(CLAIMS)}"
    made = hmac.new(pem, body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(made).rstrip(b'=').decode()}"


def _altered() -> str:
    head, _, signature = signed().split(".")
    return f"{head}.{_part({**CLAIMS, 'sub': 'root'})}.{signature}"


def _embedded() -> str:
    """Brings the key to check it with along."""
    key = OTHER_RSA.as_dict(private=False)
    return signed(key=OTHER_RSA, header={"jwk": key})


FORGED = {
    "alg none": _none("none"),
    "alg None": _none("None"),
    "public key as secret": _confused(),
    "altered claims": _altered(),
    "another key of that name": signed(key=OTHER_RSA),
    "its own key": _embedded(),
    "no such key": signed(key=jwk.RSAKey.generate_key(2048, {"kid": "x"})),
    "an unknown critical header": f"{_part({'alg': 'RS256', 'crit': ['x']})}.{_part(CLAIMS)}.AAAA",
    "no signature": signed().rpartition(".")[0] + ".",
    "no claims": f"{signed().split('.')[0]}..{signed().split('.')[2]}",
    "not base64": "ey!.ey!.!",
    "deep": f"{_part({'alg': 'RS256'})}.{base64.urlsafe_b64encode(b'[' * 3000).decode()}.AAAA",
    "critical headers as a number": f"{_part({'alg': 'HS256', 'crit': 5})}.{_part(CLAIMS)}.AA",
    "a list": f"{_part([1])}.{_part(CLAIMS)}.AAAA",
    "alg as a list": f"{_part({'alg': ['RS256']})}.{_part(CLAIMS)}.AAAA",
}


@pytest.mark.parametrize("token", FORGED.values(), ids=FORGED)
async def test_forged_tokens_are_refused(token: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        await verifier().verified(token)
    assert "ann" not in str(refused.value)


async def test_an_algorithm_that_is_not_allowed_is_refused_whatever_keys_there_are() -> None:
    only = verifier(algorithms=("ES256",))
    assert await only.verified(signed("ES256"))
    for algorithm in ("HS256", "RS256", "EdDSA"):
        with pytest.raises(Unauthorized):
            await only.verified(signed(algorithm))


async def test_a_secret_in_a_set_of_keys_is_no_key(tmp_path: Path) -> None:
    """Whoever can read the set could sign with it."""
    leaked = jwk.OctKey.import_key("k" * 40, {"kid": "leak"})
    issuer = Issuer(KEYS["RS256"])
    body = json.loads(issuer.body)
    body["keys"].append(leaked.as_dict(private=True))
    issuer.body = json.dumps(body).encode()
    with pytest.raises(Unauthorized):
        await verifier(issuer, secret="").verified(signed("HS256", key=leaked))
    path = tmp_path / "keys"
    path.write_bytes(issuer.body)
    from_file = verifier(secret="", keys_file=str(path), jwks_url="")
    assert await from_file.verified(signed())
    with pytest.raises(Unauthorized):
        await from_file.verified(signed("HS256", key=leaked))


# --- keys that change ----------------------------------------------------------------------------


async def test_a_key_that_is_rotated_in_is_taken_at_once() -> None:
    machine = ScriptedMachine()
    old, new = (jwk.ECKey.generate_key("P-256", {"kid": kid}) for kid in ("old", "new"))
    issuer = Issuer(old)
    checks = verifier(issuer, machine=machine)
    assert await checks.verified(signed("ES256", key=old))
    issuer.body = public(old, new)
    machine.passes(1.5)
    assert await checks.verified(signed("ES256", key=new))
    assert issuer.asked == 2


def test_unknown_keys_make_nobody_ask_more_often_than_once_a_second() -> None:
    run_virtual(_unknown_keys())


async def _unknown_keys() -> None:
    issuer = Issuer(KEYS["RS256"])
    checks = verifier(issuer, machine=by_the_loop())
    unknown = [jwk.ECKey.generate_key("P-256", {"kid": f"{number}"}) for number in range(10)]
    for asked in (1, 2, 3):
        answers = await asyncio.gather(
            *(checks.verified(signed("ES256", key=key)) for key in unknown), return_exceptions=True
        )
        assert {type(one) for one in answers} == {Unauthorized}
        assert issuer.asked == asked
    assert asyncio.get_running_loop().time() == pytest.approx(2 * ASK_AGAIN_S)


def test_a_key_that_is_new_since_the_issuer_was_asked_is_taken_all_the_same() -> None:
    """Whoever makes keys up has the issuer asked all the time; nobody is refused for that."""
    run_virtual(_new_since())


async def _new_since() -> None:
    new, made_up = (jwk.ECKey.generate_key("P-256", {"kid": kid}) for kid in ("new", "made up"))
    issuer = Issuer(KEYS["ES256"])
    checks = verifier(issuer, machine=by_the_loop())
    with pytest.raises(Unauthorized):
        await checks.verified(signed("ES256", key=made_up))
    issuer.body = public(new)
    assert await checks.verified(signed("ES256", key=new))


def test_nobody_keeps_keys_from_coming_by_leaving() -> None:
    run_virtual(_leaving())


async def _leaving() -> None:
    """Somebody asks for keys of their own making and hangs up at once, again and again."""
    issuer = Issuer(KEYS["ES256"])
    issuer.takes_s = 0.5
    checks = verifier(issuer, machine=by_the_loop())
    made_up = jwk.ECKey.generate_key("P-256", {"kid": "made up"})

    async def hangs_up() -> None:
        while True:
            with suppress(TimeoutError, Unauthorized):
                async with asyncio.timeout(0.01):
                    await checks.verified(signed("ES256", key=made_up))

    async with Helpers() as helpers:
        helpers.start(hangs_up())
        await asyncio.sleep(5.0)
        async with asyncio.timeout(2 * ASK_AGAIN_S):
            assert await checks.verified(signed("ES256"))
    await checks.close()


def test_whose_key_is_known_waits_for_no_issuer_that_hangs() -> None:
    run_virtual(_hanging())


async def _hanging() -> None:
    issuer = Issuer(KEYS["ES256"])
    checks = verifier(issuer, machine=by_the_loop(), refresh_s=10.0)
    assert await checks.verified(signed("ES256"))
    issuer.takes_s, issuer.is_away = ASK_TIMEOUT_S, True
    await asyncio.sleep(11.0)
    waited_s = []
    for _ in range(4):
        began_s = asyncio.get_running_loop().time()
        assert await checks.verified(signed("ES256"))
        waited_s.append(asyncio.get_running_loop().time() - began_s)
        await asyncio.sleep(ASK_TIMEOUT_S + 1.0)
    assert waited_s == pytest.approx([REFRESH_WAIT_S, 0.0, 0.0, 0.0], abs=0.01)
    await checks.close()


def test_a_key_that_was_withdrawn_while_the_issuer_was_away_counts_no_more_when_it_is_back() -> (
    None
):
    run_virtual(_withdrawn_meanwhile())


async def _withdrawn_meanwhile() -> None:
    issuer = Issuer(KEYS["ES256"])
    checks = verifier(issuer, machine=by_the_loop(), refresh_s=10.0)
    assert await checks.verified(signed("ES256"))
    issuer.is_away = True
    await asyncio.sleep(11.0)
    assert await checks.verified(signed("ES256"))
    issuer.is_away, issuer.body = False, public(KEYS["RS256"])
    await asyncio.sleep(AWAY_S + 1.0)
    with pytest.raises(Unauthorized):
        await checks.verified(signed("ES256"))
    await checks.close()


async def test_a_key_that_is_withdrawn_counts_no_more_after_a_while() -> None:
    machine = ScriptedMachine()
    issuer = Issuer(KEYS["ES256"])
    checks = verifier(issuer, machine=machine, refresh_s=30.0)
    assert await checks.verified(signed("ES256"))
    issuer.body = public(KEYS["RS256"])
    assert await checks.verified(signed("ES256"))
    machine.passes(31)
    with pytest.raises(Unauthorized):
        await checks.verified(signed("ES256", exp=NOW_S + 600))


async def test_with_the_issuer_away_known_keys_go_on_and_others_are_a_matter_of_time() -> None:
    machine = ScriptedMachine()
    issuer = Issuer(KEYS["ES256"])
    issuer.is_away = True
    checks = verifier(issuer, machine=machine, refresh_s=10.0)
    with pytest.raises(NotNow):
        await checks.verified(signed("ES256"))
    issuer.is_away = False
    machine.passes(2)
    assert await checks.verified(signed("ES256"))
    issuer.is_away = True
    machine.passes(20)
    assert await checks.verified(signed("ES256"))


async def test_the_log_does_not_say_the_password_of_the_issuers_address() -> None:
    issuer = Issuer(KEYS["ES256"])
    issuer.is_away = True
    issuer.url = "https://me:hunter2@issuer/keys"
    with capture_logs() as lines, pytest.raises(NotNow):
        await verifier(issuer, jwks_url=issuer.url).verified(signed("ES256"))
    assert [line["url"] for line in lines] == ["https://me:***@issuer/keys"]
    assert "hunter2" not in str(lines)


STRANGE: tuple[Any, ...] = (
    {"kty": "EC", "crv": "brainpoolP256r1", "x": "AQ", "y": "AQ"},
    {"kty": "OKP", "crv": "Ed1", "x": "AQ"},
    {"kty": "RSA", "n": None, "e": []},
    {"kty": "RSA", "n": "é", "e": "AQAB", "use": 1, "key_ops": 2},
    {"kty": "lattice"},
    {},
    7,
)


@pytest.mark.parametrize("strange", STRANGE)
async def test_a_key_that_nobody_understands_hides_none_of_the_others(
    tmp_path: Path, strange: Any
) -> None:
    issuer = Issuer(KEYS["ES256"])
    issuer.body = json.dumps({"keys": [strange, *json.loads(issuer.body)["keys"]]}).encode()
    assert await verifier(issuer).verified(signed("ES256"))
    path = tmp_path / "keys"
    path.write_bytes(issuer.body)
    assert await verifier(keys_file=str(path), jwks_url="").verified(signed("ES256"))


DEEP = b'{"keys":' + b"[" * 100_000


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"keys": 1}', b'{"keys": [1, {}]}', b"x", DEEP]
)
async def test_what_is_no_set_of_keys_is_none(body: bytes) -> None:
    issuer = Issuer()
    issuer.body = body
    with pytest.raises(NotNow):
        await verifier(issuer).verified(signed())


@pytest.mark.parametrize("kind", ["pem", "set"])
@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_keys_may_come_from_a_file(tmp_path: Path, kind: str, algorithm: str) -> None:
    key, path = KEYS[algorithm], tmp_path / "keys"
    path.write_bytes(key.as_pem(private=False) if kind == "pem" else public(key))
    checks = verifier(keys_file=str(path), jwks_url="")
    assert await checks.verified(signed(algorithm))


def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("nothing")
    for named in (path, tmp_path / "absent"):
        with pytest.raises(InvalidConfig, match=r"security\.jwt\.keys"):
            verifier(keys_file=str(named))


# --- who that is ---------------------------------------------------------------------------------


def known(issuer: Issuer, machine: ScriptedMachine, **rules: Any) -> KnownPrincipals:
    claims = ClaimRules(
        all_parsed(["subscribe where tenant == claims.org.id"]), "grants", "tenant", "sub"
    )
    checks = verifier(issuer, machine=machine, **rules)
    return KnownPrincipals(AccessOptions(claims=claims, leeway_ms=5_000), machine, checks)


async def test_claims_say_who_it_is_and_what_is_granted() -> None:
    people = known(Issuer(KEYS["RS256"]), ScriptedMachine())
    ann = await people.principal_of(
        signed(tenant="t", grants=["produce on a", "metrics"], org={"id": "o"})
    )
    assert (ann.name, ann.kind, ann.tenant) == ("ann", "jwt", "t")
    assert ann.grants == all_parsed(
        ["subscribe where tenant == claims.org.id", "produce on a", "metrics"]
    )
    assert ann.claims["org"] == {"id": "o"}
    assert ann.expires_ms == (NOW_S + 60) * 1_000 + 5_000


@pytest.mark.parametrize("name", ["sub", "tenant", "org", "grants"])
async def test_a_text_that_is_none_makes_nobody(name: str) -> None:
    """What could be told to no other role would end the way there, for everybody."""
    half = '"\\ud800"' if name != "grants" else "[\"subscribe where x == '\\ud800'\"]"
    body = json.dumps({name: "…", **{n: v for n, v in CLAIMS.items() if n != name}})
    claims = body.replace('"\\u2026"', half).encode()
    assert b"ud800" in claims
    people = known(Issuer(KEYS["RS256"]), ScriptedMachine())
    with pytest.raises(Unauthorized, match="text in it that is none"):
        await people.principal_of(signed_by_hand(claims))


@pytest.mark.parametrize(
    "claims",
    [{"sub": None}, {"sub": 5}, {"tenant": 5}, {"grants": "root"}, {"grants": [1]}, {"grants": {}}],
    ids=str,
)
async def test_a_claim_that_says_something_else_makes_nobody(claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized):
        await known(Issuer(KEYS["RS256"]), ScriptedMachine()).principal_of(signed(**claims))


async def test_a_verified_one_is_remembered_until_it_ends() -> None:
    machine, issuer = ScriptedMachine(), Issuer(KEYS["RS256"])
    people = known(issuer, machine)
    token = signed()
    ann = await people.principal_of(token)
    issuer.is_away = True
    assert await people.principal_of(token) is ann
    assert people.ended(ann) is None
    machine.passes(66)
    assert people.ended(ann) is not None
    with pytest.raises(Unauthorized):
        await people.principal_of(token)


async def test_a_name_is_nothing_but_a_name_in_a_log() -> None:
    people = known(Issuer(KEYS["RS256"]), ScriptedMachine())
    ann = await people.principal_of(signed(sub="ann\nlevel=error \x1b[31m" + "x" * 500))
    assert ann.name.isprintable()
    assert len(ann.name) <= 128
