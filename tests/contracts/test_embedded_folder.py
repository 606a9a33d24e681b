"""The data folder: every way it can be wrong is one sentence, and then nothing was written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.errors import DataFolderError, InvalidRequest
from headgate.model.event import PartitionRef


def test_a_new_folder_carries_its_format(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "deep" / "data")
    assert (folder.root / "FORMAT").read_text() == '{"format":1}\n'
    assert DataFolder.open(folder.root) == folder


def test_a_new_folder_is_for_its_owner_and_one_that_was_there_stays_as_it_was(
    tmp_path: Path,
) -> None:
    folder = DataFolder.open(tmp_path / "deep" / "data")
    assert folder.root.stat().st_mode & 0o777 == 0o700
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    assert DataFolder.open(tmp_path / "shared").root.stat().st_mode & 0o777 == 0o750


def test_processes_that_start_together_all_open_the_new_folder(tmp_path: Path) -> None:
    starters = 6
    together = threading.Barrier(starters)

    def start(root: Path) -> DataFolder:
        together.wait(timeout=10)
        return DataFolder.open(root)

    with ThreadPoolExecutor(starters) as executor:
        for number in range(60):
            root = tmp_path / str(number)
            assert list(executor.map(start, [root] * starters)) == [DataFolder(root)] * starters


def _newer(root: Path) -> None:
    (root / "FORMAT").write_text('{"format": 7}')


def _ancient(root: Path) -> None:
    (root / "FORMAT").write_text('{"format": 0}')


def _garbage(root: Path) -> None:
    (root / "FORMAT").write_bytes(b"\xff\x00 what")


def _no_number(root: Path) -> None:
    (root / "FORMAT").write_text('{"format": "one"}')


def _empty_format(root: Path) -> None:
    (root / "FORMAT").touch()


def _foreign(root: Path) -> None:
    (root / "thesis.tex").write_text("mine")


def _file(root: Path) -> None:
    root.rmdir()
    root.write_text("not a folder")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            _newer,
            (
                "{root} was written by a newer Headgate (format 7; this one reads up to 1); "
                "upgrade Headgate or choose another --data folder"
            ),
        ),
        (
            _ancient,
            (
                "{root}/FORMAT names format 0, which never existed; "
                "restore it or choose another --data folder"
            ),
        ),
        (
            _garbage,
            (
                "{root}/FORMAT doesn't say which format the folder has; "
                "restore it or choose another --data folder"
            ),
        ),
        (
            _no_number,
            (
                "{root}/FORMAT doesn't say which format the folder has; "
                "restore it or choose another --data folder"
            ),
        ),
        (
            _empty_format,
            (
                "{root}/FORMAT doesn't say which format the folder has; "
                "restore it or choose another --data folder"
            ),
        ),
        (
            _foreign,
            (
                "{root} has files in it but is no Headgate data folder; "
                "choose an empty or new --data folder"
            ),
        ),
        (_file, "{root} is not a folder; choose another --data folder"),
    ],
)
def test_a_wrong_folder_is_one_sentence_and_stays_as_it_was(
    tmp_path: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    spoil(root)
    before = _content(root)
    with pytest.raises(DataFolderError) as caught:
        DataFolder.open(root)
    assert str(caught.value) == sentence.format(root=root)
    assert caught.value.exit_code == 2
    assert _content(root) == before


def _content(root: Path) -> dict[str, bytes]:
    files = [root] if root.is_file() else root.iterdir()
    return {file.name: file.read_bytes() for file in files}


def test_a_path_below_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataFolderError, match="is not a folder; choose another --data folder"):
        DataFolder.open(tmp_path / "file" / "data")


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that this process can read and not write, whoever it runs as."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o555)
        as_root = os.geteuid() == 0
        if as_root:
            os.seteuid(65534)
        try:
            yield root
        finally:
            if as_root:
                os.seteuid(0)
            root.chmod(0o755)


def test_a_folder_that_cant_be_written_says_so(read_only: Path) -> None:
    for path in (read_only, read_only / "new"):
        with pytest.raises(
            DataFolderError,
            match=re.escape(
                f"{path} can't be written (Permission denied); change its permissions or "
                "choose another --data folder"
            ),
        ):
            DataFolder.open(path)


def test_what_an_interrupted_start_or_a_file_system_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "FORMAT.x7a3").touch()
    (tmp_path / "lost+found").mkdir()
    DataFolder.open(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == '{"format":1}\n'


HOLDER = """
import sys
from headgate.adapters.embedded.folder import DataFolder
with DataFolder.open(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_names_the_process_and_is_free_once_that_is_killed(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataFolderError) as caught, folder.lock():
            pass
        holder.kill()
    assert str(caught.value) == (
        f"{tmp_path} is in use by process {holder.pid}; stop it or choose another --data folder"
    )
    with folder.lock():
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(
    "ref",
    [
        PartitionRef("..", 0),
        PartitionRef("../x", 0),
        PartitionRef("a/b", 0),
        PartitionRef("", 0),
        PartitionRef(".a", 0),
        PartitionRef("a\n", 0),
        PartitionRef("a" * 129, 0),
        PartitionRef("a", -1),
        PartitionRef("a", 1_024),
    ],
    ids=str,
)
def test_only_checked_names_become_paths(tmp_path: Path, ref: PartitionRef) -> None:
    with pytest.raises(InvalidRequest):
        DataFolder(tmp_path).log_file(ref)


def test_stored_partitions_are_those_with_a_file(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path)
    assert folder.stored_partitions() == []
    refs = [PartitionRef("a", 2), PartitionRef("a", 10), PartitionRef("b.c", 0)]
    for ref in refs:
        folder.log_file(ref).parent.mkdir(parents=True, exist_ok=True)
        folder.log_file(ref).touch()
    (folder.log_dir / "a" / "2.db-wal").touch()
    (folder.log_dir / "a" / "x.db").touch()
    assert folder.stored_partitions() == refs
