from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headgate.config import LoadedConfig, load_config

Load = Callable[..., LoadedConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads from what the test gives and from nothing else."""

    def load_from(
        *,
        command_line: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        dotenv: str | None = None,
        yaml: str | None = None,
    ) -> LoadedConfig:
        if dotenv is not None:
            (tmp_path / ".env").write_text(dotenv)
        file = tmp_path / "headgate.yaml"
        if yaml is not None:
            file.write_text(yaml)
        return load_config(
            command_line=command_line,
            config_file=file if yaml is not None else None,
            environ=environ or {},
            working_dir=tmp_path,
        )

    return load_from


@pytest.fixture
def yaml_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "headgate.yaml"
        file.write_text(text)
        return file

    return write
