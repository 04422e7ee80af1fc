"""Ratings of prompts by a vision model: relevance and interpretability from 1 to 5, stored in the run folders."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt.answers.budget import Budget
from pinprompt.errors import BudgetSpent, ModelError, SettingError
from pinprompt.files import write_json
from pinprompt.folder.reading import read_run
from pinprompt.judges.vision import CaptionMarks, Summary, VisionAnswer, VisionJudge, VisionModel, summarise
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.reports.entries import find_runs
from pinprompt.reports.report import write_report
from pinprompt.run import consent
from pinprompt.run.running import recipe_of, result_of

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


@dataclass
class JudgedRun:
    """A run with the ratings of its prompts, the one found first; `images` are the names of its pictures."""

    folder: Path
    method: str
    images: tuple[str, ...]
    found: str
    prompts: tuple[str, ...]
    pictures: tuple[Picture, ...] = field(repr=False)
    opinions: list[Opinion] = field(default_factory=list)

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
    stopped: str = ""
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
    runs: Sequence[Path | str] | Path | str, model: str, *, top: int = 1, settings: Mapping[str, Any] | None = None,
    memo: bool = True, notes: Callable[[str], None] = lambda note: None,
) -> Judgement:  # fmt: skip
    """Rate the prompts of inversion runs with a remote vision model: relevance and interpretability (1 to 5).

    `runs` are run folders or folders of them; `model` is 'remote:<name>'; `top` prompts of each run are rated, the one
    found first. `settings` may have the recipe sections `remote` (the server) and `budget` (the limits), such as
    `{"remote": {"base_url": ...}, "budget": {"calls": 50}}`. Answers are stored across runs unless `memo` is False. If
    the budget is spent, it returns the ratings so far.
    """
    from pinprompt.answers.memo import Memo
    from pinprompt.models.cache import home
    from pinprompt.remote.client import open_client
    from pinprompt.remote.generator import RemoteJudge

    # Server and limits only come from the caller: an untrusted run folder must not decide where the key and the picture
    # are sent.
    chosen = _sections(settings or {})
    asked = [_read(folder, top) for folder in find_runs(*([runs] if isinstance(runs, str | Path) else runs))]
    if not asked:
        raise SettingError("no runs to rate: name run folders, or a folder that contains them")
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
        before = _costs(judging)
        try:
            for prompt, picture in itertools.product(run.prompts, run.pictures):
                run.opinions.append(Opinion(prompt, picture.path.name, judging.judge(prompt, picture.image)))
        except BudgetSpent as spent:
            stopped = str(spent)
        if run.opinions:
            pairs = [(name, before[name], after) for name, after in _costs(judging).items()]
            judged.append(run)
            _keep(run, limited.name, {name: None if a is None or b is None else b - a for name, a, b in pairs})
        if stopped:
            break
    failures = [one.verdict.failure for run in judged for one in run.opinions if one.verdict.rating is None]
    if failures and len(failures) == sum(len(run.opinions) for run in judged):
        raise ModelError(f"no prompt could be rated; the first failure: {failures[0]}")
    return Judgement(limited.name, tuple(judged), _by_method(judged), _costs(judging), stopped)


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


def _read(folder: Path, top: int) -> JudgedRun:
    """Everything that the judge sees of a run; read before the first question, so that a mistake costs nothing."""
    from pinprompt.models.images import load_pictures

    recipe, result = recipe_of(folder), result_of(folder)
    if recipe.task.kind != "inversion":
        raise SettingError(f"{folder} is a {recipe.task.kind} run; only inversion runs can be judged")
    best = [result.prompt, *(str(row.get("prompt", "")) for row in result.top)]
    prompts = tuple(dict.fromkeys(prompt for prompt in best if prompt.strip()))[:top]
    if not result.prompt.strip():
        raise SettingError(f"{folder} has no prompt to judge; leave it out")
    consent.agree(recipe, folder)  # the folder's pictures are sent to the judge
    pictures = tuple(load_pictures(recipe.task.images))
    return JudgedRun(folder, recipe.method, recipe.task.images, result.prompt, prompts, pictures)


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
    others = [one for one in read_run(run.folder, events=False).judgements if one.get("model") != model]
    rows = {"model": model, "opinions": [one.data() for one in run.opinions], "costs": dict(costs)}
    write_json(run.folder / FILE, {"judgements": [*others, rows]})
    write_report(run.folder)
