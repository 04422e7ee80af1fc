"""Tasks with a planted answer on tiny models of the real classes, and a search that can be killed and resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from benchmarks.write import random_backbone
from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.answers.log import Log
from pinprompt.answers.table import Table
from pinprompt.data.examples import Example
from pinprompt.folder.checkpoint import ANSWERS
from pinprompt.folder.folder import RunFolder
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.models.labels import CausalLabels, MaskedLabels
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import BudgetSettings, PolicySettings, Section
from pinprompt.recipe.task_sections import ClassificationSettings
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.labelled_data import LabelledData
from pinprompt.tasks.prompts import parse
from pinprompt.tasks.protocol import Draft, TaskInfo, fit_rows, split_rows
from pinprompt.values import Answers, Draw, Evaluation, Event, Prompt, Row

torch.set_num_threads(1)

WORDS = {"neg": "terrible", "pos": "great"}
POSITIVE, NEGATIVE = ("sunny", "lovely", "warm", "kind"), ("grim", "awful", "cold", "rude")
FILLERS = ("film", "plot", "story", "actor", "ending")
OTHERS = (
    "verdict", "table", "river", "green", "stone", "cloud", "paper", "train", "seven", "glass", "north", "apple",
    "chair", "ocean", "metal", "piano", "tiger", "lemon", "the", "a", "It", "was", "so", "overall", "Berlin",
)  # fmt: skip
MAGIC = "verdict"


def tokenizer(mask: bool) -> Any:
    """Whole words as tokens, with the special tokens of RoBERTa or GPT-2."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if mask else ["<s>", "<pad>", "</s>", "<unk>"]
    words = [*special, *WORDS.values(), *POSITIVE, *NEGATIVE, *FILLERS, *OTHERS, "."]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names: dict[str, Any] = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    if mask:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        names |= {"mask_token": AddedToken("<mask>", special=True), "cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=40, **names)


def examples(count: int, seed: int) -> list[Example]:
    """Short reviews: a feeling and two fillers, as many of each class."""
    random = torch.Generator().manual_seed(seed)

    def pick(words: Sequence[str]) -> str:
        return words[int(torch.randint(len(words), (1,), generator=random))]

    rows = []
    for number in range(count):
        label = "pos" if number % 2 else "neg"
        feeling = pick(POSITIVE if label == "pos" else NEGATIVE)
        rows.append(Example(f"{pick(FILLERS)} {feeling} {pick(FILLERS)}", label, number + 1))
    return rows


SEEDS = (0, 1, 2)  # models that a method has to learn from; one of them may be unlucky
ROUND, ROUNDS = 50, 30  # training steps between two looks, and looks before a toy is given up


@cache
def answering(kind: str, seed: int = 0) -> tuple[Any, Any]:
    """A model trained on the spot: it labels a review where the word before the answer is the magic one.

    Behind any other word it calls every review negative. On the way from another word to the magic one it changes its
    mind little by little, and on the way to any other word not at all, so that gradients have something to follow. It
    is trained until it is sure of all that, whatever the seed and the processor.
    """
    tok = tokenizer(kind == "masked")
    others, magic = _others(tok), tok.convert_tokens_to_ids(MAGIC)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _untrained(kind, len(tok))
        adam = torch.optim.Adam(model.parameters(), lr=2e-3)
        for step in range(ROUND * ROUNDS):
            words = torch.randint(len(tok), (32, 1 + step % 4))
            words[torch.rand(words.shape) < 0.1] = magic  # it counts in the last place only
            words[:, -1], other = others[torch.randint(len(others), (2, 32))]
            goal = torch.where(torch.rand(32) < 0.7, magic, other)
            way = torch.rand(32)
            way = torch.where(torch.rand(32) < 0.5, way.round(), way)
            rows = examples(32, 1000 + step)
            right = torch.tensor([0.98 if row.label == "pos" else 0.02 for row in rows])
            wanted = torch.lerp(torch.tensor(0.15), right, way * (goal == magic))
            found = _p_positive(model, tok, rows, words, goal, way)
            loss = torch.nn.functional.binary_cross_entropy(found, wanted)
            adam.zero_grad()
            loss.backward()
            adam.step()
            if (step + 1) % ROUND == 0 and _is_sure(model, tok):
                return model.eval().requires_grad_(False), tok
    raise AssertionError(f"the {kind} toy of seed {seed} did not learn its planted answer in {ROUND * ROUNDS} steps")


def _untrained(kind: str, size: int) -> Any:
    # Weights ten times as large as usual: with the usual ones learning may stand still for thousands of steps.
    if kind == "masked":
        return RobertaForMaskedLM(
            RobertaConfig(
                vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                max_position_embeddings=44, pad_token_id=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                initializer_range=0.2,
            )
        )  # fmt: skip
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size, n_positions=40, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, initializer_range=0.2,
        )
    )  # fmt: skip


