"""A client says who it is, comes again with another token, and renews in place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from msgspec.structs import replace

from headgate import errors
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.client import identified_link
from headgate.client.credentials import Credentials, Token
from headgate.client.defaults import open_link
from headgate.client.identified_link import identified
from headgate.model.control.from_coordinator import PushTokens
from headgate.ports.connection import Link, LinkListener
from headgate.services.principals import digest_of
from tests.services.gateway.access import knowing, secret_of, token
from tests.services.gateway.world import WAIT_S, World, running, until

SOON_MS = 60_000
LATER = digest_of("hg_later")


class Listening:
    """Whoever has the link."""

    def __init__(self) -> None:
        self.opens = 0
        self.messages: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.gone = asyncio.Event()

    def opened(self, link: Link) -> None:
        self.opens += 1

    def heard(self, message: bytes) -> None:
        self.messages.put_nowait(msgspec.json.decode(message))

    def lost(self) -> None:
        self.gone.set()

    async def next(self) -> dict[str, object]:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)


@pytest.fixture
async def guarded() -> AsyncIterator[World]:
    def principals(machine: ScriptedMachine):  # type: ignore[no-untyped-def]
        return knowing(
            machine,
            token("ann", "subscribe"),
            token("soon", "subscribe", expires_ms=machine.wall_ms() + SOON_MS),
            # The same principal with another credential, as a new JWT is.
            replace(
                token("soon", "subscribe", expires_ms=machine.wall_ms() + 10 * SOON_MS),
                digest=LATER,
            ),
        )

    async with running(make_principals=principals) as made:
        yield made


def link_to(world: World, said: Token) -> tuple[Listening, Link]:
    listening = Listening()
    machine = ScriptedMachine(clock=world.clock)
    return listening, identified(open_link, Credentials(said), machine)(listening, 75.0)


async def subscribed(world: World, listening: Listening, link: Link) -> None:
    await link.connect(world.gateway.ws_url)
    link.send(b'{"type":"subscribe","id":"s","topic":"flights"}')
    assert (await listening.next())["type"] == "subscribed"


async def test_whoever_has_it_hears_nothing_of_how_it_is_identified(guarded: World) -> None:
    listening, link = link_to(guarded, secret_of("ann"))
    await subscribed(guarded, listening, link)
    assert listening.opens == 1
    await guarded.produce({"n": 1})
    assert (await listening.next())["type"] == "event"
    link.close()
    await link.wait_closed()


async def test_a_token_that_is_refused_for_good_is_an_error(guarded: World) -> None:
    for said in ("hg_wrong", lambda: "hg_wrong"):
        listening, link = link_to(guarded, said)
        with pytest.raises(errors.Unauthorized):
            await link.connect(guarded.gateway.ws_url)
        link.abort()
        await link.wait_closed()
        assert not listening.opens


async def test_one_that_is_refused_while_there_is_another_is_a_matter_of_trying_again(
    guarded: World,
) -> None:
    asked = iter(["hg_old", secret_of("ann")])

    async def ask() -> str:
        return next(asked)

    listening, first = link_to(guarded, ask)
    said = first._credentials  # type: ignore[attr-defined]  # shared by all links of a client
    with pytest.raises(errors.PeerUnreachable):
        await first.connect(guarded.gateway.ws_url)
    first.abort()
    second = identified(open_link, said, ScriptedMachine())(listening, 75.0)
    await subscribed(guarded, listening, second)
    second.abort()
    for link in (first, second):
        await link.wait_closed()


async def test_it_is_renewed_before_it_ends(
    guarded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identified_link, "RENEW_PAUSE_S", 0.02)
    monkeypatch.setattr(identified_link, "RENEW_AT", 0.0)
    asked = 0

    def ask() -> str:
        nonlocal asked
        asked += 1
        return secret_of("soon") if asked == 1 else "hg_later"

    listening, link = link_to(guarded, ask)
    await subscribed(guarded, listening, link)
    rights = guarded.gateway._rights
    assert rights is not None
    await until(lambda: any(stay.principal.credential == LATER for stay in rights))
    guarded.clock.now_s += 2 * SOON_MS / 1_000
    rights.look()
    await guarded.produce({"n": 1})
    assert (await listening.next())["type"] == "event"
    assert listening.messages.empty()
    link.abort()
    await link.wait_closed()


async def test_with_a_revoked_token_it_is_lost_where_another_can_be_had_and_said_where_not(
    guarded: World,
) -> None:
    renewing, first = link_to(guarded, lambda: secret_of("ann"))
    fixed, second = link_to(guarded, secret_of("ann"))
    for listening, link in ((renewing, first), (fixed, second)):
        await subscribed(guarded, listening, link)
    assert guarded.coordinator.session is not None
    guarded.coordinator.session.push(PushTokens((), 2))
    await asyncio.wait_for(renewing.gone.wait(), WAIT_S)
    assert renewing.messages.empty()
    said = await fixed.next()
    assert (said["type"], said["error"]["code"]) == ("error", "unauthorized")  # type: ignore[index]
    for link in (first, second):
        link.abort()
        await link.wait_closed()


class ScriptedGateway:
    """A link to a gateway that says all of `says` in one turn, as one TCP segment brings it."""

    def __init__(self, listener: LinkListener, *says: bytes) -> None:
        self.was_aborted = False
        self._listener = listener
        self._says = says

    async def connect(self, url: str) -> None: ...

    def send(self, message: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        for one in self._says:
            self._listener.heard(one)

    def abort(self) -> None:
        self.was_aborted = True


def scripted(*says: bytes) -> tuple[Listening, Link, ScriptedGateway]:
    listening, made = Listening(), []

    def open_scripted(listener: LinkListener, silence_s: float) -> Link:
        made.append(ScriptedGateway(listener, *says))
        return made[0]  # type: ignore[return-value]  # no more than is called here

    link = identified(open_scripted, Credentials("hg_ann"), ScriptedMachine())(listening, 75.0)
    return listening, link, made[0]


async def test_what_comes_right_behind_the_answer_is_for_whoever_has_the_link() -> None:
    redirect = b'{"type":"redirect","url":"ws://there","gateway":"g","id":"s"}'
    known = b'{"type":"authenticated","principal":"ann","expires_at_ms":null}'
    listening, link, _ = scripted(known, redirect)
    await link.connect("ws://here")
    assert listening.opens == 1
    assert listening.messages.get_nowait()["type"] == "redirect"


async def test_a_connection_that_nobody_has_doesnt_stay_open() -> None:
    _, link, gateway = scripted()
    connecting = asyncio.ensure_future(link.connect("ws://here"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert gateway.was_aborted
