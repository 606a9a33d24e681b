"""Which worker runs which tests when there are several.

The first worker begins with what starts Spark and then mostly waits, the longest first; the others
begin with everything else, which computes. Whoever is done helps from its end of the list. So two
cores are rarely asked for two routers at once, and none of the long files is left for the end.

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
    "tests/system/test_end_to_end.py",
    "tests/system/test_health.py",
    "tests/system/test_subscribe_races.py",
    "tests/toolchain/test_spark_session.py",
)
ROUGHLY_S = {
    "tests/system/test_delivery_faults.py": 200,
    "tests/system/test_cluster_faults.py": 150,
    "tests/system/test_handoff.py": 135,
    "tests/system/test_faults.py": 130,
    SHARED_SPARK: 120,
    "tests/system/test_gateway_faults.py": 55,
    "tests/system/test_consumer_group.py": 45,
    "tests/system/test_executors.py": 45,
    "tests/system/test_reset.py": 40,
    "tests/system/test_two_ingest_nodes.py": 30,
    "tests/toolchain/test_java.py": 30,
}
"""On two cores; whatever isn't named takes less, or starts no Spark."""


class SparkFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """For pytest-xdist, as its `--dist loadfile` otherwise."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED_SPARK if file.startswith(SHARING) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        pick = max if node.gateway.id == "gw0" else min
        chosen = pick(self.workqueue, key=lambda scope: ROUGHLY_S.get(scope, 0))
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)
