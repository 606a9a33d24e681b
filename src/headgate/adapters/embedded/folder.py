"""The data folder: what a machine keeps, where each thing lies in it, and which process may use it
now.

Invariant: a folder carries its format from its first moment, and only a folder of a format that
this Headgate knows is ever written to. Only checked names become paths. Never touches a folder that
has something else in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from headgate.errors import DataFolderError, InvalidRequest, StorageFailed
from headgate.model.api import MAX_PARTITIONS, NAME_PATTERN, NAME_RULE
from headgate.model.event import PartitionRef

FORMAT = 1
FOR_ITS_OWNER = 0o700
"""Every record is in the folder, also those that grants hide."""
FORMAT_NAME = "FORMAT"
LOCK_NAME = "lock"
COORDINATOR_LOCK_NAME = "coordinator.lock"
CHOOSE_ANOTHER = "choose another --data folder"

_name = re.compile(NAME_PATTERN)


class _Format(msgspec.Struct):
    format: int


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths inside one data folder. Building one checks nothing; `open` does."""

    root: Path

    @classmethod
    def open(cls, path: Path | str) -> DataFolder:
        """Check the folder at `path`, making it first when there is none."""
        folder = cls(Path(path).expanduser().resolve())
        _make(folder.root)
        if not _has_format(folder.root):
            _refuse_foreign(folder.root)
            _write_format(folder.root)
        _check_format(folder.root)
        os.close(_open_lock(folder.root))
        return folder

    @classmethod
    def to_read(cls, path: Path | str, *, otherwise: str) -> DataFolder:
        """The folder at `path`, for commands that only look: nothing is made, and no right to write
        is needed. Raises DataFolderError, which says what to do `otherwise`, where there is
        none."""
        folder = cls(Path(path).expanduser().resolve())
        if not (folder.root / FORMAT_NAME).is_file():
            raise DataFolderError(
                f"{folder.root} is not a Headgate data folder; {otherwise}", path=str(folder.root)
            )
        _check_format(folder.root)
        return folder

    @classmethod
    def check_unused(cls, path: Path) -> None:
        """Raises DataFolderError when another process holds the folder; makes nothing."""
        folder = cls(path.expanduser().resolve())
        if (folder.root / LOCK_NAME).is_file():
            with folder.lock():
                pass

    def coordinator_lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the coordinator's state for this process, as `lock` does the whole folder."""
        return self.lock(COORDINATOR_LOCK_NAME)

    @contextlib.contextmanager
    def lock(self, name: str = LOCK_NAME) -> Iterator[None]:
        """Hold the folder for this process; raises DataFolderError when another one has it.

        The kernel lets go of it when the process dies, however it dies.
        """
        descriptor = _open_lock(self.root, name)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                raise DataFolderError(
                    f"{self.root} is in use by process {holder or 'unknown'}; "
                    f"stop it or {CHOOSE_ANOTHER}",
                    path=str(self.root),
                    pid=holder,
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def log_file(self, ref: PartitionRef) -> Path:
        if not _name.fullmatch(ref.topic) or not 0 <= ref.partition < MAX_PARTITIONS:
            raise InvalidRequest(
                f"{ref.topic!r} partition {ref.partition} can't be stored: a topic's name is "
                f"{NAME_RULE}, and partitions go from 0 to {MAX_PARTITIONS - 1}",
                topic=ref.topic,
                partition=ref.partition,
            )
        return self.log_dir / ref.topic / f"{ref.partition}.db"

    def check_there(self) -> None:
        """Raises DataFolderError where its disk isn't mounted, or it was moved away: nothing is
        made anew in its place."""
        if not _has_format(self.root):
            raise DataFolderError(
                f"{self.root} isn't there any more: bring it back, or restart to begin anew",
                path=str(self.root),
            )

    def make_log_directory(self, ref: PartitionRef) -> None:
        """Make where `log_file` is to be, in a data folder that is there."""
        self.check_there()
        directory = self.log_file(ref).parent
        try:
            make_directory(directory)
        except OSError as error:
            raise StorageFailed(
                f"{directory} can't be made ({error.strerror}); check its permissions"
            ) from error

    def stored_partitions(self) -> list[PartitionRef]:
        """Every partition that has a file here, also those of deleted topics."""
        return sorted(
            PartitionRef(file.parent.name, int(file.stem))
            for file in self.log_dir.glob("*/*.db")
            if file.stem.isdecimal() and _name.fullmatch(file.parent.name)
        )

    @property
    def log_dir(self) -> Path:
        return self.root / "log"

    @property
    def checkpoints_file(self) -> Path:
        return self.root / "checkpoints.db"

    @property
    def letters_file(self) -> Path:
        return self.root / "letters.db"

    @property
    def coordinator_file(self) -> Path:
        return self.root / "coordinator.json"

    @property
    def admin_key_file(self) -> Path:
        """The key that a coordinator leaves for users who may read this folder; made anew with each
        start."""
        return self.root / "admin-key"

    @property
    def spark_dir(self) -> Path:
        return self.root / "spark"

    def notes_dir(self, router_id: str) -> Path:
        """The folder for the notes of a router and its lanes; no id leads anywhere else."""
        return self.root / "notes" / f"of-{router_id}"

    @property
    def audit_dir(self) -> Path:
        """Where roles write down what operators did, and who was refused."""
        return self.root / "audit"

    @property
    def logs_dir(self) -> Path:
        return self.root / "logs"


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make `path` and what is missing above it, so that they are there after a power cut too."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a crash leaves the old content or the new one."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


# --- the checks, in the order of `open` ----------------------------------------------------------


def _make(root: Path) -> None:
    if root.is_dir():
        return
    try:
        make_directory(root, FOR_ITS_OWNER)
    except (FileExistsError, NotADirectoryError) as error:
        raise DataFolderError(
            f"{root} is not a folder; {CHOOSE_ANOTHER}", path=str(root)
        ) from error
    except OSError as error:
        _not_writable(root, error)


def _has_format(root: Path) -> bool:
    try:
        return (root / FORMAT_NAME).is_file()
    except OSError as error:
        _not_writable(root, error)


def _refuse_foreign(root: Path) -> None:
    """Only an empty folder may become a data folder, or one where making it was interrupted."""
    try:
        names = [path.name for path in root.iterdir()]
    except OSError as error:
        _not_writable(root, error)
    foreign = [
        name for name in names if name != "lost+found" and not name.startswith(f"{FORMAT_NAME}.")
    ]
    # Another process may have made the folder since the first look. It puts the format there before
    # anything else, so whatever of it was seen just now, the format is there by now.
    if foreign and not _has_format(root):
        raise DataFolderError(
            f"{root} has files in it but is no Headgate data folder; "
            "choose an empty or new --data folder",
            path=str(root),
        )


def _write_format(root: Path) -> None:
    try:
        replace_file(root / FORMAT_NAME, msgspec.json.encode(_Format(FORMAT)) + b"\n")
    except OSError as error:
        _not_writable(root, error)


def _check_format(root: Path) -> None:
    file = root / FORMAT_NAME
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_Format).format
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataFolderError(
            f"{file} doesn't say which format the folder has; restore it or {CHOOSE_ANOTHER}",
            path=str(root),
        ) from error
    except OSError as error:
        _not_writable(root, error)
    if found > FORMAT:
        raise DataFolderError(
            f"{root} was written by a newer Headgate (format {found}; this one reads up to "
            f"{FORMAT}); upgrade Headgate or {CHOOSE_ANOTHER}",
            path=str(root),
            format=found,
        )
    if found < 1:
        raise DataFolderError(
            f"{file} names format {found}, which never existed; restore it or {CHOOSE_ANOTHER}",
            path=str(root),
            format=found,
        )


def _open_lock(root: Path, name: str = LOCK_NAME) -> int:
    """Opening the lock for writing doubles as the check that the folder can be written."""
    try:
        return os.open(root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        _not_writable(root, error)


def _not_writable(root: Path, error: OSError) -> NoReturn:
    raise DataFolderError(
        f"{root} can't be written ({error.strerror}); change its permissions or {CHOOSE_ANOTHER}",
        path=str(root),
    ) from error
