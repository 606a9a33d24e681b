"""What operators may ask about letters, and how it is refused."""

from __future__ import annotations

import msgspec
import pytest

from headgate.decide.operations.letter_queries import (
    PARAMETERS,
    by_gateway,
    described,
    letter_id,
    list_question,
    page_of,
    selected,
)
from headgate.errors import InvalidRequest
from headgate.model.delivery import Delivery
from headgate.model.letters import GatewayLetters, Letter, LetterCount, LetterQuery
from headgate.model.letters_api import LetterFilter, LetterSelection

NOW_MS = 10_000_000


def letter(number: int) -> Letter:
    document = msgspec.Raw(b'{"alt": 5}')
    event = Delivery("flights", 1, number, "e", "k", "c", "update", document, ("s",), 7, 3)
    return Letter(number, "g1", "dead", "rejected", event, 3, "400", 9)


@pytest.mark.parametrize(
    ("parameters", "query"),
    [
        pytest.param({}, LetterQuery(), id="dead ones"),
        pytest.param({"state": "parked"}, LetterQuery(state="parked"), id="parked ones"),
        pytest.param({"gateway": "", "key": ""}, LetterQuery(), id="empty is not given"),
        pytest.param({"gateway": "g1"}, LetterQuery(gateway_id="g1"), id="gateway"),
        pytest.param(
            {"topic": "flights", "partition": "3", "key": "a b"},
            LetterQuery(topic="flights", partition=3, key="a b"),
            id="topic, partition and key",
        ),
        pytest.param({"reason": "shed"}, LetterQuery(reason="shed"), id="reason"),
        pytest.param(
            {"older_than": "1h"}, LetterQuery(before_ms=NOW_MS - 3_600_000), id="older than"
        ),
        pytest.param({"newer_than": "5s"}, LetterQuery(after_ms=NOW_MS - 5_000), id="newer than"),
    ],
)
def test_parameters_become_a_query(parameters: dict[str, str], query: LetterQuery) -> None:
    question = list_question(parameters, now_ms=NOW_MS)
    assert question.query == query
    assert (question.after_id, question.limit, question.documents) == (0, 100, False)


def test_a_page_may_be_asked_for_with_documents() -> None:
    asked = {"after": "17", "limit": "5", "documents": "true"}
    question = list_question(asked, now_ms=NOW_MS)
    assert (question.after_id, question.limit, question.documents) == (17, 5, True)


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"gatway": "g1"}, "gatway"),
        ({"state": "alive"}, "state is parked or dead"),
        ({"reason": "because"}, "reason is unreachable, overloaded"),
        ({"partition": "-1"}, "partition is a number from 0"),
        ({"partition": "1024"}, "partition is a number from 0 to 1023"),
        ({"partition": "٣"}, "partition is a number"),
        ({"older_than": "1"}, "older_than: '1' is not a duration"),
        ({"newer_than": "soon"}, "newer_than: 'soon' is not a duration"),
        ({"after": "x"}, "after is a number"),
        ({"after": "9" * 19}, "after is a number"),
        ({"after": "9" * 5_000}, "after is a number"),
        ({"limit": "0"}, "limit is a number from 1 to 500"),
        ({"limit": "501"}, "limit is a number from 1 to 500"),
        ({"documents": "yes"}, "documents is true or false"),
        ({"gateway": "a\0"}, "no gateway has a zero in its name"),
        ({"topic": "a\0"}, "no topic has a zero in its name"),
    ],
)
def test_what_cant_be_understood_is_refused_by_name(parameters: dict[str, str], names: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        list_question(parameters, now_ms=NOW_MS)
    assert names in refused.value.message
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1.5", "99999999999999999999", "٣"])
def test_an_id_is_a_positive_number(text: str) -> None:
    with pytest.raises(InvalidRequest, match="id is a number"):
        letter_id(text)
    assert letter_id("9223372036854775807") == 2**63 - 1


def test_a_change_is_about_ids_or_a_filter() -> None:
    assert selected(LetterSelection(ids=[3, 1]), now_ms=NOW_MS) == LetterQuery(ids=(3, 1))
    assert selected(LetterSelection(filter=LetterFilter()), now_ms=NOW_MS) == LetterQuery()
    old = LetterFilter(gateway="g", older_than="1s")
    assert selected(LetterSelection(filter=old), now_ms=NOW_MS) == LetterQuery(
        gateway_id="g", before_ms=NOW_MS - 1_000
    )


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(LetterSelection(), id="neither"),
        pytest.param(LetterSelection(ids=[1], filter=LetterFilter()), id="both"),
        pytest.param(LetterSelection(ids=[]), id="no ids"),
        pytest.param(
            LetterSelection(filter=LetterFilter(), after=1, dry_run=True), id="dry run, and after"
        ),
        pytest.param(LetterSelection(filter=LetterFilter(older_than="x")), id="no age"),
    ],
)
def test_a_change_that_could_be_about_anything_is_refused(selection: LetterSelection) -> None:
    with pytest.raises(InvalidRequest):
        selected(selection, now_ms=NOW_MS)


