"""The end of something that may wait, where it doesn't."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from headgate.model.delivery import DeliveryAnswer

T = TypeVar("T")


def at_once(work: Awaitable[T]) -> T:
    try:
        next(iter(work.__await__()))
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise AssertionError("it waits")


def answered_at_once(answer: DeliveryAnswer | Awaitable[DeliveryAnswer]) -> DeliveryAnswer:
    return answer if isinstance(answer, DeliveryAnswer) else at_once(answer)
