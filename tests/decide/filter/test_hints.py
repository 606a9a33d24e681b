"""Which filters look as if the quotation marks of a text were forgotten, and what is said then."""

from __future__ import annotations

import pytest

from headgate.decide.filter.hints import forgotten_quotes
from headgate.decide.filter.parser import parse

SUSPECT = {
    "customer == ada": 'customer == "ada"',
    "customer != ada": 'customer != "ada"',
    "order.customer == ada": 'order.customer == "ada"',
    "total > 3 && (paid || customer == ada)": 'customer == "ada"',
    "cargo in tags": '"cargo" in tags',
    'squawk in ["7500", abcd, efgh]': 'squawk in ["7500", "abcd", "efgh"]',
    "callsign.startsWith(SWR)": 'callsign.startsWith("SWR")',
    "!tags.contains(cargo)": 'tags.contains("cargo")',
}


@pytest.mark.parametrize(("where", "meant"), SUSPECT.items(), ids=SUSPECT)
def test_a_bare_word_where_a_text_is_usual_is_shown_as_a_text(where: str, meant: str) -> None:
    hint = forgotten_quotes(parse(where))
    assert hint is not None
    assert hint.endswith(f"is a field of the document; a text stands in quotation marks: {meant}")


PLAIN = [
    'customer == "ada"',
    "altitude > 3000",
    "speed > limit",
    "customer == order.customer",
    "on_ground && emergency",
    '"cargo" in tags',
    "paid == true",
    "size(tags) == count",
    "arrived - planned == delay",
    "has(owner) ? squawk == 7700 : speed < limit",
]


@pytest.mark.parametrize("where", PLAIN)
def test_what_can_hardly_be_meant_otherwise_is_left_alone(where: str) -> None:
    assert forgotten_quotes(parse(where)) is None


def test_the_word_and_its_condition_are_named() -> None:
    assert forgotten_quotes(parse("customer == ada")) == (
        "in customer == ada the word ada is a field of the document; "
        'a text stands in quotation marks: customer == "ada"'
    )
