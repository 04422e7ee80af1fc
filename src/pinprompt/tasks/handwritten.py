"""Hand-written prompts to compare with, and the context that makes likely tokens likely for the task.

A baseline that does not stand where a found prompt stands is a whole template (see `templates.whole`), so that it is
scored, paid for and reported like any other prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from pinprompt.data.cards import CAUSAL, MASKED, DatasetCard
from pinprompt.data.readers import Example
from pinprompt.tasks.templates import FIELDS, Template, parse

_MANUAL = "It was"
_CONTEXT_WORDS = 60  # of each example's text; more would crowd out the examples


def default_template(card: DatasetCard | None, kind: str) -> str:
    """The template of found prompts for a dataset and a kind of model."""
    if card is not None:
        return card.template(kind)
    return MASKED if kind == "masked" else CAUSAL


def manual_prompt(card: DatasetCard | None, template: Template, kind: str, own: str | None) -> tuple[str, Template]:
    """The hand-written prompt and the template that it stands in: the user's, the dataset's, or 'It was'."""
    if own is not None:
        return own, template
    if card is None:
        return _MANUAL, template
    prompt, source = card.manual(kind)
    # A user's own template replaces the dataset's, unless the hand-written prompt has a place of its own.
    if source == card.template(kind):
        return prompt, template
    return prompt, parse(source, kind)


def manual_text(prompt: str, manual: Template, template: Template) -> str:
    """The hand-written prompt as one that the task can score."""
    return prompt if manual == template else opened(manual, prompt)


def opened(template: Template, prompt: str, before: str = "") -> str:
    """A template with the prompt filled in and the text left open: a whole template."""
    return before + template.fill("{text}", prompt, "{mask}" if ("mask", "") in template.parts else "")


def instructions_text(instruction: str, prompt: str, manual: Template, kind: str) -> str:
    """The instruction before the text. A causal model needs the hand-written prompt too, to be asked for a word."""
    if kind == "masked":
        return f"{instruction} {{text}} {{mask}} ."
    return opened(manual, prompt, instruction + " ")


def in_context_text(
    examples: Sequence[Example],
    words: Mapping[str, str],
    prompt: str,
    manual: Template,
    seed: int,
    fits: Callable[[str], bool],
) -> str | None:
    """One random example per class in random order before the text, as many as fit; None where none does."""
    chooser = random.Random(seed)
    usable = [example for example in examples if not any(f"{{{field}}}" in example.text for field in FIELDS)]
    drawn = []
    for label in words:
        members = [example for example in usable if example.label == label]
        if members:
            drawn.append(chooser.choice(members))
    chooser.shuffle(drawn)
    while drawn:
        shown = [manual.fill(example.text, prompt, words[example.label]) + _stop(manual) for example in drawn]
        whole = opened(manual, prompt, " ".join(shown) + " ")
        if fits(whole):
            return whole
        drawn.pop()
    return None


def context_text(
    examples: Sequence[Example], words: Mapping[str, str], prompt: str, template: Template, per_class: int, seed: int
) -> str:
    """Labelled examples in the template with the hand-written prompt in the prompt's place, then one more example that
    stops right where a prompt would be written."""
    if per_class == 0:
        return ""
    chooser = random.Random(seed)
    shuffled = chooser.sample(list(examples), len(examples))
    drawn = [example for label in words for example in [e for e in shuffled if e.label == label][:per_class]]
    chooser.shuffle(drawn)
    last = next((example for example in shuffled if example not in drawn), drawn[-1])
    lines = [template.fill(_short(e.text), prompt, words[e.label]) + _stop(template) for e in drawn]
    left, _ = template.around_prompt(_short(last.text), words[last.label])
    return "\n".join([*lines, left]) if left else "\n".join(lines) + "\n"


def _stop(template: Template) -> str:
    """A full stop after an example, unless the template brings one or ends with the text's own."""
    return "" if template.parts[-1][0] == "text" or template.fill("x", "x", "x").endswith(".") else "."


def _short(text: str) -> str:
    words = text.split()
    return " ".join(words[:_CONTEXT_WORDS])
