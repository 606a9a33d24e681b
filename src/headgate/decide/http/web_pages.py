"""Which web pages may call an address, from what their browser says about them.

A browser lets any page send a request to any address, this machine's own included, and says in
`Origin` which page it was. A program sends no such header and may call as it likes. What a
page may do:

- a page of the address itself calls it: its origin is the `Host` that was called, under a name that
  only the operator can have given;
- a page of another origin calls it when the operator has named that origin;
- nobody else does. A request of a page without an `Origin` is a browser's for a picture, a script
  or the like, which `Sec-Fetch-Site` gives away.

Who owns a name in the public DNS can have it mean this machine, while a page of his has it as its
origin. So such a name counts for the address only if the configuration knows it; and an address
that only this machine reaches refuses every request under such a name, because his page wouldn't
even send an `Origin` to read there.

Invariants: pure; without `Origin`, `Sec-Fetch-Site` and an unknown name nothing is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from headgate.errors import ForeignOrigin

EVERYBODY = "*"
ORIGINS_SETTING = "public.origins"
PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".test", ".home.arpa")
"""Names that the public DNS never has."""
PORT_MAX = 65_535
SHOWN_CHARS = 200
"""Of what somebody else has written."""

_ORIGIN = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(?::(?P<port>\d{1,5}))?", re.ASCII)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an origin or a `Host` leads to; without a port, to the one of its scheme."""

    name: str
    port: int | None


def origins_of(text: str) -> tuple[str, ...]:
    """The origins of a setting, with commas in between."""
    return tuple(one.strip() for one in text.split(",") if one.strip())


def are_origins(text: str) -> bool:
    """Is that what the setting takes? "null" isn't: every page can make itself one without an
    origin."""
    named = origins_of(text)
    return text.strip() == EVERYBODY or (
        all(_place_of_origin(one.lower()) is not None for one in named)
        and bool(named) == bool(text.strip())
    )


@dataclass(frozen=True, slots=True)
class WebPages:
    """`named` are the origins that may call; `names` are how the address itself is called, and
    `ports` are other ports of it that have pages. `is_local`: only this machine reaches it."""

    named: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    is_local: bool = False
    everybody: bool = False

    @classmethod
    def of(
        cls,
        host: str,
        *,
        advertised: str = "",
        origins: Iterable[str] = (),
        ports: Iterable[int] = (),
    ) -> WebPages:
        """For an address that listens on `host`."""
        origins = [one.lower() for one in origins]
        places = [place for one in origins if (place := _place_of_origin(one)) is not None]
        return cls(
            named=frozenset(_plain(one) for one in origins),
            names=frozenset([host.lower(), advertised.lower(), *(one.name for one in places)]),
            ports=frozenset(ports),
            is_local=is_loopback(host),
            everybody=EVERYBODY in origins,
        )

    def refusal(
        self, *, host: str, origin: str, site: str = "", mode: str = ""
    ) -> ForeignOrigin | None:
        """Why a request isn't answered; None for one that is. `host` and `origin` are its header
        fields of these names, `site` and `mode` those that begin with `Sec-Fetch`; all of them
        empty where there are none."""
        if self.everybody:
            return None
        if origin:
            allowed = origin in self.named or self._is_own(origin, host)
            return None if allowed else _foreign(origin)
        if self.is_local and host and not self._is_known(host):
            return _unknown(host)
        if mode == "no-cors" and site in ("cross-site", "same-site"):
            return _unsaid()
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        page, called = _place_of_origin(origin), _place_of_host(host)
        if page is None or called is None or page.name != called.name:
            return False
        default = _PORTS[origin.partition(":")[0]]
        ports = {called.port or default, *self.ports}
        return (page.port or default) in ports and self._is_known(host)

    def _is_known(self, host: str) -> bool:
        place = _place_of_host(host)
        return place is not None and (place.name in self.names or _is_private(place.name))


def is_loopback(host: str) -> bool:
    """Does only this machine reach what listens on `host`?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _plain(origin: str) -> str:
    """As browsers write it: without the port that its scheme has anyway."""
    return origin.removesuffix(f":{_PORTS.get(origin.partition(':')[0])}")


def _place_of_origin(origin: str) -> _Place | None:
    return _place(_ORIGIN.fullmatch(origin))


@lru_cache(maxsize=256)
def _place_of_host(host: str) -> _Place | None:
    return _place(_HOST.fullmatch(host.lower()))


def _place(found: re.Match[str] | None) -> _Place | None:
    if found is None:
        return None
    port = found["port"]
    if port is not None and not 0 < int(port) <= PORT_MAX:
        return None
    return _Place(found["name"], None if port is None else int(port))


@lru_cache(maxsize=256)
def _is_private(name: str) -> bool:
    """Is that an address, or a name that nobody can own in the public DNS?"""
    name = name.removesuffix(".")
    if "." not in name or name.startswith("[") or name.endswith(PRIVATE_ENDINGS):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _foreign(origin: str) -> ForeignOrigin:
    shown = origin[:SHOWN_CHARS]
    if origin == "null":
        return ForeignOrigin(
            "a page without an origin (a file, or a frame in a sandbox) may not call this address: "
            f"serve it over HTTP and name its origin in {ORIGINS_SETTING}",
            origin=shown,
        )
    return ForeignOrigin(
        f"a page of {shown} may not call this address: if it should, add {shown} to "
        f"{ORIGINS_SETTING}",
        origin=shown,
    )


def _unknown(host: str) -> ForeignOrigin:
    shown = host[:SHOWN_CHARS]
    return ForeignOrigin(
        f"this address isn't known as {shown}: call it 127.0.0.1 or localhost, or add "
        f"http://{shown} to {ORIGINS_SETTING}",
        host=shown,
    )


def _unsaid() -> ForeignOrigin:
    return ForeignOrigin(
        "a page of another origin may not load this as a part of itself: fetch it from a page "
        f"whose origin is in {ORIGINS_SETTING}"
    )
