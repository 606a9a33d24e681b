"""Notes as files of the data folder: one per lane, locked for as long as the lane lives.

    DATA/notes/of-ROUTER/WINDOW-ATTEMPT-LANE-INCARNATION-PID.notes   entries, one after the other
    DATA/notes/of-ROUTER/memory.json                                 what the router knew
    DATA/notes/of-ROUTER/memory.lock                                 held while that is written

An entry is its kind (one byte), its length (four) and its bytes, so that a reader can pass over
what it isn't looking for. Written to the page cache and never synced: what a dead process wrote is
there, and after a power cut nobody who wrote is left to go on for.

Invariant: a process that gets the lock of a file knows that its writer is gone; the kernel lets go
of it when a process dies, however it dies. An entry that was cut off by that death counts for
nothing: nobody was told of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec.structs import replace

from headgate.adapters.embedded.folder import replace_file
from headgate.decide.lane.notes import (
    Known,
    NotedOwner,
    is_of_use,
    last_holders,
    nobody_reads,
    silent_pid,
    together,
)
from headgate.errors import StorageFailed
from headgate.model.control.from_coordinator import SubscriptionSnapshot
from headgate.model.event import PartitionRef
from headgate.model.notes import Claims, Entry, Holds, Left, RouterMemory, Waits

SUFFIX: Final = ".notes"
SIZE_MAX_BYTES: Final = 512 << 20
"""A million subscriptions take a quarter of it."""
LARGE_BYTES: Final = 1 << 20
"""From here on notes are read in a thread."""
TWICE: Final = "stop all routers of this name but one"
KEPT_S: Final = 7 * 86_400.0
"""A router that was away for longer is another one by now."""
PART_SIZE: Final = 2_000
"""Subscriptions per entry, so that writing many takes little memory."""

_OF_THE_LANE: Final = (Claims, Holds, Waits)
_ABOUT_THE_LANE: Final = 1
_WHAT_IT_KNOWS: Final = 2
_KIND_AND_LENGTH: Final = 5

_name = re.compile(r"\d+-\d+-\d+-[0-9a-zA-Z]*-(\d+)" + re.escape(SUFFIX))
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


class FileLaneNotes:
    """Implements ports.notes.LaneNotes. Its file is made with the first entry."""

    def __init__(
        self, folder: Path, *, window: int, attempt: int, lane: int, incarnation: str
    ) -> None:
        self._folder = folder
        name = f"{window}-{attempt}-{lane}-{incarnation[:8]}-{os.getpid()}{SUFFIX}"
        self._path = folder / name
        self._file: BinaryIO | None = None
        self._over = False
        self._lock = threading.Lock()

    def note(self, entry: Entry) -> None:
        with self._lock:
            if self._over:
                return
            try:
                self._write(entry)
            except OSError as error:
                self._end(leave=False)
                raise StorageFailed(
                    f"{self._path} can't be written ({error.strerror or error}), so without the "
                    "coordinator no successor could go on for it; make room"
                ) from error

    async def left(self, refs: Collection[PartitionRef]) -> Left:
        files = [one for one in _files(self._folder) if one != self._path]
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if sum(one.stat().st_size for one in files) > LARGE_BYTES:
                return await asyncio.to_thread(_left, files, refs)
            return _left(files, refs)
        return Left()

    def give_sign(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._file is not None:
                os.utime(self._file.fileno())

    def tidy(self) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, msgspec.MsgspecError):
            found = [holder for holder, _ in _holders(_files(self._folder), stack)]
            for holder in [one for one in found if not one.lives]:
                others = [one for one in found if one is not holder]
                if holder.sign_s > KEPT_S or not is_of_use(holder, others):
                    (self._folder / holder.name).unlink(missing_ok=True)

    def close(self, *, leave: bool) -> None:
        with self._lock:
            self._end(leave=leave)

    # --- parts -----------------------------------------------------------------------------------

    def _write(self, entry: Entry) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = _locked(self._path)
        for part in _parts(entry):
            kind = _ABOUT_THE_LANE if isinstance(part, _OF_THE_LANE) else _WHAT_IT_KNOWS
            data = _encode(part)
            self._file.write(bytes((kind,)) + len(data).to_bytes(4, "big") + data)
        self._file.flush()
        if self._file.tell() > SIZE_MAX_BYTES:
            raise OSError("it has become too large")

    def _end(self, *, leave: bool) -> None:
        self._over = True
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            if not leave:
                # Either of them will do, and notes that stay behind must not be believed.
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), 0)
                self._path.unlink(missing_ok=True)
        finally:
            with contextlib.suppress(OSError):
                file.close()  # and with it the lock is gone


class FileRouterNotes:
    """Implements ports.notes.RouterNotes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "memory.json"
        self._writing = asyncio.Lock()

    def recall(self) -> RouterMemory:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=RouterMemory)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return RouterMemory()

    async def remember(self, memory: RouterMemory) -> None:
        async with self._writing:
            await asyncio.to_thread(self._write, memory, opened=0)

    async def next_window(self, memory: RouterMemory) -> int:
        async with self._writing:
            return await asyncio.to_thread(self._write, memory, opened=1)

    def _write(self, memory: RouterMemory, *, opened: int) -> int:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "memory.lock").open("wb") as lock:
                if _is_locked(lock, fcntl.LOCK_EX):
                    raise StorageFailed(f"{self._path} is being written; {TWICE}")
                window = max(memory.window, self.recall().window) + opened
                replace_file(self._path, msgspec.json.encode(replace(memory, window=window)))
                return window
        except OSError as error:
            raise StorageFailed(
                f"{self._path} can't be written ({error.strerror}); check the disk"
            ) from error

    def tidy(self) -> None:
        for folder in self._folder.parent.glob("of-*"):
            if folder != self._folder and not _is_of_use(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def waiting(self) -> list[str]:
        said = []
        for path in _files(self._folder):
            with _opened(path) as file:
                if file is not None and _is_locked(file, fcntl.LOCK_SH):
                    said += nobody_reads(_known(file, only=_ABOUT_THE_LANE).waits)
        return said


def _is_of_use(folder: Path) -> bool:
    """Whether a lane that noted something there lives, or anything is younger than a while."""
    with contextlib.suppress(OSError):
        newest_s = max((one.stat().st_mtime for one in folder.iterdir()), default=0.0)
        if time.time() - newest_s < KEPT_S:
            return True
    for path in _files(folder):
        with _opened(path) as file:
            if file is not None and _is_locked(file, fcntl.LOCK_EX):
                return True
    return False


# --- reading -------------------------------------------------------------------------------------


def _left(files: Collection[Path], refs: Collection[PartitionRef]) -> Left:
    with contextlib.ExitStack() as stack:
        found = _holders(files, stack)
        last = {ref: last_holders([holder for holder, _ in found], ref) for ref in refs}
        held = {ref: silent_pid(them) for ref, them in last.items() if any(h.lives for h in them)}
        left = {ref: them for ref, them in last.items() if them and ref not in held}
        fences = {
            ref: frozenset(fence for h in them if (fence := h.fence(ref)) is not None)
            for ref, them in left.items()
        }
        gone = {holder.name for them in left.values() for holder in them}
        return together(fences, [_known(file) for h, file in found if h.name in gone], held)


def _holders(
    files: Collection[Path], stack: contextlib.ExitStack
) -> list[tuple[NotedOwner, BinaryIO]]:
    """The lanes that noted something there, each with its file, which is open for as long as
    `stack` is."""
    found = []
    for path in files:
        file = stack.enter_context(_opened(path))
        if file is not None:
            lives = _is_locked(file, fcntl.LOCK_SH)
            sign_s = time.time() - os.fstat(file.fileno()).st_mtime
            known = _known(file, only=_ABOUT_THE_LANE)
            about = (path.name, _pid(path), lives, sign_s, known.holds, known.claims)
            found.append((NotedOwner(*about), file))
    return found


def _known(file: BinaryIO, *, only: int | None = None) -> Known:
    """What is written there, up to where its writer was killed; `only` one kind of it."""
    known = Known()
    for kind, data in _entries(file, only):
        if only in (None, kind):
            known.read(_decode(data))
    return known


def _entries(file: BinaryIO, only: int | None) -> Iterator[tuple[int, bytes]]:
    file.seek(0)
    while len(head := file.read(_KIND_AND_LENGTH)) == _KIND_AND_LENGTH:
        kind, length = head[0], int.from_bytes(head[1:], "big")
        if only not in (None, kind):
            file.seek(length, os.SEEK_CUR)
            continue
        data = file.read(length)
        if len(data) < length:
            return
        yield kind, data


def _parts(entry: Entry) -> Iterator[Entry]:
    if not isinstance(entry, SubscriptionSnapshot):
        yield entry
        return
    everything = entry.subscriptions
    begins = range(0, len(everything) or 1, PART_SIZE)
    for at in begins:
        part = everything[at : at + PART_SIZE]
        yield SubscriptionSnapshot(entry.revision, part, more=entry.more or at != begins[-1])


def _files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if _name.fullmatch(path.name))
    return []


def _pid(path: Path) -> int:
    found = _name.fullmatch(path.name)
    return int(found[1]) if found else 0


def _locked(path: Path) -> BinaryIO:
    """A new file at `path`, which was locked before another process could find it there."""
    made = path.with_suffix(".new")
    file = made.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(path)
    except OSError:
        made.unlink(missing_ok=True)
        file.close()
        raise
    return file


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | None]:
    """The file, or None for one that is gone by now or can't be read."""
    try:
        file = path.open("rb")
    except OSError:
        yield None
        return
    with file:
        yield file


def _is_locked(file: BinaryIO, mode: int) -> bool:
    """Whether its writer lives; if not, the lock is ours for as long as the file is open."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
