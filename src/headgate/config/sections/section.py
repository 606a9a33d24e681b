"""What all sections of the configuration are: immutable, and without a setting that isn't known.

The docstring below a field is its documentation, wherever it is shown.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
