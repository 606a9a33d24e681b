"""The opportunistic machine, event by event: what is asked for and what is answered, exactly."""

from __future__ import annotations

import pytest

from headgate.decide.produce.doubts import PlacingMemory
from headgate.decide.produce.partition_health import HealthRules
from headgate.decide.produce.placing import Answer, Append, Effect, Placing, PlacingRules, ReadBack

RULES = PlacingRules(write_timeout_s=3.0, health=HealthRules())


def placing(*backlog: int) -> Placing:
    machine = Placing(RULES)
    assert machine.observe(0.0, dict(enumerate(backlog))) == []
    return machine


def offered(machine: Placing, now_s: float, request: int, size: int = 1) -> list[Effect]:
    return machine.offer(now_s, request, size=size, deadline_s=now_s + 10)


# --- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [False, True], ids=["all-under-way", "each-written"])
def test_the_worked_example_comes_out_exactly(ended: bool) -> None:
    machine, counts = placing(0, 0, 0, 0), [0, 0, 0, 0]
    after = []
    for request, size in enumerate([50, 30, 100, 20, 100, 100]):
        [append] = offered(machine, 0.0, request, size)
        assert isinstance(append, Append)
        counts[append.partition] += size
        if ended:
            machine.observe(0.0, dict(enumerate(counts)))
            answer = machine.written(0.0, request, append.attempt, append.partition)
            assert answer == [Answer(request, "written")]
        after.append(list(counts))
    assert after[2] == [50, 30, 100, 0]
    assert after[5] == [50, 130, 100, 120]
    assert offered(machine, 0.0, 6) == [Append(6, 1, 0)]


def test_settling_makes_room_again() -> None:
    machine = placing(10, 10)
    machine.observe(0.0, {0: 10, 1: 3})
    assert offered(machine, 0.0, 1) == [Append(1, 1, 1)]


# --- definite failures ---------------------------------------------------------------------------


def test_a_failure_sets_the_partition_aside_undoes_its_count_and_places_again() -> None:
    machine = placing(0, 0)
    assert offered(machine, 0.0, 1, size=7) == [Append(1, 1, 0)]
    assert machine.failed(0.1, 1, 1, 0) == [Append(1, 2, 1)]
    # Partition 1 has 7 under way and 0 has none, but 0 is set aside.
    assert offered(machine, 0.2, 2) == [Append(2, 1, 1)]
    machine.written(0.3, 1, 2, 1)
    machine.written(0.3, 2, 1, 1)
    assert offered(machine, 0.6, 3) == [Append(3, 1, 0)]


def test_a_partition_that_comes_back_is_probed_by_one_request_at_a_time() -> None:
    machine = placing(0, 50)
    offered(machine, 0.0, 1)
    machine.failed(0.0, 1, 1, 0)
    assert offered(machine, 0.5, 2) == [Append(2, 1, 0)]
    assert offered(machine, 0.6, 3) == [Append(3, 1, 1)]
    machine.written(0.7, 2, 1, 0)
    assert offered(machine, 0.8, 4) == [Append(4, 1, 0)]
    assert offered(machine, 0.8, 5) == [Append(5, 1, 0)]


def test_the_time_aside_grows_with_every_probe_that_fails_up_to_a_limit() -> None:
    machine, now_s = placing(0), 0.0
    waits: list[float] = []
    effects = machine.offer(now_s, 1, size=1, deadline_s=1_000.0)
    while len(waits) < 9:
        [append] = effects
        assert isinstance(append, Append)
        effects = machine.failed(now_s, 1, append.attempt, 0)
        failed_s = now_s
        while not effects:
            now_s = machine.next_s
            effects = machine.tick(now_s)
        waits.append(round(now_s - failed_s, 3))
    assert waits[:3] == [0.5, 0.75, 1.125]
    assert waits[-1] == 5.0


def test_failures_that_were_under_way_together_count_once() -> None:
    machine = placing(0)
    for request in range(5):
        assert offered(machine, 0.0, request) == [Append(request, 1, 0)]
    for request in range(5):
        assert machine.failed(0.1, request, 1, 0) == []
    assert machine.next_s == pytest.approx(0.6)


def test_with_every_partition_failing_a_request_waits_and_is_tried_again() -> None:
    machine = placing(0, 0)
    offered(machine, 0.0, 1)
    assert machine.failed(0.0, 1, 1, 0) == [Append(1, 2, 1)]
    assert machine.failed(0.1, 1, 2, 1) == []
    assert offered(machine, 0.2, 2) == []
    assert machine.next_s == 0.5
    assert machine.tick(0.5) == [Append(1, 3, 0)], "first come, first served, and one probe"
    assert machine.tick(0.6) == [Append(2, 1, 1)]


