"""Every command and every program of README and docs is run, as it stands there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from headgate.client import SyncProducer
from tests.servers.process import free_port
from tests.system.documents import PAGES, ROOT, Reader, blocks_of, traffic
from tests.system.harness import System

ELSEWHERE = {
    "make demo": "tests/system/test_demo_dares.py",
    "make test": "this",
    "make setup": "whoever runs this has done so",
    "headgate node drain router-2 --wait": "tests/system/test_handoff.py",
    "headgate rebalance --wait": "tests/system/test_handoff.py",
    "headgate dlq show 17": "tests/cli/test_dlq.py",
    "headgate partition reset flights:0 --to earliest": "tests/cli/test_partition.py",
    "headgate ingest --config headgate.yaml --set client_id=ingest-2": "tests/cli/test_roles.py",
    "headgate log verify flights": "tests/cli/test_log.py",
    "headgate explain flights:3:512 --subscription": "tests/cli/test_explain.py",
    "headgate group describe flights radar": "tests/cli/test_group.py",
    "headgate group reset flights radar": "tests/cli/test_group.py",
    "HEADGATE_CLIENT_ID=router-2 headgate router": "tests/system/cluster.py",
}
"""What needs more than one machine has, or asks a person, and what does that instead."""
EXAMPLES = {
    "headgate status",
    "headgate dlq",
    "headgate explain",
    "headgate group list",
    "curl -s http://127.0.0.1:8782/health",
}
"""What looks otherwise on each machine: the output isn't compared."""
TOPICS = ("flights", "ships", "orders")
ORIGIN = "http://127.0.0.1:8000"


@pytest.fixture
def reader(system: System, tmp_path: Path) -> Iterator[Reader]:
    """In a folder with everything that the pages speak of, but topics."""
    roles = {node["role"]: node["url"] for node in system.status()["nodes"]}
    places = {
        "http://127.0.0.1:8780": system.url,
        "http://127.0.0.1:8782": roles["coordinator"],
        "http.server 8000": f"http.server {free_port()}",
    }
    delete_topics(system)  # of other files
    reading = Reader(tmp_path, system, places)
    yield reading
    reading.leave()
    delete_topics(system)


def delete_topics(system: System) -> None:
    for topic in TOPICS:
        if any(one["name"] == topic for one in system.status()["topics"]):
            system.run("topic", "delete", topic, "--yes")


def begins(command: str, commands: Iterable[str]) -> bool:
    return any(command.startswith(one) for one in commands)


def test_what_is_done_elsewhere_is_on_a_page_and_done_there() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language == "console"]
    typed = [command for block in blocks for command, _ in block.commands()]
    for command in (*ELSEWHERE, *EXAMPLES):
        assert any(one.startswith(command) for one in typed), command
    for where in ELSEWHERE.values():
        assert not where.startswith("tests/") or (ROOT / where).is_file(), where


def walk(reader: Reader, page: str) -> None:
    """Everything on it, from its top to its end."""
    for block in blocks_of(page):
        if block.saved_as:
            reader.save(block.saved_as, block.text)
        elif block.language == "python":
            reader.runs(block)
        elif block.language == "console":
            for command, shown in block.commands():
                has_all = "curl" not in command or shutil.which("curl")
                if has_all and not begins(command, ELSEWHERE):
                    is_example = begins(command, EXAMPLES)
                    reader.follow(command, [] if is_example else shown, str(block))


@pytest.mark.timeout(300)
def test_the_readme(system: System, reader: Reader) -> None:
    with traffic(system, "flights"):
        walk(reader, "README.md")


@pytest.mark.timeout(400)
def test_the_tutorial(system: System, reader: Reader) -> None:
    walk(reader, "docs/tutorial.md")
    large = f"{system.url}/v1/subscribe?topic=orders&from=earliest&where={quote('total > 100')}"
    with urlopen(Request(large, headers={"Origin": ORIGIN}), timeout=30) as page:
        assert page.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert b"event: subscribed" in b"".join(page.readline() for _ in range(3))
    for name in ("left", "right"):
        assert reader.type(f"grep -q '^{name} packs a ' {name}.log") == 0


@pytest.mark.parametrize("page", ["docs/produce.md", "docs/operations.md", "docs/client.md"])
@pytest.mark.timeout(300)
def test_other_pages(system: System, reader: Reader, page: str) -> None:
    for topic in ("flights", "ships"):
        system.run("topic", "create", topic, "--partitions", "4")
    document = '{"icao": "4ca7b3", "altitude": 11000}'
    reader.type(f"echo '{document}' | tee monday.jsonl | gzip > tuesday.jsonl.gz")
    reader.type("mkdir archive && cp tuesday.jsonl.gz archive")
    reader.type(f"echo '{document}' > report.json")
    with SyncProducer(system.url) as producer:
        producer.send("flights", json.loads(document), key="4ca7b3", event_id="report-17")
    with traffic(system, "flights"):
        walk(reader, page)


def test_no_other_page_has_anything_to_run() -> None:
    walked = {"README.md", "docs/tutorial.md", "docs/produce.md", "docs/operations.md"}
    walked |= {"docs/client.md", "docs/spark.md"}  # the last one in tests/spark
    for page in set(PAGES) - walked:
        assert not [one for one in blocks_of(page) if one.language in ("console", "python")], page
