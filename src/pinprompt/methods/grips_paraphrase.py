"""Who rewrites a phrase for GrIPS: the policy LM by default, a sequence-to-sequence model, or the user's function."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pinprompt.errors import SettingError
from pinprompt.methods.grips_phrases import load_function
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.writer import Writer

Paraphraser = Callable[[str, int, torch.Generator], list[str]]
"""From a phrase, how many rewritings are wanted, and a random stream, to rewritings (fewer where there are fewer)."""

PARAPHRASERS = ("writer", "pegasus", "seq2seq:MODEL", "module:function")

# A small LM goes on with a list better than it obeys an instruction.
_CONTEXT = """Every line says the same thing twice, in different words.
"you are given a text" -> "here is a text"
"the task is to decide" -> "your job is to tell"
"if the opinion is favourable" -> "when someone likes it"
"in the following sentence" -> "in the sentence below"
"based on its topic" -> "according to what it is about"
"{phrase}" -> \""""


def paraphraser_named(name: str, writer: Callable[[], Writer], device: str) -> Paraphraser:
    """The paraphraser of that name."""
    if name == "writer":
        return ByWriter(writer().backbone)
    kind, colon, what = name.partition(":")
    if name == "pegasus" or (kind == "seq2seq" and what):
        from pinprompt.models.paraphraser import Seq2SeqParaphraser

        return Seq2SeqParaphraser.load(what or name, device)
    if colon:
        function = load_function(name, "grips.paraphraser")

        def own(phrase: str, count: int, random: torch.Generator) -> list[str]:
            written = function(phrase)
            return [written] if isinstance(written, str) else [str(text) for text in written][:count]

        return own
    raise SettingError(f"there is no paraphraser '{name}' (grips.paraphraser); known: {', '.join(PARAPHRASERS)}")


class ByWriter:
    """The policy LM samples the end of a line whose beginning is the phrase, up to the closing quote."""

    def __init__(self, backbone: Backbone, temperature: float = 0.9, top: int = 40) -> None:
        self.backbone, self.temperature, self.top = backbone, temperature, top

    def __call__(self, phrase: str, count: int, random: torch.Generator) -> list[str]:
        """Different rewritings among `count` samples."""
        spare = phrase.replace('"', "'").strip()
        texts = self._sample(_CONTEXT.replace("{phrase}", spare), count, 2 * len(spare.split()) + 12, random)
        whole = [text.split('"')[0].strip() for text in texts if '"' in text]
        usable = [text for text in whole if text and "\n" not in text and text.lower() != spare.lower()]
        return list(dict.fromkeys(usable))

    def _sample(self, context: str, count: int, most: int, random: torch.Generator) -> list[str]:
        """Continuations, all rows together at one shape; every number is drawn up front for all rows and steps."""
        backbone = self.backbone
        start = backbone.start(context)
        room = getattr(backbone.config, "max_position_embeddings", None)
        most = most if room is None else min(most, int(room) - len(start))
        if most < 1:
            return []
        numbers = torch.rand(most, count, 1, generator=random, dtype=torch.float64)
        ids = torch.tensor([start] * count, device=backbone.device)
        cache = backbone.growing_cache() if backbone.incremental else None
        states = backbone.read(ids[:1], cache).expand(count, -1)
        if cache is not None:
            cache.batch_repeat_interleave(count)
        texts = [""] * count
        for step in range(most):
            if step:
                states = backbone.read(ids[:, -1:] if cache is not None else ids, cache)
            logprobs = backbone.logprobs(states).cpu().double() / self.temperature
            best = torch.topk(logprobs, min(self.top, logprobs.shape[-1]), dim=-1)
            cumulated = torch.softmax(best.values, dim=-1).cumsum(dim=-1)
            places = torch.searchsorted(cumulated, numbers[step] * cumulated[:, -1:], right=True)
            tokens = best.indices.gather(1, places.clamp(max=best.indices.shape[1] - 1)).to(backbone.device)
            ids = torch.cat([ids, tokens], dim=1)
            new = ids[:, len(start) :].tolist()
            texts = [backbone.tokenizer.decode(row, skip_special_tokens=False) for row in new]
            if all('"' in text or "\n" in text for text in texts):
                break
        return texts
