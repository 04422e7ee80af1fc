"""Templates, hand-written prompts to compare with, and the writer's context.

A hand-written prompt that does not fit into the prompt's place is a template of its own (see `whole`), so that it is
scored, paid for and reported like any other prompt.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pinprompt.data.datasets import CAUSAL, MASKED, DatasetCard
from pinprompt.data.examples import Example
from pinprompt.errors import SettingError, did_you_mean
from pinprompt.models.label_text import Frame

# Templates: the positions of text, prompt and mask. Parsed once and filled by joining, never by a format string.

FIELDS = ("text", "prompt", "mask")
_FIELD = re.compile(r"\{(\w*)\}")


@dataclass(frozen=True)
class Template:
    """A template as its parts: ('text', ''), ('prompt', ''), ('mask', '') or ('', literal)."""

    source: str
    parts: tuple[tuple[str, str], ...]

    def frame(self, prompt: str) -> Frame:
        """The text before and after the input for this prompt, and the position of the mask.

        A prompt's outer spaces are dropped, and an empty prompt leaves no gap: a written prompt usually starts with a
        space, which the template already has.
        """
        sides = {"before": "", "after": ""}
        side, mask, pending = "before", None, False
        for name, literal in self.parts:
            if name == "text":
                side = "after"
            elif name == "mask":
                mask = (side, len(sides[side]))
            else:
                piece = prompt.strip() if name == "prompt" else literal
                if not piece and name == "prompt":
                    pending = True
                    continue
                if pending and piece.startswith(" "):
                    # The spaces on both sides of an empty prompt become one, or none at the start.
                    sides[side] = sides[side].rstrip(" ")
                    piece = piece if sides[side] or side == "after" or mask else piece.lstrip(" ")
                pending = False
                sides[side] += piece
        if pending and mask is None:
            sides[side] = sides[side].rstrip(" ")
        return Frame(sides["before"], sides["after"], mask)

    def fill(self, text: str, prompt: str, word: str = "") -> str:
        """The filled template with a word in the mask's place (or at the end, without a mask)."""
        frame = self.frame(prompt)
        whole, _ = frame.around(text, word) if frame.mask else (frame.around(text)[0], 0)
        if frame.mask is None and word:
            whole += ("" if whole[-1:].isspace() else " ") + word
        return whole

    def around_prompt(self, text: str, mask_token: str) -> tuple[str, str]:
        """The strings to the left and right of the prompt, for prompts that are vectors."""
        values = {"text": text, "mask": mask_token}
        names = [name for name, _ in self.parts]
        here = names.index("prompt")
        sides = [
            "".join(literal if not name else values[name] for name, literal in part)
            for part in (self.parts[:here], self.parts[here + 1 :])
        ]
        return sides[0].rstrip(" "), sides[1]


def parse(source: str, kind: str) -> Template:
    """A template for a 'masked' or a 'causal' model; a SettingError if it is invalid."""
    template = _parse(source)
    names = [name for name, _ in template.parts if name]
    for name in ("text", "prompt"):
        if names.count(name) != 1:
            raise SettingError(
                f"the template '{source}' must contain {{{name}}} exactly once; it has {names.count(name)}."
            )
    return _for_kind(template, names, kind)


def whole(prompt: str, kind: str) -> Template | None:
    """The prompt as a template, if it is one: a hand-written prompt may surround its text.

    Such a prompt contains `{text}` once, and `{mask}` if the model needs one; any other prompt is plain text.
    """
    if prompt.count("{text}") != 1 or "{prompt}" in prompt:
        return None
    try:
        template = _parse(prompt, others=True)
        return _for_kind(template, [name for name, _ in template.parts if name], kind)
    except SettingError:
        return None


def _parse(source: str, *, others: bool = False) -> Template:
    """The parts of a template; `others` keeps unknown words in braces, which a text may contain."""
    parts: list[tuple[str, str]] = []
    end = 0
    for found in _FIELD.finditer(source):
        if found.group(1) not in FIELDS:
            if others:
                continue
            raise SettingError(
                f"the template '{source}' holds {{{found.group(1)}}}, which means nothing; "
                f"{did_you_mean(found.group(1), FIELDS)}"
            )
        if found.start() > end:
            parts.append(("", source[end : found.start()]))
        parts.append((found.group(1), ""))
        end = found.end()
    if end < len(source):
        parts.append(("", source[end:]))
    return Template(source, tuple(parts))


def _for_kind(template: Template, names: list[str], kind: str) -> Template:
    masks = names.count("mask")
    if kind == "masked":
        if masks != 1:
            raise SettingError(
                f"the template '{template.source}' must contain {{mask}} exactly once for a masked model; it has "
                f"{masks}. "
                "The usual one is '{text} {prompt} {mask} .'."
            )
        return template
    if masks == 0:
        return _ending_bare(template)
    if masks > 1 or template.parts[-1][0] != "mask":
        raise SettingError(
            f"the template '{template.source}' has its {{mask}} before its end, but a causal model only says what "
            "comes next: put the text and the prompt first and leave the {mask} out, as in '{text} {prompt}', or use a "
            "masked model."
        )
    return _ending_bare(Template(template.source, template.parts[:-1]))


def _ending_bare(template: Template) -> Template:
    """The template without trailing spaces: the next word has a leading space."""
    name, literal = template.parts[-1]
    bare = literal.rstrip(" ")
    if name or literal == bare:
        return template
    return Template(template.source, (*template.parts[:-1], *([("", bare)] if bare else [])))


@cache
def shipped(kind: str) -> dict[str, Any]:
    """The hand-written prompts for tasks of a kind (drafts.toml beside this file)."""
    found: dict[str, Any] = tomllib.loads((Path(__file__).parent / "drafts.toml").read_text("utf-8"))[kind]
    return found


