"""The scikit-learn estimator: alone, cloned, pickled, in a pipeline and in a grid search, with a tiny model."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import pinprompt
from pinprompt.errors import SettingError
from pinprompt.sklearn import PromptClassifier, PromptRewriter
from tests.toys import style_toys
from tests.toys.label_runs import ROWS, settings_of

TEXTS = [text for text, _ in ROWS]
LABELS = [label for _, label in ROWS]


@pytest.fixture
def estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings = settings_of(tmp_path)
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    task = settings.pop("task")
    return PromptClassifier(
        words={"neg": "terrible", "pos": "great"},
        model=task["model"],
        method="manual",
        settings={"policy": settings["policy"], "scoring": settings["scoring"], "task": {"shots": 2}},
    )


def test_your_own_model_may_be_asynchronous_also_where_a_loop_runs(estimator: Any) -> None:
    async def model(texts: list[str]) -> list[str]:
        await asyncio.sleep(0)
        return ["great" if any(row in text for row, label in ROWS if label == "pos") else "terrible" for text in texts]

    async def in_a_notebook() -> Any:
        return estimator.set_params(model=model).fit(TEXTS, LABELS).predict(TEXTS)

    assert asyncio.run(in_a_notebook()).tolist() == LABELS


def test_it_fits_predicts_and_scores(estimator: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        estimator.predict(TEXTS)
    fitted = estimator.set_params(out=tmp_path / "run").fit(TEXTS, LABELS)
    assert fitted.classes_.tolist() == ["neg", "pos"]
    shares = fitted.predict_proba(TEXTS)
    assert shares.shape == (8, 2)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert fitted.predict(TEXTS).tolist() == [["neg", "pos"][place] for place in shares.argmax(axis=1)]
    assert fitted.score(TEXTS, LABELS) == np.mean(fitted.predict(TEXTS) == np.array(LABELS))
    # The run folder says the same: its labels are the places of the classes.
    said = [one["probabilities"]["1"] for one in pinprompt.predict(tmp_path / "run", TEXTS)]
    np.testing.assert_allclose(shares[:, 1], said)
    assert fitted.predict(pd.Series(TEXTS)).tolist() == fitted.predict(np.array(TEXTS)).tolist()
    assert fitted.predict(pd.DataFrame({"t": TEXTS})).tolist() == fitted.predict(TEXTS).tolist()


def test_fit_without_a_folder_makes_no_report(estimator: Any, tmp_path: Path) -> None:
    alone = clone(estimator).fit(TEXTS, LABELS)
    kept = clone(estimator).set_params(out=tmp_path / "run").fit(TEXTS, LABELS)
    assert alone.result_["report_calls"] < kept.result_["report_calls"]
    assert alone.result_["test"] is None
    assert (tmp_path / "run" / "report.html").is_file()
    np.testing.assert_array_equal(alone.predict_proba(TEXTS), kept.predict_proba(TEXTS))


def test_one_class_is_refused_by_its_name(estimator: Any) -> None:
    with pytest.raises(ValueError, match=r"one class .*pos"):
        estimator.fit(TEXTS, ["pos"] * len(TEXTS))


def test_it_is_cloned_and_pickled(estimator: Any) -> None:
    numbers = [int(label == "pos") for label in LABELS]
    fitted = clone(estimator).set_params(words={0: "terrible", 1: "great"}).fit(TEXTS, numbers)
    expected = fitted.predict_proba(TEXTS)
    again = pickle.loads(pickle.dumps(fitted))  # made here, so it can be trusted
    np.testing.assert_array_equal(again.predict_proba(TEXTS), expected)
    assert set(again.predict(TEXTS)) <= {0, 1}
    assert not hasattr(clone(fitted), "classes_")
    assert clone(fitted).get_params() == fitted.get_params()


def test_it_works_in_a_pipeline_and_a_grid_search(estimator: Any) -> None:
    lowered = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    steps = Pipeline([("lower", lowered), ("prompt", estimator)])
    grid = GridSearchCV(steps, {"prompt__words": [estimator.words, {"neg": "bad", "pos": "good"}]}, cv=2)
    grid.fit(TEXTS, LABELS)
    assert grid.best_params_["prompt__words"] in (estimator.words, {"neg": "bad", "pos": "good"})
    assert len(grid.predict(TEXTS)) == 8
    assert not np.isnan(grid.cv_results_["mean_test_score"]).any()


def test_a_file_that_is_not_text_is_refused(estimator: Any) -> None:
    for wrong in ("one text", [1, 2], np.zeros((2, 2))):
        with pytest.raises(ValueError, match="X must"):
            estimator.fit(wrong, ["a", "b"])
    with pytest.raises(ValueError, match="as many labels"):
        estimator.fit(TEXTS, ["neg"])
    with pytest.raises(SettingError, match="no word for the class 'other'"):
        estimator.fit(TEXTS, [*LABELS[:-1], "other"])


# The checks of scikit-learn that fit numbers cannot be met by an estimator of texts; these ask for no data, or for an
# estimator that has not been fitted.
APPLY = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_mixin_order",
    "check_estimators_unfitted",
)


@pytest.mark.parametrize("check", APPLY)
@pytest.mark.parametrize("kind", [PromptClassifier, PromptRewriter])
def test_scikit_learns_own_checks(kind: type, check: str) -> None:
    if not hasattr(estimator_checks, check):
        pytest.skip(f"this scikit-learn has no {check}")
    getattr(estimator_checks, check)(kind.__name__, kind())


LINES = [
    f"{who} was {word} {what}"
    for who in ("we", "they", "it")
    for word in ("bad", "awful")
    for what in ("food", "place")
]
LINES += [line + last for line in LINES for last in (" .", " !")]
OTHER = [line.replace("bad", "good").replace("awful", "nice") for line in LINES]


@pytest.fixture(scope="module")
def rewriter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("rewriter")
    style_toys.save(folder / "lm", style_toys.causal_lm(places=96))
    style_toys.save(folder / "bert", style_toys.encoder(), wrap=True)
    small = {
        "encoder": str(folder / "bert"), "samples": 2, "bootstraps": 1, "sources": 1, "dev_sources": 2,
        "test_sources": 2, "test_samples": 3, "baseline": 0.0, "force_judge": True,
    }  # fmt: skip
    settings = {"task": small, "policy": {"model": str(folder / "lm"), "k": None}, "scoring": {"memo": False}}
    made = PromptRewriter("good", model=str(folder / "lm"), method="manual", settings=settings, out=folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PINPROMPT_HOME", str(folder / "home"))
        fitted = made.fit([*LINES, *OTHER], ["bad"] * len(LINES) + ["good"] * len(OTHER))
    shutil.rmtree(folder / "home" / "frames")  # nothing below may need the texts
    return fitted


def test_a_rewriter_fits_and_rewrites(rewriter: Any, tmp_path: Path) -> None:
    texts = ["we was bad food", "it was awful place"]
    found = rewriter.transform(texts)
    assert found.shape == (2,)
    assert rewriter.predict(np.array(texts)).tolist() == found.tolist()
    assert 0 <= rewriter.score(pd.Series(texts)) <= 1
    assert "from bad to good" in rewriter.prompt_
    said = [one["rewrite"] for one in pinprompt.rewrite(rewriter.out, texts)]
    assert said == found.tolist()
    again = pickle.loads(pickle.dumps(rewriter))  # made here, so it can be trusted
    assert again.transform(texts).tolist() == found.tolist()
    assert clone(rewriter).get_params() == rewriter.get_params()
    with pytest.raises(NotFittedError):
        clone(rewriter).transform(texts)
    with pytest.raises(ValueError, match="the style 'good' and another one"):
        clone(rewriter).fit(texts, ["bad", "bad"])
