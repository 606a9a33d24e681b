"""The life of a lane, as three tables that go side by side: its partitions, its window, and what
the coordinator knows of it. docs/states.md draws them.

A lane ends when it has no partitions: its window may be over long before, and it goes on until
newer lanes have all it had.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TypeVar

from headgate.decide.states import Life, Table


class Hold(StrEnum):
    WAITING = "waiting"
    RESTING = "resting"
    READING = "reading"
    ENDING = "ending"
    GIVING_UP = "giving up"


class HoldEvent(StrEnum):
    CLAIMED = "claimed"
    RESTS = "can claim nothing"
    ENDS = "ends"


HOLD = Table(
    Hold.WAITING,
    moves={
        Hold.WAITING: {
            HoldEvent.CLAIMED: Hold.READING,
            HoldEvent.RESTS: Hold.RESTING,
            HoldEvent.ENDS: Hold.GIVING_UP,
        },
        Hold.RESTING: {HoldEvent.ENDS: Hold.ENDING},
        Hold.READING: {HoldEvent.ENDS: Hold.ENDING},
        Hold.ENDING: {HoldEvent.ENDS: Hold.ENDING},
        Hold.GIVING_UP: {
            HoldEvent.ENDS: Hold.GIVING_UP,
            HoldEvent.CLAIMED: Hold.ENDING,
            HoldEvent.RESTS: Hold.ENDING,
        },
    },
    means={
        Hold.WAITING: "it has claimed nothing: the lanes that held its partitions go on",
        Hold.RESTING: "it could claim nothing, and waits for the end of its window without another "
        "try: a lane that fails would cost the others of its router their window",
        Hold.READING: "it has claimed partitions, and reads, matches and delivers",
        Hold.ENDING: "it settles what is in flight, saves its positions and says goodbye",
        Hold.GIVING_UP: "it says goodbye without having begun",
    },
)


class Window(StrEnum):
    OPEN = "open"
    OVERDUE = "overdue"
    OVER = "over"


class WindowEvent(StrEnum):
    TIME_IS_UP = "time is up"
    HANDS_OVER = "hands over"


WINDOW = Table(
    Window.OPEN,
    moves={
        Window.OPEN: {WindowEvent.TIME_IS_UP: Window.OVERDUE, WindowEvent.HANDS_OVER: Window.OVER},
        Window.OVERDUE: {
            WindowEvent.TIME_IS_UP: Window.OVERDUE,
            WindowEvent.HANDS_OVER: Window.OVER,
        },
        Window.OVER: {WindowEvent.HANDS_OVER: Window.OVER, WindowEvent.TIME_IS_UP: Window.OVER},
    },
    means={
        Window.OPEN: "Spark waits for the tallies of its lanes",
        Window.OVERDUE: "its time is up, and it stays open while the coordinator is away: the next "
        "one's lanes could not learn the subscriptions",
        Window.OVER: "the tally is given, so that Spark can start the next window",
    },
)


class Standing(StrEnum):
    GREETED = "greeted"
    TOLD = "told"
    PROVED = "proved"


class StandingEvent(StrEnum):
    HELLO = "hello"
    ADOPTED = "adopted"
    FORGOT = "forgot"
    PROVED = "proved"


STANDING = Table(
    Standing.GREETED,
    moves={
        Standing.GREETED: {
            StandingEvent.HELLO: Standing.GREETED,
            StandingEvent.ADOPTED: Standing.TOLD,
            StandingEvent.PROVED: Standing.PROVED,
        },
        Standing.TOLD: {
            StandingEvent.HELLO: Standing.GREETED,
            StandingEvent.ADOPTED: Standing.TOLD,
            StandingEvent.FORGOT: Standing.GREETED,
            StandingEvent.PROVED: Standing.PROVED,
        },
        Standing.PROVED: {
            StandingEvent.HELLO: Standing.GREETED,
            StandingEvent.ADOPTED: Standing.PROVED,
            StandingEvent.PROVED: Standing.PROVED,
        },
    },
    means={
        Standing.GREETED: "it said hello on this stream, and others may subscribe without its word",
        Standing.TOLD: "it matches with the subscriptions that it was told, or found noted",
        Standing.PROVED: "it has shown on this stream that no newer lane holds its partitions",
    },
)

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


class Awaited(Life[State, Event]):
    """A life of which one can wait for a state."""

    def __init__(self, table: Table[State, Event]) -> None:
        super().__init__(table)
        self._waiters: set[asyncio.Future[None]] = set()

    def meets(self, event: Event) -> State:
        state = super().meets(event)
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return state

    async def reaches(self, *states: State) -> None:
        """Returns once the state is one of `states`."""
        while self.state not in states:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
