"""Templates: where text, prompt and mask stand. Parsed once, filled by joining, never by a format string."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.models.frames import Frame

FIELDS = ("text", "prompt", "mask")
_FIELD = re.compile(r"\{(\w*)\}")
Spacing = Literal["single", "literal"]


@dataclass(frozen=True)
class Template:
    """A template as its parts: ('text', ''), ('prompt', ''), ('mask', '') or ('', literal)."""

    source: str
    parts: tuple[tuple[str, str], ...]
    spacing: Spacing = "single"

    def frame(self, prompt: str) -> Frame:
        """What stands around the text for this prompt, and where the mask goes.

        With single spacing a prompt's own outer spaces are dropped, and an empty prompt leaves no gap: a written
        prompt mostly begins with a space, and the template has one already. Literal spacing inserts it as it is.
        """
        sides = {"before": "", "after": ""}
        side, mask, pending = "before", None, False
        for name, literal in self.parts:
            if name == "text":
                side = "after"
            elif name == "mask":
                mask = (side, len(sides[side]))
            else:
                piece = prompt if name == "prompt" else literal
                if self.spacing == "single":
                    if name == "prompt":
                        piece = prompt.strip()
                        if not piece:
                            pending = True
                            continue
                    if pending and piece.startswith(" "):
                        # The spaces on both sides of an empty prompt become one, or none where it came first.
                        sides[side] = sides[side].rstrip(" ")
                        piece = piece if sides[side] or side == "after" or mask else piece.lstrip(" ")
                    pending = False
                sides[side] += piece
        if pending and mask is None:
            sides[side] = sides[side].rstrip(" ")
        return Frame(sides["before"], sides["after"], mask)

    def fill(self, text: str, prompt: str, word: str = "") -> str:
        """The template as a person would read it, with a word in the mask's place (or at the end, without a mask)."""
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


def parse(source: str, kind: str, spacing: Spacing = "single") -> Template:
    """A template for a 'masked' or a 'causal' model, or a sentence that says what is wrong with it."""
    template = _parse(source, spacing)
    names = [name for name, _ in template.parts if name]
    for name in ("text", "prompt"):
        if names.count(name) != 1:
            raise SettingError(
                f"the template '{source}' must hold {{{name}}} exactly once; it has {names.count(name)}."
            )
    return _for_kind(template, names, kind)


def whole(prompt: str, kind: str) -> Template | None:
    """The template that a prompt is by itself, if it is one: a hand-written prompt may stand all around its text.

    Such a prompt holds `{text}` once, and `{mask}` where the model needs one; any other prompt is plain text.
    """
    if prompt.count("{text}") != 1 or "{prompt}" in prompt:
        return None
    try:
        template = _parse(prompt, "literal", others=True)
        return _for_kind(template, [name for name, _ in template.parts if name], kind)
    except SettingError:
        return None


def _parse(source: str, spacing: Spacing, *, others: bool = False) -> Template:
    """The parts of a template; `others` takes unknown words in braces as they stand, as a text may hold them."""
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
    return Template(source, tuple(parts), spacing)


def _for_kind(template: Template, names: list[str], kind: str) -> Template:
    masks = names.count("mask")
    if kind == "masked":
        if masks != 1:
            raise SettingError(
                f"the template '{template.source}' must hold {{mask}} exactly once for a masked model; it has {masks}. "
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
    return _ending_bare(Template(template.source, template.parts[:-1], template.spacing))


def _ending_bare(template: Template) -> Template:
    """The template without spaces at its end: the word that follows brings its own."""
    name, literal = template.parts[-1]
    bare = literal.rstrip(" ")
    if name or literal == bare:
        return template
    return Template(template.source, (*template.parts[:-1], *([("", bare)] if bare else [])), template.spacing)
