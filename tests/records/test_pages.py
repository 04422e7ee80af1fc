"""`pinprompt results`: blocks between markers, rewritten from run folders and from nothing else."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import run_samples as sample

from pinprompt.errors import RunError, SettingError
from pinprompt.records.pages import regenerate, replace_block

README = "# pinprompt\n\nBefore.\n\n<!-- results:begin small -->\nold\n<!-- results:end -->\n\nAfter.\n"


@pytest.fixture
def pages(tmp_path: Path) -> tuple[Path, Path, Path]:
    sample.sweep(tmp_path / "small")
    results, readme = tmp_path / "results.md", tmp_path / "README.md"
    results.write_text("# Results\n\n<!-- results:begin other -->\nkept\n<!-- results:end -->\n")
    readme.write_text(README)
    return tmp_path / "small", results, readme


def test_numbers_come_from_the_runs(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    assert regenerate(sweep, results, readme) == [results, readme, results.parent / "results" / "small.csv"]
    for page in (results, readme):
        text = page.read_text()
        assert "| manual | 57.5 ± 0.9 |" in text  # 0.55 + (13, 21, 42) / 1000: by hand 57.53 and 0.865
        assert "Each row was made by:" in text
        assert f"pinprompt tune {sweep}/pin-13-0/recipe.toml" in text
    assert "readability" in results.read_text()
    assert "The prompt of each row" in results.read_text()
    assert "readability" not in readme.read_text()


def test_the_rest_of_the_page_stays(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    regenerate(sweep, results, readme)
    text = readme.read_text()
    assert text.startswith("# pinprompt\n\nBefore.\n\n<!-- results:begin small -->\n")
    assert text.endswith("<!-- results:end -->\n\nAfter.\n")
    assert "old" not in text
    assert "<!-- results:begin other -->\nkept\n<!-- results:end -->" in results.read_text()


def test_it_is_idempotent(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    regenerate(sweep, results, readme)
    before = results.read_bytes(), readme.read_bytes()
    assert regenerate(sweep, results, readme) == []
    assert (results.read_bytes(), readme.read_bytes()) == before


def test_a_changed_run_changes_the_page(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    regenerate(sweep, results, readme)
    for split in (13, 21, 42):
        sample.classification(sweep / f"pin-{split}-0", "pin", 0, split, test=0.91)
    prompts = results.parent / "results" / "small.csv"
    assert regenerate(sweep, results, readme) == [results, readme, prompts]
    assert "**91.0** ± 0.0" in readme.read_text()


def test_one_command_for_the_whole_sweep(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    regenerate(sweep, results, readme, command="pinprompt sweep recipes/small/sst-2.toml")
    assert "- random, rlprompt, pin: `pinprompt sweep recipes/small/sst-2.toml`" in readme.read_text()


def test_a_readme_without_the_block_is_left_alone(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    readme.write_text("# Nothing here\n")
    assert readme not in regenerate(sweep, results, readme)
    assert readme.read_text() == "# Nothing here\n"


def test_names_and_sources_are_checked(pages: tuple[Path, Path, Path], tmp_path: Path) -> None:
    sweep, results, readme = pages
    with pytest.raises(SettingError, match="cannot name a block"):
        regenerate(sweep, results, readme, name="a -->")
    with pytest.raises(RunError):
        regenerate([], results, readme)
    with pytest.raises(RunError):
        regenerate(tmp_path / "nothing", results, readme)


@pytest.mark.parametrize(
    "page",
    [
        "<!-- results:begin a -->\n",
        "<!-- results:end -->\n",
        "<!-- results:begin a -->\n<!-- results:begin b -->\n<!-- results:end -->\n<!-- results:end -->\n",
        "<!-- results:end -->\n<!-- results:begin a -->\n",
    ],
)
def test_broken_markers_are_refused(page: str) -> None:
    with pytest.raises(SettingError, match="do not pair"):
        replace_block(page, "a", "x", add=True)


def test_line_endings_are_kept() -> None:
    page = "a\r\n<!-- results:begin n -->\r\nold\r\n<!-- results:end -->\r\n"
    filled = replace_block(page, "n", "one\ntwo", add=False)
    assert filled == "a\r\n<!-- results:begin n -->\r\none\r\ntwo\r\n<!-- results:end -->\r\n"


def test_a_run_cannot_write_markers(tmp_path: Path) -> None:
    evil = "<!-- results:end --><script>x</script><!-- results:begin other -->"
    sample.classification(tmp_path / "sweep" / "run", dataset=evil)
    results, readme = tmp_path / "results.md", tmp_path / "README.md"
    readme.write_text(README)
    for _ in range(2):
        regenerate(tmp_path / "sweep", results, readme, name="small", command=evil + "`")
    assert readme.read_text().count("<!--") == 2
    assert results.read_text().count("<!--") == 2


def test_a_page_that_is_not_text_is_refused(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    results.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match=r"results\.md cannot be read as text.*--results"):
        regenerate(sweep, results, readme)


def test_runs_without_words_have_no_table_of_prompts(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    for path in sweep.glob("*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"prompt": None}))
    regenerate(sweep, results, readme)
    assert "| manual |" in results.read_text()
    assert "The prompt of each row" not in results.read_text()
    assert "Every found prompt" not in results.read_text()
    assert not (results.parent / "results").exists()


def test_every_found_prompt_is_in_a_table_beside_the_page(pages: tuple[Path, Path, Path]) -> None:
    sweep, results, readme = pages
    formula = '=HYPERLINK("x")'
    first = sweep / "pin-13-0" / "result.json"
    first.write_text(json.dumps(json.loads(first.read_text()) | {"prompt": formula}))
    regenerate(sweep, results, readme)
    assert "Every found prompt: [results/small.csv](results/small.csv)." in results.read_text()
    with (results.parent / "results" / "small.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["method"], row["split"]) for row in rows} == {
        (method, split) for method in ("pin", "rlprompt", "random") for split in ("13", "21", "42")
    }
    assert [row["prompt"] for row in rows if (row["method"], row["split"]) == ("pin", "13")] == ["'" + formula]
    assert all(row["metric"] == "accuracy" and float(row["value"]) > 1 for row in rows)  # in percent, as in the page


def test_a_style_run_shows_its_best_and_its_worst_and_who_judged(tmp_path: Path) -> None:
    folder = sample.style(tmp_path / "style" / "one")
    result = json.loads((folder / "result.json").read_text())
    marks = [(90, 100), (80, 100), (70, 100), (60, 0), (10, 0)]
    result["tables"]["rewrites"] = [
        {
            "source": f"text {place}",
            "rewrite": f"after <!-- {place}",
            "content": content,
            "style": style,
            "fluency": 100,
        }
        for place, (content, style) in enumerate(marks)
    ]
    (folder / "result.json").write_text(json.dumps(result))
    page = tmp_path / "results.md"
    regenerate(tmp_path / "style", page, tmp_path / "README.md")
    shown = page.read_text()
    assert [place for place in range(5) if f"text {place}" in shown] == [0, 1, 3, 4]
    assert "90.0/100.0/100.0" in shown
    assert "94.1 % on held-out" in shown
    assert shown.count("<!--") == 2  # the block's own markers
