"""scikit-learn estimators (extra `sklearn`): `PromptClassifier` and `PromptRewriter`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt import api
from pinprompt.data.tables import keep_lines, keep_rows
from pinprompt.errors import MissingExtra, SettingError
from pinprompt.folder.reading import read_json
from pinprompt.models.cache import home
from pinprompt.run import build, running
from pinprompt.run.using import Labels, labeller

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise MissingExtra("sklearn", "the scikit-learn estimator") from None

_FILES = ("recipe.toml", "result.json", "judges.json")
"""The run files that a fitted estimator keeps: enough to use its prompt on any machine that has the model."""

_TUNED = ("method", "profile", "calls", "minutes", "seed", "settings", "device", "threads")
"""Parameters that `pinprompt.tune` gets as they are."""


@dataclass(kw_only=True, eq=False, repr=False)
class _PromptEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of both estimators: a search in `fit`; a pickle holds the run's files instead of a model."""

    model: str | Callable[..., Any] = "smollm2"
    method: str | None = None
    profile: str = "quick"
    calls: int | None = None
    minutes: float | None = None
    seed: int = 0
    settings: Mapping[str, Any] | None = None
    out: Path | str | None = None
    device: str | None = None
    threads: int | None = None

    def _search(self, task: Mapping[str, Any]) -> None:
        with tempfile.TemporaryDirectory(prefix="pinprompt-") as place:
            found = api.tune(
                {**task, "model": self.model} if isinstance(self.model, str) else task,
                model=None if isinstance(self.model, str) else self.model,
                out=Path(place) / "run" if self.out is None else self.out,
                force=True,
                report=self.out is not None,
                **{name: getattr(self, name) for name in _TUNED},
            )
            paths = [found.folder / name for name in _FILES]
            self.files_ = {path.name: path.read_text("utf-8") for path in paths if path.is_file()}
        self.prompt_, self.result_ = found.prompt, found.data
        self._tool: Any = None

    def _loaded(self) -> Any:
        """What labels or rewrites texts, from the run's files; kept in memory, never in a pickle."""
        if self._tool is None:
            build.set_threads(self.threads)
            device = build.choose_device(self.device)
            with tempfile.TemporaryDirectory(prefix="pinprompt-") as place:
                for name, content in self.files_.items():
                    (Path(place) / name).write_text(content, "utf-8")
                recipe = running.recipe_of(place)
                if recipe.task.kind == "classification":
                    self._tool = labeller(place, device, None if isinstance(self.model, str) else self.model)
                else:
                    self._tool = build.build_rewriter(recipe, device, read_json(Path(place), "judges.json"))
        return self._tool

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_tool" in state:
            state["_tool"] = None
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        tags.no_validation = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PromptClassifier(ClassifierMixin, _PromptEstimator):  # type: ignore[misc]
    """A text classifier: `fit` searches for a prompt, `predict` labels texts with it.

    Parameters
    ----------
    words : mapping of class to word, or None
        The label word of each class; None uses the names of the classes.
    model : str or callable
        The task model: alias, hub id, folder, .gguf file or remote:NAME; or your own function, as in `pinprompt.tune`.
    method, profile, calls, minutes, seed, settings, device, threads
        As in `pinprompt.tune`.
    out : path or None
        Keep the run folder there, with a report (an earlier run in it is removed); None keeps only the answer, and
        saves the calls of a report.

    Attributes
    ----------
    classes_ : array of the classes, sorted
    prompt_ : the prompt that was found
    result_ : the content of result.json
    """

    words: Mapping[Any, str] | None = None

    def fit(self, X: Any, y: Any) -> PromptClassifier:
        """Search for a prompt on texts X with labels y."""
        texts, labels = _labelled(X, y)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class ({self.classes_[0]!r:.60}); a classifier needs two or more")
        # Classes may be numbers or anything else: in the run they are numbered, so that their names cannot clash.
        rows = [{"text": text, "label": str(place)} for text, place in zip(texts, places, strict=True)]
        words = {str(place): self._word(name) for place, name in enumerate(self.classes_.tolist())}
        self._search({"kind": "classification", "train": keep_rows(rows, home() / "frames"), "words": words})
        return self

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class [N, C], in the order of `classes_`."""
        said = self._said(X)
        if not all(found for _, found in said):
            raise ValueError("the model gives labels without probabilities; use predict")
        shares = [[found[str(place)] for place in range(len(self.classes_))] for _, found in said]
        return np.array(shares).reshape(-1, len(self.classes_))

    def predict(self, X: Any) -> Any:
        """The most likely class of each text."""
        said = self._said(X)
        return self.classes_[np.array([int(label) for label, _ in said], dtype=int)]

    def _said(self, X: Any) -> Labels:
        """The label of each text and the probabilities of all."""
        check_is_fitted(self, "files_")
        texts = _texts(X)
        if not texts:
            return []
        said: Labels = self._loaded()(texts)
        return said

    def _word(self, name: Any) -> str:
        if self.words is None:
            return str(name)
        for known in (name, str(name)):
            if known in self.words:
                return str(self.words[known])
        raise SettingError(f"words has no word for the class {name!r}; it has: {', '.join(map(str, self.words))}")


@dataclass(kw_only=True, eq=False, repr=False)
class PromptRewriter(TransformerMixin, _PromptEstimator):  # type: ignore[misc]
    """A style-transfer estimator: `fit` searches for a prompt that rewrites texts in a style, `transform` applies it.

    Parameters
    ----------
    target : a class of y
        The target style; all other texts are examples of the source style.
    model, method, profile, calls, minutes, seed, settings, out, device, threads
        As in `PromptClassifier`.

    Attributes
    ----------
    prompt_ : the prompt that was found
    result_ : the content of result.json
    """

    target: Any = field(default=1, kw_only=False)

    def fit(self, X: Any, y: Any) -> PromptRewriter:
        """Search for a prompt on texts X whose styles are y."""
        texts, labels = _labelled(X, y)
        wanted = [text for text, label in zip(texts, labels.tolist(), strict=True) if label == self.target]
        others = [text for text, label in zip(texts, labels.tolist(), strict=True) if label != self.target]
        if not wanted or not others:
            known = ", ".join(map(repr, np.unique(labels).tolist()))
            raise ValueError(f"y must contain the style {self.target!r} and another one; its styles are {known}")
        folder = home() / "frames"
        styles = {"target_style": str(self.target)}
        if len(rest := {str(label) for label in labels.tolist()} - {str(self.target)}) == 1:
            styles["source_style"] = rest.pop()
        files = {"source": keep_lines(others, folder), "target": keep_lines(wanted, folder)}
        self._search({"kind": "style-transfer", **files, **styles})
        return self

    def transform(self, X: Any) -> Any:
        """The best rewrite of each text."""
        return np.array([one.text for one in self._rewrites(X)], dtype=object)

    def predict(self, X: Any) -> Any:
        """The same as `transform`, for the end of a pipeline."""
        return self.transform(X)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of content kept and style gained over the best rewrites, from 0 to 1."""
        return float(np.mean([one.score for one in self._rewrites(X)])) / 100

    def _rewrites(self, X: Any) -> list[Any]:
        check_is_fitted(self, "files_")
        texts = _texts(X)
        tool = self._loaded()
        return [tool.rewrite(self.prompt_, text, 1, self.seed)[0] for text in texts]


def _labelled(X: Any, y: Any) -> tuple[list[str], Any]:
    """Texts, and one label for each."""
    texts, labels = _texts(X), np.asarray(y)
    if labels.ndim != 1 or len(labels) != len(texts):
        raise ValueError(f"X has {len(texts)} texts, so y must have as many labels; its shape is {labels.shape}")
    return texts, labels


def _texts(X: Any) -> list[str]:
    """The texts of a list, an array, a Series, or a table with one column."""
    if isinstance(X, str):
        raise ValueError("X must be a list of texts, not one text")
    values: Any = np.asarray(X, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"X must have one text per row; its shape is {values.shape}")
    wrong = next((one for one in values if not isinstance(one, str)), None)
    if wrong is not None:
        raise ValueError(f"X must contain texts; it contains {wrong!r:.60} ({type(wrong).__name__})")
    return [str(one) for one in values]