def test_a_request_that_only_ever_waited_times_out_with_nothing_written() -> None:
    machine = Placing(RULES)
    assert offered(machine, 0.0, 1) == []
    assert machine.next_s == 10.0
    assert machine.tick(9.999) == []
    assert machine.tick(10.0) == [Answer(1, "timeout")]


def test_a_partition_that_appears_takes_what_waits() -> None:
    machine = Placing(RULES)
    assert offered(machine, 0.0, 1) == []
    assert machine.observe(1.0, {3: 100}) == [Append(1, 1, 3)]


def test_a_refusal_is_the_callers_and_blames_no_partition() -> None:
    machine = placing(0)
    offered(machine, 0.0, 1)
    assert machine.refused(0.1, 1, 1, 0) == [Answer(1, "refused")]
    assert offered(machine, 0.1, 2) == [Append(2, 1, 0)]


# --- unknown outcomes ----------------------------------------------------------------------------


def test_a_write_without_an_answer_stays_bound_and_is_read_back() -> None:
    machine = placing(0, 0)
    offered(machine, 0.0, 1)
    assert machine.next_s == 3.0
    assert machine.tick(3.0) == [ReadBack(1, 1, 0)]
    assert offered(machine, 3.0, 2) == [Append(2, 1, 1)]
    assert machine.read(4.0, 1, 1, 1) == [Answer(1, "written")]


def test_what_isnt_found_is_placed_anew() -> None:
    machine = placing(0, 0)
    offered(machine, 0.0, 1)
    assert machine.unknown(0.1, 1, 1, 0) == [ReadBack(1, 1, 0)]
    assert machine.read(0.2, 1, 1, 0) == [Append(1, 2, 1)]


def test_what_cant_be_read_back_is_asked_for_again_and_never_placed_elsewhere() -> None:
    machine = placing(0, 0)
    offered(machine, 0.0, 1)
    assert machine.unknown(0.0, 1, 1, 0) == [ReadBack(1, 1, 0)]
    assert machine.unreadable(0.0, 1, 1) == []
    assert machine.tick(0.5) == [ReadBack(1, 1, 0)]
    assert machine.unreadable(0.5, 1, 1) == []
    assert machine.tick(1.25) == [ReadBack(1, 1, 0)]
    assert machine.tick(10.0) == [Answer(1, "unknown", 0)]


@pytest.mark.parametrize("late", ["written", "failed"])
def test_an_answer_that_comes_late_is_as_good_as_reading_back(late: str) -> None:
    machine = placing(0, 0)
    offered(machine, 0.0, 1)
    machine.tick(3.0)
    if late == "written":
        assert machine.written(5.0, 1, 1, 0) == [Answer(1, "written")]
    else:
        assert machine.failed(5.0, 1, 1, 0) == [Append(1, 2, 1)]
    assert machine.read(5.1, 1, 1, 1) == [], "the question is void"


def test_a_retry_is_looked_for_where_it_may_be_and_only_the_rest_is_placed() -> None:
    machine = placing(0, 0, 0)
    effects = machine.offer(0.0, 1, size=5, deadline_s=10.0, doubts=(1, 2))
    assert effects == [ReadBack(1, 0, 1)]
    assert machine.read(0.1, 1, 0, 2) == [ReadBack(1, 0, 2)]
    assert machine.read(0.2, 1, 0, 1) == [Append(1, 1, 0)]
    assert machine.offer(0.2, 2, size=1, deadline_s=9.0) == [Append(2, 1, 1)]


def test_late_news_of_an_answered_request_only_ends_its_count() -> None:
    machine = placing(0, 5)
    offered(machine, 0.0, 1, size=10)
    machine.tick(3.0)
    assert machine.tick(10.0) == [Answer(1, "unknown", 0)]
    assert machine.written(11.0, 1, 1, 0) == []
    assert offered(machine, 20.0, 2) == [Append(2, 1, 0)]


# --- the caller, the end -------------------------------------------------------------------------


def test_a_caller_that_goes_is_forgotten_unless_it_is_being_written() -> None:
    machine = placing(0)
    offered(machine, 0.0, 1)
    machine.failed(0.0, 1, 1, 0)
    assert machine.abandon(0.1, 1) == [Answer(1, "cancelled")]
    assert machine.tick(0.5) == []
    assert offered(machine, 0.5, 2) == [Append(2, 1, 0)]
    assert machine.abandon(0.6, 2) == []
    assert machine.failed(0.7, 2, 1, 0) == [Answer(2, "cancelled")], "and isn't tried again"


def test_a_stop_answers_what_waits_and_lets_writes_end() -> None:
    machine = placing(0)
    offered(machine, 0.0, 1)
    offered(machine, 0.0, 2)
    machine.failed(0.0, 2, 1, 0)
    assert machine.stop(1.0, 2.0) == [Answer(2, "stopped")]
    assert offered(machine, 1.1, 3) == [Answer(3, "stopped")]
    assert machine.tick(2.0) == [Answer(1, "unknown", 0)]


