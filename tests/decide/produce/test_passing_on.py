"""Where a gateway passes produce requests on to."""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.decide.produce.passing_on import (
    GRACE_S,
    LONGEST_S,
    by_request,
    has_no_such_topic,
    in_turn,
    may_repeat,
    timeout_s,
    wait_s,
    was_refused_for_now,
    within,
)

URLS = ["http://a", "http://b", "http://c"]


def request(event_id: str, document: str = "{}", timeout: str = "5000ms") -> bytes:
    event = f'{{"document":{document},"event_id":"{event_id}"}}'
    return f'{{"events":[{event}],"request_timeout":"{timeout}"}}'.encode()


def test_they_take_turns() -> None:
    assert [in_turn(URLS, turn)[0] for turn in range(4)] == [*URLS, URLS[0]]
    assert sorted(in_turn(URLS, 2)) == URLS
    assert in_turn([], 3) == []


def test_what_is_repeated_goes_to_the_same_node() -> None:
    for number in range(50):
        first = by_request(URLS, request(f"e{number}"), 0)
        again = by_request(URLS[::-1], request(f"e{number}", timeout="17ms"), 1)
        assert first == again
        assert sorted(first) == URLS


def test_a_node_that_comes_or_goes_changes_nothing_for_the_requests_of_others() -> None:
    for number in range(50):
        first, second, _ = by_request(URLS, request(f"e{number}"), 0)
        assert by_request([first, second], request(f"e{number}"), 0) == [first, second]


@pytest.mark.parametrize("document", ["{}", '{"event_id":"the same in all"}'])
def test_requests_are_spread(document: str) -> None:
    counts = Counter(by_request(URLS, request(f"e{n}", document), 0)[0] for n in range(3_000))
    assert min(counts.values()) > 800, counts


def test_requests_without_ids_take_turns() -> None:
    body = b'{"events":[{"document":{}}]}'
    assert [by_request(URLS, body, turn)[0] for turn in range(3)] == URLS


@pytest.mark.parametrize(
    ("body", "expected_s"),
    [
        pytest.param(request("e", timeout="5000ms"), 5 + GRACE_S, id="as clients say it"),
        pytest.param(
            request("e", '{"request_timeout":"1ms"}', timeout="2m"), 120 + GRACE_S, id="in minutes"
        ),
        pytest.param(b'{"events":[]}', 5 + GRACE_S, id="the default"),
        pytest.param(request("e", timeout="15m"), 15 * 60 + GRACE_S, id="the longest"),
        pytest.param(request("e", timeout="7d"), LONGEST_S, id="more than that"),
        pytest.param(request("e", timeout="soon"), LONGEST_S, id="no duration"),
        pytest.param(b'{"request_timeout":5}', LONGEST_S, id="no text"),
        pytest.param(b'{"request_timeout":"\xff"}', LONGEST_S, id="no UTF-8"),
        pytest.param(b"not JSON", LONGEST_S, id="no JSON"),
        pytest.param(b'{"events":' + b"[" * 100_000, LONGEST_S, id="deep"),
    ],
)
def test_an_answer_is_waited_for_as_long_as_the_request_asks(
    body: bytes, expected_s: float
) -> None:
    assert wait_s(body) == expected_s


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b'{"events":[{"event_id":"a"},{"event_id":"b"}]}', True, id="all have ids"),
        pytest.param(b'{"events":[{"event_id":"a"},{"document":{}}]}', False, id="one has none"),
        pytest.param(b'{"events":[{"event_id":null}]}', False, id="null is none"),
        pytest.param(b'{"events":[{"document":{"event_id":"a"}}]}', False, id="in the document"),
        pytest.param(b'{"events":[]}', False, id="nothing"),
        pytest.param(b"not JSON", False, id="no JSON"),
    ],
)
def test_only_what_is_known_by_its_ids_is_repeated(body: bytes, expected: bool) -> None:
    assert may_repeat(body) == expected


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (503, "unavailable", True),
        (503, "unreachable", True),
        (503, "overloaded", False),
        (503, "outcome_unknown", False),
        (503, "timeout", False),
        (200, "unavailable", False),
    ],
)
def test_only_a_node_that_wrote_nothing_is_passed_over(
    status: int, code: str, expected: bool
) -> None:
    body = f'{{"error":{{"code":"{code}","message":"no","details":{{}}}}}}'.encode()
    assert was_refused_for_now(status, body) == expected
    assert not was_refused_for_now(status, b"<html>")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "unknown_topic", True),
        (404, "not_found", False),
        (503, "unknown_topic", False),
        (503, "unavailable", False),
    ],
)
def test_only_one_code_says_that_there_is_no_topic(status: int, code: str, expected: bool) -> None:
    body = f'{{"error":{{"code":"{code}","message":"no","details":{{}}}}}}'.encode()
    assert has_no_such_topic(status, body) == expected
    assert not has_no_such_topic(status, b"<html>")


def test_a_request_that_is_sent_again_has_what_is_left_of_its_time() -> None:
    again = within(request("e", '{"n": 1}', timeout="5s"), 2.5)
    assert timeout_s(again) == 2.5
    assert b'{"n": 1}' in again
    assert timeout_s(b"not JSON") == 0
