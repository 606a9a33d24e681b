"""Idempotency keys of the embedded log, whoever wrote them and whenever it crashed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.adapters.embedded.folder import FORMAT_NAME, DataFolder
from headgate.adapters.embedded.log.partition_file import PartitionFile
from headgate.adapters.log.appending import AppendRequest
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended, Retention

REF = PartitionRef("flights", 0)
FOREVER_MS = 10**12
few_ids = st.integers(0, 4).map(str)


class Keys(RuleBasedStateMachine):
    """The plain rule: an id has the seq that it got first, and seqs are dense."""

    @initialize()
    def make(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.data = DataFolder(Path(self.folder.name))
        (self.data.root / FORMAT_NAME).touch()  # Opening it would sync it, for every example.
        self.files: list[PartitionFile] = []
        self.epoch = 0
        self.seqs: dict[str, int] = {}
        self.head = 0
        self.crash()

    def teardown(self) -> None:
        for file in self.files:
            file.close()
        self.folder.cleanup()

    @property
    def file(self) -> PartitionFile:
        return self.files[-1]

    def expected(self, names: list[str]) -> list[Appended]:
        appended = []
        for name in names:
            repeated = name in self.seqs
            if not repeated:
                self.head += 1
                self.seqs[name] = self.head
            appended.append(Appended(self.seqs[name], repeated))
        return appended

    @rule(names=st.lists(few_ids, min_size=1, max_size=5))
    def append(self, names: list[str]) -> None:
        [outcome] = self.file.append([request(*names)])
        assert outcome == self.expected(names)

    @rule(name=few_ids)
    def append_one(self, name: str) -> None:
        self.append_by(self.file, name)

    @rule(first=st.sampled_from([0, 100, 1_000]), count=st.integers(1, 30))
    def append_many_one_by_one(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.append_by(self.file, f"many-{number}")

    def append_by(self, file: PartitionFile, name: str) -> None:
        assert file.append([request(name)]) == [self.expected([name])]

    @rule()
    def crash(self) -> None:
        """What was in memory is gone, and whoever is next has a higher epoch."""
        self.epoch += 1
        self.files.append(PartitionFile(self.data, REF))
        self.file.open(self.epoch, 1)

    @rule(name=few_ids, by=st.sampled_from([-1, -2]))
    def a_twin_appends_under_the_same_epoch(self, name: str, by: int) -> None:
        self.files.append(PartitionFile(self.data, REF))
        self.file.open(self.epoch, 1)
        self.append_by(self.files[by], name)

    @rule(keep=st.sampled_from([0, 1, 200]))
    def drop_the_front(self, keep: int) -> None:
        """Retention takes records, and leaves their keys for as long as they are kept."""
        retention = Retention(max_age_ms=0, past_settled=True)
        up_to_seq = max(0, self.head - keep)
        while self.file.drop_expired(
            retention, up_to_seq=up_to_seq, ids_ms=FOREVER_MS, now_ms=FOREVER_MS
        ):
            pass

    @rule()
    def drop_records(self) -> None:
        self.epoch += 1
        self.file.drop_records(self.epoch)
        self.seqs.clear()
        self.crash()

    @rule(names=st.lists(few_ids, max_size=20))
    def find(self, names: list[str]) -> None:
        assert self.file.find(names) == {
            name: self.seqs[name] for name in names if name in self.seqs
        }

    @invariant()
    def the_head_is_the_last_seq(self) -> None:
        if self.files:
            assert self.file.extent().head == self.head


def request(*names: str) -> AppendRequest:
    events = [Event(name, b"{}") for name in names]
    return AppendRequest(events, version=1, now_ms=1)


TestKeys = Keys.TestCase
TestKeys.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_keys_of_a_twin_outlive_its_records() -> None:
    keys = Keys()
    keys.make()
    keys.a_twin_appends_under_the_same_epoch("a", by=-2)
    keys.drop_the_front(keep=0)
    keys.find(["a"])
    keys.append_one("a")
    keys.teardown()
