"""The studio in a real Chromium: what people do with it, from a dropped table to the found prompt."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinprompt.answers.table import pack_answers, unpack_answers
from pinprompt.files import is_held
from pinprompt.folder.reading import read_run
from pinprompt.maths import labels
from pinprompt.values import Answers
from tests.studio.conftest import PATIENCE, Studio, environment, settings, table, until

pytestmark = pytest.mark.timeout(1200)  # searches in processes of their own, on a machine that may be busy


def fill_in(tab: Any, studio: Studio, tiny: Path, data: Path, steps: int = 6, **more: Any) -> None:
    """The form of a new search with a table and the tiny model."""
    tab.goto(studio.url + "new")
    tab.set_input_files("#table", str(data))
    tab.wait_for_selector("#labels input")
    tab.fill("#model", str(tiny))
    tab.click("text=More")
    tab.select_option('select[name="method"]', "pin")
    tab.fill('textarea[name="sets"]', "\n".join(settings(tiny, steps, **more)))


def begin(tab: Any, name: str) -> None:
    tab.fill('input[name="name"]', name)
    tab.wait_for_selector("#go:not([disabled])")
    tab.click("#go")
    tab.wait_for_url(re.compile(rf"/run/{name}$"))


def try_it(tab: Any, ready: str) -> None:
    """Go to the page that tries a run's prompt; its scripts must have run before anything is filled in."""
    tab.click("a:has-text('Try it')")
    tab.wait_for_selector(ready, state="attached")
    tab.wait_for_load_state("load")


