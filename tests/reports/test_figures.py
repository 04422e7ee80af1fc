"""Figures: right numbers in, the same bytes out, legible and colour-blind safe."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import run_samples as sample

from pinprompt.errors import RunError, SettingError
from pinprompt.folder.reading import RunRecord, read_run
from pinprompt.reports import figures
from pinprompt.reports.compare import compare
from pinprompt.reports.figures import (
    Curve,
    ablation,
    averaged,
    greedy_progress,
    learning_curves,
    progress,
    write_figures,
)
from pinprompt.reports.report import write_report


def test_progress_is_the_best_so_far() -> None:
    steps = [{"event": "step", "step": n, "calls": 10 * n, "score_best": s} for n, s in enumerate([3, 1, 5], start=1)]
    costs = [{"event": "step", "step": n, "elapsed": 60 * n} for n in (1, 2, 3)]
    record = RunRecord(Path("run"), events=steps, costs=costs)
    assert progress(record, "calls") == [(10, 3), (20, 3), (30, 5)]
    assert progress(record, "time") == [(1, 3), (2, 3), (3, 5)]
    with pytest.raises(SettingError, match="no axis"):
        progress(record, "money")


def test_the_greedy_prompt_is_drawn_at_the_calls_of_the_steps_before_it() -> None:
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


def test_files_are_written_the_same_twice(tmp_path: Path) -> None:
    folders = sample.sweep(tmp_path / "runs", methods=("pin", "a $x$ <b>"), splits=(13, 21))
    first = write_figures(folders, tmp_path / "one")
    names = [path.name for path in first]
    stems = ("curve-calls", "curve-time", "curve-greedy")
    assert names == [f"{stem}.svg" for stem in stems]
    for path, again in zip(first, write_figures(folders, tmp_path / "two"), strict=True):
        assert path.read_bytes() == again.read_bytes(), path.name
    texts = texts_of(first[0].read_text("utf-8"))
    assert "a $x$ <b>" in texts
    assert "calls to the task model" in texts


def test_a_single_run_shows_what_it_learnt_in_figures_and_report(tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "run")
    steps = [{"event": "step", "step": n, "calls": 32 * n, "score_mean": n, "score_best": n, "support": [9, 4 - n],
              **({"updates": 4 * n, "loss": 1 / n, "q_min": -n, "q_max": n} if n else {"loss": None})}
             for n in range(4)]  # fmt: skip
    sample.write(folder, {"events.jsonl": steps})
    written = {path.stem: path.read_text("utf-8") for path in write_figures([folder], tmp_path / "figures")}
    lines = {name: [line.split() for line in re.findall('polyline[^>]* points="([^"]*)"', svg)]
             for name, svg in written.items() if name.startswith("learning")}  # fmt: skip
    # The first step made no update, so it has no loss and no Q.
    assert {name: [len(line) for line in found] for name, found in lines.items()} == {
        "learning-loss": [3], "learning-q": [3, 3], "learning-support": [4, 4],
    }  # fmt: skip
    assert {"updates", "largest", "smallest"} <= set(texts_of(written["learning-q"]))
    page = write_report(folder).read_text("utf-8")
    assert all(f"<b>{title}</b>" in page for title in ("Loss", "Range of Q", "Support per position"))


def texts_of(svg: str) -> list[str | None]:
    """The texts of a chart, which must be well-formed."""
    return [node.text for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]


def test_twenty_methods_look_different() -> None:
    curves = [Curve(f"m{place}", [1.0, 2.0], [0.0, 1.0], [0.0, 0.0], 1) for place in range(20)]
    svg = figures.draw_curves(curves, "calls")
    assert len(set(re.findall(r'<polyline class="line (s\d d\d)"', svg))) == 20
    assert len(set(figures.COLOURS)) == len(set(figures.DASHES)) == 8


@pytest.mark.parametrize("count", [1, 2, 6, 12, 20])
def test_a_long_legend_makes_the_figure_higher_and_names_stay_whole(count: int) -> None:
    names = [f"rlprompt-rb-fluency (k={place})" for place in range(count)]
    svg = figures.draw_curves([Curve(name, [1.0, 2.0], [0.0, 1.0], [0.0, 0.0], 1) for name in names], "calls")
    assert set(names) <= set(texts_of(svg))
    height = float(svg.partition('viewBox="0 0 420 ')[2].partition('"')[0])
    last = max(float(y) for y in re.findall(r'<g transform="translate\(\d+ (\d+)\)"', svg))
    assert height > last


@pytest.mark.parametrize("length", range(3, 40))
def test_names_of_a_legend_do_not_reach_the_next_key(length: int) -> None:
    names = [f"{place}".ljust(length, "n") for place in range(3)]
    svg = figures.draw_curves([Curve(name, [1.0, 2.0], [0.0, 1.0], [0.0, 0.0], 1) for name in names], "calls")
    lefts = [int(x) for x in re.findall(r'<g transform="translate\((\d+) \d+\)"', svg)]
    wide = 21 + 7 * length  # a letter of a wide font takes seven units
    assert all(after <= left or left + wide < after for left, after in itertools.pairwise(lefts))


def test_a_band_is_one_standard_error_to_either_side() -> None:
    svg = figures.draw_curves([Curve("pin", [0.0, 1.0], [0.5, 0.5], [0.1, 0.2], 3)], "calls")
    [points] = re.findall(r'<polygon class="band s0" points="([^"]+)"', svg)
    [line] = re.findall(r'<polyline class="line s0 d0" points="([^"]+)"', svg)
    up_left, up_right, down_right, down_left = [float(point.split(",")[1]) for point in points.split()]
    middle = float(line.split()[0].split(",")[1])
    assert up_left < middle < down_left
    assert up_right - middle == pytest.approx(2 * (up_left - middle), abs=0.2)
    assert down_right - middle == pytest.approx(2 * (down_left - middle), abs=0.2)


def test_other_data_gets_its_own_figure(tmp_path: Path) -> None:
    folders = [sample.classification(tmp_path / name, dataset=name) for name in ("sst-2", "cr")]
    names = {path.name for path in write_figures(folders, tmp_path / "out")}
    assert {"curve-calls-sst-2.svg", "curve-calls-cr.svg"} <= names


@pytest.mark.parametrize(
    ("xs", "even"), [([2.0, 4.0, 8.0], False), ([8.0, 16.0, 64.0], True), ([3.0, 10.0, 100.0], True)]
)
def test_an_ablation_over_a_decade_has_a_logarithmic_axis(xs: list[float], even: bool) -> None:
    svg = figures.draw_ablation([Curve("pin", xs, [0.5, 0.6, 0.7], [0.1, 0.0, 0.1], 6)], "k", "accuracy")
    left, middle, right = [float(x) for x in re.findall(r'<circle class="dot s0" cx="([^"]+)"', svg)]
    share = math.log(xs[1] / xs[0]) / math.log(xs[2] / xs[0]) if even else (xs[1] - xs[0]) / (xs[2] - xs[0])
    assert (middle - left) / (right - left) == pytest.approx(share, abs=0.01)
    texts = texts_of(svg)
    assert [text for text in texts if text in {f"{x:g}" for x in xs}][-3:] == [f"{x:g}" for x in xs]
    assert {"tokens kept by the filter (k)", "accuracy (%)"} <= set(texts)


def test_varied_settings_get_a_figure(tmp_path: Path) -> None:
    folders = [sample.classification(tmp_path / str(k), k=k) for k in (16, 64)]
    names = [path.stem for path in write_figures(folders, tmp_path / "out")]
    assert names == ["curve-calls", "curve-time", "curve-greedy", "ablation-k"]


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    folder = sample.style(tmp_path / "run")
    with pytest.raises(RunError, match="nothing to draw"):
        write_figures([folder], tmp_path / "out")


def test_a_curve_of_one_point_is_a_dot() -> None:
    assert "<circle" in figures.draw_curves([Curve("pin", [10.0], [0.5], [0.1], 3)], "calls")


def test_a_method_has_one_colour_in_all_figures(tmp_path: Path) -> None:
    def colours(svg: str) -> dict[str, str]:
        names = re.findall(r'<line class="line (s\d+)[^"]*" x2="16"/>.*?<text[^>]*>([^<]+)</text>', svg)
        return {name: colour for colour, name in names}

    curves = [Curve(name, [1.0, 2.0], [0.1, 0.2], [0.0, 0.0], 1) for name in ("manual", "pin", "random")]
    looks = {curve.name: place for place, curve in enumerate(curves)}
    every = colours(figures.draw_curves(curves, "calls", looks=looks))
    some = colours(figures.draw_curves(curves[1:], "calls", looks=looks))
    assert len(every) == 3
    assert some == {name: every[name] for name in ("pin", "random")}
