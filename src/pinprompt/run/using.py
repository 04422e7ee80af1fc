"""Using a finished run: evaluating its prompt, applying it to new texts, exporting it, and drawing pictures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pinprompt import wording
from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.errors import DataError, RunError, SettingError
from pinprompt.folder import reading
from pinprompt.folder.folder import is_run_file
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.run import build, consent, running
from pinprompt.run.running import recipe_of
from pinprompt.run.verdict import outcomes_of
from pinprompt.tasks.protocol import EMBEDDINGS, ENSEMBLE, Task, split_rows
from pinprompt.values import Evaluation, Prompt

if TYPE_CHECKING:
    from pinprompt.maths.readout import Readout


def silent(note: str) -> None:
    """Ignore notes."""


@dataclass(frozen=True)
class Labelled:
    """A labelled table: every column of the input, then label and probabilities, or the answer.

    Rows without a text are included, with an empty label or answer; `blank` has their positions. `output` is the file
    that was written, if any.
    """

    rows: list[dict[str, Any]]
    label_column: str
    text_column: str
    blank: list[str]
    output: Path | None = None

    @property
    def labels(self) -> list[str | None]:
        """The label or answer of each row; None for rows without a text."""
        return [row[self.label_column] for row in self.rows]


def evaluate(
    run: Path | str, *, task_models: Sequence[str] = (), split: str = "test", prompt: str | None = None,
    test: Any = None, text_column: str | None = None, label_column: str | None = None,
    device: str | None = None, threads: int | None = None, notes: Callable[[str], None] = silent,
) -> dict[str, Evaluation]:  # fmt: skip
    """Evaluate a run's prompt or ensemble (or another prompt) on a split, with the run's task model or with others.

    `test` is a file of labelled examples (or a data frame) to evaluate a classification run on instead; the run's own
    data are then only read if another model or prompt needs them for calibration. `notes` is called with a message if
    the run's data are read and have changed, or if the search has used texts of the file.
    """
    build.set_threads(threads)
    device = build.choose_device(device)
    recipe, found = running.with_found_files(recipe_of(run), Path(run)), running.result_of(Path(run)).data
    asked = Prompt(found["prompt"] if prompt is None else prompt)
    # A readout is valid for one prompt and one model: others are measured on the same training rows.
    members = [] if prompt is not None or task_models else members_of(run)
    readout = members[0].readout if members else None
    readouts = [one.readout for one in members if one.readout is not None]
    words = words_of(members)
    evaluations = {}
    for model in task_models or (getattr(recipe.task, "model", recipe.task.kind),):
        changed = recipe
        if task_models:
            if "model" not in type(recipe.task).model_fields:
                raise SettingError(f"a {recipe.task.kind} task has no model to replace; remove --task-model")
            changed = recipe.model_copy(update={"task": recipe.task.model_copy(update={"model": model})})
        measures = getattr(changed.task, "labels", "words") != "words" and readout is None
        consent.agree(changed, run, reads=test is None or measures)
        if test is not None:
            task = _with_notes(_task_on(changed, test, text_column, label_column, readout, words, device))
            if seen := _seen(Path(run), task):
                notes(f"{seen} of these {len(split_rows(task, 'test'))} texts were used by the search: too optimistic")
        else:
            try:
                task = _with_notes(build.build_task(changed, device, readout=readout, words=words))
            except DataError as error:
                if recipe.task.kind != "classification":
                    raise
                raise DataError(
                    f"{error}; without a file, `evaluate` reads the run's own data again: restore the files, or name "
                    "labelled rows with --test FILE (test= in Python)"
                ) from None
            if not task_models and found.get("fingerprint") not in (None, task.info.fingerprint):
                notes(
                    "the data or the model has changed since the run: these numbers are not those of its report "
                    f"({data_of(recipe)})"
                )
        evaluator = Evaluator(task, Budget(BudgetSettings()))
        together = None
        if len(members) > 1:
            together = evaluator.evaluate_together([one.prompt for one in members], split, readouts=readouts)
        evaluations[str(model)] = together or evaluator.evaluate([asked], split)[0]
    return evaluations


LOW = 0.7
"""Rows whose label has a lower probability are unsure."""


def predict(
    run: Path | str, texts: Sequence[str], *, model: Callable[..., Any] | None = None, unsure: bool = False,
    with_embeddings: bool = False, device: str | None = None, threads: int | None = None,
    notes: Callable[[str], None] = silent,
) -> list[dict[str, Any]]:  # fmt: skip
    """Label or answer new texts with the prompt that a run found, or with its ensemble.

    One dictionary per text, as in `pinprompt predict --json`: `text`, `label` and `probabilities` of all labels for a
    classification run; `text` and `answer` for a run with free answers (with `failure` if there is none). A blank text
    has the label None. If the run's model was your own callable, pass it as `model` again.

    With `with_embeddings` probabilities are the mean of those and of the run's regression on embeddings of the texts.
    With `unsure` also whether a label is `unsure`: its probability is below 0.7, or the run's regression on embeddings
    of the texts gives another one. `notes` is then called with the accuracy of the other labels on dev.
    """
    texts = _texts_of(texts, "predict_table")
    build.set_threads(threads)
    recipe, members = recipe_of(run), members_of(run)
    found = members[0].prompt
    if recipe.task.kind not in ("classification", "answers"):
        raise SettingError(
            f"{run} is a {recipe.task.kind} run; predict works with a classification run or one with free answers"
        )
    consent.agree(recipe, run, reads=False)
    if recipe.task.kind == "answers":
        if unsure or with_embeddings:
            option = "--unsure" if unsure else "--with-embeddings"
            raise SettingError(f"{run} is a run with free answers; {option} is for labels: remove it")
        from pinprompt.tasks.answer_data import AnswerData

        bare = recipe.task.model_copy(update={"metric": "exact", "proposer": None, "judge": None})
        answering = recipe.model_copy(update={"task": bare})
        _check_callable(recipe, model)
        asked: Any = _with_notes(
            build.build_task(answering, build.choose_device(device), data=AnswerData({}, []), model=model)
        )
        replies = zip(texts, asked.answer(found, texts), strict=True)
        return [
            {"text": text, "answer": reply.text, **({"failure": reply.failure} if reply.failure else {})}
            for text, reply in replies
        ]
    filled = [text for text in texts if text.strip()]
    said = labeller(run, build.choose_device(device), model)(filled)
    result, others = running.result_of(Path(run)).data, list[dict[str, float]]()
    if filled and (unsure or with_embeddings):
        others = _second_opinion(result, str(recipe.task.embeddings), filled)
    if with_embeddings:
        both = [_mean([own, other]) if own else other for (_, own), other in zip(said, others, strict=True)]
        said = [(_likeliest(own), own) for own in both]
    labelled = iter(said)
    rows: list[dict[str, Any]] = []
    for text in texts:
        label, probabilities = next(labelled) if text.strip() else (None, {})
        rows.append({"text": text, "label": label, "probabilities": probabilities})
    if unsure and filled:
        known = [row for row in rows if row["label"] is not None]
        for row, other in zip(known, others, strict=True):
            low = max(row["probabilities"].values(), default=1.0) < LOW
            row["unsure"] = low or _likeliest(other) != row["label"]
        notes(_on_dev(result))
    return rows


Labels = list[tuple[str, dict[str, float]]]
"""The label of each text with the probabilities of all labels, {} if the model gives none."""


def _check_callable(recipe: Recipe, model: Callable[..., Any] | None) -> None:
    """Raise an error if a run's model was the user's own callable and is not given again."""
    if model is None and str(getattr(recipe.task, "model", "")).startswith("callable:"):
        raise SettingError("the run's model was a Python callable; pass it again: predict(run, texts, model=my_model)")


def labeller(
    run: Path | str, device: str, model: Callable[..., Any] | None = None
) -> Callable[[Sequence[str]], Labels]:
    """A function that labels texts by the prompt or the ensemble of a classification run."""
    from pinprompt.tasks.labelled_data import without_rows

    recipe, members = recipe_of(run), members_of(run)
    settings: Any = recipe.task
    words, first = words_of(members), members[0].readout
    _check_callable(recipe, model)
    data = without_rows(settings)
    task = _with_notes(build.build_task(recipe, device, readout=first, words=words, data=data, model=model))

    def label(texts: Sequence[str]) -> Labels:
        said: Labels
        said, *more = [task.predict(one.prompt, texts, one.readout) for one in members]
        if not more or not all(own for _, own in said):
            return said
        means = [_mean([own[place][1] for own in (said, *more)]) for place in range(len(texts))]
        return [(_likeliest(own), own) for own in means]

    return label


def _likeliest(chances: Mapping[str, float]) -> str:
    return max(chances, key=lambda label: chances[label])


def _mean(chances: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {label: sum(one[label] for one in chances) / len(chances) for label in chances[0]}


def _second_opinion(result: Mapping[str, Any], encoder: str, texts: Sequence[str]) -> list[dict[str, float]]:
    """The probabilities of the labels by a run's regression on embeddings."""
    kept = reading.mapping(reading.inside(result, "baselines", EMBEDDINGS))
    bias, weights = reading.mapping(kept.get("bias")), reading.mapping(kept.get("weights"))
    if not bias:
        why = f" ({wording.text(kept['missing'], 300)})" if "missing" in kept else ""
        raise SettingError(
            f"the run has no regression on embeddings for a second opinion{why}; run it again with "
            "--set task.embeddings=minilm"
        )
    import numpy as np

    from pinprompt.judges.frozen import embed
    from pinprompt.maths.readout import Readout, Said

    vectors = embed(encoder, texts)
    try:
        slopes = np.array([weights[label] for label in bias], dtype=np.float64)
        found = Readout(slopes, np.array(list(bias.values()), dtype=np.float64)).probabilities(Said(vectors))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"result.json has no valid regression on embeddings ({error}); run it again") from error
    return [dict(zip(bias, map(float, row), strict=True)) for row in found]


