"""What the value of a setting may be: its bounds and its pattern, and how they are said to a user.

Invariant: a value of such a type is in the unit the code works with (seconds, bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from headgate.config.cluster_tokens import references_fault
from headgate.config.units import DurationUnit, SizeUnit
from headgate.decide.http.web_pages import are_origins
from headgate.decide.links.passes import TOKEN_CHARS_MIN
from headgate.decide.planning.plan import IMBALANCE_MAX
from headgate.decide.planning.starting_point import WEIGHT_MAX, WEIGHT_MIN


@dataclass(frozen=True, slots=True)
class Wording:
    """What a text must be, in words, where a pattern checks it."""

    allowed: str


@dataclass(frozen=True, slots=True)
class Secret:
    """Marks a text that may hold a password, which is never shown. `whole`: it is one; `lone`: a
    name in an address that has no password is one, too."""

    whole: bool = False
    lone: bool = False


@dataclass(frozen=True, slots=True)
class Several:
    """Marks a text of several with commas in between, which a file may also have as a list."""


def _origins(text: str) -> str:
    if not are_origins(text):
        raise ValueError(text)
    return text


def _cluster_tokens(text: str) -> str:
    if (fault := references_fault(text)) is not None:
        raise ValueError(fault)
    return text


_ENDPOINT = r"(http://)?(\[[0-9A-Fa-f:.]+\]|[^\s/:,\[\]]+):\d{1,5}/?"

LogLevel = Literal["error", "warn", "info", "verbose", "debug", "silly"]
WhenSlow = Literal["park", "drop_oldest", "disconnect"]

Duration = Annotated[float, DurationUnit(), Field(gt=0)]
DurationMs = Annotated[float, DurationUnit(plain_ms=True), Field(gt=0)]
"""For the settings that were plain milliseconds before they had units."""

Size = Annotated[int, SizeUnit(), Field(ge=1)]
Count = Annotated[int, Field(ge=1)]
Imbalance = Annotated[int, Field(ge=0, le=IMBALANCE_MAX)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Percent = Annotated[int, Field(ge=1, le=100)]
Host = Annotated[str, Wording("a host name or address"), Field(pattern=r"^[^\s/]+$")]
Advertised = Annotated[str, Wording("a host name or address"), Field(pattern=r"^[^\s/]*$")]
"""What others call a role that listens on all addresses of its machine (empty: as it listens)."""
_HOST = r"(\[[0-9A-Fa-f:.]+\]|[^\s/:,\[\]]+)(:\d{1,5})?"
Hosts = Annotated[
    str,
    Wording("an address, or several such as 10.0.0.1,10.0.0.2:8100"),
    Field(pattern=rf"^{_HOST}(,{_HOST})*$"),
]
Origins = Annotated[
    str,
    Several(),
    Wording(
        "origins such as https://app.example.com,http://localhost:3000 (scheme, host, perhaps a "
        "port, no path), or * for every web page"
    ),
    AfterValidator(_origins),
]
FieldPath = Annotated[
    str,
    Wording("a field, or a path such as meta.deleted"),
    Field(pattern=r"^([^\s.]+(\.[^\s.]+)*)?$"),
]
_PATH = r"[^\s.,]+(\.[^\s.,]+)*"
FieldPaths = Annotated[
    str,
    Several(),
    Wording("fields, or paths such as card.number,email, with commas in between"),
    Field(pattern=rf"^({_PATH}(\s*,\s*{_PATH})*)?$"),
]
Weight = Annotated[float, Field(ge=WEIGHT_MIN, le=WEIGHT_MAX)]
NodeName = Annotated[
    str,
    Wording("up to 128 letters, digits, dots, hyphens and underscores"),
    Field(pattern=r"^[A-Za-z0-9._-]{0,128}$"),
]
DemoControl = Annotated[
    str,
    Wording("an address such as http://127.0.0.1:43210"),
    Field(pattern=r"^(http://127\.0\.0\.1:\d{1,5})?$"),
]
SparkMaster = Annotated[
    str,
    # Plain local[N] never retries a task: one killed worker would end the router.
    Wording("local[THREADS,TRIES] such as local[8,4], spark://HOST:PORT, k8s://URL or yarn"),
    Field(
        pattern=r"^(local\[([1-9]\d*|\*),[1-9]\d*\]|local-cluster\[\d+,\d+,\d+\]"
        r"|(spark|k8s)://\S+|yarn)$"
    ),
]
EtcdEndpoints = Annotated[
    str,
    Wording("addresses such as 10.0.0.1:2379,10.0.0.2:2379"),
    Field(pattern=rf"^({_ENDPOINT}(\s*,\s*{_ENDPOINT})*)?$"),
]
KeyPrefix = Annotated[
    str,
    Wording("a path such as /headgate, of letters, digits, dots, hyphens and underscores"),
    Field(pattern=r"^(/[A-Za-z0-9._-]+)+$"),
]
MongoUrl = Annotated[
    str,
    Secret(),
    Wording("the address of a MongoDB replica set, as mongodb://…"),
    Field(pattern=r"^(mongodb(\+srv)?://\S+)?$"),
]
MongoDatabase = Annotated[
    str,
    Wording("up to 63 letters, digits, hyphens and underscores"),
    Field(pattern=r"^[A-Za-z0-9_-]{1,63}$"),
]
Token = Annotated[
    str,
    Secret(whole=True),
    Wording("a token of visible ASCII characters"),
    Field(pattern=r"^[!-~]*$"),
]
AdminToken = Annotated[
    str,
    Secret(whole=True),
    Wording("a random token of at least 22 visible ASCII characters"),
    Field(pattern=r"^([!-~]{22,})?$"),
]
JwtSecret = Annotated[
    str,
    Secret(whole=True),
    Wording("a random secret of at least 32 characters"),
    Field(pattern=r"^(.{32,})?$"),
]
_ALGORITHM = r"(HS256|RS256|ES256|EdDSA)"
JwtAlgorithms = Annotated[
    str,
    Several(),
    Wording("one or more of HS256, RS256, ES256 and EdDSA, with commas in between"),
    Field(pattern=rf"^{_ALGORITHM}(,{_ALGORITHM})*$"),
]
JwksAddress = Annotated[
    str,
    Secret(),
    Wording("an address as https://…, or http:// on this machine"),
    Field(
        pattern=r"^(https://[^\s]+|http://(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?(/[^\s]*)?)?$"
    ),
]
ClaimName = Annotated[
    str, Wording("the name of a claim"), Field(pattern=r"^[A-Za-z0-9_:/.-]{0,128}$")
]
ClusterTokenReferences = Annotated[
    str,
    Secret(whole=True),
    Several(),
    Wording(
        f"one or two of: a secret of {TOKEN_CHARS_MIN} or more visible ASCII characters without a "
        "comma, env:VARIABLE, file:PATH"
    ),
    AfterValidator(_cluster_tokens),
]
_NATS_SERVER = r"(nats|tls)://[^\s,]+"
NatsServers = Annotated[
    str,
    Secret(lone=True),
    Wording("addresses such as nats://10.0.0.1:4222,nats://10.0.0.2:4222"),
    Field(pattern=rf"^({_NATS_SERVER}(,{_NATS_SERVER})*)?$"),
]
NatsSubject = Annotated[
    str,
    Wording("a subject such as headgate.deliver, of letters, digits, hyphens and underscores"),
    Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"),
]
SparkMemory = Annotated[
    str, Wording("an amount such as 800m or 2g"), Field(pattern=r"^[1-9]\d*[mg]$")
]
