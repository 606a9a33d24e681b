"""The life of a router, from its start to its end.

What coordinator, /health and the log are told of it are three words: see `word`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from headgate.decide.states import Table


class State(StrEnum):
    LAUNCHING = "launching"
    ASKING = "asking"
    OPENING = "opening"
    OPEN = "open"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Event(StrEnum):
    LAUNCHED = "launched"
    TOLD = "what to read is clear"
    BEGUN = "a window has begun"
    ALL_READ = "all is read"
    WAITED = "waited enough"
    STOP = "told to stop"
    ENDED = "all has ended"


LIFE: Final = Table(
    State.LAUNCHING,
    {
        State.LAUNCHING: {
            Event.LAUNCHED: State.ASKING,
            Event.STOP: State.STOPPING,
        },
        State.ASKING: {
            Event.TOLD: State.OPENING,
            Event.ALL_READ: State.ASKING,
            Event.STOP: State.STOPPING,
        },
        State.OPENING: {
            Event.BEGUN: State.OPEN,
            Event.ALL_READ: State.OPENING,
            Event.WAITED: State.READY,
            Event.STOP: State.STOPPING,
        },
        State.OPEN: {
            Event.BEGUN: State.OPEN,
            Event.ALL_READ: State.READY,
            Event.WAITED: State.READY,
            Event.STOP: State.STOPPING,
        },
        State.READY: {
            Event.BEGUN: State.READY,
            Event.ALL_READ: State.READY,
            Event.STOP: State.STOPPING,
        },
        State.STOPPING: {
            Event.BEGUN: State.STOPPING,
            Event.ALL_READ: State.STOPPING,
            Event.STOP: State.STOPPING,
            Event.ENDED: State.STOPPED,
        },
        State.STOPPED: {},
    },
    {
        State.LAUNCHING: "What windows run on isn't there yet.",
        State.ASKING: "It isn't clear what to read: the coordinator hasn't said so, and what was "
        "noted doesn't say it yet. Lanes that read are of an earlier start.",
        State.OPENING: "Windows may be asked for; none has begun.",
        State.OPEN: "Lanes are on their way, or an empty window has warmed everything up for them; "
        "not everything is read yet that is the router's.",
        State.READY: "Windows run; one that ends is followed by the next.",
        State.STOPPING: "No window is planned any more; the open one is to end.",
        State.STOPPED: "Nothing runs.",
    },
)


def word(state: State) -> str:
    """starting, ready or stopping: what others are told."""
    if state is State.READY:
        return "ready"
    return "stopping" if is_stopping(state) else "starting"


def is_stopping(state: State) -> bool:
    return state in (State.STOPPING, State.STOPPED)
