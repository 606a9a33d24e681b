"""Which web pages may call an address."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from headgate.decide.http.web_pages import WebPages, are_origins, is_loopback, origins_of
from headgate.errors import ForeignOrigin


class Asked(NamedTuple):
    host: str
    origin: str = ""
    site: str = ""
    mode: str = ""


APP = "https://app.example.com"
HERE = "127.0.0.1:8780"

LOCAL = WebPages.of("127.0.0.1", origins=[APP])
WIDE = WebPages.of("0.0.0.0", advertised="Gate.Example.com", origins=[APP])
SOCKET = WebPages.of("127.0.0.1", ports=[8780])

ANSWERED: dict[str, tuple[WebPages, Asked]] = {
    "a program": (LOCAL, Asked(HERE)),
    "a program without a host": (LOCAL, Asked("")),
    "by the name of this machine": (LOCAL, Asked("laptop:8780")),
    "from a container": (LOCAL, Asked("host.docker.internal:8780")),
    "by an address of version 6": (LOCAL, Asked("[::1]:8780")),
    "by the name of a page that may call": (LOCAL, Asked("app.example.com")),
    "by any name where others reach it": (WIDE, Asked("headgate.example.org:8780")),
    "its own page": (LOCAL, Asked(HERE, f"http://{HERE}")),
    "its own page by name": (LOCAL, Asked("localhost:8780", "http://localhost:8780")),
    "its own page, version 6": (LOCAL, Asked("[::1]:8780", "http://[::1]:8780")),
    "its own page in capitals": (LOCAL, Asked("LOCALHOST:8780", "http://localhost:8780")),
    "its own page by the advertised name": (
        WIDE,
        Asked("gate.example.com:8780", "http://gate.example.com:8780"),
    ),
    "its own page on the usual port": (LOCAL, Asked("localhost", "http://localhost")),
    "its own page behind a proxy": (LOCAL, Asked("app.example.com", APP)),
    "the page of the HTTP port at the WebSocket port": (
        SOCKET,
        Asked("127.0.0.1:8781", f"http://{HERE}"),
    ),
    "a named page": (LOCAL, Asked(HERE, APP)),
    "a named page, named with its port": (
        WebPages.of("127.0.0.1", origins=["HTTPS://App.example.com:443"]),
        Asked(HERE, APP),
    ),
    "everybody's page": (WebPages.of("127.0.0.1", origins=["*"]), Asked(HERE, "https://evil.com")),
    "everybody's file": (WebPages.of("127.0.0.1", origins=["*"]), Asked(HERE, "null")),
    "a link that was followed": (LOCAL, Asked(HERE, "", "cross-site", "navigate")),
    "a part of its own page": (LOCAL, Asked(HERE, "", "same-origin", "no-cors")),
    "typed into a browser": (LOCAL, Asked(HERE, "", "none", "navigate")),
}

REFUSED: dict[str, tuple[WebPages, Asked, str]] = {
    "a foreign page": (LOCAL, Asked(HERE, "https://evil.com"), "add https://evil.com to"),
    "a foreign page, nobody named": (
        WebPages(),
        Asked(HERE, "https://evil.com"),
        "add https://evil.com to public.origins",
    ),
    "a page of another port": (LOCAL, Asked(HERE, "http://127.0.0.1:3000"), "127.0.0.1:3000"),
    "a page of the usual port": (LOCAL, Asked(HERE, "http://127.0.0.1"), "public.origins"),
    "a page of another name of this machine": (LOCAL, Asked(HERE, "http://localhost:8780"), ""),
    "a named page of another scheme": (LOCAL, Asked(HERE, "http://app.example.com"), ""),
    "a named page of another port": (LOCAL, Asked(HERE, f"{APP}:8443"), ""),
    "a page with a longer name": (LOCAL, Asked(HERE, f"{APP}.evil.com"), ""),
    "no origin to speak of": (LOCAL, Asked(HERE, "null"), "serve it over HTTP"),
    "no origin, and no host": (LOCAL, Asked("", "http://"), ""),
    "an extension": (LOCAL, Asked("localhost", "chrome-extension://localhost"), ""),
    "a name that was made to mean this machine": (
        LOCAL,
        Asked("evil.com:8780", "http://evil.com:8780"),
        "",
    ),
    "such a name, where others reach it": (WIDE, Asked("evil.com", "http://evil.com"), ""),
    "such a name, with a dot": (LOCAL, Asked("evil.com.:8780", "http://evil.com.:8780"), ""),
    "such a name, to read": (LOCAL, Asked("evil.com:8780"), "known as evil.com:8780"),
    "such a name, like an address": (LOCAL, Asked("127.0.0.1.evil.com:8780"), ""),
    "what is no host": (LOCAL, Asked("a b"), ""),
    "a picture for a foreign page": (LOCAL, Asked(HERE, "", "cross-site", "no-cors"), "fetch it"),
    "a script for a page of another port": (LOCAL, Asked(HERE, "", "same-site", "no-cors"), ""),
}


@pytest.mark.parametrize(("pages", "asked"), ANSWERED.values(), ids=ANSWERED)
def test_these_are_answered(pages: WebPages, asked: Asked) -> None:
    assert pages.refusal(**asked._asdict()) is None


@pytest.mark.parametrize(("pages", "asked", "sentence"), REFUSED.values(), ids=REFUSED)
def test_these_are_refused_with_what_to_set(pages: WebPages, asked: Asked, sentence: str) -> None:
    refusal = pages.refusal(**asked._asdict())
    assert isinstance(refusal, ForeignOrigin)
    assert refusal.status == 403
    assert sentence in refusal.message
    assert "public.origins" in refusal.message


def test_what_somebody_else_wrote_is_shown_shortened() -> None:
    refusal = LOCAL.refusal(host=HERE, origin="https://" + "x" * 10_000)
    assert refusal is not None
    assert len(refusal.message) < 700


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        APP,
        f"{APP},http://localhost:3000",
        f" {APP} , http://[::1]:3000 ",
        "HTTP://LOCALHOST",
        "http://127.0.0.1:65535",
        "https://xn--bcher-kva.example",
    ],
)
def test_these_are_origins(text: str) -> None:
    assert are_origins(text)


@pytest.mark.parametrize(
    "text",
    [
        "null",
        ",",
        f"*,{APP}",
        f"{APP}/",
        f"{APP}/path",
        "app.example.com",
        "//app.example.com",
        "ws://app.example.com",
        "file:///x",
        "https://",
        "https://*.example.com",
        "https://user@app.example.com",
        "https://app.example.com:0",
        "https://app.example.com:65536",
        "https://app.example.com:x",
        "https://bücher.example",
        f"{APP} {APP}",
    ],
)
def test_these_are_no_origins(text: str) -> None:
    assert not are_origins(text)


def test_origins_stand_with_commas_in_between() -> None:
    assert origins_of(f" {APP}, http://b ,") == (APP, "http://b")
    assert origins_of(" ") == ()


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("", False),
        ("gate.example.com", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, local: bool) -> None:
    assert is_loopback(host) is local
