"""A demo in which everybody has to say who they are: who is granted what, and where it is asked.

That tokens are made, known and good for that alone is tried in tests/access.
"""

from __future__ import annotations

from pathlib import Path

from headgate.demo.audience import Watchers
from headgate.demo.badges import PRODUCER, Badges
from headgate.demo.flight import TOPIC
from headgate.demo.stage import demo_config
from headgate.demo.team import GROUP, Team
from headgate.demo.watches import WATCHES

NOBODY = "http://127.0.0.1:9"


def test_where_nobody_is_asked_nobody_has_a_token() -> None:
    badges = Badges(NOBODY)
    assert badges.admin is None
    assert badges.of(PRODUCER) is None


def test_what_a_watch_asks_for_is_what_its_grant_shows() -> None:
    grants = Watchers(NOBODY, TOPIC, Badges(NOBODY)).grants
    assert grants["everything"] == "subscribe on flights"
    assert grants["low"] == "subscribe on flights where altitude < 3000"
    assert list(grants) == [watch.name for watch in WATCHES]
    team = Team(NOBODY, TOPIC, Badges(NOBODY), size=2, aircraft=1)
    assert team.grants == {GROUP: "consume on flights in radar"}


def test_everybody_is_asked_where_that_is_wanted_or_configured(tmp_path: Path) -> None:
    secured, file = "security: {enabled: true}\n", tmp_path / "headgate.yaml"
    file.write_text("{}\n")
    assert not demo_config(tmp_path, file).config.security.is_on
    wanted = demo_config(tmp_path, file, secured=True).config.security
    file.write_text(secured)
    configured = demo_config(tmp_path, file).config.security
    assert len(wanted.admin_token) == len(configured.admin_token) == 64
    assert wanted.admin_token != configured.admin_token
    file.write_text("security: {admin_token: one-of-the-configuration}\n")
    assert demo_config(tmp_path, file).config.security.admin_token == "one-of-the-configuration"