PER_CLASS = 2
"""Examples per class in the context for the writer."""
_CONTEXT_WORDS = 60  # maximum characters of each example's text


def default_template(card: DatasetCard | None, kind: str) -> str:
    """The default template for a dataset and a kind of model."""
    if card is not None:
        return card.template(kind)
    return MASKED if kind == "masked" else CAUSAL


def manual_prompt(card: DatasetCard | None, template: Template, kind: str, own: str | None) -> tuple[str, Template]:
    """The hand-written prompt and its template: the user's own, or the dataset's."""
    if own is not None or card is None:
        return own or "", template
    prompt, source = card.manual(kind)
    # A user's template replaces the dataset's, unless the hand-written prompt is a template itself.
    if source == card.template(kind):
        return prompt, template
    return prompt, parse(source, kind)


def manual_text(prompt: str, manual: Template, template: Template) -> str:
    """The hand-written prompt as a prompt that the task can score."""
    return prompt if manual == template else opened(manual, prompt)


def opened(template: Template, prompt: str, before: str = "") -> str:
    """A template with the prompt filled in and the text left open."""
    return before + template.fill("{text}", prompt, "{mask}" if ("mask", "") in template.parts else "")


def instructions_text(instruction: str, prompt: str, manual: Template, kind: str) -> str:
    """The instruction before the text. A causal model also needs the hand-written prompt."""
    if kind == "masked":
        return f"{instruction} {{text}} {{mask}} ."
    return opened(manual, prompt, instruction + " ")


CHAT_INSTRUCTIONS = (
    "What is the text mainly about: {labels}? Reply with one of these words only.",
    "You sort texts. Reply with the label that fits best: {labels}.",
    "Decide what the writer of the text mainly wants to say, and reply with one label: {labels}.",
    "You are an expert at labelling texts as {labels}. Reply with a single label, without an explanation.",
    "Label the text by its main point, not by single words. The labels are {labels}.",
)
"""Common system messages; the plain one is in `chat_instruction`."""


def chat_instruction(instruction: str | None, names: Sequence[str]) -> str:
    """What a chat model is told to do: the instruction, or a plain one, and what to answer with, if it does not say."""
    listed = alternatives(names)
    if instruction is None:
        return f"Classify the text as {listed}. Reply with one of these words only."
    told = all(name.lower() in instruction.lower() for name in names)
    return instruction if told else f"{instruction} Reply with one of these words only: {listed}."


def alternatives(names: Sequence[str]) -> str:
    """The names in a sentence: 'a, b or c'."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def in_context_text(
    examples: Sequence[Example],
    words: Mapping[str, str],
    prompt: str,
    manual: Template,
    seed: int,
    fits: Callable[[str], bool],
) -> str | None:
    """One random example per class in random order before the text, as many as fit; None if none does."""
    chooser = random.Random(seed)
    drawn = [chooser.choice(members) for members in by_label(examples, words) if members]
    chooser.shuffle(drawn)
    while drawn:
        whole = with_examples(drawn, words, prompt, manual)
        if fits(whole):
            return whole
        drawn.pop()
    return None


def by_label(examples: Sequence[Example], labels: Iterable[str]) -> list[list[Example]]:
    """The examples of each label that a prompt may show: a field in braces would be filled in."""
    usable = [example for example in examples if not any(f"{{{field}}}" in example.text for field in FIELDS)]
    return [[example for example in usable if example.label == label] for label in labels]


def with_examples(examples: Sequence[Example], words: Mapping[str, str], prompt: str, template: Template) -> str:
    """A prompt with labelled examples before the text, each in the template with the prompt."""
    return opened(template, prompt, "".join(_shown(one.text, words[one.label], prompt, template) for one in examples))


def without_example(whole: str, text: str, word: str, template: Template) -> str | None:
    """A prompt that `with_examples` made without the example of this text; None if it has none."""
    fields = {"text": r"\{text\}", "prompt": "(.*)", "mask": r"\{mask\}"}
    pattern = "".join(fields[name] if name else re.escape(literal) for name, literal in template.parts)
    found = re.search(f"{pattern}$", whole, re.DOTALL)
    example = "" if found is None else _shown(text, word, found[1], template)
    return whole.replace(example, "", 1) if found is not None and example in whole[: found.start()] else None


def _shown(text: str, word: str, prompt: str, template: Template) -> str:
    """An example as it stands before the text."""
    return f"{template.fill(text, prompt, word)}{_stop(template)} "


def context_text(
    examples: Sequence[Example], words: Mapping[str, str], prompt: str, template: Template, seed: int
) -> str:
    """Labelled examples in the template with the hand-written prompt in the prompt's place, then one more example that
    stops right where a prompt would be written."""
    chooser = random.Random(seed)
    shuffled = chooser.sample(list(examples), len(examples))
    drawn = [example for label in words for example in [e for e in shuffled if e.label == label][:PER_CLASS]]
    chooser.shuffle(drawn)
    last = next((example for example in shuffled if example not in drawn), drawn[-1])
    lines = [template.fill(_short(e.text), prompt, words[e.label]) + _stop(template) for e in drawn]
    left, _ = template.around_prompt(_short(last.text), words[last.label])
    return "\n".join([*lines, left]) if left else "\n".join(lines) + "\n"


def _stop(template: Template) -> str:
    """A full stop after an example, unless the template or the text ends with one."""
    return "" if template.parts[-1][0] == "text" or template.fill("x", "x", "x").endswith(".") else "."


def _short(text: str) -> str:
    words = text.split()
    return " ".join(words[:_CONTEXT_WORDS])
