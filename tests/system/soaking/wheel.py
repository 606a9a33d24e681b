"""The wheel as somebody gets it: in an environment that has nothing else, outside the repository.

    python -m tests.system.soaking.wheel [--seconds 20]

Builds it, installs it with its dependencies (the versions of the lock) into a fresh environment,
and runs `headgate demo` there, in another folder and with nothing of this one in the environment.
It ends with code 1 when that isn't clean. The dependencies come from the package index that pip is
set up with, or from uv's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
BESIDE_PYTHON = Path(sys.executable).parent
OF_AN_ENVIRONMENT = ("PYTHON", "VIRTUAL_ENV", "HEADGATE_", "SPARK_", "UV_PROJECT")
"""What such names begin with says where Python or Headgate finds things."""
INSTALL_TIMEOUT_S = 1_800.0
STARTS_WITHIN_S = 240.0

say = print
"""What the command says."""


def clean_environment(bin_: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(OF_AN_ENVIRONMENT)
    }
    others = [one for one in kept["PATH"].split(os.pathsep) if Path(one) != BESIDE_PYTHON]
    return {**kept, "PATH": os.pathsep.join([str(bin_), *others])}


def built(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    command = [*pip, "--wheel-dir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S)
    [wheel] = folder.glob("headgate-*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """The folder with the commands of an environment that has it, and a Java."""
    uv = str(BESIDE_PYTHON / "uv")
    environment = folder / "environment"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    bin_ = environment / "bin"
    subprocess.run(
        [
            *(uv, "pip", "install", "--quiet", "--python", str(bin_ / "python")),
            *("--constraint", str(REPOSITORY / "requirements" / "dev.txt")),
            f"headgate[java] @ {wheel.as_uri()}",
        ],
        check=True,
        timeout=INSTALL_TIMEOUT_S,
        cwd=folder,
    )
    return bin_


def flown(bin_: Path, folder: Path, seconds: int) -> dict[str, object]:
    """What the demo's summary says."""
    result = subprocess.run(
        [bin_ / "headgate", "demo", "--seconds", str(seconds), "--json"],
        env=clean_environment(bin_),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=STARTS_WITHIN_S + seconds,
    )
    if result.returncode:
        sys.exit(f"headgate demo ended with code {result.returncode}: {result.stdout}")
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="headgate-wheel-") as name:
        folder = Path(name)
        wheel = built(folder)
        say(f"built {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        bin_ = installed(wheel, folder)
        say("installed it by itself")
        summary = flown(bin_, folder, seconds)
    told = ("produced", "delivered", "lost", "out_of_order", "p50_ms")
    say("demo:", ", ".join(f"{one} {summary[one]}" for one in told))
    if summary["lost"] or summary["out_of_order"] or not summary["produced"]:
        sys.exit("the demo of the wheel wasn't clean")


if __name__ == "__main__":
    main()
