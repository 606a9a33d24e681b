"""Several processes open a store that is new: each gets it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headgate.adapters.embedded.sqlite import connect

ROUNDS = 100
"""Without waiting for the others, one of them is turned away in about two of these."""
AT_ONCE = 4


def test_nobody_who_opens_a_new_file_at_once_with_others_is_turned_away(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def open_it(path: Path, together: threading.Barrier) -> None:
        together.wait()
        try:
            connect(path, "CREATE TABLE t (a)").close()
        except Exception as error:  # noqa: BLE001 - whatever it is
            failed.append(error)

    for number in range(ROUNDS):
        together = threading.Barrier(AT_ONCE)
        path = tmp_path / f"{number}.db"
        threads = [threading.Thread(target=open_it, args=(path, together)) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        pytest.fail(f"{len(failed)} were turned away: {failed[0]!r}")
