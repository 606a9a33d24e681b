"""How `headgate status` shows consumer groups."""

from __future__ import annotations

import io

from rich.console import Console

from headgate.cli.views.status import status_view
from headgate.model.api import ConsumerStatus, GroupStatus, Status


def shown(groups: list[GroupStatus]) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(status_view(Status("1", 1, 1, [], [], [], [], [], 0, groups=groups)))
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def group(*consumers: ConsumerStatus) -> GroupStatus:
    return GroupStatus("flights", "radar", 10, None, 2, 1, list(consumers))


def test_a_group_says_who_has_how_many_and_who_is_lost() -> None:
    text = shown(
        [
            group(
                ConsumerStatus("a", "gateway-1", "connected", [0, 1, 2]),
                ConsumerStatus("b", "gateway-1", "lost", [3]),
            )
        ]
    )
    assert "Consumer groups" in text
    assert "flights/radar" in text
    assert "a 3, b (lost) 1" in text


def test_many_consumers_are_counted_not_listed() -> None:
    many = [ConsumerStatus(f"c{n}", "g", "connected", []) for n in range(20)]
    assert "14 more" in shown([group(*many)])


def test_without_groups_nothing_is_said_about_them() -> None:
    assert "Consumer groups" not in shown([])
