"""Comparisons: numbers worked by hand, and nothing mixed that must stay apart."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
import run_samples as sample
from tests.toys.label_runs import settings_of

from pinprompt.errors import RunError, SettingError
from pinprompt.maths.bootstrap import compare_paired, mean, pairs, standard_error
from pinprompt.recipe.recipe import resolve
from pinprompt.reports import tables
from pinprompt.reports.compare import Comparison, Measured, ScoreTable, compare
from pinprompt.reports.entries import find_runs
from pinprompt.run.running import run


def test_mean_and_standard_error_by_hand() -> None:
    assert mean([1.0, 2.0, 6.0]) == 3.0
    # Deviations -2, -1, 3: variance 14 / 2, over three values.
    assert standard_error([1.0, 2.0, 6.0]) == pytest.approx(math.sqrt(7 / 3))
    assert standard_error([1.0]) is None


def test_the_error_of_a_cell_is_that_of_its_splits() -> None:
    # The means of the splits are 2 and 6: deviations of 2, variance 8, over two splits.
    two = Measured({("13", 0): 1.0, ("13", 1): 3.0, ("21", 0): 6.0})
    assert (two.mean, two.error) == (pytest.approx(10 / 3), pytest.approx(2.0))
    # With one split its seeds count: deviations of 1, variance 2, over two seeds.
    assert Measured({("13", 0): 1.0, ("13", 1): 3.0}).error == pytest.approx(1.0)
    assert Measured({("13", 0): 1.0}).error is None


def test_pairs_match_split_and_seed() -> None:
    ours = {("13", 0): 5.0, ("13", 1): 6.0, ("21", 0): 7.0}
    assert pairs(ours, {("13", 0): 1.0, ("42", 0): 0.0}) == {("13", 0): 4.0}
    assert pairs(ours, {("13", None): 1.0}) == {("13", 0): 4.0, ("13", 1): 5.0}


def test_bootstrap_of_two_pairs_is_enumerated() -> None:
    found = compare_paired({("a", 0): 3.0, ("b", 0): 1.0}, {("a", 0): 1.0, ("b", 0): 1.0})
    assert found is not None
    # Differences 2 and 0 give the four means 0, 1, 1, 2: quantiles 0.025 and 0.975 lie 0.075 from the ends.
    assert (found.mean, found.pairs) == (1.0, 2)
    assert (found.low, found.high) == (pytest.approx(0.075), pytest.approx(1.925))
    assert found.p == pytest.approx(0.5)
    assert not found.significant


def test_bootstrap_tells_clear_from_unclear() -> None:
    base = {(str(split), 0): 0.5 for split in range(8)}
    clear = compare_paired({unit: 0.6 + split / 1000 for split, unit in enumerate(base)}, base)
    unclear = compare_paired({unit: 0.5 + (-1) ** split / 10 for split, unit in enumerate(base)}, base)
    assert clear is not None
    assert clear.significant
    assert clear.p < 0.01
    assert unclear is not None
    assert not unclear.significant
    assert unclear.low < 0 < unclear.high


def test_seeds_of_one_split_are_one_block() -> None:
    ours = {(split, seed): 1.0 for split in ("13", "21") for seed in range(10)}
    found = compare_paired(ours, dict.fromkeys(ours, 0.0))
    assert found is not None
    assert found.pairs == 2
    assert not found.significant


def runs(folder: Path, values: dict[str, list[float]], **more: object) -> list[Path]:
    """Runs by method, one per split 0, 1, 2, ..., with these test accuracies."""
    return [
        sample.classification(folder / f"{method}-{split}", method, 0, split, test=value, **more)
        for method, found in values.items()
        for split, value in enumerate(found)
    ]


def only(comparison: Comparison) -> ScoreTable:
    assert len(comparison.tables) == 1, [table.title for table in comparison.tables]
    return comparison.tables[0]


def test_table_by_hand(tmp_path: Path) -> None:
    folders = runs(tmp_path, {"pin": [0.7, 0.8], "random": [0.6, 0.6], "grips": [0.5, 0.7]}, manual=0.5)
    table = only(compare(folders))
    assert table.rows == ("manual", "instructions", "grips", "pin", "random")
    assert table.columns == ("sst-2",)
    assert table.cells["pin", "sst-2"].mean == pytest.approx(0.75)
    assert table.cells["pin", "sst-2"].error == pytest.approx(0.05)
    assert table.cells["manual", "sst-2"].values == {("0", None): 0.5, ("1", None): 0.5}
    assert [table.rank(row, "sst-2") for row in table.rows] == [0, 0, 2, 1, 2]
    [contrast] = table.contrasts
    assert (contrast.row, contrast.baseline) == ("pin", "grips")
    assert contrast.difference is not None
    assert contrast.difference.mean == pytest.approx(0.15)


def test_calibration_is_a_row_and_not_a_column(tmp_path: Path) -> None:
    batch = {"task": {"labels": "calibrated"}}
    for split in (13, 21):
        sample.classification(tmp_path / f"pin-{split}", "pin", split=split, task={"labels": "words"})
        sample.classification(tmp_path / f"manual-{split}", "manual", split=split, test=0.5)
        sample.classification(tmp_path / f"calibrated-{split}", "manual", split=split, test=0.7, **batch)
    [table] = compare([tmp_path]).tables
    assert table.columns == ("sst-2",)
    hand = [row for row in table.rows if row.startswith("manual")]
    assert hand == ["manual (labels=calibrated)", "manual (labels=words)"], "and none that pin measured beside itself"
    assert table.rows[:2] == tuple(hand)
    assert [table.cells[row, "sst-2"].mean for row in hand] == pytest.approx([0.7, 0.5])


def test_calibrated_runs_show_hand_written_prompts_both_ways(tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "run")
    path = folder / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    result["baselines"]["manual"]["test"] |= {"accuracy": 0.75, "raw_accuracy": 0.5}
    path.write_text(json.dumps(result), encoding="utf-8")
    (table,) = compare([folder]).tables
    (column,) = table.columns
    assert table.cells["manual", column].mean == 0.75
    assert table.cells["manual, raw", column].mean == 0.5
    assert table.rows[:2] == ("manual", "manual, raw")


def test_updates_are_shown_and_cells_with_too_few_calls_are_marked(tmp_path: Path) -> None:
    folders = runs(tmp_path, {"pin": [0.6, 0.8], "random": [0.5, 0.6]})
    for folder, updates, calls in zip(folders[:2], (4, 0), (7000, 1000), strict=True):
        result = json.loads((folder / "result.json").read_text())
        result |= {"updates": updates, "share_after_update": updates / 8, "calls": calls, "enough_calls": 4672}
        (folder / "result.json").write_text(json.dumps(result))
    shown = tables.markdown(compare(folders))
    assert "70.0† ± 10.0" in shown.replace("*", "")
    assert "† fewer calls than are enough" in shown
    assert "| pin | 2 | 25 | 4,000 | 4,672 |" in shown
    assert "| random | 2 |" not in shown
    assert "†" not in tables.markdown(compare([folders[0], folders[2]]))


def test_a_sweep_folder_means_its_runs(tmp_path: Path) -> None:
    folders = sample.sweep(tmp_path / "sweep")
    assert find_runs(tmp_path / "sweep") == sorted(folders)
    assert compare([tmp_path / "sweep"]) == compare(folders)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"judges": {"style": "another judge"}}, "judges"),
        ({"model": "roberta-large"}, "task model"),
        ({"calls": 999}, "budget"),
    ],
)
def test_what_differs_is_not_mixed(tmp_path: Path, change: dict[str, object], named: str) -> None:
    folders = runs(tmp_path / "a", {"pin": [0.7, 0.8]})
    folders += runs(tmp_path / "b", {"pin": [0.1, 0.2]}, fingerprint="other", **change)
    comparison = compare(folders)
    assert sorted(round(table.cells["pin", "sst-2"].mean, 6) for table in comparison.tables) == [0.15, 0.75]
    assert any(named in note and "not mixed" in note for note in comparison.notes)
    assert all(named in table.title for table in comparison.tables)


def test_other_data_is_another_column(tmp_path: Path) -> None:
    folders = runs(tmp_path / "a", {"pin": [0.7, 0.8]}) + runs(tmp_path / "b", {"pin": [0.2, 0.4]}, dataset="cr")
    folders += runs(tmp_path / "c", {"pin": [0.5, 0.5]}, dataset="cr", task={"shots": 4}, fingerprint="four")
    table = only(compare(folders))
    assert table.columns == ("cr (shots=4)", "cr (shots=none)", "sst-2")
    assert table.cells["pin", "cr (shots=none)"].mean == pytest.approx(0.3)


def test_data_with_a_larger_budget_may_be_beside_others(tmp_path: Path) -> None:
    methods = {"pin": [0.7, 0.8], "random": [0.5, 0.6]}
    folders = runs(tmp_path / "a", methods, calls=6400)
    folders += runs(tmp_path / "b", methods, dataset="agnews", calls=9600, fingerprint="other")
    table = only(compare(folders))
    assert table.columns == ("agnews", "sst-2")
    assert table.facts["budget"] == "agnews: calls 9600; sst-2: calls 6400"
    # One run of a column with another budget: then nothing of it is mixed.
    folders += runs(tmp_path / "c", {"grips": [0.9, 0.9]}, dataset="agnews", calls=6400, fingerprint="other")
    assert sorted(table.columns for table in compare(folders).tables) == [("agnews",), ("agnews", "sst-2")]


def test_a_switch_that_an_older_run_did_not_have_is_off(tmp_path: Path) -> None:
    folders = runs(tmp_path / "a", {"pin": [0.7, 0.8]})
    recipe = folders[0] / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("k = 256", "k = 256\ndictionary = false"))
    assert "dictionary = false" in recipe.read_text()
    assert [row for row in only(compare(folders)).rows if "pin" in row] == ["pin"]
    recipe.write_text(recipe.read_text().replace("false", "true"))
    assert len([row for row in only(compare(folders)).rows if "pin" in row]) == 2


def test_a_task_with_many_measures_shows_all_of_them(tmp_path: Path) -> None:
    folders = runs(tmp_path, {"pin": [0.7, 0.8], "manual": [0.5, 0.5]})
    few = tables.write_as(compare(folders), "markdown")
    assert "all measures" not in few
    for place, folder in enumerate(folders):
        result = json.loads((folder / "result.json").read_text())
        result["test"] |= {"content": 60 + place, "style": 40 - place, "perplexity": 30 + place}
        (folder / "result.json").write_text(json.dumps(result))
    comparison = compare(folders)
    table = only(comparison)
    first, second = (folders.index(entry.folder) for entry in table.runs_of("pin"))
    assert table.metrics["pin", "sst-2", "content"].mean == pytest.approx(60 + (first + second) / 2)
    assert table.metrics["pin", "sst-2", "content"].error == pytest.approx(abs(first - second) / 2)
    shown = tables.write_as(comparison, "markdown").partition("all measures on sst-2")[2].partition("readability")[0]
    assert all(name in shown for name in ("content", "style", "perplexity", "| pin |"))
    assert ",content," in tables.write_as(comparison, "csv")
    assert "perplexity" in {cell["metric"] for cell in tables.as_json(comparison)["tables"][0]["metrics"]}


@pytest.mark.parametrize(
    ("perplexities", "said"),
    [((30, 32), "31.0 ± 1.0"), ((2e6, 4e6), "3,000,000 ± 1,000,000"), ((2e13, 4e13), "3e+13 ± 1e+13")],
)
def test_errors_are_written_like_their_means(perplexities: tuple[float, float], said: str, tmp_path: Path) -> None:
    folders = runs(tmp_path, {"pin": [0.7, 0.8]})
    for folder, perplexity in zip(folders, perplexities, strict=True):
        result = json.loads((folder / "result.json").read_text())
        result["test"] |= {"content": 60, "style": 40, "perplexity": perplexity}
        (folder / "result.json").write_text(json.dumps(result))
    assert said in tables.write_as(compare(folders), "markdown").partition("all measures")[2]


def test_same_task_with_other_data_under_its_name_is_refused(tmp_path: Path) -> None:
    folders = runs(tmp_path / "a", {"pin": [0.7]}) + runs(tmp_path / "b", {"random": [0.6]}, fingerprint="changed")
    with pytest.raises(SettingError, match="fingerprints"):
        compare(folders)


def test_real_runs_of_several_methods_are_in_one_table(tmp_path: Path) -> None:
    small = {"q_learning": {"steps": 1, "prompts": 4, "batch": 4}, "untrained": {"prompts": 4}}
    for method in ("manual", "random", "pin"):
        recipe = resolve(settings_of(tmp_path, method=method, **small))
        run(recipe, tmp_path / "runs" / method)
    assert set(only(compare([tmp_path / "runs" / method for method in ("manual", "random", "pin")])).rows) >= {
        "manual", "random", "pin",
    }  # fmt: skip


def test_varied_settings_are_rows_of_their_own(tmp_path: Path) -> None:
    folders = runs(tmp_path / "a", {"pin": [0.7, 0.8]}, k=256) + runs(tmp_path / "b", {"pin": [0.5, 0.6]}, k=16)
    table = only(compare(folders))
    assert table.cells["pin (k=256)", "sst-2"].mean == pytest.approx(0.75)
    assert table.cells["pin (k=16)", "sst-2"].mean == pytest.approx(0.55)
    assert table.rows[-2:] == ("pin (k=16)", "pin (k=256)"), "numbers by their value"


def test_settings_that_follow_the_data_make_no_rows(tmp_path: Path) -> None:
    folders = runs(tmp_path / "a", {"pin": [0.7]}, k=256) + runs(tmp_path / "b", {"pin": [0.5]}, k=16, dataset="cr")
    assert "pin" in only(compare(folders)).rows


def test_the_same_run_twice_counts_once_and_a_contradiction_is_refused(tmp_path: Path) -> None:
    folders = runs(tmp_path / "a", {"pin": [0.7, 0.8]}) + runs(tmp_path / "b", {"pin": [0.7]})
    comparison = compare(folders)
    assert len(only(comparison).cells["pin", "sst-2"].values) == 2
    assert any("counted once" in note for note in comparison.notes)
    with pytest.raises(SettingError, match="same method, data, split and seed"):
        compare(folders + runs(tmp_path / "c", {"pin": [0.9]}))


def test_unfinished_runs_are_left_out_and_named(tmp_path: Path) -> None:
    folders = runs(tmp_path, {"pin": [0.7, 0.8]})
    (folders[0] / "result.json").unlink()
    comparison = compare(folders)
    assert len(only(comparison).cells["pin", "sst-2"].values) == 1
    assert f"{folders[0]} has no result yet" in comparison.notes[0]
    (folders[1] / "result.json").unlink()
    with pytest.raises(RunError, match="no finished runs to compare"):
        compare(folders)


def test_another_metric_and_a_wrong_one(tmp_path: Path) -> None:
    folders = runs(tmp_path, {"pin": [0.7, 0.8]})
    assert only(compare(folders, "macro_f1")).cells["pin", "sst-2"].mean == pytest.approx(0.74)
    with pytest.raises(SettingError, match="did you mean 'accuracy'"):
        compare(folders, "acuracy")


def test_pictures_are_averaged_like_splits(tmp_path: Path) -> None:
    folders = [sample.inversion(tmp_path / f"{m}{i}", m, 0, i) for m in ("pin", "pez") for i in ("a.png", "b.png")]
    table = only(compare(folders))
    assert table.columns == ("pictures",)
    assert len(table.cells["pin", "pictures"].values) == 2
    assert len(table.readability["pez", "perplexity"].values) == 2


def test_markdown(tmp_path: Path) -> None:
    text = tables.markdown(compare(runs(tmp_path, {"pin": [0.7, 0.8], "random": [0.6, 0.6]}, manual=0.5)))
    assert "| pin | **75.0** ± 5.0 |" in text
    assert "| random | <u>60.0</u> ± 0.0 |" in text
    assert "| manual | 50.0 ± 0.0 |" in text
    assert "readability" in text
    [tested] = [line for line in text.splitlines() if "too few pairs (2)" in line]
    assert tested.count("[") == tested.count("0.500") == 0  # an interval and a p-value of two pairs would not agree
    assert "Mean ± standard error over splits; over seeds if there is one split (2 a cell, in percent)." in text


def test_one_run_a_cell_is_said_and_not_tested(tmp_path: Path) -> None:
    text = tables.markdown(compare(runs(tmp_path, {"pin": [0.7], "random": [0.6]})))
    assert "One run a cell, in percent: without standard errors and tests." in text
    assert "against" not in text


def test_latex_is_escaped_and_marks_the_best(tmp_path: Path) -> None:
    folders = runs(tmp_path, {"pin": [0.7, 0.8], "random": [0.6, 0.6]}, dataset="50%_&co")
    text = tables.latex(compare(folders))
    assert r"50\%\_\&co" in text
    assert r"\textbf{75.0} {\scriptsize$\pm$ 5.0}" in text
    assert r"\underline{60.0}" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3
    assert tables.latex_escaped("a_b{c}$\\^~") == r"a\_b\{c\}\$\textbackslash{}\textasciicircum{}\textasciitilde{}"


def test_csv_has_every_digit_and_no_formula(tmp_path: Path) -> None:
    folders = runs(tmp_path, {"pin": [0.7, 0.8], '=HYPERLINK("x")': [0.6, 0.7]})
    rows = list(csv.DictReader(io.StringIO(tables.comma_separated(compare(folders)))))
    [row] = [row for row in rows if row["row"] == "pin" and row["metric"] == "accuracy"]
    assert (float(row["mean"]), float(row["standard_error"]), row["runs"]) == (0.75, pytest.approx(0.05), "2")
    assert not any(value.startswith("=") for row in rows for value in row.values())
    assert {row["metric"] for row in rows} >= {"perplexity", "in_text", "dictionary_words", "stable"}


def test_markup_in_names_is_not_obeyed(tmp_path: Path) -> None:
    from rich.console import Console

    folders = runs(tmp_path, {"[red]x[/red]|*y*<b>": [0.7, 0.8], "pin": [0.5, 0.6]})
    comparison = compare(folders)
    console = Console(width=160, file=io.StringIO(), force_terminal=True)
    for table in tables.rich_tables(comparison):
        console.print(table)
    assert "[red]x[/red]|*y*<b>" in console.file.getvalue()  # type: ignore[attr-defined]
    assert r"\[red\]x\[/red\]\|\*y\*\<b\>" in tables.markdown(comparison)


def test_rich_marks_best_bold_and_second_underlined(tmp_path: Path) -> None:
    [first, *_] = tables.rich_tables(compare(runs(tmp_path, {"pin": [0.7, 0.8], "random": [0.6, 0.6]})))
    cells = [str(cell.spans[0].style) if cell.spans else str(cell.style) for cell in first.columns[1].cells]  # type: ignore[union-attr]
    assert cells[-2:] == ["bold", "underline"]


def test_formats_by_name(tmp_path: Path) -> None:
    comparison = compare(runs(tmp_path, {"pin": [0.7, 0.8]}))
    assert "**75.0** ± 5.0" in tables.write_as(comparison, "markdown")
    with pytest.raises(SettingError, match="did you mean 'markdown'"):
        tables.write_as(comparison, "markdwon")


def test_hostile_results_do_not_break_the_table(tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    for change in ({"seed": [1]}, {"judges": 3}, {"baselines": [1]}, {"readability": "x"}, {"method": {"a": 1}}):
        (folder / "result.json").write_text(json.dumps(result | change))
        assert tables.markdown(compare([folder]))


def test_a_row_without_a_column_has_a_gap_and_no_average(tmp_path: Path) -> None:
    folders = [
        sample.classification(tmp_path / f"{method}-{data}", method, dataset=data)
        for method, data in (("pin", "sst-2"), ("pin", "cr"), ("random", "sst-2"))
    ]
    [table] = compare(folders).tables
    assert table.rank("random", "cr") == 0
    assert table.ranked("cr")[0] == "pin"
    assert "random" not in table.ranked("cr")
    line, *_ = [line for line in tables.markdown(compare(folders)).splitlines() if line.startswith("| random |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells.count("\N{EN DASH}") >= 2  # the missing column and the average over both


def test_a_hand_written_prompt_is_averaged_over_seeds_only_where_they_change_it(tmp_path: Path) -> None:
    same = [sample.classification(tmp_path / f"s{seed}", seed=seed, manual=0.5) for seed in (0, 1)]
    assert only(compare(same)).cells["manual", "sst-2"].values == {("13", None): 0.5}
    noisy = [sample.classification(tmp_path / f"n{seed}", seed=seed, manual=0.5 + seed / 10) for seed in (0, 1)]
    assert only(compare(noisy)).cells["manual", "sst-2"].values == {("13", 0): 0.5, ("13", 1): 0.6}
    # Two runs of one split and seed that disagree: the first counts, and that is said.
    noisy.append(sample.classification(tmp_path / "o", method="random", seed=1, manual=0.9))
    found = compare(noisy)
    assert only(found).cells["manual", "sst-2"].values[("13", 1)] == 0.6
    assert sum("manual prompt has other figures" in note for note in found.notes) == 1
