"""Settings of budget, memo and workers."""

from __future__ import annotations

from pydantic import Field

from pinprompt.settings import Section


class Price(Section):
    """What a million tokens of a remote model cost."""

    input: float = Field(0.0, ge=0, description="Per million tokens sent.")
    output: float = Field(0.0, ge=0, description="Per million tokens received.")


class BudgetSettings(Section):
    """What a run may spend; the first limit that is reached ends the search, none means no limit."""

    calls: int | None = Field(None, ge=1, description="Sequences sent to task models while searching.")
    tokens: int | None = Field(None, ge=1, description="Tokens sent and received.")
    money: float | None = Field(None, gt=0, description="Cost by the price table.")
    minutes: float | None = Field(None, gt=0, description="Minutes of searching.")
    prices: dict[str, Price] = Field(default_factory=dict, description="Price table: model name to prices.")


class ScoringSettings(Section):
    """How prompts become scores."""

    memo: bool = Field(True, description="Keep scores of deterministic tasks across runs.")
    memoise_stochastic: bool = Field(
        False, description="Keep scores of stochastic tasks too (changes what is measured)."
    )
    engine: str = Field("inline", description="Where prompts are scored: inline, or ray.")
    workers: int = Field(1, ge=1, le=256, description="Task models at work side by side (engine ray).")
