"""What is kept of a run of `make soak` that failed."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Final

from tests.system.cluster import Cluster
from tests.system.soaking.flood import Flood
from tests.system.soaking.group import Group

EVIDENCE_LINES: Final = 50_000


def keep_evidence(cluster: Cluster, flood: Flood, group: Group) -> Path:
    """The data folder, what nodes that run have logged, what the coordinator knows, what the
    subscriber that was there all along got last, and what the group did."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-soak-failed-"))
    for node_id, lines in cluster.said().items():
        (folder / f"{node_id}.log").write_text("\n".join(lines))
    with contextlib.suppress(OSError):
        (folder / "status.json").write_text(json.dumps(cluster.status_without_gateways()))
    received = flood.subscriber.out.timed()[-EVIDENCE_LINES:]
    (folder / "received.jsonl").write_text(
        "\n".join(f"{at_s:.3f} {line}" for line, at_s in received)
    )
    (folder / "subscriber.log").write_text("\n".join(flood.subscriber.err.lines))
    (folder / "group.log").write_text("\n".join(group.said()))
    with contextlib.suppress(OSError, shutil.Error):  # it is written while it is copied
        shutil.copytree(cluster.data, folder / "data")
    return folder
