"""Constraints as masks: whatever is drawn under them obeys, and what cannot be obeyed is refused beforehand."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pinprompt.english import FUNCTION_WORDS
from pinprompt.errors import SettingError
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.vocabulary import Vocabulary, _kth_largest
from pinprompt.recipe.sections import Constraints

SENTENCES = ["The film was great and the cat sat on a mat in New York.", "a terrible word, the worst of old York"] * 3


@pytest.fixture(autouse=True)
def _no_ban_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PINPROMPT_BAN_FILE", raising=False)


def vocabulary_of(tokenizer: Any, length: int = 6, **constraints: Any) -> Vocabulary:
    return Vocabulary(tokenizer, len(tokenizer) + 7, length, Constraints(**constraints))


def walk(vocabulary: Vocabulary, seed: int) -> tuple[int, ...] | None:
    """A prompt drawn uniformly from what is allowed at each step; None at a dead end."""
    draw, prefix = random.Random(seed), ()
    while len(prefix) < vocabulary.length:
        tokens = vocabulary.allowed(prefix).nonzero()[:, 0].tolist()
        if not tokens:
            return None
        prefix = (*prefix, draw.choice(tokens))
    return prefix


def broken(text: str, ids: tuple[int, ...], c: Constraints) -> list[str]:
    """The constraints that a text breaks, by plain regular expressions: an independent judge."""
    rules = []
    for word in c.banned:
        phrase = r"\s+".join(re.escape(part) for part in word.split())
        if re.search(rf"(?<!\w){phrase}(?!\w)", text, re.IGNORECASE):
            rules.append(f"banned {word}")
    rules += [f"required {word}" for word in c.required if not re.search(rf"\b{re.escape(word)}\b", text)]
    if c.charset == "ascii" and not text.isascii():
        rules.append("ascii")
    if c.charset == "letters" and not all(char.isalpha() or char == " " for char in text):
        rules.append("letters")
    if c.charset == "tags" and not re.fullmatch("[a-z, ]*", text):
        rules.append("tags")
    if c.max_chars and len(text) > c.max_chars:
        rules.append("max_chars")
    if c.no_repeats == "tokens" and len(set(ids)) < len(ids):
        rules.append("no_repeats")
    if c.no_repeats == "words" and c.whole_words:
        told = [word for word in text.lower().split() if word not in FUNCTION_WORDS]
        rules += ["no_repeats"] * (len(set(told)) < len(told))
    return rules + ([] if text else ["empty"])


WORDS = ("cat", "the", "great", "New York", "a", "terrible", "film", "bad word", "e", "it was")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    banned=st.lists(st.sampled_from(WORDS), max_size=4, unique=True),
    required=st.lists(st.sampled_from(("great", "film", "mat", "wonderful", "York")), max_size=2, unique=True),
    charset=st.sampled_from(["any", "ascii", "letters", "tags"]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    max_chars=st.sampled_from([None, 12, 20, 40]),
    length=st.integers(1, 8),
)
def test_every_prompt_obeys(
    tokenizer: Any, banned: Any, required: Any, charset: Any, flags: Any, max_chars: Any, length: int
) -> None:
    whole, no_repeats, stable = flags
    c = Constraints(
        banned=tuple(banned),
        required=tuple(required),
        charset=charset,
        whole_words=whole,
        no_repeats="tokens" if no_repeats else "words",
        stable=stable,
        max_chars=max_chars,
    )
    try:
        vocabulary = Vocabulary(tokenizer, len(tokenizer) + 7, length, c)
        vocabulary.check()
    except SettingError:
        return
    for seed in range(6):
        ids = walk(vocabulary, seed)
        if ids is None:
            continue
        text = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False).strip()
        assert vocabulary.text(ids) == text
        assert broken(text, ids, c) == []
        assert vocabulary.obeys(ids)


@pytest.mark.parametrize(
    "constraints",
    [
        {"required": ("wonderful", "New York")},
        {"required": ("great", "mat"), "max_chars": 18, "no_repeats": "tokens"},
        {"max_chars": 6},
        {"banned": ("the", "a", "cat", "great film"), "whole_words": True},
        {"required": ("great",), "banned": ("film great", "was great")},
    ],
)
def test_possible_constraints_rarely_lead_to_dead_ends(tokenizer: Any, constraints: Any) -> None:
    vocabulary = vocabulary_of(tokenizer, **constraints)
    vocabulary.check()
    dead = sum(walk(vocabulary, seed) is None for seed in range(60))
    assert dead == 0


def test_never_written(tokenizer: Any) -> None:
    vocabulary = vocabulary_of(tokenizer, stable=False)
    allowed = vocabulary.allowed(())
    assert not allowed[tokenizer.all_special_ids].any()
    assert not allowed[len(tokenizer) :].any()
    for token in allowed.nonzero()[:, 0].tolist():
        assert "\ufffd" not in tokenizer.decode([token])
        assert tokenizer.decode([token]) != ""
    fragments = [t for t in range(len(tokenizer)) if "\ufffd" in tokenizer.decode([t])]
    assert fragments
    assert not allowed[fragments].any()


def test_stable_is_what_decodes_and_encodes_to_itself(tokenizer: Any) -> None:
    loose, stable = vocabulary_of(tokenizer, stable=False).allowed(()), vocabulary_of(tokenizer).allowed(())
    for token in loose.nonzero()[:, 0].tolist():
        back = tokenizer(tokenizer.decode([token]), add_special_tokens=False).input_ids
        assert bool(stable[token]) == (back == [token])


def test_a_ban_holds_across_tokens(tokenizer: Any) -> None:
    vocabulary = vocabulary_of(tokenizer, banned=("new york",), stable=False)
    new, cat = (
        tokenizer(" new", add_special_tokens=False).input_ids,
        tokenizer(" cat", add_special_tokens=False).input_ids,
    )
    york = tokenizer(" York", add_special_tokens=False).input_ids
    assert len(york) == 1
    assert not vocabulary.allowed(tuple(new))[york[0]]
    assert vocabulary.allowed(tuple(cat))[york[0]]
    # Letter by letter too: the last one would complete it.
    letters = tuple(tokenizer(char, add_special_tokens=False).input_ids[0] for char in "new york")
    vocabulary = vocabulary_of(tokenizer, length=9, banned=("new york",), stable=False)
    for place, letter in enumerate(letters):
        assert bool(vocabulary.allowed(letters[:place])[letter]) == (place < len(letters) - 1)


def test_a_banned_word_inside_another_is_free(tokenizer: Any) -> None:
    vocabulary = vocabulary_of(tokenizer, banned=("cat",))
    category = tokenizer(" category", add_special_tokens=False).input_ids
    text = vocabulary.text(category)
    assert text == "category"
    assert vocabulary.obeys(tuple(category))
    assert not vocabulary.obeys(tuple(tokenizer("a CAT!", add_special_tokens=False).input_ids))


def test_required_words_are_forced_when_no_other_token_fits(tokenizer: Any) -> None:
    word = tuple(tokenizer(" wonderful", add_special_tokens=False).input_ids)
    plain = tuple(tokenizer("wonderful", add_special_tokens=False).input_ids)
    vocabulary = vocabulary_of(tokenizer, length=len(word), required=("wonderful",))
    assert vocabulary.forced(())
    starts = set(vocabulary.allowed(()).nonzero()[:, 0].tolist())
    assert starts <= {word[0], plain[0]}
    assert word[0] in starts
    roomy = vocabulary_of(tokenizer, length=len(word) + 2, required=("wonderful",))
    assert not roomy.forced(())
    assert not vocabulary_of(tokenizer, length=1).forced(())
    assert int(roomy.allowed(()).sum()) > 100


def test_a_required_word_is_not_extended(tokenizer: Any) -> None:
    great = tuple(tokenizer(" great", add_special_tokens=False).input_ids)
    vocabulary = vocabulary_of(tokenizer, length=len(great) + 1, required=("great",))
    follow = vocabulary.allowed(great)
    letters = [t for t in follow.nonzero()[:, 0].tolist() if vocabulary.tokens.pieces[t][0].isalnum()]
    assert letters == []
    assert int(follow.sum()) > 10


def test_a_prompt_is_never_blank(tokenizer: Any) -> None:
    vocabulary = vocabulary_of(tokenizer, length=2, stable=False)
    space = tokenizer(" ", add_special_tokens=False).input_ids[0]
    assert vocabulary.allowed(())[space]
    assert not vocabulary.allowed((space,))[space]
    assert not vocabulary_of(tokenizer, length=1).allowed(())[space]


def test_max_chars_counts_the_stripped_text(tokenizer: Any) -> None:
    the = tokenizer(" the", add_special_tokens=False).input_ids
    assert len(the) == 1
    assert vocabulary_of(tokenizer, length=1, max_chars=3).allowed(())[the[0]]
    assert not vocabulary_of(tokenizer, length=1, max_chars=2).allowed(())[the[0]]


@pytest.mark.parametrize(
    ("constraints", "says"),
    [
        ({"required": ("wonderful", "terrible", "absolutely", "positive", "category", "honestly", "review")}, "tokens"),
        ({"required": ("great",), "max_chars": 4}, "characters"),
        ({"required": ("great",), "banned": ("GREAT",)}, "banned"),
        ({"required": ("bad word",), "banned": ("word",)}, "banned"),
        ({"required": ("café",), "charset": "ascii"}, "charset"),
        ({"required": ("2019",), "charset": "letters"}, "charset"),
        ({"required": ("York",), "charset": "tags"}, "charset"),
        ({"required": ("  ",)}, "empty"),
        ({"max_chars": 3}, "no prompt of 6 tokens"),
        ({"max_chars": 8, "whole_words": True}, "no prompt of 6 tokens"),
        ({"banned_file": "/nowhere/bans.txt"}, "cannot be read"),
    ],
)
def test_impossible_sets_are_refused(tokenizer: Any, constraints: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        vocabulary_of(tokenizer, **constraints).check()


def test_no_repeats_needs_enough_tokens(tokenizer: Any) -> None:
    with pytest.raises(SettingError, match="no_repeats"):
        vocabulary_of(tokenizer, length=500, no_repeats="tokens").check()


def test_ban_lists_are_merged(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bans.txt").write_text("great\n\nnew york\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "banned.txt").write_text("film\n")
    ids = {
        word: tuple(tokenizer(f"a {word} b", add_special_tokens=False).input_ids) for word in ("great", "film", "cat")
    }
    merged = vocabulary_of(tokenizer, banned=("cat",), banned_file=str(tmp_path / "bans.txt"))
    assert [merged.obeys(ids[word]) for word in ids] == [False, False, False]
    (tmp_path / "everywhere.txt").write_text("Cat\n")
    monkeypatch.setenv("PINPROMPT_BAN_FILE", str(tmp_path / "everywhere.txt"))
    assert [vocabulary_of(tokenizer).obeys(ids[word]) for word in ids] == [True, True, False]


def test_thousands_of_banned_words(tokenizer: Any) -> None:
    words = tuple(f"word{number}" for number in range(3000))
    vocabulary = vocabulary_of(tokenizer, banned=(*words, "cat"))
    cat = tokenizer(" cat", add_special_tokens=False).input_ids
    assert not vocabulary.allowed(())[cat[-1]] or len(cat) > 1
    assert not vocabulary.obeys(tuple(tokenizer("a word77!", add_special_tokens=False).input_ids))


def test_a_real_vocabulary(smollm2: Backbone) -> None:
    tokenizer, size = smollm2.tokenizer, smollm2.vocabulary_size
    c = Constraints(banned=("the", "new york"), required=("zebra", "great"), charset="ascii", max_chars=30)
    vocabulary = Vocabulary(tokenizer, size, 6, c)
    vocabulary.check()
    for seed in range(40):
        ids = walk(vocabulary, seed)
        assert ids is not None
        text = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False).strip()
        assert broken(text, ids, c) == []
    plain = Vocabulary(tokenizer, size, 6, Constraints())
    draw = torch.Generator().manual_seed(0)
    tokens = plain.allowed(()).nonzero()[:, 0]
    for _ in range(200):
        ids = tokens[torch.randint(len(tokens), (5,), generator=draw)].tolist()
        assert "".join(plain.tokens.pieces[i] for i in ids).strip() == plain.text(ids)


def test_a_tokenizer_that_marks_the_beginnings_of_words() -> None:
    """As Llama 2 and Gemma have it: the first token's space is invisible, and bytes stand for rare characters."""
    tokens = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokens.decoder = decoders.Sequence(steps)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", *bytes_], show_progress=False)
    tokens.train_from_iterator(SENTENCES, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token="<s>", unk_token="<unk>")
    for stable in (True, False):
        c = Constraints(required=("great", "New York"), banned=("the cat", "a"), max_chars=40, stable=stable)
        vocabulary = Vocabulary(tokenizer, len(tokenizer), 6, c)
        vocabulary.check()
        for seed in range(20):
            ids = walk(vocabulary, seed)
            assert ids is not None
            text = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False).strip()
            assert vocabulary.text(ids) == text
            assert broken(text, ids, c) == []


