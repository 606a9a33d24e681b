"""Carries a conversation with the model gateway by hand: every message, loss and attempt is a step
that a test chooses."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from headgate import errors
from headgate.decide.conversation.common import Conversation, Phase
from headgate.decide.conversation.effects import Connect, Effects, HangUp, Redirected, Remind, Send
from headgate.model.client_messages import Event, Item, Left, Resync
from tests.client.model_gateway import Message, ModelGateway, Session

STEP_S = 0.01


class Driver:
    """The client's end of the wire, and its clock."""

    def __init__(
        self,
        conversation: Conversation[Any, Any],
        gateway: ModelGateway,
        decode: Callable[[bytes], Any],
    ) -> None:
        self.conversation = conversation
        self.gateway = gateway
        self.now_s = 0.0
        self.inbox: deque[bytes] = deque()
        self.session: Session | None = None
        self.is_wanted = False
        self.said: list[Message] = []
        self.reminder_s: float | None = None
        self._decode = decode

    def send(self, message: Message) -> None:
        """From the gateway."""
        self.inbox.append(msgspec.json.encode(message))

    def drop(self) -> None:
        """By the gateway; told with `lose`."""

    @property
    def phase(self) -> Phase:
        return self.conversation.phase

    # --- steps -----------------------------------------------------------------------------------

    def do(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    self.said.append(json.loads(message))
                    assert self.session is not None, f"{message!r} said to nobody"
                    self.session.heard(self.said[-1])
                case Connect() | Redirected():
                    self.cut()
                    self.is_wanted = True
                case HangUp():
                    self.cut()
                case Remind(after_s):
                    self.reminder_s = self.now_s + after_s

    def cut(self) -> None:
        session, self.session = self.session, None
        self.inbox.clear()
        if session is not None:
            session.gone()

    def connect(self) -> None:
        self.is_wanted = False
        self.inbox.clear()
        self.session = self.gateway.connect(self)
        self.do(self.conversation.opened())

    def fail_to_connect(self) -> None:
        self.is_wanted = False
        error = errors.PeerUnreachable("nobody is there")
        self.do(self.conversation.unreachable(error, self.now_s))

    def deliver(self) -> None:
        message = self._decode(self.inbox.popleft())
        self.now_s += STEP_S
        if not isinstance(message, Event | Left | Resync):
            self.do(self.conversation.heard(message, self.now_s))
        elif not self.conversation.arrived(message):
            self.do(self.conversation.unexpected(self.now_s))

    def lose(self) -> None:
        self.cut()
        self.do(self.conversation.lost(self.now_s))

    def take(self, caller: str = "") -> Item | None:
        """As `anext` does: None where it would wait."""
        self.now_s += STEP_S
        self.do(self.conversation.done(caller, self.now_s))
        item = self.conversation.take(caller)
        if item is None:
            self.do(self.conversation.asked(self.now_s))
        return item

    def go_on(self) -> bool:
        """One step of what happens by itself when all is well; False when nothing is left."""
        if self.inbox:
            self.deliver()
        elif self.is_wanted and self.phase is Phase.CONNECTING:
            self.connect()
        else:
            return False
        return True
