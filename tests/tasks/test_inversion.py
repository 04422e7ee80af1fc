"""The inversion task: the contract, several pictures, long prompts, the white-box view; and the vision judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pinprompt.answers.memo import Memo
from pinprompt.errors import DataError, SettingError
from pinprompt.judges.vision import SCHEMA, CaptionMarks, Rating, VisionAnswer, VisionJudge, summarise
from pinprompt.models import clip as clip_room
from pinprompt.models.images import framed, load_picture
from pinprompt.recipe.sections import Price
from pinprompt.recipe.task_sections import InversionSettings
from pinprompt.tasks.inversion import InversionTask
from pinprompt.tasks.protocol import Task, check_task
from pinprompt.values import Answers, Prompt


def draw(path: Path, colour: str, seed: int = 0) -> str:
    image = Image.new("RGB", (48, 48), colour)
    noise = np.random.default_rng(seed).integers(0, 60, (20, 20, 3), dtype=np.uint8)
    image.paste(Image.fromarray(noise), (14, 14))
    image.save(path)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    return [draw(folder / f"{name}.png", name, seed) for seed, name in enumerate(("red", "blue", "green"))]


@pytest.fixture(scope="module")
def task(files: list[str]) -> InversionTask:
    return InversionTask.build(settings(files[:1]))


def settings(images: list[str], **more: Any) -> InversionSettings:
    return InversionSettings(images=tuple(images), model="emoji-clip", **more)


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text) for text in texts]


def asked(task: InversionTask, text: str) -> Answers:
    return task.ask(prompts(text), (0,))[0]


def value(task: InversionTask, text: str) -> float:
    """A prompt's score."""
    return float(task.values(asked(task, text), (0,))[0])


def test_it_is_a_task(task: InversionTask) -> None:
    assert isinstance(task, Task)
    assert [(row.split, row.calls) for row in task.rows] == [("train", 1)]
    assert not task.info.stochastic
    assert task.context().endswith("A picture in words:")
    assert task.drafts() == []
    assert task.info.primary in task.metrics(asked(task, "a red dog"), (0,)).metrics


def test_it_keeps_the_contract(task: InversionTask) -> None:
    assert check_task(task, ["a red dog", "blue", "dog " * 30]) == []


def test_scores_are_cosines_by_transformers_alone(task: InversionTask, files: list[str]) -> None:
    model, tokenizer, processor = task.clip.model, task.clip.tokenizer, task.clip.processor
    with torch.no_grad():
        pixels = processor(images=framed(Image.open(files[0])), return_tensors="pt")["pixel_values"]
        image = model.get_image_features(pixel_values=pixels).pooler_output[0]
        for text in ("red square", "a dog"):
            ids = tokenizer([text], return_tensors="pt")["input_ids"]
            words = model.get_text_features(input_ids=ids).pooler_output[0]
            expected = torch.nn.functional.cosine_similarity(image, words, dim=0)
            assert value(task, text) == pytest.approx(float(expected), abs=1e-5)


def test_a_score_does_not_depend_on_its_neighbours(task: InversionTask) -> None:
    texts = ["red", "a red dog", "blue blue blue", "the quick brown fox jumps", "red"]
    together = [float(task.values(answers, (0,))[0]) for answers in task.ask(prompts(*texts), (0,))]
    assert together == [value(task, text) for text in texts]
    assert together[0] == together[4]


def test_several_pictures_are_their_mean(files: list[str]) -> None:
    many = InversionTask.build(settings(files))
    vectors = many.clip.image_features([framed(load_picture(Path(file)).image) for file in files])
    mean = vectors.mean(0) / vectors.mean(0).norm()
    words = many.clip.text_features(["a red square"])[0]
    assert value(many, "a red square") == pytest.approx(float(words @ mean), abs=1e-6)
    evaluation = many.metrics(asked(many, "a red square"), (0,))
    each = [float(words @ vector) for vector in vectors]
    assert evaluation.rows == 3
    assert evaluation.metrics["mean_image_similarity"] == pytest.approx(np.mean(each), abs=1e-6)
    assert [row["similarity"] for row in evaluation.tables["pictures"]] == pytest.approx(each, abs=1e-6)


def test_a_folder_is_its_pictures(files: list[str]) -> None:
    folder = InversionTask.build(settings([str(Path(files[0]).parent)]))
    apart = InversionTask.build(settings(sorted(files)))
    assert len(folder.pictures) == 3
    assert folder.info.fingerprint == apart.info.fingerprint
    assert value(folder, "red") == value(apart, "red")