def _on_dev(result: Mapping[str, Any]) -> str:
    """How accurate sure labels are on dev, as a sentence."""
    dev, theirs = (
        reading.mapping(result.get("dev")),
        reading.mapping(reading.inside(result, "baselines", EMBEDDINGS, "dev")),
    )
    labels, chances, right = (outcomes_of(dev, name) for name in ("label", "probability", "accuracy"))
    chances = chances or [1.0] * len(labels)  # a model without log-probabilities: embeddings decide alone
    sure = [
        hit
        for label, other, chance, hit in zip(labels, outcomes_of(theirs, "label"), chances, right, strict=False)
        if label == other and chance >= LOW
    ]
    if not sure:
        return "unsure: no row of dev has a sure label, so how accurate sure labels are is not known"
    return (
        f"unsure: on dev, {len(sure)} of {len(right)} labels are sure, and {sum(sure) / len(sure):.1%} of these are "
        f"correct (of all labels: {sum(right) / len(right):.1%})"
    )


def predict_table(
    run: Path | str,
    source: Any,
    *,
    model: Callable[..., Any] | None = None,
    text_column: str | None = None,
    output: Path | str | None = None,
    unsure: bool = False,
    with_embeddings: bool = False,
    device: str | None = None,
    threads: int | None = None,
    notes: Callable[[str], None] = silent,
) -> Labelled:
    """Label or answer every text of a table with the prompt that a run found, and keep all its columns.

    `source` is a CSV, TSV, JSONL or text file, a folder of .txt files, '-' for stdin, or a data frame. `text_column` is
    by default the column of the run's own data. `output` (.csv, .tsv or .jsonl) gets the table with the columns
    `label` and `probability_<label>`, or `answer`; a name that the table already has gets the prefix `predicted_`. With
    `unsure` there is also a column `unsure`; `with_embeddings` and `model` are as in `predict`.
    """
    from pinprompt.data import tables

    recipe = recipe_of(run)
    if output is not None:
        tables.check_output(Path(output), source)
        if is_run_file(Path(output)):
            raise SettingError(f"'{output}' is a file of a run, which must not be changed; choose another name")
    usual = getattr(recipe.task, "text_column", getattr(recipe.task, "input_column", "text"))
    table = tables.read_table(source, text_column, usual)
    texts = table.texts
    filled = [place for place, text in enumerate(texts) if text]
    blank = [place for place, text in zip(table.places, texts, strict=True) if not text]
    if not filled:
        raise SettingError(f"no row has a text in the column '{table.text_column}'")
    found = predict(
        run, [texts[place] for place in filled], model=model, unsure=unsure, with_embeddings=with_embeddings,
        device=device, threads=threads, notes=notes,
    )  # fmt: skip
    said = dict(zip(filled, found, strict=True))
    key, marks = "answer" if recipe.task.kind == "answers" else "label", ["unsure"] * unsure
    labels = list(said[filled[0]].get("probabilities", ()))  # none if the model gives no probabilities
    names = tables.names_for([key, *(f"probability_{label}" for label in labels), *marks], table.columns)
    added = []
    for place in range(len(texts)):
        one = said.get(place, {})
        shares = {names[f"probability_{name}"]: one.get("probabilities", {}).get(name) for name in labels}
        added.append({names[key]: one.get(key), **shares, **{names[mark]: one.get(mark) for mark in marks}})
    if blank:
        shown = ", ".join(blank[:10]) + (", ..." if len(blank) > 10 else "")
        notes(f"{len(blank)} of {len(texts)} rows have no text and get no {key}: {shown}")
    if output is not None:
        tables.write_table(Path(output), table, added)
    rows = [{**row, **more} for row, more in zip(table.rows, added, strict=True)]
    return Labelled(rows, names[key], table.text_column, blank, None if output is None else Path(output))


