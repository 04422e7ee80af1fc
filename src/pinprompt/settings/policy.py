"""Settings of the writer of prompts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinprompt.settings import Section


class Constraints(Section):
    """What every prompt must obey; each is a mask on the action set, so it holds for everything explored."""

    banned: tuple[str, ...] = Field((), description="Words that never stand in a prompt (whole words, any case).")
    banned_file: str | None = Field(
        None, description="A file with one banned word or phrase a line; PINPROMPT_BAN_FILE names one for all runs."
    )
    banned_pattern: str | None = Field(
        None, description="A regular expression that no prompt, and no beginning of one, may match."
    )
    required: tuple[str, ...] = Field((), description="Words that must stand in every prompt, spelled like this.")
    charset: Literal["any", "ascii", "letters"] = Field(
        "any", description="Characters allowed: any, ASCII only, or letters and spaces only."
    )
    whole_words: bool = Field(False, description="Only tokens that are whole words with a space before them.")
    dictionary: bool = Field(
        False, description="Only tokens that are whole words of an English dictionary, with a space before them."
    )
    max_chars: int | None = Field(None, ge=1, description="A prompt's greatest length in characters.")
    no_repeats: bool = Field(False, description="No token twice in one prompt.")
    stable: bool = Field(True, description="Only tokens that come back the same when their text is tokenised again.")


class PolicySettings(Section):
    """The frozen language model that writes prompts, and what it may write."""

    model: str = Field("facebook/opt-125m", description="The writer: hub id, folder, .gguf file or alias.")
    length: int = Field(5, ge=1, le=512, description="Tokens in a prompt (L).")
    k: int | None = Field(
        10_000, ge=1, description="Tokens kept by the filter: the k likeliest of the prefix; none switches it off."
    )
    context: Literal["none", "task"] | str = Field(
        "none", description="Text the writer reads before the prompt: none, task (the task offers its own), or a text."
    )
    hidden: int = Field(2048, ge=1, description="Width of the hidden layer of psi.")
    rows: int = Field(
        16, ge=1, description="Rows in every pass of the writer; fixed, so that a state never depends on its batch."
    )
    tree_mb: int = Field(1024, ge=1, description="Memory for known prefixes, in MiB; the least recently used go first.")
    constraints: Constraints = Field(default_factory=Constraints, description="Masks on what may be written.")