def test_words_are_not_repeated_but_function_words_are(tokenizer: Any) -> None:
    vocabulary = vocabulary_of(tokenizer, no_repeats="words", whole_words=True)
    encode = vocabulary.tokens.encode
    [cat], [the] = encode(" cat"), encode(" the")
    assert vocabulary.allowed(())[[cat, the]].all()
    allowed = vocabulary.allowed((the, cat))
    assert not allowed[cat]
    assert allowed[the]
    assert vocabulary.obeys((the, cat, the))
    assert not vocabulary.obeys((cat, the, cat))


@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_filters_threshold_is_the_kth_largest_with_ties_and_shut_tokens(k: int) -> None:
    rows = [[3.0, 1.0, 3.0, 2.0, -5.0, 0.0, 2.0, 7.0], [-math.inf, 1.0, -math.inf, 0.5, 0.5, 0.5, -math.inf, 2.0]]
    expected = [[sorted(row, reverse=True)[k - 1]] for row in rows]
    assert _kth_largest(torch.tensor(rows), k).tolist() == expected


@pytest.mark.parametrize(("size", "k"), [(1, 1), (3, 2), (40, 7), (5000, 1), (5000, 700), (5000, 4999), (5000, 5000)])
def test_the_kth_largest_is_that_of_a_full_sort(size: int, k: int) -> None:
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(size + k))
    logits[1] = logits[1].round()  # ties
    logits[2, ::3] = -torch.inf  # tokens that may not be written
    logits[3] = 0.5
    logits[4] = logits[4].sort().values
    logits[5, ::32] += 100.0  # every entry that is looked at first misleads
    assert torch.equal(_kth_largest(logits, k), logits.sort(descending=True).values[:, k - 1 : k])


def test_a_required_word_that_was_begun_is_finished_where_nothing_may_repeat(tokenizer: Any) -> None:
    word = tuple(tokenizer(" zebra", add_special_tokens=False)["input_ids"])
    first = tuple(tokenizer("zebra", add_special_tokens=False)["input_ids"])  # at the beginning it has no space
    assert len(word) > 2, "a word of one token cannot be left unfinished"
    assert len(first) > 2
    vocabulary = vocabulary_of(tokenizer, length=len(word) + 4, required=("zebra",), no_repeats="tokens")
    other = tokenizer("film", add_special_tokens=False)["input_ids"][0]
    for done in range(1, len(word)):
        assert vocabulary.allowed((other, *word[:done])).nonzero()[:, 0].tolist() == [word[done]]
    for done in range(1, len(first)):
        assert vocabulary.allowed(first[:done]).nonzero()[:, 0].tolist() == [first[done]]
