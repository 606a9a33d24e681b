"""Secrets and documents are planted, everything is used with them, rightly and wrongly, and then
they are looked for wherever nobody should find them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from joserfc import jwk, jwt

from headgate import errors
from headgate.client import Consumer, Producer, Subscriber
from headgate.decide.links.passes import ClusterTokens
from tests.system.harness import System, until

ADMIN = "planted-token-of-an-administrator-51d0"
CLUSTER = "planted-token-of-the-cluster-8b3f"
JWT_SECRET = "planted-secret-of-the-issuer-of-jwts-c97a"
WRONG = "planted-token-that-is-wrong-e61b"
DOCUMENT = "planted-in-a-document-a04d"
WAIT_S = 60.0
HOLDS_RECORDS = {"log", "letters.db", "letters.db-wal", "notes"}
"""Of the data folder, what keeps events: there their documents belong."""
SHOWN = (
    *("/health", "/metrics", "/openapi.json", "/v1/status", "/v1/overview", "/v1/settings"),
    *("/v1/subscriptions", "/v1/tokens", "/v1/groups", "/v1/topics", "/v1/connectors"),
    *("/v1/dead-letters", "/v1/session", "/v1/topology"),
)


@dataclass(frozen=True, slots=True)
class Planted:
    system: System
    api_token: str
    said: list[str]
    """What errors and commands have said."""

    @property
    def secrets(self) -> list[str]:
        passes = [
            ClusterTokens((CLUSTER,)).passes("lane").to("gateway"),
            ClusterTokens((CLUSTER,)).passes("gateway").to("ingest"),
        ]
        return [ADMIN, CLUSTER, JWT_SECRET, WRONG, self.api_token, signed(), *passes]

    def ask(
        self, path: str, body: object = None, *, method: str = "", token: str = ADMIN
    ) -> tuple[int, str]:
        data = (
            None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        request = Request(self.system.url + path, data, headers, method=method or None)
        try:
            with urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            text = error.read().decode()
            self.said.append(text)
            return error.code, text


def signed(secret: str = JWT_SECRET) -> str:
    claims = {"iss": "issuer", "aud": "headgate", "sub": "ann", "exp": 4_000_000_000}
    return jwt.encode({"alg": "HS256"}, claims, jwk.OctKey.import_key(secret))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    folder = tmp_path_factory.mktemp("secrets")
    config = folder / "headgate.yaml"
    security = {
        "admin_token": ADMIN,
        "cluster": {"tokens": CLUSTER},
        "jwt": {
            "issuer": "issuer",
            "audience": "headgate",
            "algorithms": "HS256",
            "secret": JWT_SECRET,
            "grants": "subscribe on flights where tenant == 'a'",
        },
    }
    config.write_text(json.dumps({"security": security}))
    with System(folder / "data", {"HEADGATE_CONFIG": str(config)}) as system:
        made = Planted(system, "", [])
        body = {"name": "ops", "grants": ["admin"]}
        status, text = made.ask("/v1/tokens", body)
        assert status == 201, text
        using = Planted(system, json.loads(text)["token"], made.said)
        use(using)
        yield using


def use(planted: Planted) -> None:
    """Every way in, with what is right and with what is wrong."""
    assert planted.ask("/v1/topics", {"name": "flights", "partitions": 2})[0] == 201
    asyncio.run(asyncio.wait_for(clients(planted), WAIT_S))
    until(lambda: "letters" in planted.ask("/v1/dead-letters")[1], "there are letters")
    for token in (WRONG, signed("x" * 40), f"{ADMIN}x", planted.api_token[:-1]):
        assert planted.ask("/v1/status", token=token)[0] == 401
        assert planted.ask("/v1/session", {"token": token})[0] == 401
        for name in ("token", "ticket"):
            planted.ask(f"/v1/subscribe?topic=flights&{name}={token}", token=WRONG)
    assert planted.ask("/v1/session", {"token": planted.api_token})[0] == 200
    assert planted.ask("/v1/status", token=signed())[0] == 403
    bad = f'{{"events": [{{"document": {{"a": "{DOCUMENT}"'
    for body in (
        bad.encode(),
        {"events": [{"document": DOCUMENT}]},
        {"events": [{"document": {"a": DOCUMENT}, "op": DOCUMENT[:4]}]},
        {"events": [{"document": {"a": DOCUMENT}}], "version": 99},
    ):
        planted.ask("/v1/topics/flights/produce", body)
    shown = {"topic": "flights", "document": {"x": DOCUMENT}}
    planted.ask("/v1/explain", {**shown, "where": "x > 1"})
    for command in (("config", "show"), ("status",), ("status", "--json"), ("doctor",)):
        one = planted.system.command(*command)
        one.wait()
        planted.said.extend([*one.out.finish(), *one.err.finish()])


async def clients(planted: Planted) -> None:
    url, token = planted.system.url, planted.api_token
    async with (
        Subscriber(url, "flights", where="tenant == 'a' && x > 1", token=signed()),
        Subscriber(url, "flights", token=token) as everything,
        Producer(url, token=token) as producer,
    ):
        for key in "abc":
            await producer.send("flights", {"tenant": "a", "x": DOCUMENT}, key=key)
        async with asyncio.timeout(WAIT_S):
            [await anext(aiter(everything)) for _ in range(3)]
    with contextlib.suppress(ZeroDivisionError):
        async with Consumer(
            url, "flights", "g", start="earliest", max_deliveries=1, acks="manual", token=token
        ) as consumer:
            await anext(aiter(consumer))
            raise ZeroDivisionError
    for wrong in (
        Subscriber(url, "flights", token=WRONG),
        Consumer(url, "flights", "g", token=WRONG),
    ):
        try:
            async with wrong:
                raise AssertionError("it came in")
        except errors.HeadgateError as error:
            planted.said.append(f"{error!r} {error}")


def test_no_answer_and_no_command_shows_one(planted: Planted) -> None:
    shown = {path: planted.ask(path)[1] for path in SHOWN}
    assert all(shown.values())
    for secret in (*planted.secrets, DOCUMENT):
        assert [path for path, text in shown.items() if secret in text] == []
        if secret != DOCUMENT:  # who sends a document may be told what is wrong with it
            assert [text for text in planted.said if secret in text] == []


def test_no_log_and_no_audit_trail_has_one(planted: Planted) -> None:
    said = "\n".join(planted.system.said)
    lines = [*(planted.system.data / "logs").iterdir(), *(planted.system.data / "audit").iterdir()]
    assert len(lines) >= 5
    for secret in (*planted.secrets, DOCUMENT):
        assert secret not in said
        assert [file for file in lines if secret.encode() in file.read_bytes()] == []


def test_no_file_keeps_a_credential_and_only_the_log_keeps_documents(planted: Planted) -> None:
    data = planted.system.data
    for file in [one for one in data.rglob("*") if one.is_file()]:
        with contextlib.suppress(FileNotFoundError):
            content = file.read_bytes()
            assert [one for one in planted.secrets if one.encode() in content] == [], file
            if file.relative_to(data).parts[0] not in HOLDS_RECORDS:
                assert DOCUMENT.encode() not in content, file


def test_no_argument_of_a_process_has_one_and_no_environment_but_the_roles(
    planted: Planted,
) -> None:
    """A role is told its settings in its environment; what it starts is not."""
    up = psutil.Process(planted.system.pid)
    roles = {process.pid for process in up.children()}
    assert len(roles) == 4
    started = [process for process in up.children(recursive=True) if process.pid not in roles]
    assert any("java" in process.name() for process in started)
    for process in (up, *up.children(recursive=True)):
        names = ("cmdline",) if process.pid in roles else ("cmdline", "environ")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            content = b"".join(Path(f"/proc/{process.pid}/{name}").read_bytes() for name in names)
            assert [one for one in planted.secrets if one.encode() in content] == []


def test_spark_shows_none_on_any_of_its_ports(planted: Planted) -> None:
    """Its UI is off; whatever else listens there says nothing to whoever asks for its pages."""
    ports = {
        at.laddr.port
        for process in psutil.Process(planted.system.pid).children(recursive=True)
        if "java" in process.name()
        for at in process.net_connections("tcp")
        if at.status == psutil.CONN_LISTEN
    }
    assert ports
    for port in ports:
        for path in ("/environment/", "/api/v1/applications", "/SQL/", "/json/"):
            text = _page(f"http://127.0.0.1:{port}{path}")
            assert [one for one in planted.secrets if one in text] == []
            assert "Spark Properties" not in text


def _page(url: str) -> str:
    began_s = time.monotonic()
    try:
        with urlopen(url, timeout=0.5) as answer:
            return str(answer.read().decode(errors="replace"))
    except OSError:
        return ""
    except Exception as error:  # noqa: BLE001  # what speaks no HTTP
        assert time.monotonic() - began_s < WAIT_S
        return str(error)
