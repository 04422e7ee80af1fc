"""Figures: right numbers in, the same bytes out, legible and colour-blind safe."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import run_samples as sample
from matplotlib.figure import Figure

from pinprompt.errors import RunError, SettingError
from pinprompt.records import figures
from pinprompt.records.compare import compare
from pinprompt.records.figures import (
    COLOURS,
    HEIGHT,
    WIDTH,
    Curve,
    ablation,
    against_readability,
    averaged,
    greedy_progress,
    learning_curves,
    progress,
    write_figures,
)
from pinprompt.records.reading import RunRecord, read_run


def test_progress_is_the_best_so_far() -> None:
    steps = [{"event": "step", "step": n, "calls": 10 * n, "score_best": s} for n, s in enumerate([3, 1, 5], start=1)]
    costs = [{"event": "step", "step": n, "elapsed": 60 * n} for n in (1, 2, 3)]
    record = RunRecord(Path("run"), events=steps, costs=costs)
    assert progress(record, "calls") == [(10, 3), (20, 3), (30, 5)]
    assert progress(record, "time") == [(1, 3), (2, 3), (3, 5)]
    with pytest.raises(SettingError, match="no axis"):
        progress(record, "money")


def test_the_greedy_prompt_stands_at_the_calls_of_the_steps_before_it() -> None:
    steps = [{"event": "step", "step": n, "calls": 10 * (n + 1), "score_best": 1.0} for n in range(4)]
    greedy = [{"event": "greedy", "step": n, "dev": dev} for n, dev in ((2, 7.0), (3, None), (4, 9.0))]
    # Tried before step 2, that is after 20 calls; without a dev score there is no point; the last one after the end.
    assert greedy_progress(RunRecord(Path("run"), events=[*steps, *greedy])) == [(20, 7.0), (40, 9.0)]
    assert greedy_progress(RunRecord(Path("run"), events=steps)) == []
    picture = [{"event": "greedy", "step": n, "score": score, "dev": None} for n, score in ((1, 0.2), (3, 0.4))]
    assert greedy_progress(RunRecord(Path("run"), events=[*steps, *picture])) == [(10, 0.2), (30, 0.4)]


def test_averaged_stays_where_all_runs_are() -> None:
    curve = averaged("x", [[(0.0, 1.0), (10.0, 3.0)], [(2.0, 3.0), (20.0, 9.0)]])
    assert (curve.x[0], curve.x[-1]) == (2.0, 10.0)
    assert (curve.mean[0], curve.error[0]) == (2.0, 1.0)  # steps hold: 1 and 3 at x = 2
    assert (curve.mean[-1], curve.error[-1]) == (3.0, 0.0)  # 3 and 3 at x = 10
    assert curve.runs == 2


def test_curves_per_method(tmp_path: Path) -> None:
    [table] = compare(sample.sweep(tmp_path)).tables
    curves = learning_curves(table, "sst-2")
    assert [curve.name for curve in curves] == ["pin", "random", "rlprompt"]
    assert all(curve.runs == 3 for curve in curves)
    last = [progress(read_run(tmp_path / f"pin-{split}-0"))[-1][1] for split in (13, 21, 42)]
    assert curves[0].mean[-1] == pytest.approx(sum(last) / 3)


def test_ablations(tmp_path: Path) -> None:
    folders = [
        sample.classification(tmp_path / f"{k}-{seed}", "pin", seed, 13, k=k, test=value + seed / 50)
        for k, value in ((16, 0.5), (256, 0.7), (64, 0.6))
        for seed in (0, 1)
    ]
    [table] = compare(folders).tables
    [curve] = ablation(table, "sst-2", "k")
    assert curve.x == [16, 64, 256]
    assert curve.mean == pytest.approx([0.51, 0.61, 0.71])
    assert curve.error == pytest.approx([0.01] * 3)
    assert ablation(table, "sst-2", "length") == []
    with pytest.raises(SettingError, match="no ablation"):
        ablation(table, "sst-2", "colour")


def test_reward_scale_is_one_over_alpha(tmp_path: Path) -> None:
    folders = [sample.classification(tmp_path / f"{alpha}", alpha=alpha, test=alpha) for alpha in (0.2, 0.5)]
    [table] = compare(folders).tables
    [curve] = ablation(table, "sst-2", "reward_scale")
    assert curve.x == pytest.approx([2.0, 5.0])
    assert curve.mean == pytest.approx([0.5, 0.2])


def test_two_varied_settings_are_not_mixed(tmp_path: Path) -> None:
    folders = [
        sample.classification(tmp_path / f"{k}-{length}", k=k, length=length) for k in (16, 64) for length in (3, 5)
    ]
    [table] = compare(folders).tables
    assert [curve.name for curve in ablation(table, "sst-2", "k")] == ["pin (length=3)", "pin (length=5)"]


def test_readability_points(tmp_path: Path) -> None:
    [table] = compare(sample.sweep(tmp_path)).tables
    points = against_readability(table, "sst-2")
    assert {name: len(found) for name, found in points.items()} == {"pin": 3, "random": 3, "rlprompt": 3}


def test_files_are_written_the_same_twice(tmp_path: Path) -> None:
    folders = sample.sweep(tmp_path / "runs", methods=("pin", "a $x$ <b>"), splits=(13, 21))
    first = write_figures(folders, tmp_path / "one")
    names = [path.name for path in first]
    stems = ("curve-calls", "curve-time", "curve-greedy", "readability")
    assert names == [f"{stem}.{end}" for stem in stems for end in ("svg", "png")]
    for path, again in zip(first, write_figures(folders, tmp_path / "two"), strict=True):
        assert path.read_bytes() == again.read_bytes(), path.name
    svg = first[0].read_text("utf-8")
    root = ElementTree.fromstring(svg)
    assert root.attrib["width"] == f"{WIDTH * 72:g}pt"
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a $x$ <b>" in texts  # a name is a name, not a formula
    assert "calls to the task model" in texts
    assert COLOURS[0].lower() in svg
    png = first[1].read_bytes()
    assert png.startswith(b"\x89PNG")
    size = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    assert size == (round(WIDTH * 300), round(HEIGHT * 300))


def test_colours_are_okabe_and_itos() -> None:
    assert set(COLOURS) == {
        "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
    }  # fmt: skip


def test_twenty_methods_look_different() -> None:
    axes = Figure().add_subplot()
    figures.draw_readability(axes, {f"m{place}": [(10.0 + place, 0.5)] for place in range(20)}, "accuracy")
    looks = {(tuple(marks.get_facecolor()[0]), marks.get_paths()[0].vertices.tobytes()) for marks in axes.collections}
    assert len(looks) == 20
    axes = Figure().add_subplot()
    curves = [Curve(f"m{place}", [1.0, 2.0], [0.0, 1.0], [0.0, 0.0], 1) for place in range(20)]
    figures.draw_curves(axes, curves, "calls")
    assert len({(line.get_color(), str(line._dash_pattern)) for line in axes.lines}) == 20


@pytest.mark.parametrize("count", [1, 2, 6, 12, 20])
def test_a_long_legend_leaves_the_lines_their_room(count: int) -> None:
    names = [f"rlprompt-rb-fluency (k={place})" for place in range(count)]
    with figures._figure() as (figure, axes):
        figures.draw_curves(axes, [Curve(name, [1.0, 2.0], [0.0, 1.0], [0.0, 0.0], 1) for name in names], "calls")
        figure.draw_without_rendering()
        height = axes.get_window_extent().height / figure.dpi
        above = axes.get_legend().get_window_extent().y1 / figure.dpi
        assert height > figures.HEIGHT / 2
        assert above <= figure.get_figheight()


def test_other_data_gets_its_own_figure(tmp_path: Path) -> None:
    folders = [sample.classification(tmp_path / name, dataset=name) for name in ("sst-2", "cr")]
    names = {path.name for path in write_figures(folders, tmp_path / "out")}
    assert {"curve-calls-sst-2.svg", "curve-calls-cr.svg"} <= names


@pytest.mark.parametrize(
    ("xs", "scale", "base"),
    [([2.0, 4.0, 8.0], "linear", None), ([8.0, 16.0, 64.0], "log", 2), ([3.0, 10.0, 100.0], "log", 10)],
)
def test_an_ablation_over_a_decade_has_a_logarithmic_axis(xs: list[float], scale: str, base: int | None) -> None:
    axes = Figure().add_subplot()
    figures.draw_ablation(axes, [Curve("pin", xs, [0.5, 0.6, 0.7], [0.1, 0.0, 0.1], 6)], "k", "accuracy")
    assert axes.get_xscale() == scale
    assert getattr(axes.xaxis.get_transform(), "base", None) == base
    assert axes.get_xticks().tolist() == xs
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"{x:g}" for x in xs]
    assert axes.get_xlabel() == "tokens kept by the filter (k)"
    assert axes.get_ylabel().endswith("(%)")


def test_an_ablation_of_many_values_keeps_its_ticks_few() -> None:
    axes = Figure().add_subplot()
    xs = [float(x) for x in range(20, 40)]
    figures.draw_ablation(axes, [Curve("pin", xs, [30.0] * 20, [0.0] * 20, 20)], "length", "joint")
    assert len(axes.get_xticks()) < 12
    assert "%" not in axes.get_ylabel()


def test_varied_settings_get_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "save", lambda stem, draw: [stem])
    folders = [sample.classification(tmp_path / str(k), k=k) for k in (16, 64)]
    (folders[0] / "result.json").write_text(
        json.dumps(read_run(folders[0]).result | {"readability": {}}), encoding="utf-8"
    )
    names = [path.name for path in write_figures(folders, tmp_path / "out")]
    # One prompt's perplexity alone makes no figure.
    assert names == ["curve-calls", "curve-time", "curve-greedy", "ablation-k"]


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    folder = sample.style(tmp_path / "run")
    with pytest.raises(RunError, match="nothing to draw"):
        write_figures([folder], tmp_path / "out")


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, pinprompt.records.figures, pinprompt.records.report as r; "
    code += "print({'matplotlib', 'jinja2', 'torch'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
