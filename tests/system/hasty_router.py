"""`headgate router` with less patience for a window that doesn't end than an operator has."""

from __future__ import annotations

from dataclasses import replace

from headgate.adapters.embedded.folder import DataFolder
from headgate.cli.main import app
from headgate.config import Config
from headgate.decide.lane.window_shares import Patience
from headgate.services.router.plans import RouterSettings
from headgate.wiring import roles

START_S = 10.0

patient_settings = roles.router_settings


def hasty_settings(config: Config, folder: DataFolder) -> RouterSettings:
    return replace(patient_settings(config, folder), patience=Patience(start_s=START_S))


if __name__ == "__main__":
    roles.router_settings = hasty_settings
    app()
