"""What is said of every record of a life (life.py), compared with what is so.

Each answer is judged by what clients were handed and told, by what stands in the log and among the
letters, and by the filters, which are said in Python, too. Some things hold whenever somebody asks;
others, such as that nothing is on its way any more, only when everything is mended.
"""

from __future__ import annotations

import random
from typing import Final
from urllib.parse import urlencode

import msgspec

from headgate.errors import NotFound
from headgate.model.browse_api import BrowseAnswer
from headgate.model.event import Record
from headgate.model.explain_api import ExplainedGroup, ExplainedSubscription, Explanation
from headgate.model.letters_api import LetterInfo, LetterList
from tests.explaining.life import TOPIC, Life, Listening, Place, said_by
from tests.sim.identities import SIGHTS, Sight
from tests.sim.world import SKEW_MS

HAD: Final = ("delivered", "processed")
PASSING: Final = ("waiting", "catching_up", "held", "on_the_way", "unread")
HEDGE: Final = "nobody remembers"
SETTLED_S: Final = 0.3
"""In which what was written to a connection has come out of it."""


class Judge:
    def __init__(self, life: Life) -> None:
        self.life = life
        self._chance = random.Random(f"judge {life.seed}")
        self._is_forgotten = False
        """May anybody have forgotten what became of the record that is asked about?"""

    def asks(self, *, at_most: int, calm: bool) -> None:
        """After some of the records, of whoever may see everything and of whoever may not."""
        life = self.life
        life.pass_(SETTLED_S)
        places = sorted(life.records)
        for place in self._chance.sample(places, min(at_most, len(places))):
            if life.failures:
                return
            self._ask(place, calm=calm)
        if life.guarded:
            for sight in self._chance.sample(SIGHTS, 2):
                self._look(sight)

    def _wrong(self, place: Place | None, what: str) -> None:
        at = "" if place is None else f"{TOPIC}:{place[0]}:{place[1]} "
        self.life.failures.append(f"{at}{what}")

    def _get(self, path: str, kind: type, token: str | None = None):  # type: ignore[no-untyped-def]
        async def gets() -> object:
            async with self.life.http(token) as client:
                return await client.get(path, kind)

        return self.life.asked(gets())

    # --- a record, by who may see all ------------------------------------------------------------

    def _ask(self, place: Place, *, calm: bool) -> None:
        life = self.life
        letters = self._letters_of(place)
        query = urlencode({"record": f"{TOPIC}:{place[0]}:{place[1]}", "limit": 500})
        answer = self._get(f"/v1/explain?{query}", Explanation)
        if not isinstance(answer, Explanation):
            if calm:
                self._wrong(place, f"isn't explained: {answer!r}")
            return
        life.pass_(SETTLED_S)
        letters |= self._letters_of(place)
        record = life.records[place]
        stored = self._stored(place)
        if answer.status == "gone" or answer.status == "corrupt" or stored is None:
            self._of_nothing(place, answer)
            return
        if answer.evidence.silent and calm:
            self._wrong(place, f"is explained without {answer.evidence.silent}")
        there = {
            live.id: one
            for one in life.listeners
            if not one.has_left
            for live in life.live(one.name)
        }
        since_ms = answer.evidence.complete_since_ms
        self._is_forgotten = self._may_have_forgotten or since_ms > record.time_ms - CLOCKS_MS
        for said in answer.subscriptions:
            life.answers[said.status] += 1
            if said.id in there:
                self._of_subscription(there[said.id], said, record, letters, calm=calm)
        if calm and answer.evidence.notes == [] and not answer.more:
            listed = {one.id for one in answer.subscriptions}
            missing = {name for name in there if name not in listed}
            if missing:
                self._wrong(place, f"is explained without {sorted(missing)}, who are there")
        for group in answer.groups:
            life.answers[f"group {group.status}"] += 1
            self._of_group(group, record, letters, calm=calm)
        self._of_all(answer, record, letters, calm=calm)

    def _letters_of(self, place: Place) -> set[tuple[str, str]]:
        return {
            (one.state, one.reason)
            for one in self.life.letters()
            if (one.delivery.partition, one.delivery.seq) == place
        }

    def _stored(self, place: Place) -> Record | None:
        for ref, stored in self.life.world.cluster.log.partitions.items():
            if ref.topic == TOPIC and ref.partition == place[0]:
                return next((one for one in stored.records if one.seq == place[1]), None)
        return None

    def _of_nothing(self, place: Place, answer: Explanation) -> None:
        expected = "corrupt" if place in self.life.damaged else "gone"
        if answer.status not in (expected, "missing"):
            self._wrong(place, f"is {expected}, and said to be {answer.status}")
        for said in answer.subscriptions:
            if said.status not in ("unknown", *HAD, "ended"):
                self._wrong(place, f"can't be looked at, and {said.id} is said to be {said.status}")

    def _of_subscription(
        self,
        one: Listening,
        said: ExplainedSubscription,
        record: Record,
        letters: set[tuple[str, str]],
        *,
        calm: bool,
    ) -> None:
        life = self.life
        place = record.partition, record.seq
        had = place in one.handed[said.id]
        wants = one.wants(record, guarded=life.guarded)

        def wrong(what: str) -> None:
            self._wrong(place, f"{said.id} ({one.asked.where}): {said.status}, {said.why}; {what}")

        told = [
            item
            for item in one.told
            if item.partition == place[0] and item.after_seq < place[1] < item.from_seq
        ]
        match said.status:
            case "delivered" | "processed" if not had and HEDGE not in said.why:
                wrong("it was never handed it")
            case "not_matched" | "filter_failed" if wants and record.op in ("insert", "update"):
                wrong("it wants it")
            case "not_matched" if had:
                wrong("it was handed it")
            case "dead" if place not in life.ever_dead and not any(s == "dead" for s, _ in letters):
                wrong("there never was a dead letter")
            case "parked" if not any(state == "parked" for state, _ in letters):
                wrong("no letter is parked")
            case "skipped" if not told and place not in life.skipped:
                wrong("nobody was told")
            case "skipped" if had and not life.was_reset:
                wrong("it was handed it")
            case "repeat" if one.ids.get(record.event_id, place) == place:
                wrong("it didn't have the event from anywhere else")
            case "repeat" if had:
                wrong("it was handed it")
            case "released" if had:
                wrong("it was handed it")
            case "unknown" if calm and not self._is_forgotten:
                wrong("nobody has forgotten anything")
            case "before" if had and not (life.was_reset and self._may_have_forgotten):
                wrong("it was handed it")
            case status if calm and status in PASSING:
                wrong("everything has come to its end")
        if said.status not in ("not_matched", "filter_failed") and not wants:
            wrong("it doesn't want it")
        if (
            had
            and calm
            and (
                said.status in ("unread", "waiting", "catching_up")
                or (said.status == "unknown" and not self._is_forgotten)
            )
        ):
            wrong("it was handed it")
        if calm and said.status == "before" and self._is_owed(one, record, letters):
            wrong("it was there before, and never had it")

    @property
    def _may_have_forgotten(self) -> bool:
        return self.life.forgets or self.life.has_died or self.life.short_windows

    def _is_owed(self, one: Listening, record: Record, letters: set[tuple[str, str]]) -> bool:
        """To whoever it is, over whichever connection."""
        place = record.partition, record.seq
        at = [*self.life.records].index(place)
        return (
            one.entered_at is not None
            and at >= one.entered_at
            and not one.had(place)
            and one.ids.get(record.event_id, place) == place
            and place not in self.life.ever_dead | self.life.skipped | self.life.refused
            and place not in self.life.ever_damaged
            and not letters
            and not any(
                item.partition == place[0] and item.after_seq < place[1] < item.from_seq
                for item in one.told
            )
        )

    def _of_group(
        self,
        said: ExplainedGroup,
        record: Record,
        letters: set[tuple[str, str]],
        *,
        calm: bool,
    ) -> None:
        place = record.partition, record.seq
        workers = self.life.workers
        # The same event may be elsewhere, too: the group has it from there.
        places = [at for at, one in self.life.records.items() if one.event_id == record.event_id]
        acknowledged = any(at in one.acknowledged for one in workers for at in places)
        handed = any(place in one.handed for one in workers)
        told = any(
            item.partition == place[0] and item.after_seq < place[1] < item.from_seq
            for one in workers
            for item in one.told
        )

        def wrong(what: str) -> None:
            self._wrong(place, f"group: {said.status}, {said.why}; {what}")

        match said.status:
            case "processed" if (
                not acknowledged
                and not (
                    self.life.was_reset
                    or place in self.life.ever_dead | self.life.refused
                    or record.op == "drop"
                )
                and not told
            ):
                wrong("nobody acknowledged it")
            case "dead" if place not in self.life.ever_dead:
                wrong("there never was a dead letter")
            case "parked" if not any(state == "parked" for state, _ in letters):
                wrong("no letter is parked")
            case "not_matched" | "filter_failed" | "other_target":
                wrong("the group wants everything")
            case "before" if handed and not (self.life.was_reset or self.life.has_forgotten_all):
                wrong("it was handed it")
            case status if calm and status in PASSING:
                wrong("everything has come to its end")
            case "unknown" if calm and not self._is_forgotten:
                wrong("nobody has forgotten anything")

    def _of_all(
        self,
        answer: Explanation,
        record: Record,
        letters: set[tuple[str, str]],
        *,
        calm: bool,
    ) -> None:
        life = self.life
        place = record.partition, record.seq
        life.answers[f"record {answer.status} {answer.outcome}"] += 1

        def wrong(what: str) -> None:
            self._wrong(place, f"{answer.status} {answer.outcome}: {answer.why}; {what}")

        if calm and answer.status != "settled":
            wrong("everything is settled")
        concerned = [one for one in life.listeners if one.wants(record, guarded=life.guarded)]
        match answer.outcome:
            case "acknowledged" if not concerned and not life.workers:
                wrong("nobody ever wanted it")
            case "parked" if not any(state == "parked" for state, _ in letters):
                wrong("no letter is parked")
            case "dead" if place not in life.ever_dead:
                wrong("there never was a dead letter")
            case "released" if not concerned and not life.workers:
                wrong("nobody ever wanted it")
            case "skipped" if place not in life.skipped:
                wrong("nobody went past it")
            case "unmatched" if not life.forgets:
                late = [*life.records].index(place)
                for one in concerned:
                    was_there = one.entered_at is not None and one.entered_at <= late
                    if was_there and one.stayed and not one.has_left:
                        wrong(f"{one.name} wants it, and was there")
            case "unknown" if calm and not self._is_forgotten:
                wrong("nobody has forgotten anything")
        shown = {(one.state, one.reason) for one in answer.letters}
        if calm and not answer.letters_error and shown != letters:
            wrong(f"it has letters {letters}, and {shown} are shown")
        matched = sum(one.verdict == "match" or one.left for one in answer.subscriptions)
        if not answer.more and matched != answer.matched:
            wrong(f"{matched} of those shown want it, and {answer.matched} are said to")

    # --- by who may see some ---------------------------------------------------------------------

    def _look(self, sight: Sight) -> None:
        """Records, letters and explanations, as a reader and as an operator see them who are shown
        the same records."""
        life = self.life
        where = "" if sight.where is None else f" where {sight.where}"
        reader = said_by("reader", f"subscribe{where}", "read:topics")
        operator = said_by("operator", f"subscribe{where}", "read:nodes", f"read:letters{where}")
        found = self._get(
            f"/v1/topics/{TOPIC}/records?from=earliest&limit=1000", BrowseAnswer, reader
        )
        if isinstance(found, BrowseAnswer):
            for one in found.records:
                self._may_see(sight, life.records[one.partition, one.seq], one.earlier, "browsed")
        listed = self._get("/v1/dead-letters", LetterList, operator)
        if isinstance(listed, LetterList):
            for letter in listed.letters:
                self._may_see_letter(sight, letter, "listed")
        places = sorted(life.records)
        for place in self._chance.sample(places, min(6, len(places))):
            record = life.records[place]
            for token in (reader, operator):
                for name in (f"{TOPIC}:{place[0]}:{place[1]}", record.event_id):
                    self._explained_to(sight, record, name, token, is_reader=token is reader)

    def _explained_to(
        self, sight: Sight, record: Record, name: str, token: str, *, is_reader: bool
    ) -> None:
        place = record.partition, record.seq
        query = urlencode({"record": name})
        answer = self._get(f"/v1/explain?{query}", Explanation, token)
        if isinstance(answer, NotFound):
            said = answer.message
            is_there = self._stored(place) is not None and place not in self.life.damaged
            if is_there and self._sees(sight, record) is True:
                self._wrong(place, f"is hidden from {sight.name}: {said}")
            return
        if not isinstance(answer, Explanation):
            return
        if answer.record is not None:
            shown = self.life.records[answer.partition, answer.seq]
            self._may_see(sight, shown, answer.record.earlier, "explained")
        elif answer.attempts and sight.where is not None:
            self._wrong(place, f"is gone, and {sight.name} is told of attempts")
        for letter in answer.letters:
            self._may_see_letter(sight, letter, "explained")
        if is_reader and (
            answer.subscriptions
            or answer.groups
            or answer.letters
            or answer.attempts
            or answer.owner
            or answer.router
            or answer.matched
            or answer.examined
        ):
            self._wrong(place, f"tells a reader of others: {answer}")

    def _may_see(self, sight: Sight, record: Record, earlier: object, how: str) -> None:
        place = record.partition, record.seq
        if self._sees(sight, record) is False:
            self._wrong(place, f"is {how} to {sight.name}")
        if isinstance(earlier, msgspec.Raw) and not sight.sees(msgspec.json.decode(earlier)):
            self._wrong(place, f"is {how} with its earlier state to {sight.name}")

    def _may_see_letter(self, sight: Sight, letter: LetterInfo, how: str) -> None:
        record = self.life.records[letter.partition, letter.seq]
        if self._sees(sight, record) is False:
            self._wrong((letter.partition, letter.seq), f"is {how} as a letter to {sight.name}")

    def _sees(self, sight: Sight, record: Record) -> bool | None:
        """None: it isn't about a document."""
        if record.op not in ("insert", "update"):
            return None
        return sight.sees(msgspec.json.decode(record.document))


def judged(seed: int, *, trace: bool = False) -> Life:
    """One life, whose `failures` say what is wrong."""
    life = Life(seed)
    judge = Judge(life)
    life.begin()
    for _ in range(life.chance.randint(*STEPS)):
        name = life.step()
        if trace:
            print(f"{life.world.scheduler.now_s:9.3f} {name}")  # noqa: T201
        if life.chance.random() < ASKED:
            judge.asks(at_most=2, calm=False)
        if life.failures:
            return life
    life.calm_down()
    judge.asks(at_most=AT_THE_END, calm=True)
    return life


CLOCKS_MS: Final = 2 * SKEW_MS
STEPS: Final = (8, 16)
ASKED: Final = 0.3
AT_THE_END: Final = 12
