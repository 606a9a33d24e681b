"""`make quick` runs what starts nothing, and its table says where the minutes are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import minutes, quick
from tests.minutes import Took


def item(nodeid: str, *fixtures: str, **module: object) -> Any:
    return SimpleNamespace(
        nodeid=nodeid,
        name=nodeid.rpartition("::")[2],
        fixturenames=fixtures,
        module=SimpleNamespace(**module),
    )


class Etcd:
    __module__ = "tests.servers.etcd"


@pytest.mark.parametrize(
    ("one", "is_quick"),
    [
        pytest.param(item("tests/lane/test_a.py::test_one", "tmp_path"), True, id="plain"),
        pytest.param(item("tests/lane/test_a.py::test_one", "postgres"), False, id="fixture"),
        pytest.param(item("tests/lane/test_a.py::test_one[nats]"), False, id="parameter"),
        pytest.param(item("tests/lane/test_a.py::test_one[memory]"), True, id="another parameter"),
        pytest.param(item("tests/lane/test_a.py::test_one", Etcd=Etcd), False, id="import"),
        pytest.param(item("tests/system/test_a.py::test_one"), False, id="folder"),
    ],
)
def test_what_starts_a_server_is_left_out(one: Any, is_quick: bool) -> None:
    assert quick.is_quick(one) is is_quick


def test_the_table_adds_up_folder_by_folder() -> None:
    took = {
        "tests/lane/test_a.py::test_one": Took(1.0, 0.5, True),
        "tests/lane/deep/test_b.py::test_two": Took(2.0, 0.5, False),
        "tests/system/test_c.py::test_three": Took(60.0, 3.0, False),
    }
    made = minutes.table(minutes.rows(took))
    assert made.splitlines()[2:] == [
        "| tests/system | 1 | 60 | 3 | 0 |",
        "| tests/lane | 2 | 3 | 1 | 1 |",
        "| all | 3 | 63 | 4 | 1 |",
    ]


def test_the_table_replaces_the_one_before() -> None:
    document = f"before\n{minutes.BEGIN}old\n{minutes.END}after\n"
    once = minutes.put(document, "new\n")
    assert once == f"before\n{minutes.BEGIN}new\n{minutes.END}after\n"
    assert minutes.put(once, "new\n") == once


def test_the_document_has_a_place_for_it() -> None:
    minutes.put(minutes.DOCUMENT.read_text(), "")
