"""`headgate router` whose lanes run in its own process: it starts in a second, Spark takes twenty.

For tests of what goes on around a router. What Spark does, and what becomes of lanes when Spark's
processes die, is tested with Spark.
"""

from __future__ import annotations

from functools import partial

from headgate.adapters.embedded.folder import DataFolder
from headgate.cli.main import app
from headgate.config import Config
from headgate.lane.plain import PlainWindows
from headgate.metrics.roles import RouterMetrics
from headgate.ports.windows import Windows
from headgate.wiring import roles
from headgate.wiring.lanes import Shared, open_lane


def plain_windows(
    config: Config, folder: DataFolder, *, node_id: str, metrics: RouterMetrics
) -> Windows:
    del config, folder, node_id, metrics
    return PlainWindows(partial(open_lane, shared=Shared()))


if __name__ == "__main__":
    roles.windows_on_spark = plain_windows
    app()
