"""The constraint `dictionary`: prompts of dictionary words alone, by the same list that measures them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pinprompt.english import dictionary_words
from pinprompt.errors import SettingError
from pinprompt.policy.vocabulary import Vocabulary
from pinprompt.recipe.sections import Constraints


def vocabulary_of(tokenizer: Any, length: int = 5, **constraints: Any) -> Vocabulary:
    return Vocabulary(tokenizer, len(tokenizer), length, Constraints(**constraints))


def written(vocabulary: Vocabulary) -> set[str]:
    return {vocabulary.tokens.pieces[token] for token in torch.nonzero(vocabulary.allowed(())).flatten().tolist()}


def test_only_whole_words_of_the_dictionary(tokenizer: Any) -> None:
    free = written(vocabulary_of(tokenizer, whole_words=True))
    kept = written(vocabulary_of(tokenizer, dictionary=True))
    assert {" cat", " great", " the"} <= kept
    assert kept < free
    assert {" ter", " wor"} & free, "the tokenizer has pieces of words that look like words"
    assert not {" ter", " wor", "cat", "ing", " 1", " ,"} & kept


def test_every_prompt_reads_as_dictionary_words(tokenizer: Any) -> None:
    vocabulary = vocabulary_of(tokenizer, dictionary=True, no_repeats="tokens")
    vocabulary.check()
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        ids: tuple[int, ...] = ()
        while len(ids) < vocabulary.length:
            open_ = torch.nonzero(vocabulary.allowed(ids)).flatten()
            ids += (int(open_[torch.randint(len(open_), (1,), generator=draw)]),)
        text = vocabulary.text(ids)
        assert dictionary_words(text) == 1.0, text
        assert len(text.split()) == vocabulary.length


def test_required_words_come_whatever_the_dictionary_says(tokenizer: Any) -> None:
    vocabulary = vocabulary_of(tokenizer, 6, dictionary=True, required=("Größe",))
    vocabulary.check()
    ids: tuple[int, ...] = ()
    while len(ids) < vocabulary.length:
        ids += (int(torch.nonzero(vocabulary.allowed(ids)).flatten()[0]),)
    assert "Größe" in vocabulary.text(ids).split()


def test_banning_the_whole_dictionary_gives_an_error_message(tokenizer: Any) -> None:
    words = tuple(piece.strip() for piece in written(vocabulary_of(tokenizer, dictionary=True)))
    with pytest.raises(SettingError, match="no prompt of 5 tokens"):
        vocabulary_of(tokenizer, dictionary=True, banned=words).check()