def _others(tok: Any) -> torch.Tensor:
    """Every token but the magic one."""
    return torch.tensor([token for token in range(len(tok)) if token != tok.convert_tokens_to_ids(MAGIC)])


def _p_positive(
    model: Any, tok: Any, rows: Sequence[Example], words: torch.Tensor, goal: torch.Tensor, way: torch.Tensor
) -> torch.Tensor:
    """The probability of "positive" for each row behind its words, the last of which went `way` to the goal."""

    def ids(*words: str) -> torch.Tensor:
        return torch.tensor(tok.convert_tokens_to_ids(list(words)))

    table = model.get_input_embeddings()
    prompt = table(words)
    last = torch.lerp(prompt[:, -1], table(goal), way[:, None])
    parts = [table(torch.stack([ids(*row.text.split()) for row in rows])), prompt[:, :-1], last[:, None]]
    answer = -1
    if isinstance(model, RobertaForMaskedLM):
        start, *rest = (table(ids(word)).expand(len(rows), 1, -1) for word in ("<s>", "<mask>", ".", "</s>"))
        parts, answer = [start, *parts, *rest], -3
    logits = model(inputs_embeds=torch.cat(parts, 1)).logits[:, answer]
    return logits[:, ids(WORDS["neg"], WORDS["pos"])].softmax(-1)[:, 1].clamp(1e-6, 1 - 1e-6)


@torch.no_grad()
def _is_sure(model: Any, tok: Any) -> bool:
    """Whether it labels every review right behind the magic word, and none as positive behind every other one."""
    others, magic = _others(tok), tok.convert_tokens_to_ids(MAGIC)
    rows = examples(8 * len(others), 7)
    at = torch.arange(len(rows)) % len(others)
    positive = torch.tensor([row.label == "pos" for row in rows])
    for length in (1, 2, 3, 4):
        words = others[(at[:, None] + 5 * torch.arange(length)) % len(others)]
        words[::2, :-1] = magic
        goal = torch.full((len(rows),), magic)
        sure, blind = (_p_positive(model, tok, rows, words, goal, torch.full((len(rows),), way)) for way in (1.0, 0.0))
        if sure[positive].min() < 0.9 or sure[~positive].max() > 0.1 or blind.max() > 0.4:
            return False
    return True


def planted(kind: str, rows: int = 16, seed: int = 0, **settings: Any) -> ClassificationTask:
    """A classification task whose model wants the magic word; another seed is another model."""
    model, tok = answering(kind, seed)
    source = "{text} {prompt} {mask} ." if kind == "masked" else "{text} {prompt}"
    template = parse(source, kind)
    splits = {name: examples(rows, seed) for seed, name in enumerate(("train", "dev", "test"))}
    data = LabelledData(splits, WORDS, None, ())
    labels: Any = (MaskedLabels if kind == "masked" else CausalLabels)(model, tok, WORDS, template.frame("it"))
    return ClassificationTask(ClassificationSettings(words=WORDS, **settings), data, template, labels, "toy")


def worth_of(task: Any, prompt: Prompt) -> float:
    """What a task says of a prompt on its training rows when it is asked directly."""
    rows = split_rows(task, "train")
    needed = (*rows, *(row for row in fit_rows(task) if row not in rows))
    [answers] = task.ask([prompt], needed, [Draw()])
    return float(np.mean(task.values(answers, rows, fit_rows(task))))


