"""Settings of a user's own task."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinprompt.settings import Section


class CustomSettings(Section):
    """Any function from a prompt's text to a number."""

    kind: Literal["custom"] = "custom"
    function: str = Field(
        "", description="'module:name' of a function that maps a prompt (or a list of them) to scores."
    )
    stochastic: bool = Field(False, description="The function may answer differently for the same prompt.")
    calls_per_prompt: int = Field(1, ge=1, description="Model calls that one prompt costs, for the budget.")
    context: str = Field("", description="Text offered to the writer as task context.")
