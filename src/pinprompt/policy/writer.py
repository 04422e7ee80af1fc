"""The writer of prompts: it samples, decodes greedily and explains, with Q = W psi(e) over the kept tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinprompt.errors import SettingError
from pinprompt.maths.entropy import Entropy, policy, value
from pinprompt.policy.adapter import Adapter
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.prefix_tree import PrefixTree
from pinprompt.policy.reader import Prefix, Reader
from pinprompt.policy.vocabulary import Ignorable, Vocabulary
from pinprompt.recipe.sections import PolicySettings
from pinprompt.values import Prompt, derive

Choose = Callable[[list[Prefix], Tensor, Tensor], Tensor]
"""From n prefixes, states [batch, d] (padded) and masks [n, V] to probabilities [n, V]."""


@dataclass(frozen=True)
class Written:
    """Prompts, and for each position the mean number of tokens with a probability above 0."""

    prompts: list[Prompt]
    support: list[float]


class Writer:
    """The policy: frozen backbone, tree of prefixes, vocabulary, and psi, which the learner trains in place."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, tree: PrefixTree, psi: Adapter) -> None:
        self.backbone, self.vocabulary, self.tree, self.psi = backbone, vocabulary, tree, psi
        self.length, self.batch = tree.reader.length, tree.reader.batch

    @classmethod
    def build(
        cls,
        settings: PolicySettings,
        context: str = "",
        seed: int = 0,
        device: str = "cpu",
        backbone: Backbone | None = None,
        tree: bool = True,
    ) -> Writer:
        """A writer from its settings; `context` is a text, and `tree=False` reads every prefix again each time."""
        backbone = backbone or Backbone.load(settings.model, device)
        vocabulary = Vocabulary(
            backbone.tokenizer, backbone.vocabulary_size, settings.length, settings.constraints, backbone.texts
        )
        vocabulary.check()
        ignorable = Ignorable(backbone, vocabulary, settings.k)
        reader = Reader(backbone, backbone.start(context), settings.length, settings.batch)
        prefixes = PrefixTree(reader, ignorable.kept, backbone.vocabulary_size, settings.tree_mb, tree)
        psi = Adapter(backbone.dim, settings.hidden, derive(seed, "psi")).to(device)
        return cls(backbone, vocabulary, prefixes, psi)

    def states(self, prefixes: Sequence[Prefix]) -> Tensor:
        """States e [n, d] of prefixes shorter than a prompt."""
        return self.tree.states(prefixes)

    def allowed(self, prefixes: Sequence[Prefix]) -> Tensor:
        """The tokens that the constraints allow, without the filter, bool [n, V]."""
        return torch.stack([self.vocabulary.allowed(prefix) for prefix in prefixes]).to(self.backbone.device)

    @torch.no_grad()
    def q(self, states: Tensor) -> Tensor:
        """Q/alpha of all tokens, [n, V] from [n, d], without a gradient: W psi(e), in passes of `batch` prefixes."""
        found = [self.backbone.over_vocabulary(self.psi(part)) for part in self._passes(states)]
        return (found[0] if len(found) == 1 else torch.cat(found))[: len(states)]

    def sample(
        self,
        count: int,
        generator: torch.Generator,
        entropy: Entropy = "tsallis",
        top_q: int | None = None,
        logit_bias: float = 0.0,
        filtered: bool = True,
        explore: float = 0.0,
    ) -> Written:
        """Prompts drawn from the policy; `filtered=False` disables the filter of unlikely tokens.

        `explore` is the share of tokens that are instead drawn uniformly from all allowed ones.
        One number per prompt and position is drawn in advance, so that the draw depends only on the generator.
        """

        def choose(prefixes: list[Prefix], states: Tensor, masks: Tensor) -> Tensor:
            z = self.q(states)
            if logit_bias:
                z.add_(logit_bias)
            z = z[: len(prefixes)]
            return policy(z, entropy, masks if top_q is None else _largest(z, masks, top_q))

        return self._write(choose, self._numbers(count, generator), filtered, explore)

    def greedy(self) -> Prompt:
        """The prompt of the most likely tokens: at each position, the kept token with the largest Q."""

        def choose(prefixes: list[Prefix], states: Tensor, masks: Tensor) -> Tensor:
            return _largest(self.q(states)[: len(prefixes)], masks, 1).float()

        # The number 0 selects the lowest id among ties.
        return self._write(choose, np.zeros((1, self.length)), True).prompts[0]

    def lm_sample(self, count: int, generator: torch.Generator, temperature: float = 1.0) -> list[Prompt]:
        """Prompts drawn from the frozen LM itself, under the same kept sets and constraints."""
        if temperature <= 0:
            raise SettingError(f"the temperature must be above 0, but is {temperature}")

        return self._write(self._by_lm(temperature), self._numbers(count, generator), True).prompts

    def lm_continue(
        self, starts: Sequence[Prefix], ends: Sequence[int], generator: torch.Generator, temperature: float = 1.0
    ) -> list[Prompt]:
        """Prompts that begin with the given ids, continued by the frozen LM, up to `ends` tokens each."""
        for start, end in zip(starts, ends, strict=True):
            if not len(start) < end <= self.length:
                raise SettingError(f"a prompt that begins with {len(start)} of {self.length} tokens cannot have {end}")
        numbers = self._numbers(len(starts), generator)
        return self._write(self._by_lm(temperature), numbers, True, starts=starts, ends=ends).prompts

    def _by_lm(self, temperature: float) -> Choose:
        def choose(prefixes: list[Prefix], states: Tensor, masks: Tensor) -> Tensor:
            logits = self.backbone.logprobs(states)[: len(prefixes)] / temperature
            return torch.softmax(logits.masked_fill(~masks, -torch.inf), dim=-1)

        return choose

    def lm_logprobs(self, prefixes: Sequence[Prefix]) -> Tensor:
        """The LM's log-probabilities of the next token, [n, V]; -inf for tokens that may not be written."""
        logprobs, kept = self.lm_next(prefixes)
        return logprobs.masked_fill(~kept, -torch.inf)

    def lm_next(self, prefixes: Sequence[Prefix]) -> tuple[Tensor, Tensor]:
        """The LM's log-probabilities of any next token, [n, V], and which of them may be written, bool [n, V]."""
        states, kept = self.tree.look(prefixes)
        return torch.cat([self.backbone.logprobs(part) for part in self._passes(states)])[: len(prefixes)], kept

    def prompt(self, ids: Iterable[int]) -> Prompt:
        ids = tuple(ids)
        return Prompt(self.vocabulary.text(ids), ids)

    def completed(self, ids: Prefix) -> Prefix:
        """A prefix followed by the required words that it lacks; this can be scored in place of the prefix."""
        missing = self.vocabulary.required.missing(self.vocabulary.text(ids))
        return (*ids, *(token for word in missing for token in word.ids))

    def explain(self, prompt: Prompt, entropy: Entropy = "tsallis") -> list[dict[str, Any]]:
        """For each token: its text, Q, the state's value, rank, probability, and the five best others with their Q."""
        if not 1 <= len(prompt.ids) <= self.length:
            raise SettingError(
                f"only prompts that this writer wrote can be explained; {prompt.text!r} has {len(prompt.ids)} ids, "
                f"where the writer has {self.length}"
            )
        prefixes = [prompt.ids[:place] for place in range(len(prompt.ids))]
        states, kept = self.tree.look(prefixes)
        found = []
        for place, token in enumerate(prompt.ids):
            q = self.q(states[place : place + 1])
            mask = kept[place : place + 1]
            pi, v = policy(q, entropy, mask), value(q, entropy, mask)
            best = torch.topk(q[0].masked_fill(~mask[0], -torch.inf), min(6, int(mask.sum())))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            found.append(
                {
                    "token": self.vocabulary.tokens.pieces[token],
                    "id": token,
                    "q": float(q[0, token]),
                    "v": float(v[0]),
                    "rank": 1 + int(((q[0] > q[0, token]) & mask[0]).sum()),
                    "probability": float(pi[0, token]),
                    "runners_up": [[self.vocabulary.tokens.pieces[i], v] for i, v in pairs if i != token][:5],
                }
            )
        return found

    def _numbers(self, count: int, generator: torch.Generator) -> Any:
        if count < 1:
            raise SettingError(f"the number of prompts to write must be at least 1, but is {count}")
        return torch.rand(count, self.length, generator=generator, dtype=torch.float64).numpy()

    def _write(
        self,
        choose: Choose,
        numbers: Any,
        filtered: bool,
        explore: float = 0.0,
        starts: Sequence[Prefix] | None = None,
        ends: Sequence[int] | None = None,
    ) -> Written:
        """Write one prompt per line of numbers [n, L]; each number selects a token from its cumulated distribution.

        `starts` are the ids that each prompt begins with (default: none), `ends` its number of tokens (default: L).
        Prompts are written in groups whose prefixes fit into the tree together; grouping does not change the result.
        """
        size = self.tree.prompts_at_once()
        starts = [()] * len(numbers) if starts is None else starts
        ends = [self.length] * len(numbers) if ends is None else ends
        parts = [slice(first, first + size) for first in range(0, len(numbers), size)]
        groups = [
            self._write_group(choose, numbers[part], filtered, explore, starts[part], ends[part]) for part in parts
        ]
        support = np.concatenate([group[1] for group in groups]).mean(axis=0)
        return Written([prompt for group in groups for prompt in group[0]], [float(mean) for mean in support])

    def _write_group(
        self,
        choose: Choose,
        numbers: Any,
        filtered: bool,
        explore: float,
        starts: Sequence[Prefix],
        ends: Sequence[int],
    ) -> tuple[list[Prompt], Any]:
        """Prompts and support sizes [n, L] of one group, position by position.

        If nothing may be written after a prefix (constraints can conflict), the prompt goes back one step and draws its
        last token again from the others.
        """
        ids = list(starts)
        support = np.zeros((len(numbers), self.length))
        dead: list[set[Prefix]] = [set() for _ in numbers]
        while unfinished := [place for place, prefix in enumerate(ids) if len(prefix) < ends[place]]:
            depth = min(len(ids[place]) for place in unfinished)
            level: dict[Prefix, list[int]] = {}
            for place in unfinished:
                if len(ids[place]) == depth:
                    level.setdefault(ids[place], []).append(place)
            for prefix, probabilities, open_to in self._distributions(choose, list(level), filtered):
                tokens = np.flatnonzero(probabilities > 0)  # booleans are counted ten times faster
                for place in level[prefix]:
                    number, shut = numbers[place, depth], {p[-1] for p in dead[place] if p[:-1] == prefix}
                    if number < explore:
                        token = _drawn(open_to, np.flatnonzero(open_to), number / explore, shut)
                    else:
                        token = _drawn(probabilities, tokens, (number - explore) / (1 - explore), shut)
                    if token is not None:
                        ids[place], support[place, depth] = (*prefix, token), len(tokens)
                    elif len(prefix) > len(starts[place]):
                        dead[place].add(prefix)
                        ids[place] = prefix[:-1]
                    else:
                        raise SettingError("no prompt meets all constraints together; loosen them")
        return [self.prompt(prefix) for prefix in ids], support

    def _distributions(
        self, choose: Choose, prefixes: list[Prefix], filtered: bool
    ) -> Iterator[tuple[Prefix, Any, Any]]:
        """Probabilities [V] and allowed tokens [V], on the CPU, `batch` prefixes at a time; all zero at a dead end."""
        states, kept = self.tree.look(prefixes) if filtered else (self.tree.states(prefixes), None)
        for first, part in zip(range(0, len(prefixes), self.batch), self._passes(states), strict=True):
            batch = prefixes[first : first + self.batch]
            masks = self.allowed(batch) if kept is None else kept[first : first + self.batch]
            alive = masks.any(dim=-1, keepdim=True)
            probabilities = choose(batch, part, masks if alive.all() else masks | ~alive)
            if not alive.all():
                probabilities = probabilities * alive
            yield from zip(batch, probabilities.cpu().numpy(), masks.cpu().numpy(), strict=True)

    def _passes(self, states: Tensor) -> Iterator[Tensor]:
        """Parts of `batch` states each, the last one padded."""
        for first in range(0, len(states), self.batch):
            yield _padded(states[first : first + self.batch], self.batch)


def _drawn(probabilities: Any, tokens: Any, number: float, shut: set[int]) -> int | None:
    """The token at which the cumulated probability exceeds a number in [0, 1); None if all tokens are shut."""
    if shut:
        tokens = np.array([token for token in tokens if int(token) not in shut], dtype=np.int64)
    if not len(tokens):
        return None
    cumulated = np.cumsum(probabilities[tokens], dtype=np.float64)
    place = int(np.searchsorted(cumulated, number * cumulated[-1], side="right"))
    return int(tokens[min(place, len(tokens) - 1)])


def _padded(states: Tensor, count: int) -> Tensor:
    """The first dimension padded to `count` by repeating the last state."""
    return states if len(states) == count else torch.cat([states, states[-1:].expand(count - len(states), -1)])


def _largest(z: Tensor, masks: Tensor, count: int) -> Tensor:
    """The masks reduced to the `count` largest z of each prefix, including ties."""
    masked = z.masked_fill(~masks, -torch.inf)
    threshold = torch.topk(masked, min(count, z.shape[-1]), dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    return masks & (masked >= threshold)
