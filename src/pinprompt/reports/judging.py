"""Ratings of prompts by a vision model: relevance and interpretability from 1 to 5, stored in the run folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt.answers.budget import Budget
from pinprompt.errors import BudgetSpent, ModelError, SettingError
from pinprompt.judges.vision import CaptionMarks, Summary, VisionAnswer, VisionJudge, VisionModel, summarise
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.run import consent

if TYPE_CHECKING:
    from pinprompt.models.images import Picture

FILE = "judgements.json"
SECTIONS = ("remote", "budget")
PICTURE_TOKENS = 32_768
"""Tokens reserved for a picture of at most 1024 pixels per side; the largest known count is 25,501."""


@dataclass(frozen=True)
class Opinion:
    """The rating of one prompt as a caption of one picture."""

    prompt: str
    picture: str
    verdict: CaptionMarks

    def data(self) -> dict[str, Any]:
        """The row in judgements.json."""
        marks = {"relevance": None, "interpretability": None}
        if self.verdict.rating is not None:
            marks = self.verdict.rating.model_dump()
        return {"prompt": self.prompt, "picture": self.picture, **marks, "failure": self.verdict.failure}


@dataclass(frozen=True)
class InversionRun:
    """A run whose prompts can be rated; `images` are the names of its pictures."""

    folder: Path
    method: str
    images: tuple[str, ...]
    found: str


@dataclass(frozen=True)
class JudgedRun(InversionRun):
    """A run with the ratings of its prompts, the one found first."""

    opinions: tuple[Opinion, ...]

    @property
    def summary(self) -> Summary:
        """The ratings of the prompt found: the mean over the run's pictures."""
        return self.of(self.found)

    def of(self, prompt: str) -> Summary:
        """The ratings of one of its prompts."""
        return summarise([one.verdict for one in self.opinions if one.prompt == prompt])


@dataclass(frozen=True)
class Judgement:
    """All rated runs, the mean of each method over the image set with its standard error, and the cost."""

    model: str
    runs: tuple[JudgedRun, ...]
    methods: Mapping[str, Summary]
    costs: Mapping[str, float | None]
    stopped: str = field(default="")
    """Why some runs were not rated; empty if all were."""

    def data(self) -> dict[str, Any]:
        """As JSON values."""
        rows = [
            {
                "run": str(run.folder),
                "method": run.method,
                "prompt": run.found,
                "relevance": run.summary.relevance,
                "interpretability": run.summary.interpretability,
                "opinions": [one.data() for one in run.opinions],
            }
            for run in self.runs
        ]
        methods = {name: asdict(summary) for name, summary in self.methods.items()}
        return {
            "model": self.model, "runs": rows, "methods": methods, "costs": dict(self.costs),
            "stopped": self.stopped,
        }  # fmt: skip


def judge(
    runs: Sequence[Path | str], model: str, *, top: int = 1, settings: Mapping[str, Any] | None = None,
    memo: bool = True, notes: Callable[[str], None] = lambda note: None,
) -> Judgement:  # fmt: skip
    """Rate the prompts of inversion runs with a remote vision model.

    `runs` are run folders or folders of them; `model` is 'remote:<name>'; `top` prompts of each run are rated, the one
    found first. `settings` may have the recipe sections `remote` (the server) and `budget`. Answers are stored across
    runs unless `memo` is False. If the budget is spent, it returns the ratings so far.
    """
    from pinprompt.answers.memo import Memo
    from pinprompt.models.cache import home
    from pinprompt.remote.client import open_client
    from pinprompt.remote.generator import RemoteJudge

    # Server and limits only come from the caller: an untrusted run folder must not decide where the key and the picture
    # are sent.
    chosen = _sections(settings or {})
    asked = [_read(folder, top) for folder in _folders(runs)]
    client = open_client(model, chosen.remote)
    budget = Budget(chosen.budget)
    limited = _Limited(RemoteJudge(client), budget, 2 * (1 + client.resends))
    budget.price(limited.name, 0, 0)  # a limit on money without a price is an error before anything is sent
    kept = Memo(home() / "memo.sqlite", warn=notes) if memo else None
    judging = VisionJudge(limited, kept, chosen.budget.prices.get(limited.name))
    judged: list[JudgedRun] = []
    stopped = ""
    for place, run in enumerate(asked):
        notes(f"[{place + 1}/{len(asked)}] {run.folder}: {run.found!r}")
        before, opinions = _costs(judging), []
        try:
            for opinion in _ask(run, judging):
                opinions.append(opinion)
        except BudgetSpent as spent:
            stopped = str(spent)
        if opinions:
            pairs = [(name, before[name], after) for name, after in _costs(judging).items()]
            spent_here = {name: None if a is None or b is None else b - a for name, a, b in pairs}
            judged.append(JudgedRun(run.folder, run.method, run.images, run.found, tuple(opinions)))
            _keep(judged[-1], limited.name, spent_here)
        if stopped:
            break
    failures = [one.verdict.failure for run in judged for one in run.opinions if one.verdict.rating is None]
    if failures and len(failures) == sum(len(run.opinions) for run in judged):
        raise ModelError(f"no prompt could be rated; the first failure: {failures[0]}")
    return Judgement(limited.name, tuple(judged), _by_method(judged), _costs(judging), stopped)


