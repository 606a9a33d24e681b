"""Who waits for what became of a delivery that an operator wants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from headgate.model.delivery import Delivery, Verdict


class Asked:
    """By the identity of the delivery: the same record may be asked for twice."""

    def __init__(self) -> None:
        self._answers: dict[int, asyncio.Future[Verdict | None]] = {}

    def ask(self, delivery: Delivery) -> asyncio.Future[Verdict | None]:
        """The verdict on the delivery, once it is known; None without one."""
        answer: asyncio.Future[Verdict | None] = asyncio.get_running_loop().create_future()
        self._answers[id(delivery)] = answer
        return answer

    def answer(self, delivery: Delivery, verdict: Verdict | None) -> None:
        answer = self._answers.pop(id(delivery), None)
        if answer is not None and not answer.done():
            answer.set_result(verdict)

    def give_up(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.answer(delivery, None)
