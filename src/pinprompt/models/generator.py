"""Sampling from a prompted causal LM: many prompts, texts and samples at once, each sample with its own random stream.

Samples have the distribution of the model's own `generate` (top-k, temperature) followed by `tidy`, at less cost:

- the prompt and the text are processed once per request, whatever the number of samples;
- samples that have drawn the same tokens so far share one row (a branch) until they diverge;
- a branch ends as soon as `tidy` would cut it, and another takes its slot in the pass.

The token that a sample draws depends only on the request's seed, the sample's number and the step; every pass has the
same shape, so nothing depends on how requests are grouped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from pinprompt.errors import ModelError, SettingError
from pinprompt.models.packed import PackedLayers
from pinprompt.models.passes import Slots, check, read, window

TEMPLATE = '{prompt} "{text}" "'
_ENDS = frozenset('".!?')
_STEP = 64  # key lengths are rounded up to this, so that requests of similar length share passes


@dataclass(frozen=True)
class Request:
    """A number of samples of one prompt on one text."""

    prompt: str
    text: str
    samples: int
    seed: int


@dataclass(frozen=True)
class Generated:
    """The samples of a request in order; if it failed they are empty and `failure` has the reason."""

    texts: tuple[str, ...]
    failure: str | None = None


def filled(template: str, prompt: str, text: str) -> str:
    """The model's input: the filled template, or the prompt itself where `{text}` in it marks the place of the text.

    In "Before: {text} After:" the text is put in quotes, and an opening quote is added at the end. Double quotes inside
    the text become single, since the first one ends the output.
    """
    quoted = text.replace('"', "'")
    if "{text}" in prompt:
        return prompt.replace("{text}", f'"{quoted}"') + ' "'
    parts = re.split(r"(\{prompt\}|\{text\})", template)
    return "".join({"{prompt}": prompt, "{text}": quoted}.get(part, part) for part in parts)


def tidy(text: str, lower: bool = False) -> str:
    """The first sentence of a raw continuation, up to the closing quote."""
    kept = text.split('"', 1)[0].strip()
    sentence = re.match(r"[^.!?]*[.!?]", kept)
    kept = sentence.group().strip() if sentence else kept
    return kept.lower() if lower else kept


def new_tokens(source_tokens: int) -> int:
    """The maximum output length for a source of n tokens: max(1.5 n, n + 10)."""
    return int(max(1.5 * source_tokens, source_tokens + 10))


@dataclass
class _Job:
    """A request in progress."""

    place: int
    ids: list[int]
    steps: int
    uniforms: np.ndarray
    texts: list[str]
    past: torch.Tensor | None = None


@dataclass
class _Branch:
    """Samples of one job that have drawn the same tokens; `own` is its past beyond the job's, while it has no slot."""

    job: _Job
    tokens: list[int]
    samples: np.ndarray
    own: torch.Tensor | None = None