def test_the_fingerprint_tells_pictures_and_settings_apart(task: InversionTask, files: list[str]) -> None:
    others = [settings(files[1:2]), settings(files[:2]), settings(files[:1], overlong="cut")]
    prints = {task.info.fingerprint, *(InversionTask.build(other).info.fingerprint for other in others)}
    assert len(prints) == 4


def test_long_prompts_fail_alone_and_never_win(task: InversionTask) -> None:
    long = "dog " * 60
    fine, failed = task.ask(prompts("a dog", long), (0,))
    assert not fine.failures
    assert task.values(failed, (0,)).tolist() == [-1.0]
    assert "text window has 48" in failed.failures[0]
    assert "text window" in task.metrics(failed, (0,)).tables["failures"][0]
    with pytest.raises(SettingError, match="--length"):
        task.check_window(64)
    task.check_window(8)


def test_long_prompts_may_be_cut_as_published(files: list[str]) -> None:
    cut = InversionTask.build(settings(files[:1], overlong="cut"))
    cut.check_window(128)
    # 48 tokens, two of them the start and the end: what comes after the 46th word is not read.
    one, two, other = (value(cut, text) for text in ("dog " * 60, "dog " * 46 + "cat", "dog " * 45 + "cat"))
    assert one == pytest.approx(two, abs=1e-6)
    assert one != other
    assert not asked(cut, "dog " * 60).failures


def test_bad_pictures_are_refused_before_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_room.loading, "load_encoder", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "a.jpg").write_text("no picture")
    with pytest.raises(DataError, match="not a picture"):
        InversionTask.build(settings([str(tmp_path / "a.jpg")]))
    with pytest.raises(DataError, match="no picture was given"):
        InversionTask.build(settings([]))


def test_the_white_box_is_the_black_box_on_real_tokens(task: InversionTask) -> None:
    view = task.differentiable()
    ids = task.clip.tokens("red old square")[1:-1]
    vectors = view.embeddings[ids]
    expected = value(task, "red old square")
    assert task.values(view.answers(vectors, (0,)), (0,)) == pytest.approx([expected], abs=1e-5)
    assert float(view.loss(vectors, [0])) == pytest.approx(1 - expected, abs=1e-5)


def test_following_the_gradient_raises_the_score(task: InversionTask) -> None:
    view = task.differentiable()
    vectors = view.embeddings[task.clip.tokens("some odd words")[1:-1]].clone().requires_grad_()
    before = float(view.loss(vectors.detach(), [0]))
    optimizer = torch.optim.Adam([vectors], lr=0.01)
    for _ in range(15):
        optimizer.zero_grad()
        view.loss(vectors, [0]).backward()
        optimizer.step()
    assert float(view.loss(vectors.detach(), [0])) < before - 0.05


# The judge


class Scripted:
    """A vision model that says what it is told to."""

    name = "scripted"

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), []

    def ask_image(self, text: str, image: bytes, schema: Mapping[str, Any]) -> VisionAnswer:
        assert image.startswith(b"\xff\xd8"), "a JPEG"
        self.asked.append(text)
        return VisionAnswer(self.answers.pop(0), tokens_in=1000, tokens_out=20)


PICTURE = Image.new("RGB", (3000, 500), "red")
GOOD = '{"relevance": 4, "interpretability": 2}'


def test_the_judge_asks_both_questions_and_reads_the_marks() -> None:
    model = Scripted("Here you are:\n```json\n" + GOOD + "\n```")
    verdict = VisionJudge(model).judge('a "red" square', PICTURE)
    assert verdict.rating == Rating(relevance=4, interpretability=2)
    assert "relevance" in model.asked[0]
    assert "interpretability" in model.asked[0]
    assert '\\"red\\" square' in model.asked[0]
    assert SCHEMA["properties"]["relevance"]["maximum"] == 5


@pytest.mark.parametrize(
    "bad",
    ["", "five and five", '{"relevance": 6, "interpretability": 1}', '{"relevance": "4", "interpretability": 1}',
     '{"relevance": 4}', '{"relevance": 4.5, "interpretability": 1}', "[4, 2]",
     '{"relevance": 4, "interpretability": 2, "x": 1}'],
)  # fmt: skip
def test_an_unusable_answer_is_asked_for_again(bad: str) -> None:
    judge = VisionJudge(Scripted(bad, bad, GOOD), price=Price(input=2.0, output=10.0))
    assert judge.judge("x", PICTURE).rating == Rating(relevance=4, interpretability=2)
    assert judge.calls == 3
    # 3,000 tokens at 2 and 60 at 10 per million.
    assert judge.money == pytest.approx(0.006 + 0.0006)


def test_no_answer_in_three_tries_is_a_recorded_failure() -> None:
    verdict = VisionJudge(Scripted("no", "no", "no")).judge("x", PICTURE)
    assert verdict.rating is None
    assert "scripted gave no two marks" in verdict.failure