def search(folder: Path, home: Path, tiny: Path, data: Path, steps: int, *more: str) -> subprocess.Popen[bytes]:
    """The same search, started in a terminal."""
    command = [sys.executable, "-m", "pinprompt", "classify", "--train", str(data), "--text-column", "review"]
    command += ["--label-column", "stars", "--word", "animal=cat", "--word", "thing=stone", "--task-model", str(tiny)]
    command += ["--out", str(folder), "--method", "pin", "--quiet", *more]
    command += [word for setting in settings(tiny, steps) for word in ("--set", setting)]
    return subprocess.Popen(command, env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def placed(studio: Studio, earlier: dict[int, Path], seed: int = 1) -> Path:
    """A finished run in the studio's folder."""
    folder = studio.folder / f"seed-{seed}"
    shutil.copytree(earlier[seed], folder)
    return folder


def test_from_a_dropped_table_to_the_found_prompt(tab: Any, studio: Studio, tiny: Path, tmp_path: Path) -> None:
    fill_in(tab, studio, tiny, table(tmp_path / "reviews.csv"))
    assert tab.input_value('select[name="text_column"]') == "review"
    assert tab.input_value('select[name="label_column"]') == "stars"
    assert tab.locator("#table-count").inner_text() == "84 rows"
    labels = tab.locator("#labels label").all_inner_texts()
    assert [re.sub(r"\s+", " ", said).strip() for said in labels] == ["animal 42 rows", "thing 42 rows"]
    until(tab, "document.querySelector('#cost').textContent.startsWith('At most')")
    command = tab.locator("#command").inner_text()
    assert command.startswith("pinprompt classify --train runs/uploads/reviews-")
    assert "--text-column=review --label-column=stars --word=animal=animal --word=thing=thing" in command
    begin(tab, "dropped")
    tab.wait_for_selector("#state.finished")
    result = read_run(studio.folder / "dropped").result
    until(tab, "prompt => document.querySelector('h1.prompt')?.textContent === prompt", result["prompt"].strip())
    assert tab.locator("text=Run it again").count() == 1  # the page is the report to its end
    assert int(re.findall(r"\d+", tab.locator("#matrix-count").inner_text())[-1]) >= 32  # train, and what dev was asked
    with tab.expect_download() as download:
        tab.click("text=Report (HTML)")
    report = Path(download.value.path()).read_text("utf-8")
    assert result["prompt"].strip() in report
    assert "nothing is fetched" in report
    with tab.expect_download() as download:
        tab.click("text=promptfoo")
    assert result["prompt"].strip() in json.loads(Path(download.value.path()).read_text("utf-8"))["prompts"][0]
    # The command that the page showed is a real one, and the recipe is what it means.
    assert read_run(studio.folder / "dropped").setting("task", "words") == {"animal": "animal", "thing": "thing"}


def test_the_default_search_fills_the_matrix_block_by_block(
    tab: Any, studio: Studio, tiny: Path, tmp_path: Path
) -> None:
    fill_in(tab, studio, tiny, table(tmp_path / "raced.csv"))
    tab.select_option('select[name="method"]', "")
    tab.fill('textarea[name="sets"]', f"policy.model={tiny}\npolicy.context=none\nrace.max_perplexity=none")
    tab.fill('input[name="calls"]', "300")
    begin(tab, "raced")
    tab.wait_for_selector("#state.finished")
    assert read_run(studio.folder / "raced").setting("method") == "race"
    until(tab, "!document.querySelector('#matrix').hidden")
    said = tab.locator("#matrix-count").inner_text()
    assert all(int(number) > 1 for number in re.findall(r"\d+", said)), said


def test_problems_in_a_table_are_named_with_their_line(tab: Any, studio: Studio) -> None:
    tab.goto(studio.url + "new")
    tab.click("text=Paste a table")
    tab.fill("#pasted", "text,label\nfine,1\ngood,\nbad,0\n")
    tab.click("#use-pasted")
    tab.wait_for_selector("#table-problems li")
    assert tab.locator("#table-problems li").all_inner_texts()[0] == "Line 3:The label is empty."
    assert tab.is_disabled("#go")
    tab.fill("#pasted", "text,label\nfine,1\ngood,1\nbad,0\nworse,0\n")
    tab.click("#use-pasted")
    until(tab, "document.querySelectorAll('#table-problems li').length === 0")
    tab.wait_for_selector("#problem:not([hidden])")
    assert "The label '0' has no word" in tab.locator("#problem").inner_text()


def test_a_search_grows_stops_and_continues(tab: Any, studio: Studio, tiny: Path, tmp_path: Path) -> None:
    fill_in(tab, studio, tiny, table(tmp_path / "long.csv"), steps=4000, **{"q_learning.on_collapse": "ignore"})
    tab.fill('input[name="calls"]', "40000000")
    begin(tab, "long")
    tab.wait_for_selector("#state.running")
    until(tab, "parseInt(document.querySelector('#matrix-count').textContent) > 0")
    before = tab.evaluate("parseInt(document.querySelector('#matrix-count').textContent)")
    until(tab, "before => parseInt(document.querySelector('#matrix-count').textContent) > before", before)
    until(tab, "document.querySelectorAll('.charts svg').length > 0")
    until(tab, "/^(Step|Searching).*; last tried: “.+”$/.test(document.querySelector('#ticker').textContent)")
    until(tab, "document.querySelector('th[title]')?.title.startsWith('A score is')")  # what it is, on hover
    tab.click("#stop")
    tab.wait_for_selector("#state.stopped")
    steps = len(read_run(studio.folder / "long").of("step"))
    assert steps > 0
    assert not (studio.folder / "long" / "result.json").exists()
    tab.click("#resume-open")
    tab.click("#resume-form button")
    tab.wait_for_selector("#state.running")
    step = tab.evaluate("parseInt(document.querySelector('#ticker').textContent.replace(/\\D+/, '')) || 0")
    until(
        tab,
        "step => parseInt(document.querySelector('#ticker').textContent.replace(/\\D+/, '')) > step",
        max(step, steps),
    )
    tab.click("#stop")
    tab.wait_for_selector("#state.stopped")


def test_a_word_is_banned_and_the_search_continues(tab: Any, studio: Studio, earlier: dict[int, Path]) -> None:
    folder = placed(studio, earlier)
    word = read_run(folder).result["prompt"].split()[0]
    tab.goto(studio.url + "run/seed-1")
    tab.click("#vary-open")
    tab.fill('#vary-form input[name="word"]', word)
    tab.click("text=Ban it and search again")
    tab.wait_for_url(re.compile(r"/run/seed-1-without-"))
    tab.wait_for_selector("#state.finished")
    [other] = [path for path in studio.folder.iterdir() if path.name.startswith("seed-1-without-")]
    assert read_run(other).setting("policy", "constraints", "banned") == [word]
    with (other / "prompts.csv").open(newline="", encoding="utf-8") as file:
        prompts = [row["prompt"] for row in csv.DictReader(file)]
    assert prompts
    assert not any(word in prompt.split() for prompt in prompts)


def test_a_finished_run_gets_more_budget(tab: Any, studio: Studio, earlier: dict[int, Path]) -> None:
    folder = placed(studio, earlier)
    before = read_run(folder).result["calls"]
    tab.goto(studio.url + "run/seed-1")
    tab.click("#resume-open")
    tab.fill('#resume-form input[name="calls"]', "1200")
    tab.click("#resume-form button")
    # It may end before the page has seen it run, so its result is what is waited for.
    while read_run(folder).result.get("calls", 0) <= before:
        tab.wait_for_timeout(200)
    tab.wait_for_selector("#state.finished")
    assert before <= 600 < read_run(folder).result["calls"] <= 1200


def test_a_run_that_was_started_elsewhere_is_shown_too(tab: Any, studio: Studio, tiny: Path, tmp_path: Path) -> None:
    tab.goto(studio.url)
    tab.wait_for_selector("text=No runs here yet")
    process = search(studio.folder / "outside", tmp_path / "home", tiny, table(tmp_path / "o.csv"), 4000,
                     "--calls", "40000000", "--set", "q_learning.on_collapse=ignore")  # fmt: skip
    try:
        while not (studio.folder / "outside" / "events.jsonl").exists():
            assert process.poll() is None
            tab.wait_for_timeout(200)
        tab.goto(studio.url + "run/outside")
        tab.wait_for_selector("#state.running")
        until(tab, "parseInt(document.querySelector('#matrix-count').textContent) > 0")
        before = tab.evaluate("parseInt(document.querySelector('#matrix-count').textContent)")
        until(tab, "n => parseInt(document.querySelector('#matrix-count').textContent) > n", before)
        assert tab.is_hidden("#stop")  # whose process it is, the studio cannot know
        tab.close()
        assert process.poll() is None  # closing the page stops nothing
    finally:
        process.kill()
        process.wait()


def test_two_tabs_see_the_same_and_one_search_waits(tab: Any, studio: Studio, tiny: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "two.csv")
    fill_in(tab, studio, tiny, data, steps=4000, **{"q_learning.on_collapse": "ignore"})
    tab.fill('input[name="calls"]', "40000000")
    begin(tab, "first")
    tab.wait_for_selector("#state.running")
    other = tab.context.new_page()
    fill_in(other, studio, tiny, data)
    begin(other, "second")
    other.wait_for_selector("text=Queued")
    third = tab.context.new_page()
    third.goto(studio.url + "run/first")
    third.wait_for_selector("#state.running")
    third.click("#stop")
    tab.wait_for_selector("#state.stopped")  # stopped in one tab, seen in the other
    other.wait_for_selector("#state.finished")  # and the line moves on
    assert read_run(studio.folder / "second").result["prompt"]


def test_a_search_that_cannot_start_or_is_killed_is_a_message(
    tab: Any, studio: Studio, tiny: Path, tmp_path: Path
) -> None:
    data = table(tmp_path / "k.csv")
    fill_in(tab, studio, tiny, data)
    tab.fill("#model", "/nowhere/at-all")
    begin(tab, "lost")
    tab.wait_for_selector("text=The search did not start")
    assert "no model '/nowhere/at-all'" in tab.inner_text("#waiting-message")
    fill_in(tab, studio, tiny, data, steps=4000, **{"q_learning.on_collapse": "ignore"})
    tab.fill('input[name="calls"]', "40000000")
    begin(tab, "killed")
    tab.wait_for_selector("#state.running")
    process = int((studio.folder / "killed" / ".lock").read_text().split()[-1])
    os.kill(process, signal.SIGKILL)
    tab.wait_for_selector("#state.stopped")
    tab.wait_for_selector("#problem:not([hidden])")
    assert "ended by SIGKILL" in tab.inner_text("#problem")
    assert tab.is_visible("#resume-open")


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tab: Any, studio: Studio, tiny: Path, tmp_path: Path) -> None:
    fill_in(tab, studio, tiny, table(tmp_path / "c.csv"), steps=4000, **{"q_learning.on_collapse": "ignore"})
    tab.fill('input[name="calls"]', "40000000")
    begin(tab, "kept")
    tab.wait_for_selector("#state.running")
    until(tab, "parseInt(document.querySelector('#matrix-count').textContent) > 0")
    assert studio.stop() == 0
    folder = studio.folder / "kept"
    steps = len(read_run(folder).of("step"))
    command = [sys.executable, "-m", "pinprompt", "tune", str(folder / "recipe.toml"), "--out", str(folder)]
    command += ["--resume", "--calls", "700", "--quiet"]
    assert subprocess.run(command, env=environment(tmp_path / "home"), cwd=studio.folder.parent).returncode == 0
    assert len(read_run(folder).of("step")) > 0 < steps
    assert read_run(folder).result["prompt"]


