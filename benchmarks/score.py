"""How fast a causal LM scores prompts on a classification task, with and without each exact saving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

_WORDS = {"0": "terrible", "1": "great"}
_LENGTH = 5
_NOTE = (
    "Prompts of five tokens without a common beginning. Inputs are reviews of rotten-tomatoes. 'plain' is the "
    "formulation of the released code: whole strings, logits of the whole vocabulary "
    "at every position. 'careful' is what a careful user of transformers would run: padded on the left, logits of the "
    "last position only. Ratios of one run on one machine."
)


def measure(
    model: str = "smollm2", inputs: int = 32, prompts: int = 32, device: str = "cpu", precision: Any = None
) -> dict[str, Any]:
    """Prompts per second for each stage of savings, their ratios, and the largest difference in a probability."""
    import torch

    from pinprompt.models.label_text import Frame
    from pinprompt.models.labels import CausalLabels
    from pinprompt.models.loading import load_causal_lm

    lm, tokenizer = load_causal_lm(model, device, precision=precision)
    texts = _texts(inputs)
    apart = _apart(tokenizer, max(6, prompts // 6))
    frames = {text: Frame("", " " + text.strip()) for text in apart}
    labels = CausalLabels(lm, tokenizer, _WORDS, Frame("", " it"))
    whole = CausalLabels(lm, tokenizer, _WORDS, Frame("", " it"), share=False)
    few = apart[:3]

    plain_answers: list[Any] = []
    rates = {"plain": _rate(lambda: plain_answers.extend(_plain(labels, texts, frames[p]) for p in few), len(few))}
    careful_answers: list[Any] = []
    rates["careful"] = _rate(lambda: careful_answers.extend(_careful(labels, texts, frames[p]) for p in few), len(few))
    given = whole.prepare(texts)
    rates["last position and label words only"] = _rate(
        lambda: whole.log_probs([frames[p] for p in apart], given), len(apart)
    )
    kept = labels.prepare(texts, keep=True)
    begin = time.perf_counter()
    answers = labels.log_probs([frames[p] for p in few], kept)
    reading = time.perf_counter() - begin
    rates["inputs read once"] = _rate(lambda: labels.log_probs([frames[p] for p in apart], kept), len(apart))
    difference = max(
        float((a.exp() - b).abs().max())
        for others in (plain_answers, careful_answers)
        for a, b in zip(answers, others, strict=True)
    )
    return {
        "model": model,
        "inputs": inputs,
        "prompts": prompts,
        "threads": torch.get_num_threads(),
        "prompts_per_second": rates,
        "speedups": {name: rate / rates["plain"] for name, rate in rates.items()},
        "speedup": rates["inputs read once"] / rates["plain"],
        "speedup_to_careful": rates["inputs read once"] / rates["careful"],
        "seconds_to_read_inputs_and_first_prompts": reading,
        "largest_difference": difference,
        "gradient_speedup": _gradient_speedup(labels, texts) if precision is None else None,
        "note": _NOTE,
    }


def _gradient_speedup(labels: Any, texts: Sequence[str]) -> float:
    """The speedup of a gradient at prompt vectors when the texts are read once, against whole strings."""
    import torch

    from pinprompt.models.labels import around_vectors
    from pinprompt.models.passes import logits_of

    sides: list[tuple[list[int], list[int]]] = [(ids, []) for ids in labels.encoder.ids(texts)]
    start = labels.model.get_input_embeddings().weight[:_LENGTH].detach()

    def gradient(logits: Callable[[torch.Tensor], torch.Tensor]) -> None:
        vectors = start.clone().requires_grad_(True)
        torch.autograd.grad(torch.log_softmax(logits(vectors), -1)[:, 0].sum(), vectors)

    def whole(vectors: torch.Tensor) -> torch.Tensor:
        given, sizes = around_vectors(labels.model, vectors, sides)
        return logits_of(labels.model, sizes[:, None] - 1, labels.words.firsts, **given)[:, 0]

    def kept(vectors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = labels.vector_logits(vectors, sides, labels.words.firsts)
        return found

    gradient(kept)  # reads the texts
    return _rate(lambda: gradient(kept), 1) / _rate(lambda: gradient(whole), 1)


def _plain(labels: Any, texts: Sequence[str], frame: Any) -> Any:
    """Label probabilities as in the released code: every position, the whole vocabulary, one padded batch."""
    import torch

    from pinprompt.models.labels import padded

    rows = labels.encoder.ids([frame.around(text)[0] for text in texts])
    given, sizes = padded(rows, 0, labels.model.device)
    with torch.no_grad():
        logits = labels.model(**given).logits
    last = logits[torch.arange(len(rows)), sizes - 1]
    return torch.softmax(last[:, list(labels.words.firsts)].float(), -1).cpu()


def _careful(labels: Any, texts: Sequence[str], frame: Any) -> Any:
    """The same as a careful user of transformers would write it: left padding, the last position's logits only."""
    import torch

    rows = labels.encoder.ids([frame.around(text)[0] for text in texts])
    longest = max(map(len, rows))
    pad = labels.encoder.tokenizer.pad_token_id or 0
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    device = labels.model.device
    with torch.no_grad():
        logits = labels.model(
            input_ids=ids.to(device), attention_mask=mask.to(device), position_ids=places.to(device), logits_to_keep=1
        ).logits
    return torch.softmax(logits[:, -1, list(labels.words.firsts)].float(), -1).cpu()


def _rate(work: Callable[[], object], prompts: int) -> float:
    begin = time.perf_counter()
    work()
    return prompts / (time.perf_counter() - begin)


def _texts(count: int) -> list[str]:
    from pinprompt.data import datasets

    found = datasets.load("rotten-tomatoes")
    return [example.text for example in (*found.train, *found.dev, *(found.test or []))][:count]


def _apart(tokenizer: Any, count: int) -> list[str]:
    """Prompts without a common beginning."""
    words = _whole_words(tokenizer)
    return [" " + " ".join(words[(5 * i + j) % len(words)] for j in range(5)) for i in range(count)]


def _whole_words(tokenizer: Any) -> list[str]:
    """Words of one token each, so that every prompt has five tokens."""
    text = (
        "this overall film feels really quite very the whole thing was just so truly rather it is all in that movie "
        "more and some good then what one about story like time man life way new old long short high low first last "
        "well made here there just only even also still always never often again"
    )
    words = list(dict.fromkeys(text.split()))
    return [word for word in words if len(tokenizer(" " + word, add_special_tokens=False)["input_ids"]) == 1]
