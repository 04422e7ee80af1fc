"""Sampling from a frozen causal LM: many requests and samples at once, each sample with its own random stream.

Samples have the distribution of the model's own `generate` (top-k, temperature), at less cost:

- the tokens of a request are read once, whatever the number of samples; those that requests share at their beginning
  (an instruction, a chat's format) are read once for all;
- samples that have drawn the same tokens so far share one row (a branch) until they diverge;
- a branch ends as soon as nothing that follows would be kept, and another takes its slot in the pass.

The token that a sample draws depends only on the request's seed, the sample's number and the step; every pass has the
same shape, so nothing depends on how requests are grouped.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pinprompt.errors import ModelError, SettingError
from pinprompt.models.packed import PackedLayers
from pinprompt.models.passes import Slots, check, read, window

_STEP = 64  # key lengths are rounded up to this, so that requests of similar length share passes
_PREFIXES = 64  # beginnings of requests whose keys and values are kept


@dataclass
class Job:
    """A request in progress: the tokens to read, the most tokens to write, and a random number per sample and step."""

    ids: list[int]
    steps: int
    uniforms: np.ndarray
    shared: int = 0
    """How many of the first tokens other requests have too."""
    texts: list[str] = field(default_factory=list)
    """The samples in order, once they are finished."""
    cut: set[int] = field(default_factory=set)
    """Samples that were not at their end when the tokens to write ran out."""
    past: torch.Tensor | None = None


@dataclass
class _Branch:
    """Samples of one job that have drawn the same tokens; `own` is its past beyond the job's, while it has no slot."""

    job: Job
    tokens: list[int]
    samples: np.ndarray
    own: torch.Tensor | None = None


@dataclass
class Sampler:
    """A frozen causal LM that continues texts; `batch` is the fixed number of texts in a pass."""

    model: Any
    tokenizer: Any
    top_k: int = 10
    temperature: float = 1.0
    batch: int = 64
    cache_mb: int = 1024
    """Memory for keys and values; fewer long texts fit into a pass."""
    _stops: dict[int, bool] = field(default_factory=dict, init=False, repr=False)
    _prefixes: OrderedDict[tuple[int, ...], torch.Tensor] = field(default_factory=OrderedDict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.top_k < 1 or self.temperature <= 0:
            raise SettingError(f"top_k must be 1 or more and temperature above 0: {self.top_k}, {self.temperature}")
        probe = self.encode("Hello there.") * 2
        if len(probe) < 2:
            raise ModelError("the task model's tokenizer gives no tokens for 'Hello there.'")
        check(self.model, probe)
        ends = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ends = ends if isinstance(ends, list) else [ends]
        self._stops.update({end: True for end in [*ends, self.tokenizer.eos_token_id] if end is not None})
        self.window = window(self.model)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with those that the tokenizer adds."""
        return list(self.tokenizer(text)["input_ids"])

    def ends(self, token: int) -> bool:
        """Whether nothing after this token is kept."""
        known = self._stops.get(token)
        if known is None:
            known = self._stops[token] = self.closes(Sampler.finished(self, [token]))
        return known

    def closes(self, text: str) -> bool:
        """Whether nothing after a token with this text is kept, besides the model's own end tokens."""
        return False

    def finished(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def too_long(self, ids: Sequence[int], steps: int) -> str | None:
        """Why a request does not fit into the model's window; None if it does."""
        if len(ids) + steps <= self.window:
            return None
        return (
            f"a text of {len(ids)} tokens with its prompt, and {steps} to write, does not fit the task model's "
            f"window of {self.window}"
        )

    def run(self, jobs: Sequence[Job]) -> None:
        """Finish all jobs; their samples are in `texts`."""
        groups: dict[int, list[Job]] = defaultdict(list)
        for job in jobs:
            job.texts = [""] * len(job.uniforms)
            # Never beyond the window: with local attention, the position of the last key determines what is near.
            groups[min(-(-(len(job.ids) + job.steps) // _STEP) * _STEP, self.window)].append(job)
        for length, members in sorted(groups.items()):
            with PackedLayers(self.model):
                self._run(length, members)
            for job in members:
                job.past = None

    def _read(self, job: Job) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a job's tokens, and the logits of the next one."""
        if not 0 < job.shared < len(job.ids):
            return read(self.model, job.ids)
        beginning = tuple(job.ids[: job.shared])
        known = self._prefixes.pop(beginning, None)
        if known is None:
            known, _ = read(self.model, beginning)
        self._prefixes[beginning] = known
        while len(self._prefixes) > _PREFIXES:
            self._prefixes.popitem(last=False)
        return read(self.model, job.ids[job.shared :], known)

    def _run(self, length: int, jobs: list[Job]) -> None:
        """Finish jobs of one key length, keeping every slot of a pass filled while there is work."""
        ahead = list(reversed(jobs))
        waiting = self._open(ahead.pop())
        first = jobs[0].past
        assert first is not None
        row_bytes = first[:, :, :, 0].nbytes * length
        slots = Slots(self.model, max(4, min(self.batch, self.cache_mb * 2**20 // row_bytes)), length, first)
        held: list[_Branch | None] = [None] * slots.count
        while True:
            for slot in range(slots.count):
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
            tokens, places = [0] * slots.count, [0] * slots.count
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

    def _open(self, job: Job) -> list[_Branch]:
        """Process a request's text, and draw every sample's first token."""
        job.past, logits = self._read(job)
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
            if (over := self.ends(token)) or step + 1 == job.steps:
                if not over:
                    job.cut.update(child.samples.tolist())
                text = self.finished(child.tokens)
                for sample in child.samples:
                    job.texts[sample] = text
            else:
                children.append(child)
        return children
