"""What a role loads: every process of a cluster pays for it in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BUILD = """
import sys
from pathlib import Path
from headgate.adapters.embedded.folder import DataFolder
from headgate.config import Config
from headgate.wiring import roles
folder = DataFolder.open(Path(sys.argv[2]))
getattr(roles, "build_" + sys.argv[1])(Config(), folder)
sys.exit(str(sorted({"pyspark", "pandas", "numpy", "pyarrow"} & set(sys.modules))))
"""


@pytest.mark.parametrize("role", ["coordinator", "ingest", "gateway"])
def test_a_role_loads_nothing_that_only_spark_tasks_use(role: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, role, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stderr.strip() == "[]"