def test_a_second_ctrl_c_leaves_no_search_behind(tab: Any, studio: Studio, tiny: Path, tmp_path: Path) -> None:
    fill_in(tab, studio, tiny, table(tmp_path / "c.csv"), steps=4000, **{"q_learning.on_collapse": "ignore"})
    tab.fill('input[name="calls"]', "40000000")
    begin(tab, "left")
    tab.wait_for_selector("#state.running")
    for _ in range(2):
        studio.process.send_signal(signal.SIGINT)
    studio.process.wait(120)
    deadline = time.monotonic() + PATIENCE / 1000
    while is_held(studio.folder / "left"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_text_is_tried_with_several_prompts(tab: Any, studio: Studio, earlier: dict[int, Path]) -> None:
    folder = placed(studio, earlier)
    tab.goto(studio.url + "try/seed-1")
    tab.fill('#own input[name="prompt"]', "red moon")
    tab.click("text=Add it")
    tab.fill("#ask textarea", "the cat is blue")
    tab.click("#ask button")
    tab.wait_for_selector("#answers article")
    names = tab.locator("#answers .chip").all_inner_texts()
    assert names == ["found", "default", "yours"]
    # One call each; and the prompt that the run has not asked is measured on 28 rows of train and 28 of dev.
    assert tab.locator("#calls").inner_text() == "59 calls so far"
    shown = tab.locator("#answers article").first.locator(".verdict-word").inner_text()
    run = [sys.executable, "-m", "pinprompt", "predict", str(folder), "the cat is blue", "--json"]
    home = environment(studio.folder.parent / "home")
    said = json.loads(subprocess.run(run, env=home, capture_output=True, check=True).stdout)["predictions"][0]
    assert shown.startswith(said["label"])
    best = tab.locator("#answers article").first.locator(".odds .num").first.inner_text()
    assert float(best.split()[0]) == pytest.approx(100 * said["probabilities"][said["label"]], abs=0.51)
    tab.click("#score")
    tab.wait_for_selector("#scores table")
    rows = tab.locator("#scores tbody tr").all_inner_texts()
    assert len(rows) == 3
    assert "this took 0 calls" in tab.locator("#scores .note").inner_text()  # all three are known on dev
    found = read_run(folder).result["dev"]["accuracy"]
    assert f"{100 * found:.0f} %" in rows[0] or f"{100 * found:.1f} %" in rows[0]


def test_words_for_a_dropped_picture_and_for_another(tab: Any, studio: Studio, tiny: Path, tmp_path: Path) -> None:
    import run_samples as sample

    for name, colour in (("sun.png", (240, 180, 40)), ("sea.png", (20, 90, 200))):
        (tmp_path / name).write_bytes(base64.b64decode(sample.png(48, colour).split(",")[1]))
    tab.goto(studio.url + "new")
    tab.set_input_files('.drop[data-kind="table"] input', str(tmp_path / "sun.png"))  # a picture is one on any tab
    assert tab.is_checked('input[name="kind"][value="invert"]')
    tab.wait_for_selector("#previews img")
    tab.click("text=More")
    tab.fill('textarea[name="sets"]', "\n".join([*settings(tiny, 3), "policy.k=none"]))
    assert tab.locator("#model").get_attribute("placeholder") == "emoji-clip"
    begin(tab, "sun")
    tab.wait_for_selector("#state.finished")
    prompt = read_run(studio.folder / "sun").result["prompt"].strip()
    until(tab, "prompt => document.querySelector('h1.prompt')?.textContent === prompt", prompt)
    try_it(tab, "#picture")
    tab.set_input_files("#picture", str(tmp_path / "sea.png"))
    tab.wait_for_selector("#answers article")
    shown = tab.locator("#answers article").first.inner_text()
    assert prompt in shown
    own = read_run(studio.folder / "sun").result["score"]
    assert f"with its own picture {own:.3f}" in shown


def test_a_style_from_two_files_and_a_text_rewritten(tab: Any, studio: Studio, tiny: Path, tmp_path: Path) -> None:
    import style_toys

    models = {"lm": style_toys.causal_lm("gpt2", places=256), "encoder": style_toys.encoder()}
    models["judge"] = style_toys.encoder(["NEGATIVE", "POSITIVE"])
    for name, model in models.items():
        style_toys.save(tmp_path / name, model, wrap=name != "lm")
    for name, words in (("sad", ("bad", "awful", "hate")), ("glad", ("good", "nice", "love"))):
        texts = [
            f"{start} {word} {end} ." for word in words for start in ("we", "they") for end in ("food", "it", "place")
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join(texts) + "\n")
    tab.goto(studio.url + "new")
    tab.click("text=Rewrite texts")
    for slot, name in (("source", "sad"), ("target", "glad")):
        tab.set_input_files(f'.drop[data-slot="{slot}"] input', str(tmp_path / f"{name}.txt"))
        tab.wait_for_selector(f"#{slot}-view ol li")
    assert "18 texts" in tab.inner_text("#source-view")
    tab.fill("#model", str(tmp_path / "lm"))
    tab.click("text=More")
    over = {"task.encoder": tmp_path / "encoder", "task.sources": 2, "task.dev_sources": 2, "task.test_sources": 3}
    for judge in ("style", "test_style"):
        over |= {f"task.{judge}": f"{tmp_path / 'judge'}#POSITIVE"}
    tab.fill('textarea[name="sets"]', "\n".join(settings(tiny, 2, **over)))
    begin(tab, "glad")
    tab.wait_for_selector("#state.finished")
    prompt = read_run(studio.folder / "glad").result["prompt"].strip()
    until(tab, "document.querySelector('#body').textContent.includes('Before and after')")
    try_it(tab, "#ask textarea")
    tab.fill("#ask textarea", "we hate it .")
    tab.click("#ask button")
    tab.wait_for_selector("#answers article")
    assert prompt in tab.locator("#answers article").first.inner_text()
    assert "content" in tab.locator("#answers article .under").first.inner_text()


def test_the_matrix_says_what_each_prompt_makes_of_each_text(
    tab: Any, studio: Studio, earlier: dict[int, Path]
) -> None:
    folder = placed(studio, earlier)
    tab.goto(studio.url + "run/seed-1")
    tab.wait_for_selector("#matrix:not([hidden])")
    first = json.loads((folder / "answers.jsonl").read_text().splitlines()[0])
    logs = unpack_answers(first).contents  # of the training rows, which come first
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    train = [row for row in rows if row["split"] == "train"]
    assert len(logs) == len(train)
    targets = np.array([row["label"] for row in train])
    prior = np.full(logs.shape[1], 1 / logs.shape[1])
    calibrated = labels.calibrated(logs, labels.batch_offsets(np.asarray(logs, dtype=np.float64), targets, prior))
    tab.focus("#matrix-frame")
    for row, chances in zip(train, calibrated, strict=True):
        tab.keyboard.press("ArrowDown")  # the first press takes the first cell
        said = tab.locator("#matrix-cell").inner_text()
        assert row["text"] in said
        assert first["text"].strip() in said
        assert ("right ·" in said) == (chances[row["label"]] > max(np.delete(chances, row["label"])))


def test_thousands_of_prompts_and_rows(tab: Any, studio: Studio) -> None:
    import run_samples as sample

    prompts, texts = 5000, 300
    folder = sample.classification(studio.folder / "large")
    places = tuple(range(texts))

    def line(n: int) -> dict[str, Any]:
        """The first text is labelled yes and always wrong; later prompts are the surer of all others."""
        yes = np.full(texts, 0.6 + 0.3 * n / prompts)
        yes[0] = 0.1
        answers = pack_answers(Answers(places, np.log(np.stack([1 - yes, yes], axis=1).astype(np.float32))))
        return {"request": n, "report": False, "draw": "", "text": f"prompt {n}", "ids": [], **answers}

    shown = [{"text": f"text {n}", "label": 1, "split": "train"} for n in range(texts)]
    rows = {"labels": ["no", "yes"], "rows": shown, "reward": ["gap", 1.0, 1.0]}
    sample.write(folder, {"answers.jsonl": [line(n) for n in range(prompts)], "rows.json": rows})
    tab.goto(studio.url + "run/large")
    until(tab, "document.querySelector('#matrix-count').textContent === '5,000 prompts, 300 texts'")
    width = tab.evaluate("document.querySelector('#matrix-canvas').width")
    assert width <= 1200  # what is in view is drawn, not everything
    tab.focus("#matrix-frame")
    for key in ("ArrowRight", "End", "PageDown", "PageDown"):
        tab.keyboard.press(key)
    said = tab.inner_text("#matrix-cell")
    assert "prompt 4999" in said
    assert "text 20" in said
    assert tab.evaluate("document.querySelector('#matrix-frame').scrollLeft") > 10_000
    tab.click("#hard summary")
    assert tab.locator("#hard-rows tr").first.inner_text().split("\t") == ["text 0", "yes", "0 of 5000"]
    tab.select_option("#matrix-columns", "score")
    tab.focus("#matrix-frame")
    tab.keyboard.press("Home")
    assert "prompt 4999" in tab.inner_text("#matrix-cell")


def test_runs_are_compared_side_by_side(tab: Any, studio: Studio, earlier: dict[int, Path]) -> None:
    for seed in earlier:
        placed(studio, earlier, seed)
    tab.goto(studio.url)
    for box in tab.locator('input[name="run"]').all():
        box.check()
    tab.click("#pick-go")
    tab.wait_for_selector("text=Side by side")
    heads = tab.locator("h2").all_inner_texts()
    assert any("accuracy on test" in head for head in heads), heads
    with tab.expect_download() as download:
        tab.click("text=Markdown")
    assert "| method |" in Path(download.value.path()).read_text("utf-8")


CUT = """() => [...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.innerText.slice(0, 60)).concat([...document.querySelectorAll('svg text')].filter((one) => {
      const [ours, frame] = [one, one.closest('svg')].map((part) => part.getBoundingClientRect());
      return ours.width && (ours.left < frame.left - 1 || ours.right > frame.right + 1);
    }).map((one) => one.textContent))"""


@pytest.mark.parametrize("width", [390, 1100, 1200])
def test_a_run_and_its_comparison_are_not_cut_off(
    browser: Any, studio: Studio, earlier: dict[int, Path], width: int
) -> None:
    for seed in earlier:
        placed(studio, earlier, seed)
    page = browser.new_page(viewport={"width": width, "height": 800})
    for path in ("", "run/seed-1", "compare", "compare?run=seed-1&run=seed-2"):
        page.goto(studio.url + path)
        page.wait_for_load_state("load")
        assert page.evaluate(CUT) == [], path
    page.close()


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_their_width(browser: Any, studio: Studio, width: int, scheme: str) -> None:
    import run_samples as sample

    for name in ("a-rather-long-name-for-a-run-folder-that-goes-on-and-on", "b"):
        sample.classification(studio.folder / name, task={"train": "x" * 90})
    sample.sweep(studio.folder / "sweep", splits=(13, 21))
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    for path in ("", "new", "run/b", "try/b", "compare", "compare?folder=sweep", "nothing/here"):
        page.goto(studio.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 380
    assert light == (scheme == "light")
    context.close()


def test_the_keyboard_is_enough(tab: Any, studio: Studio) -> None:
    import run_samples as sample

    sample.classification(studio.folder / "b")
    tab.goto(studio.url)
    for _ in range(12):
        tab.keyboard.press("Tab")
        if "run/b" in (tab.evaluate("document.activeElement.href") or ""):
            break
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile("/run/b$"))
    # Everything that can be operated has a name that a screen reader can say.
    nameless = """[...document.querySelectorAll('a[href], button, input, select, textarea')].filter((one) => !(
        one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.[0]?.textContent.trim())).length"""
    for path in ("", "new", "run/b", "try/b", "compare"):
        tab.goto(studio.url + path)
        assert tab.evaluate(nameless) == 0, path
        assert tab.locator("h1").count() == 1
