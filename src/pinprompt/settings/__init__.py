"""The sections of a recipe: one frozen model per room, each field described once (help and docs come from here)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of a recipe; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)
