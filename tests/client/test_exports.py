"""`headgate.client` exports every type that the signatures of its classes name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator

import msgspec
import pytest

import headgate.client as public
from headgate.client import Consumer, Event, Left, Subscriber
from headgate.client.sync.consumer import ConsumerOptions
from headgate.client.sync.subscriber import SubscriberOptions, SubscriptionOptions

EXPORTED = {name: getattr(public, name) for name in public.__all__}
CLASSES = [one for one in EXPORTED.values() if inspect.isclass(one)]
OURS = "headgate."
OF_TESTS = {"Machine", "OpenCalls", "OpenLink", "Route"}
"""What a signature takes for the sake of tests and benchmarks."""


def named_by(kind: type) -> Iterator[object]:
    """The types in the signatures of a class's public methods and properties."""
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") and name != "__init__":
            continue
        call = member.fget if isinstance(member, property) else member
        if inspect.isfunction(call):
            for hint in typing.get_type_hints(call).values():
                yield from parts(hint)


def parts(hint: object) -> Iterator[object]:
    arguments = typing.get_args(hint)
    if not arguments:
        yield hint
    for one in arguments:
        yield from parts(one)


def test_every_name_is_exported_and_nothing_else() -> None:
    assert dir(public) == public.__all__
    assert CLASSES
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        public.Nobody  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_what_signatures_name_can_be_imported(kind: type) -> None:
    missing = {
        one.__name__
        for one in named_by(kind)
        if inspect.isclass(one)
        and one.__module__.startswith(OURS)
        and not issubclass(one, Exception)
        and one not in CLASSES
    }
    assert missing <= OF_TESTS


@pytest.mark.parametrize(
    ("options", "call"),
    [
        pytest.param(ConsumerOptions, Consumer.__init__, id="consumer"),
        pytest.param(SubscriberOptions, Subscriber.__init__, id="subscriber"),
        pytest.param(SubscriptionOptions, Subscriber.add, id="subscription"),
    ],
)
def test_clients_that_block_take_what_the_others_take(
    options: type, call: Callable[..., object]
) -> None:
    """Also as type checkers see it, for whom these classes are written."""
    named = [
        one.name
        for one in inspect.signature(call).parameters.values()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    hints = typing.get_type_hints(call)
    assert typing.get_type_hints(options) == {name: hints[name] for name in named}


@pytest.mark.parametrize("kind", [Event, Left])
def test_an_item_is_printed_with_its_document(kind: type[Event | Left]) -> None:
    item = kind("flights", 3, 17, "e", "4ca7b3", "", "update", msgspec.Raw(b'{"alt":11000}'))
    assert repr(item) == (
        f"{kind.__name__}(flights:3:17, update, key='4ca7b3', document={{\"alt\":11000}})"
    )


def test_a_long_document_is_shortened() -> None:
    raw = msgspec.Raw(b'{"text":"' + b"x" * 1_000 + b'"}')
    item = Event("flights", 0, 1, "e", None, "", "insert", raw, redelivery=True)
    assert len(repr(item)) < 300
    assert "…" in repr(item)
    assert "redelivery=True" in repr(item)
