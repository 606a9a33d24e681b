"""The coordinator's state as one JSON file, replaced as a whole.

The state is small and only one process writes it (the coordinator's lock sees to that), so a file
that is written aside, synced and renamed is all it takes; an operator can read it. Invariant: after
a crash the file is the old state or the new one. Never on the event loop.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec

from headgate.adapters.embedded.folder import DataFolder, replace_file
from headgate.errors import DataFolderError, StorageFailed
from headgate.model.stored import StoredState


class EmbeddedCoordinationStore:
    """Implements ports.coordination.CoordinationStore."""

    def __init__(self, folder: DataFolder) -> None:
        self._path = folder.coordinator_file
        # One thread, so that saves reach the disk in the order they were asked for.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coordination")

    async def load(self) -> StoredState:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._load)

    async def save(self, state: StoredState) -> None:
        content = msgspec.json.encode(state)
        await asyncio.get_running_loop().run_in_executor(self._executor, self._save, content)

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)

    def _load(self) -> StoredState:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=StoredState)
        except FileNotFoundError:
            return StoredState()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataFolderError(
                f"{self._path} is damaged ({error}); restore it from a copy", path=str(self._path)
            ) from error
        except OSError as error:
            raise DataFolderError(
                f"{self._path} can't be read ({error.strerror}); check its permissions",
                path=str(self._path),
            ) from error

    def _save(self, content: bytes) -> None:
        try:
            replace_file(self._path, content)
        except OSError as error:
            raise StorageFailed(
                f"{self._path} can't be written ({error.strerror}); check the disk"
            ) from error
