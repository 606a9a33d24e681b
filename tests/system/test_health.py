"""/health and /metrics of a Headgate that runs."""

from __future__ import annotations

import time

from tests.system.accounting import health, metric
from tests.system.harness import System, until

TOPIC = "health"


def test_every_role_says_how_it_is_and_counts_what_it_did(system: System) -> None:
    system.run("topic", "create", TOPIC, "--partitions", "2")
    subscriber = system.subscribe(TOPIC, "--count", "50")
    before = time.time()
    system.produce(TOPIC, [{"icao": f"a{n}", "n": n} for n in range(50)])
    assert subscriber.wait() == 0
    urls = {node["role"]: node["url"] for node in system.status()["nodes"]}
    urls["gateway"] = system.url
    assert set(urls) == {"coordinator", "ingest", "router", "gateway"}

    coordinator = urls["coordinator"]
    until(
        lambda: metric(coordinator, "headgate_settled_total", topic=TOPIC) == 50,
        "everything is settled",
    )
    for role, url in urls.items():
        until(lambda url=url: health(url)["status"] == "healthy", f"{role} is healthy")  # type: ignore[misc]
        found = health(url)
        assert (found["role"], found["reasons"]) == (role, [])
        own = [one for one in found["partitions"] if one["topic"] == TOPIC]
        assert {one["id"] for one in own} == (set() if role == "gateway" else {0, 1})
        assert {one["status"] for one in own} <= {"healthy"}

    assert metric(urls["ingest"], "headgate_appends_total", topic=TOPIC) == 50
    assert metric(coordinator, "headgate_partition_lag", topic=TOPIC) == 0
    assert metric(coordinator, "headgate_delivery_success_total") >= 50
    assert metric(coordinator, "headgate_routing_seconds_count") >= 50
    until(lambda: metric(coordinator, "headgate_checkpoints_saved_total") >= 1, "a checkpoint")
    assert metric(urls["gateway"], "headgate_deliveries_sent_total") >= 50
    assert metric(urls["router"], "headgate_window") >= 1
    assert metric(urls["router"], "headgate_source_partitions") >= 2
    # Creating the topic ended a window, and Spark has told of that one.
    until(lambda: metric(urls["router"], "headgate_spark_batches_total") >= 1, "Spark's progress")
    assert before - 600 < metric(urls["router"], "headgate_spark_trigger_time_seconds")