def test_what_fails_during_a_stop_is_not_placed_again() -> None:
    machine = placing(0, 0)
    offered(machine, 0.0, 1)
    machine.stop(0.1, 9.0)
    assert machine.failed(0.2, 1, 1, 0) == [Answer(1, "stopped")]


# --- degraded partitions -------------------------------------------------------------------------


def exercised(latencies_s: list[float]) -> tuple[Placing, float]:
    """A machine whose partition N answers after the Nth latency, ten times."""
    machine = placing(*[0] * len(latencies_s))
    request, now_s = 0, 0.0
    for _ in range(10):
        appends = [offered(machine, now_s, request + n) for n in range(len(latencies_s))]
        placed = [effects[0] for effects in appends]
        assert [one.partition for one in placed if isinstance(one, Append)] == list(
            range(len(latencies_s))
        )
        for latency_s, number in sorted((s, n) for n, s in enumerate(latencies_s)):
            machine.written(now_s + latency_s, request + number, 1, number)
        request += len(latencies_s)
        now_s += max(latencies_s)
    return machine, now_s


@pytest.mark.parametrize(
    ("latencies_s", "first"),
    [
        pytest.param([0.011, 0.01, 0.01], 0, id="alike"),
        pytest.param([0.04, 0.001, 0.001], 0, id="fast-enough"),
        pytest.param([0.49, 0.1, 0.1], 0, id="less-than-five-times"),
        pytest.param([0.51, 0.1, 0.1], 1, id="more-than-five-times"),
        pytest.param([0.9], 0, id="no-peers"),
        pytest.param([0.9, 0.9, 0.01], 0, id="most-are-slow"),
    ],
)
def test_a_partition_much_slower_than_its_peers_is_avoided(
    latencies_s: list[float], first: int
) -> None:
    machine, now_s = exercised(latencies_s)
    assert offered(machine, now_s, 1_000) == [Append(1_000, 1, first)]


def test_a_slow_partition_is_probed_after_the_window_and_taken_back_when_it_is_quick() -> None:
    machine, now_s = exercised([0.6, 0.1, 0.1])
    for number in (1, 2):
        offered(machine, now_s, number + 1_000, size=50)
    assert offered(machine, now_s + 10.0, 2_000) == [Append(2_000, 1, 0)]
    assert offered(machine, now_s + 10.0, 2_001) != [Append(2_001, 1, 0)], "one probe at a time"
    machine.written(now_s + 10.01, 2_000, 1, 0)
    assert offered(machine, now_s + 10.02, 2_002) == [Append(2_002, 1, 0)]
    assert offered(machine, now_s + 10.02, 2_003) == [Append(2_003, 1, 0)]


def test_slow_partitions_are_better_than_none() -> None:
    machine, now_s = exercised([0.6, 0.1, 0.1])
    for number, request in ((1, 1_000), (2, 1_001)):
        assert offered(machine, now_s, request) == [Append(request, 1, number)]
        machine.failed(now_s, request, 1, number)
    assert offered(machine, now_s, 1_002) != []


def test_a_write_that_drags_on_is_avoided_before_it_fails() -> None:
    machine, now_s = exercised([0.01, 0.01, 0.01])
    assert offered(machine, now_s, 1_000) == [Append(1_000, 1, 0)]
    assert offered(machine, now_s + 1.0, 1_001, size=9) == [Append(1_001, 1, 1)]
    assert offered(machine, now_s + 1.0, 1_002, size=9) == [Append(1_002, 1, 2)]
    assert offered(machine, now_s + 1.0, 1_003, size=9) == [Append(1_003, 1, 1)]


# --- memory --------------------------------------------------------------------------------------


def test_memory_is_kept_by_time_and_up_to_a_bound() -> None:
    memory = PlacingMemory(ttl_s=10.0, entries=3)
    memory.remember(0.0, "jobs", ["a", "b"], 1)
    memory.remember(1.0, "jobs", ["c"], 2)
    assert memory.partitions(2.0, "jobs", ["x", "a", "c"]) == {1, 2}
    assert memory.partitions(2.0, "other", ["a"]) == set()
    memory.remember(3.0, "jobs", ["d"], 0)
    assert memory.partitions(3.0, "jobs", ["a"]) == set(), "the oldest makes room"
    assert memory.partitions(10.5, "jobs", ["b", "c"]) == {2}
    memory.forget("jobs", ["c", "d"], 2)
    assert memory.partitions(4.0, "jobs", ["c", "d"]) == {0}
    memory.remember(30.0, "jobs", ["e"], 0)
    assert len(memory) == 1