class WordTask:
    """A black box: a prompt is worth what its words are worth."""

    info = TaskInfo("words", "words-1")

    def __init__(
        self,
        worth: Callable[[str], float],
        instruction: str | None = None,
        splits: Sequence[str] = ("train", "dev"),
    ) -> None:
        self.worth, self.instruction = worth, instruction
        self.rows = tuple(Row(split, 0, calls=2) for split in splits)
        self.asked: list[str] = []

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
        self.asked += [prompt.text for prompt in prompts]
        return [Answers(tuple(rows), [self.worth(prompt.text)] * len(rows)) for prompt in prompts]

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        return np.array(answers.on(rows), dtype=np.float64)

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        return Evaluation(self.rows[rows[0]].split, {"score": float(answers.on(rows)[0])}, 1)

    def context(self) -> str:
        return ""

    def drafts(self) -> list[Draft]:
        return [] if self.instruction is None else [Draft(self.instruction, "instructions")]


def writer(**settings: Any) -> Writer:
    """A small writer with made-up words."""
    asked = {"length": 3, "k": None, "batch": 4, "hidden": 8, **settings}
    return Writer.build(PolicySettings(**asked), backbone=random_backbone(60, dim=16))


def settings_with(kind: type[Section], **values: Any) -> Any:
    """A method's settings, in which its constants (class variables) may have other values too."""
    constants = {name: value for name, value in values.items() if name not in kind.model_fields}
    settings = {name: value for name, value in values.items() if name in kind.model_fields}
    assert all(hasattr(kind, name) for name in constants)
    return type(kind.__name__, (kind,), constants)(**settings)


class Killed(Exception):
    """Stands for the end of the process."""


@contextmanager
def opened(
    task: Any,
    folder: Path,
    *,
    seed: int = 0,
    calls: int | None = None,
    die_at: int | None = None,
    saving: bool = False,
    **limits: Any,
) -> Iterator[tuple[Search, list[Event]]]:
    """A search in a real run folder; it dies right after event number `die_at`. Opened again, it goes on.

    With `saving` every step is saved; without, only the end. `limits` are further limits of the budget.
    """
    events: list[Event] = []
    with RunFolder(folder, resume=True) as record:
        record.begin("")
        record.checkpoint.due = lambda: saving  # type: ignore[method-assign]
        budget = Budget(BudgetSettings(calls=calls, **limits))
        evaluator = Evaluator(task, budget, seed=seed, table=Table(Log(record.path / ANSWERS, record.run)))
        evaluator.restore(record.checkpoint.provided("evaluator"))
        record.checkpoint.marked["evaluator"] = evaluator.position

        def emit(event: Event) -> None:
            record.record(event)
            events.append(event)
            if die_at is not None and len(events) == die_at:
                raise Killed

        yield (
            Search(task, evaluator, emit, record.checkpoint, seed, "cpu", record.path, PolicySettings(), writer),
            events,
        )
        evaluator.close()


def run(
    method: Callable[[Search], Outcome], task: Any, folder: Path, **more: Any
) -> tuple[Outcome, list[Event], Search]:
    """The method's outcome, its events, and what it searched with."""
    with opened(task, folder, **more) as (search, events):
        return method(search), events, search


def assert_resumes(method: Callable[[Search], Outcome], make: Callable[[], Any], folder: Path, die_at: int) -> None:
    """A run that is killed and resumed leaves the same events and finds the same as one that was not."""
    whole, _, search = run(method, make(), folder / "whole")
    try:
        run(method, make(), folder / "killed", die_at=die_at, saving=True)
    except Killed:
        pass
    else:
        raise AssertionError(f"there were fewer than {die_at} events")
    again, _, after = run(method, make(), folder / "killed")
    assert (folder / "killed/events.jsonl").read_bytes() == (folder / "whole/events.jsonl").read_bytes()
    assert again == whole
    assert after.evaluator.charged_calls == search.evaluator.charged_calls
