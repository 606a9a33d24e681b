"""Which worker runs which tests when there are several.

The first worker begins with what starts Spark, the second with what kills processes and waits for
what follows, both with the longest; the others begin with everything else, which computes. Whoever
is done helps from its end of the list. So two cores are rarely asked for two Sparks at once, rarely
wait, and none of the long files is left for the end.

Invariant: a file is one worker's, so its module fixtures start once; and so are all files that
share the session's `headgate up` or its Spark session.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARED_SPARK = "shared-spark"
SHARING = (
    "tests/spark/",
    "tests/system/test_bad_input.py",
    "tests/system/test_documents.py",
    "tests/system/test_end_to_end.py",
    "tests/system/test_health.py",
    "tests/system/test_subscribe_races.py",
    "tests/toolchain/test_spark_session.py",
)
SPARK_S = {
    "tests/system/test_faults.py": 130,
    SHARED_SPARK: 220,
    "tests/system/test_demo_dares.py": 60,
    "tests/system/test_executors.py": 60,
    "tests/system/test_consumer_group.py": 45,
    "tests/toolchain/test_java.py": 30,
}
"""What starts Spark, and how long it takes on two cores."""
WAITING_S = {
    "tests/system/test_delivery_faults.py": 150,
    "tests/system/test_handoff.py": 130,
    "tests/system/test_cluster_faults.py": 120,
    "tests/system/test_gateway_faults.py": 50,
    "tests/system/test_two_ingest_nodes.py": 30,
    "tests/system/test_reset.py": 30,
}
"""What starts processes, kills some, and waits for leases to end."""
ROUGHLY_S = {**SPARK_S, **WAITING_S}
"""Whatever isn't named takes less, and computes."""
BEGINS_WITH = {"gw0": SPARK_S, "gw1": WAITING_S}


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """For pytest-xdist, as its `--dist loadfile` otherwise."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED_SPARK if file.startswith(SHARING) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        own = BEGINS_WITH.get(node.gateway.id)
        if own is None:
            chosen = min(self.workqueue, key=lambda scope: ROUGHLY_S.get(scope, 0))
        else:
            chosen = max(self.workqueue, key=lambda one: (one in own, ROUGHLY_S.get(one, 0)))
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)