def test_a_page_says_where_the_next_one_begins() -> None:
    question = list_question({"limit": "2", "after": "4"}, now_ms=NOW_MS)
    whole = page_of([letter(5), letter(6), letter(7)], question)
    assert ([one.id for one in whole.letters], whole.last_id, whole.more) == ([5, 6], 6, True)
    last = page_of([letter(7)], question)
    assert (last.last_id, last.more) == (7, False)
    assert page_of([], question).last_id == 4


def test_documents_are_left_out_where_they_werent_asked_for() -> None:
    assert b"document" not in msgspec.json.encode(described(letter(1), documents=False))
    assert b'"document":{"alt": 5}' in msgspec.json.encode(described(letter(1)))


def test_every_parameter_is_described() -> None:
    question = dict.fromkeys(PARAMETERS, "")
    assert list_question(question, now_ms=NOW_MS).query == LetterQuery()


def test_counts_are_added_up_per_gateway() -> None:
    counts = [
        LetterCount("parked", "g2", "flights", "unreachable", 5, NOW_MS - 50),
        LetterCount("parked", "g2", "flights", "overloaded", 2, NOW_MS - 90),
        LetterCount("dead", "g2", "alerts", "rejected", 1, NOW_MS - 7),
        LetterCount("dead", "g1", "alerts", "shed", 4, NOW_MS + 3),
    ]
    assert by_gateway(counts, now_ms=NOW_MS) == [
        GatewayLetters("g1", dead=4, dead_ms=0),
        GatewayLetters("g2", parked=7, parked_ms=90, dead=1, dead_ms=7),
    ]
    assert by_gateway([], now_ms=NOW_MS) == []


def test_those_of_a_consumer_group_are_counted_by_themselves() -> None:
    counts = [
        LetterCount("dead", "@group/flights/radar/0-of-4", "flights", "failed", 2, NOW_MS - 5),
        LetterCount("dead", "@group/flights/radar/3-of-4", "flights", "failed", 1, NOW_MS - 9),
        LetterCount("parked", "@group/alerts/radar/3-of-4", "alerts", "failed", 1, NOW_MS - 1),
        LetterCount("dead", "g1", "flights", "shed", 4, NOW_MS),
    ]
    assert by_gateway(counts, now_ms=NOW_MS) == [
        GatewayLetters("g1", dead=4),
        GatewayLetters("", parked=1, parked_ms=1, group="alerts/radar"),
        GatewayLetters("", dead=3, dead_ms=9, group="flights/radar"),
    ]


def test_a_letter_is_a_gateways_or_a_groups() -> None:
    target = msgspec.structs.replace(letter(1), gateway_id="@group/flights/radar/0-of-4")
    assert (described(letter(1)).gateway, described(letter(1)).group) == ("g1", "")
    assert (described(target).gateway, described(target).group) == ("", "radar")


@pytest.mark.parametrize("name", ["", "@group", "a/b", "*", "-a", "a" * 129, "a\n"])
def test_what_is_no_groups_name_chooses_nothing(name: str) -> None:
    with pytest.raises(InvalidRequest, match="group"):
        selected(LetterSelection(filter=LetterFilter(group=name)), now_ms=NOW_MS)