@dataclass(frozen=True)
class _Asked(InversionRun):
    """A run to be rated."""

    prompts: tuple[str, ...]
    pictures: tuple[Picture, ...]


class _Limited:
    """A vision model whose questions are only sent if the budget covers their maximum cost."""

    def __init__(self, model: VisionModel, budget: Budget, tries: int) -> None:
        self.name, self._model, self._budget, self._tries = model.name, model, budget, tries

    def ask_image(self, text: str, image: bytes, schema: Mapping[str, Any]) -> VisionAnswer:
        """Reserve, ask, and charge what was used."""
        from pinprompt.remote.generator import RATING_TOKENS

        tokens = len(text.encode()) + len(json.dumps(schema)) + PICTURE_TOKENS
        held = self._budget.reserve(1, tokens * self._tries, RATING_TOKENS * self._tries, self.name)
        try:
            answer = self._model.ask_image(text, image, schema)
        except BaseException:
            self._budget.settle(held)  # it may have been billed: the maximum is charged
            raise
        self._budget.settle(held, 1, answer.tokens_in, answer.tokens_out)
        return answer


def _sections(settings: Mapping[str, Any]) -> Recipe:
    for name in settings:
        if name not in SECTIONS:
            raise SettingError(f"judging has no setting '{name}'; it takes those of {' and '.join(SECTIONS)}")
    return recipes.resolve({"task": {"kind": "inversion"}, **settings})


def _folders(runs: Sequence[Path | str]) -> list[Path]:
    from pinprompt.reports.entries import find_runs

    found = list(dict.fromkeys(path for run in runs for path in find_runs(run) or [Path(run)]))
    if not found:
        raise SettingError("no runs to rate: name run folders, or a folder that contains them")
    return found


def _read(folder: Path, top: int) -> _Asked:
    """Everything that the judge sees of a run; read before the first question, so that a mistake costs nothing."""
    from pinprompt.models.images import load_pictures
    from pinprompt.run.running import recipe_of, result_of

    recipe, result = recipe_of(folder), result_of(folder)
    if recipe.task.kind != "inversion":
        raise SettingError(f"{folder} is a {recipe.task.kind} run; only inversion runs can be judged")
    best = [result.prompt, *(str(row.get("prompt", "")) for row in result.top)]
    prompts = tuple(dict.fromkeys(prompt for prompt in best if prompt.strip()))[:top]
    if not result.prompt.strip():
        raise SettingError(f"{folder} has no prompt to judge; leave it out")
    consent.agree(recipe, folder)  # the folder's pictures are sent to the judge
    pictures = tuple(load_pictures(recipe.task.images))
    return _Asked(folder, recipe.method, recipe.task.images, result.prompt, prompts, pictures)


def _ask(run: _Asked, judging: VisionJudge) -> Iterator[Opinion]:
    for prompt in run.prompts:
        for picture in run.pictures:
            yield Opinion(prompt, picture.path.name, judging.judge(prompt, picture.image))


def _costs(judging: VisionJudge) -> dict[str, float | None]:
    """The cost so far; money is None if the price is not known."""
    return {name: getattr(judging, name) for name in ("calls", "tokens_in", "tokens_out", "money")}


def _by_method(judged: Sequence[JudgedRun]) -> dict[str, Summary]:
    """Each method's mean over the image set; runs of the same pictures (other seeds) are averaged first."""
    found: dict[str, Summary] = {}
    for method in sorted({run.method for run in judged}):
        pairs = [
            (one.verdict, run.images)
            for run in judged
            if run.method == method
            for one in run.opinions
            if one.prompt == run.found
        ]
        found[method] = summarise([verdict for verdict, _ in pairs], [images for _, images in pairs])
    return found


def _keep(run: JudgedRun, model: str, costs: Mapping[str, float | None]) -> None:
    """Write a run's judgements (those of other models stay, by name) and its report."""
    from pinprompt.files import write_json
    from pinprompt.folder.reading import read_run
    from pinprompt.reports.report import write_report

    others = [one for one in read_run(run.folder, events=False).judgements if one.get("model") != model]
    rows = {"model": model, "opinions": [one.data() for one in run.opinions], "costs": dict(costs)}
    write_json(run.folder / FILE, {"judgements": [*others, rows]})
    write_report(run.folder)
