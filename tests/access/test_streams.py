"""Every message of every stream × every kind of principal, and every role, with what comes of it.

As in test_table.py: the messages are derived from the code, and what is expected is written down
here once more, in words.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, get_args

import msgspec
import pytest

from headgate.decide.coordination.plausible import message_refusal
from headgate.model.control.reports import (
    ConnectorReports,
    GatewayReport,
    IngestReport,
    LaneReport,
    RouterReport,
)
from headgate.model.control.to_coordinator import (
    AckSubscriptions,
    AckTopology,
    CheckIn,
    Claimed,
    ConnectorTooLow,
    EndMyWindow,
    EpochTooLow,
    Evidence,
    Goodbye,
    Hello,
    JoinGroup,
    LeaveGroup,
    MayClaim,
    NoRoom,
    Recall,
    Register,
    RegistrationComplete,
    Released,
    SessionRole,
    StillInHand,
    ToCoordinator,
    Unregister,
)
from headgate.services.gateway.groups.protocol import ConsumerMessage
from headgate.services.gateway.identifying import Auth
from headgate.services.gateway.subscriptions.protocol import Incoming
from tests.services.gateway.access import knowing, secret_of, token
from tests.services.gateway.world import World, WsSubscriber, running, until

# --- between roles -------------------------------------------------------------------------------

EVERYBODY = {"ingest", "router", "lane", "gateway", "client"}
SAID: dict[type[ToCoordinator], set[str]] = {
    Hello: set(),  # once, before all others
    CheckIn: EVERYBODY,
    Goodbye: EVERYBODY,
    AckTopology: EVERYBODY,
    Recall: {"ingest", "router", "gateway"},
    Claimed: {"lane"},
    MayClaim: {"lane"},
    Released: {"lane", "gateway"},
    EpochTooLow: {"ingest", "gateway"},
    ConnectorTooLow: {"ingest"},
    StillInHand: {"gateway"},
    NoRoom: {"gateway"},
    AckSubscriptions: {"lane"},
    Register: {"gateway"},
    Unregister: {"gateway"},
    RegistrationComplete: {"gateway"},
    JoinGroup: {"gateway"},
    LeaveGroup: {"gateway"},
    LaneReport: {"lane"},
    IngestReport: {"ingest"},
    ConnectorReports: {"ingest"},
    Evidence: {"lane", "gateway"},
    GatewayReport: {"gateway"},
    RouterReport: {"router"},
    EndMyWindow: {"router"},
}


def test_the_table_has_every_message_of_a_control_stream() -> None:
    assert set(SAID) == set(get_args(ToCoordinator))


@pytest.mark.parametrize("role", get_args(SessionRole))
@pytest.mark.parametrize("kind", SAID, ids=lambda kind: str(kind.__name__))
def test_within_its_stream_a_role_says_what_is_its_own(kind: Any, role: SessionRole) -> None:
    refusal = _refusal_of(role, kind)
    assert ("isn't what a node of role" in refusal) == (role not in SAID[kind])


def _refusal_of(role: SessionRole, kind: type[Any]) -> str:
    """Of a message with nothing in it: whose it is, is looked at before what it says."""
    nothing: Any = None
    empty = kind(**{one.name: None for one in msgspec.structs.fields(kind) if one.required})
    try:
        return message_refusal(nothing, role, empty)
    except (AttributeError, TypeError):
        return ""  # it was looked into


# --- subscribers and consumers -------------------------------------------------------------------

TOKENS = {
    "producer": ["produce on flights"],
    "elsewhere": ["subscribe on ships", "consume on ships"],
    "reader": ["subscribe on flights where tenant == claims.tenant"],
    "consumer": ["consume on flights in g where tenant == claims.tenant"],
    "other group": ["consume on flights in h"],
    "lacking": [
        "subscribe on flights where x == claims.x",
        "consume on flights where x == claims.x",
    ],
    "denied": ["admin", "deny subscribe on flights", "deny consume on flights"],
    "administrator of areas": [
        f"{how}:{area}"
        for how in ("read", "write")
        for area in ("topics", "nodes", "letters", "connectors", "groups", "tokens", "settings")
    ],
    "admin": ["admin"],
}
NOBODYS = ("nobody", "wrong", "expired", "revoked")
MAY_SUBSCRIBE = {"reader", "admin"}
MAY_JOIN = {"consumer", "admin"}
SUBSCRIBE = {"type": "subscribe", "id": "s", "topic": "flights"}
JOIN = {"type": "join", "topic": "flights", "group": "g", "consumer": "c", "incarnation": "1"}


def kinds_of(union: Any) -> set[str]:
    return {str(one.__struct_config__.tag) for one in get_args(union)}


def test_nobody_asks_for_records_by_another_message() -> None:
    """All others are about what has begun on the same connection, or about nothing."""
    assert kinds_of(Incoming) == {"subscribe", "unsubscribe", "ack", "ping"}
    assert kinds_of(ConsumerMessage) == {
        *("join", "ack", "nack", "held", "renew", "released", "leave", "ping"),
    }
    assert Auth.__struct_config__.tag == "auth"


@pytest.fixture
async def guarded() -> AsyncIterator[World]:
    def principals(machine: Any) -> Any:
        past_ms = machine.wall_ms() - 1
        made = [token(_name(name), *grants, tenant="t") for name, grants in TOKENS.items()]
        return knowing(machine, *made, token("expired", "admin", expires_ms=past_ms))

    async with running(make_principals=principals) as made:
        yield made


def _name(who: str) -> str:
    return who.replace(" ", "-")


async def answered(connection: WsSubscriber, who: str, asked: dict[str, Any]) -> str:
    """What the connection is told: the type of the answer, or the code of the error."""
    if who != "nobody":
        answer = await connection.ask(type="auth", token=secret_of(_name(who)))
        if answer["type"] != "authenticated":
            return str(answer["error"]["code"])
    connection.say(**asked)
    answer = await connection.next()
    return str(answer["error"]["code"] if answer["type"] == "error" else answer["type"])


@pytest.mark.parametrize("who", [*NOBODYS, *TOKENS])
async def test_who_may_subscribe(guarded: World, who: str) -> None:
    told = await answered(await guarded.connection(), who, SUBSCRIBE)
    refused = "unauthorized" if who in NOBODYS else "forbidden"
    assert told == ("subscribed" if who in MAY_SUBSCRIBE else refused)
    assert len(guarded.coordinator.registry) == (who in MAY_SUBSCRIBE)


@pytest.mark.parametrize("who", [*NOBODYS, *TOKENS])
async def test_who_may_join(guarded: World, who: str) -> None:
    if who in MAY_JOIN:
        connection = await guarded.consumer_connection()
        await connection.ask(type="auth", token=secret_of(_name(who)))
        connection.say(**JOIN)
        received = guarded.coordinator.received
        await until(lambda: any(isinstance(one, JoinGroup) for one in received))
        return
    told = await answered(await guarded.consumer_connection(), who, JOIN)
    assert told == ("unauthorized" if who in NOBODYS else "forbidden")
    assert not any(isinstance(one, JoinGroup) for one in guarded.coordinator.received)


@pytest.mark.parametrize("message", sorted(kinds_of(Incoming) | kinds_of(ConsumerMessage)))
async def test_before_anybody_has_said_who_they_are_nothing_is_obeyed(
    guarded: World, message: str
) -> None:
    for open_one in (guarded.connection, guarded.consumer_connection):
        connection = await open_one()
        assert await answered(connection, "nobody", {"type": message}) == "unauthorized"