def test_answers_are_kept_and_cost_nothing_again(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite")
    VisionJudge(Scripted(GOOD), memo).judge("x", PICTURE)
    again = VisionJudge(Scripted("never asked"), memo)
    verdict = again.judge("x", PICTURE)
    assert verdict.cached
    assert verdict.rating == Rating(relevance=4, interpretability=2)
    assert again.calls == 0
    assert again.model.answers, "the model was not asked"
    other = VisionJudge(Scripted(GOOD), memo)
    assert not other.judge("another caption", PICTURE).cached
    assert not VisionJudge(Scripted(GOOD), memo).judge("x", Image.new("RGB", (9, 9))).cached


def test_the_mean_comes_with_its_standard_error() -> None:
    marks = [(1, 2), (3, 2), (5, 2)]
    verdicts = [CaptionMarks("x", Rating(relevance=a, interpretability=b)) for a, b in marks]
    summary = summarise([*verdicts, CaptionMarks("y", None, "no answer")])
    assert summary.relevance == 3
    assert summary.relevance_error == pytest.approx(2 / 3**0.5)  # standard deviation 2 over three
    assert (summary.interpretability, summary.interpretability_error) == (2, 0)
    assert (summary.judged, summary.failures) == (3, 1)
    assert summarise([]).relevance is None
    assert summarise(verdicts[:1]).relevance_error is None


def photograph(path: Path) -> str:
    """Light and noise that change everywhere, as a camera sees them."""
    rows, columns = np.mgrid[0:120, 0:160]
    waves = np.stack([128 + 90 * np.sin(columns / 11 + shift) * np.cos(rows / 17) for shift in (0, 1, 2)], -1)
    noise = np.random.default_rng(3).normal(0, 18, waves.shape)
    Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8)).save(path)
    return str(path)


def test_a_photograph_gets_a_warning_that_the_small_model_cannot_see_it(files: list[str], tmp_path: Path) -> None:
    given = photograph(tmp_path / "holiday.jpg")
    [note] = InversionTask.build(settings([given])).info.notes
    assert note.startswith("holiday.jpg looks like a photograph")
    assert "emoji" in note
    assert "--model" in note
    white = Image.new("RGB", (48, 48), "white")
    white.paste("red", (12, 12, 36, 36))
    white.save(tmp_path / "square.png")
    assert InversionTask.build(settings([str(tmp_path / "square.png")])).info.notes == ()
    both = InversionTask.build(settings([given, given, str(tmp_path / "square.png")]))
    assert both.info.notes[0].startswith("holiday.jpg and 1 more look like photographs")
    assert both.metrics(asked(both, "a red dog"), (0,)).tables["notes"] == list(both.info.notes)


def test_hints_are_the_scores_of_single_words(task: InversionTask) -> None:
    hints = task.hints()
    assert len(hints) > 1000
    for word in ("dog", "red", "apple"):
        assert hints[word] == pytest.approx(value(task, word), abs=1e-5)
    nearest = task.nearest_words(3)
    assert [row["word"] for row in nearest] == sorted(hints, key=lambda word: -hints[word])[:3]
    assert task.exhibits()["known_words"][:3] == nearest


def test_the_context_follows_the_style(files: list[str]) -> None:
    said = {
        style: InversionTask.build(settings(files[:1], style=style)).context() for style in ("caption", "tags", "words")
    }
    assert set(said) == {"caption", "tags", "words"}
    assert said["tags"].count(",") > 10
    assert not said["words"].count(",")


def test_emoji_clip_says_whether_it_recognises_a_picture(tmp_path: Path) -> None:
    """A drawing of its kind, and noise."""
    noise = np.random.default_rng(0).integers(0, 256, size=(128, 128, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    known = Path(__file__).parents[2] / "recipes/small/noto/fish.png"
    seen = [
        InversionTask.build(InversionSettings(images=(str(path),), model="emoji-clip")).exhibits()["recognised"]
        for path in (known, tmp_path / "noise.png")
    ]
    assert seen == [True, False]


def test_emoji_clip_sees_a_small_drawing_as_large_as_an_emoji(tmp_path: Path) -> None:
    known = Image.open(Path(__file__).parents[2] / "recipes/small/noto/teapot.png").convert("RGBA")
    small = Image.new("RGBA", (300, 200), "white")
    small.alpha_composite(known, (20, 90))
    small.convert("RGB").save(tmp_path / "small.png")
    nearest = InversionTask.build(settings([str(tmp_path / "small.png")])).nearest_words(1)
    assert nearest[0]["word"] == "teapot"
