"""Which worker runs which tests when there are several, and for how long it keeps what they share.

The first worker begins with what starts Spark, the second with what kills processes and waits for
what follows, the third with the stores' servers, the fourth with browsers and what computes for
long. Each takes its longest first, then the longest of what is left of the others', Spark last; the
many short files come behind that. So two cores are rarely asked for two Sparks at once, rarely
wait, and end together.

Invariant: a file is one worker's, so its module fixtures start once; and so are all files that
share the session's `headgate up` or its Spark session, and those that share the stores' servers.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARED_SPARK = "shared-spark"
SHARED_MONGODB = "shared-mongodb"
SHARED_SERVERS = "shared-servers"
SHARED_PGOUTPUT = "shared-pgoutput"
SHARED_BROWSER = "shared-browser"
SHARING = {
    SHARED_SPARK: (
        "tests/spark/",
        "tests/system/test_bad_input.py",
        "tests/system/test_documents.py",
        "tests/system/test_end_to_end.py",
        "tests/system/test_health.py",
        "tests/system/test_subscribe_races.py",
        "tests/toolchain/test_spark_session.py",
    ),
    SHARED_MONGODB: (
        "tests/contracts/test_checkpoints_contract.py",
        "tests/contracts/test_checkpoints_damaged.py",
        "tests/contracts/test_checkpoints_faults.py",
        "tests/contracts/test_checkpoints_from_before.py",
        "tests/adapters/mongo/",
        "tests/servers/",
    ),
    SHARED_SERVERS: ("tests/contracts/",),
    SHARED_PGOUTPUT: ("tests/adapters/pgoutput/",),
    SHARED_BROWSER: ("tests/browser/",),
}
"""What belongs to a group: the first that names it."""
SPARK_S = {
    SHARED_SPARK: 260,
    "tests/system/test_faults.py": 130,
    "tests/system/test_executors.py": 80,
    "tests/system/test_demo_dares.py": 60,
    "tests/system/test_secrets.py": 30,
}
"""What starts Spark, and how long it takes on two cores."""
WAITING_S = {
    "tests/system/test_cluster_faults.py": 110,
    "tests/system/test_delivery_faults.py": 100,
    "tests/system/test_handoff.py": 40,
    "tests/system/test_gateway_faults.py": 25,
    "tests/system/test_consumer_group.py": 15,
    "tests/system/test_store_away.py": 40,
    "tests/system/test_restarts.py": 20,
    "tests/system/test_reset.py": 8,
    "tests/system/test_two_ingest_nodes.py": 8,
}
"""What starts processes, kills some, and waits for leases to end."""
STORES_S = {
    SHARED_SERVERS: 150,
    SHARED_MONGODB: 130,
    SHARED_PGOUTPUT: 60,
}
"""What starts databases."""
COMPUTING_S = {
    SHARED_BROWSER: 80,
    "tests/sim/test_seeds.py": 40,
    "tests/adapters/etcd/test_stored_elements.py": 30,
    "tests/lane/test_promise.py": 25,
    "tests/decide/coordination/test_half_decisions.py": 20,
    "tests/groups/test_hour.py": 20,
}
"""What looks at pages, and what computes for long."""
ROUGHLY_S = {**SPARK_S, **WAITING_S, **STORES_S, **COMPUTING_S}
"""Whatever isn't named takes less."""
BEGINS_WITH = {"gw0": SPARK_S, "gw1": WAITING_S, "gw2": STORES_S, "gw3": COMPUTING_S}


def shared_by(nodeid: str) -> str:
    """The tests that a worker runs together with this one: its group, or its file."""
    file = nodeid.partition("::")[0]
    return next((name for name, files in SHARING.items() if file.startswith(files)), file)


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """For pytest-xdist, as its `--dist loadfile` otherwise."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker that died leaves to the others what it hadn't finished, and no more: one that
        was given what is done already would run nothing, report nothing, and get nothing else."""
        units = self.assigned_work[node]
        for name in [name for name, tests in units.items() if all(tests.values())]:
            del units[name]
        crashed: str | None = super().remove_node(node)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        own = BEGINS_WITH.get(node.gateway.id, {})
        chosen = max(
            self.workqueue,
            key=lambda one: (one in own, one not in SPARK_S, ROUGHLY_S.get(one, 0)),
        )
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


def import_share(config: pytest.Config) -> None:
    """In a worker: import a part of the files before all of them are collected.

    In a fresh clone each worker would compile every file, at the same time as the others do; so it
    finds most of them compiled. What can't be imported is told when it is collected.
    """
    worker = config.workerinput  # type: ignore[attr-defined]  # xdist's
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    files = sorted(file for given in config.args for file in Path(given).rglob("test_*.py"))
    for file in files[number::count]:
        path = file.resolve().relative_to(config.rootpath).with_suffix("")
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.parts))


class EndsWhatWasShared:
    """In a worker: servers, a Spark, a `headgate up` end with the last test that shares them.

    Until the whole run has ended they would take their part of the processor, idle as they are.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        if nextitem is None or shared_by(item.nodeid) == shared_by(nextitem.nodeid):
            return None
        return item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