@dataclass
class Generator:
    """A frozen causal LM that rewrites texts; `rows` is the fixed number of rows of a pass."""

    billed: ClassVar[str | None] = None
    """A local model is not billed."""

    model: Any
    tokenizer: Any
    template: str = TEMPLATE
    top_k: int = 10
    temperature: float = 1.0
    lower: bool = False
    max_new_tokens: int | None = None
    """None: by `new_tokens`."""
    rows: int = 64
    cache_mb: int = 1024
    """Memory for keys and values; long texts get fewer rows in a pass."""
    _stops: dict[int, bool] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("{prompt}", "{text}"):
            if name not in self.template:
                raise SettingError(f"the template {self.template!r} has no {name}; an example: {TEMPLATE!r}")
        if self.top_k < 1 or self.temperature <= 0:
            raise SettingError(f"top_k must be 1 or more and temperature above 0: {self.top_k}, {self.temperature}")
        probe = self._encode("Hello there.") * 2
        if len(probe) < 2:
            raise ModelError("the task model's tokenizer gives no tokens for 'Hello there.'")
        check(self.model, probe)
        ends = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ends = ends if isinstance(ends, list) else [ends]
        self._stops.update({end: True for end in [*ends, self.tokenizer.eos_token_id] if end is not None})
        self.window = window(self.model)

    def fill(self, prompt: str, text: str) -> str:
        """The model's input."""
        return filled(self.template, prompt, text)

    def limit(self, text: str) -> int:
        """The maximum output length for this source text."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return new_tokens(len(self.tokenizer(text, add_special_tokens=False)["input_ids"]))

    def length(self, prompt: str, text: str) -> int:
        """The number of input tokens of a prompt and a text."""
        return len(self._encode(self.fill(prompt, text)))

    def fits(self, text: str, room: int) -> bool:
        """Whether the text, its rewrite, and `room` tokens of prompt fit into the model's window."""
        return self.length("", text) + room + self.limit(text) <= self.window

    def sample(self, requests: Sequence[Request]) -> list[Generated]:
        """All samples of all requests, in order; a text that does not fit the model's window is a recorded failure."""
        answers: dict[int, Generated] = {}
        groups: dict[int, list[_Job]] = defaultdict(list)
        for place, request in enumerate(requests):
            ids, steps = self._encode(self.fill(request.prompt, request.text)), self.limit(request.text)
            if len(ids) + steps > self.window:
                answers[place] = Generated(
                    ("",) * request.samples,
                    f"a text of {len(ids)} tokens with its prompt, and {steps} to write, does not fit the task model's "
                    f"window of {self.window}",
                )
                continue
            draws = np.random.Generator(np.random.Philox(request.seed)).random((request.samples, steps))
            job = _Job(place, ids, steps, draws, [""] * request.samples)
            # Never beyond the window: with local attention, the position of the last key determines what is near.
            groups[min(-(-(len(ids) + steps) // _STEP) * _STEP, self.window)].append(job)
        for length, jobs in sorted(groups.items()):
            with PackedLayers(self.model):
                self._run(length, jobs)
            answers.update({job.place: Generated(tuple(job.texts)) for job in jobs})
        return [answers[place] for place in range(len(requests))]

    def _run(self, length: int, jobs: list[_Job]) -> None:
        """Finish jobs of one key length, keeping every slot of a pass filled while there is work."""
        ahead = list(reversed(jobs))
        waiting = self._open(ahead.pop())
        first = jobs[0].past
        assert first is not None
        row_bytes = first[:, :, :, 0].numel() * first.element_size() * length
        slots = Slots(self.model, max(4, min(self.rows, self.cache_mb * 2**20 // row_bytes)), length, first)
        held: list[_Branch | None] = [None] * slots.rows
        while True:
            for slot in range(slots.rows):
                while held[slot] is None and (waiting or ahead):
                    if not waiting:
                        waiting += self._open(ahead.pop())
                        continue
                    # The latest first: depth-first keeps the number of waiting branches small. At the end the shortest,
                    # which may have the most left to generate, so that the last passes are fuller.
                    last = len(waiting) - 1
                    place = last if ahead else min(range(last + 1), key=lambda one: len(waiting[one].tokens))
                    branch = held[slot] = waiting.pop(place)
                    slots.load(slot, branch.job.past, branch.own)
                    branch.own = None
            live = [(slot, branch) for slot, branch in enumerate(held) if branch is not None]
            if not live:
                return
            tokens, places = [0] * slots.rows, [0] * slots.rows
            for slot, branch in live:
                tokens[slot], places[slot] = branch.tokens[-1], len(branch.job.ids) + len(branch.tokens) - 1
            choices, sums = self._choices(slots.step(tokens, places))
            for slot, branch in live:
                children = self._extend(branch, choices[slot], sums[slot])
                held[slot] = children[0] if children else None
                if len(children) > 1:
                    own = slots.save(slot, len(branch.job.ids), places[slot] + 1)
                    for child in children[1:]:
                        child.own = own
                    waiting += children[1:]

    def _open(self, job: _Job) -> list[_Branch]:
        """Process a request's text, and draw every sample's first token."""
        job.past, logits = read(self.model, job.ids)
        choices, sums = self._choices(logits[None])
        return self._extend(_Branch(job, [], np.arange(len(job.texts))), choices[0], sums[0])

    def _choices(self, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The k most likely tokens of each row, and their cumulative weights for sampling."""
        values, ids = torch.topk(logits, min(self.top_k, logits.shape[-1]))
        scores, tokens = values.float().cpu().numpy().astype(np.float64) / self.temperature, ids.cpu().numpy()
        if not np.isfinite(scores[:, 0]).all():
            raise ModelError("the task model's logits are not numbers; its weights may be broken.")
        # Equal logits in the order of their ids, since the selection's order is undefined.
        order = np.lexsort((tokens, -scores), axis=-1)
        scores, tokens = np.take_along_axis(scores, order, -1), np.take_along_axis(tokens, order, -1)
        return tokens, np.cumsum(np.exp(scores - scores[:, :1]), axis=-1)

    def _extend(self, branch: _Branch, choices: np.ndarray, sums: np.ndarray) -> list[_Branch]:
        """Draw the next token of each sample; finished samples are stored, the others are returned by token."""
        job, step = branch.job, len(branch.tokens)
        drawn = np.searchsorted(sums, job.uniforms[branch.samples, step] * sums[-1], side="right")
        drawn = choices[np.minimum(drawn, len(choices) - 1)]
        children: list[_Branch] = []
        for token in dict.fromkeys(drawn.tolist()):
            child = _Branch(job, [*branch.tokens, token], branch.samples[drawn == token])
            if self.ends(token) or step + 1 == job.steps:
                text = tidy(self.tokenizer.decode(child.tokens, skip_special_tokens=True), self.lower)
                for sample in child.samples:
                    job.texts[sample] = text
            else:
                children.append(child)
        return children

    def ends(self, token: int) -> bool:
        """Whether `tidy` would cut here. These marks are single bytes, so no tokenizer splits them."""
        known = self._stops.get(token)
        if known is None:
            text = self.tokenizer.decode([token], skip_special_tokens=True)
            known = self._stops[token] = not _ENDS.isdisjoint(text)
        return known

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])