def rewrite(
    run: Path | str, texts: Sequence[str], *, n: int = 1, seed: int = 0, device: str | None = None,
    threads: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rewrite texts with the prompt that a style run found: the n best rewrites of each text, best first.

    One dictionary per rewrite, as in `pinprompt rewrite --json`: `text`, `rewrite`, the judges' scores in
    percent (`content`, `style`), and the `score` by which they are sorted. An unchanged text comes last.
    """
    texts = _texts_of(texts)
    build.set_threads(threads)
    recipe, prompt, kept = recipe_of(run), found_prompt(run).text, reading.read_json(Path(run), "judges.json")
    if recipe.task.kind != "style-transfer":
        raise SettingError(f"{run} is a {recipe.task.kind} run; rewrite works with a style-transfer run")
    consent.agree(recipe, run, reads=not kept)
    rewriter = _with_notes(build.build_rewriter(recipe, build.choose_device(device), kept))
    return [
        {"text": text, "rewrite": one.text, "content": one.content, "style": one.style, "score": one.score}
        for text in texts
        for one in rewriter.rewrite(prompt, text, n, seed)
    ]


def found_prompt(run: Path | str) -> Prompt:
    """The prompt that a run found."""
    return Prompt(running.result_of(Path(run)).prompt)


class Member(NamedTuple):
    """A prompt of a run, and how labels are read from its answers; None if by the label words as they are."""

    prompt: Prompt
    readout: Readout | None


def members_of(run: Path | str) -> list[Member]:
    """The prompt that a run found, or those of its ensemble."""
    result = running.result_of(Path(run))
    kept = reading.sequence(reading.inside(result.data, "combined", ENSEMBLE, "members"))
    given = [reading.mapping(one) for one in kept] or [{"prompt": result.prompt, "readout": result.data.get("readout")}]
    from pinprompt.maths.readout import unpack

    try:
        return [
            Member(Prompt(str(one["prompt"])), None if (own := one.get("readout")) is None else unpack(own))
            for one in given
        ]
    except (KeyError, ValueError) as error:
        raise RunError(f"{Path(run) / 'result.json'} cannot be used: {error}") from error


def readout_of(run: Path | str) -> Readout | None:
    """How labels are read from the answers to the prompt that a run found; None if by the label words as they are."""
    return members_of(run)[0].readout


def words_of(members: Sequence[Member]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for one in members if one.readout is not None for word in one.readout.words))


def data_of(recipe: Recipe) -> str:
    """The name of a run's data: the dataset, or the files."""
    named = [getattr(recipe.task, name, None) for name in ("dataset", *running.DATA)]
    pictures = getattr(recipe.task, "images", ())
    return ", ".join(str(one) for one in (*named, *pictures) if one) or recipe.task.kind


def _task_on(
    recipe: Recipe,
    test: Any,
    text_column: str | None,
    label_column: str | None,
    readout: Readout | None,
    words: Sequence[str],
    device: str,
) -> Task:
    """The task of a classification recipe with a file or a data frame as its test split."""
    from pinprompt.data import tables
    from pinprompt.tasks.labelled_data import load_data, with_test, without_rows

    settings = recipe.task
    if settings.kind != "classification":
        raise SettingError(f"a {settings.kind} run has no labelled test file; --test needs a classification run")
    measures = settings.labels != "words" and readout is None
    data = load_data(settings) if measures else without_rows(settings)
    path = str(tables.plain_settings({"test": test})["test"])
    data = with_test(data, path, text_column or settings.text_column, label_column or settings.label_column)
    return build.build_task(recipe, device, readout=readout, words=words, data=data)


def _seen(run: Path, task: Task) -> int:
    """How many test rows have texts that the run's search was taught by or chose by; 0 if the run kept no texts."""
    rows = map(reading.mapping, reading.sequence(reading.read_json(run, "rows.json").get("rows")))
    known = {row.get("text") for row in rows}
    return sum(task.rows[row].input in known for row in split_rows(task, "test"))


def _texts_of(texts: Any, tables: str | None = None) -> list[str]:
    """Plain strings from a list, an array or a Series; a single string or a path is an error."""
    from pinprompt.data.tables import is_frame

    if isinstance(texts, str | Path) or is_frame(texts):
        hint = f"; {tables} reads files and data frames" if tables else ""
        raise SettingError(f"texts must be a list of texts, not a {type(texts).__name__}{hint}")
    given = list(texts)
    for place, text in enumerate(given):
        if not isinstance(text, str):
            raise SettingError(
                f"text {place + 1} of {len(given)} is a {type(text).__name__}, not a string: {text!r:.80}"
            )
    return [str(text) for text in given]  # elements of an array are numpy strings


def _with_notes(task: Any) -> Any:
    """Pass on the task's notes, such as how a remote model is called."""
    for note in task.info.notes if hasattr(task, "info") else task.notes:
        logging.getLogger("pinprompt.models").info(note)
    return task
