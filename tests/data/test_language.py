"""Languages are told by their commonest words and their script."""

from __future__ import annotations

import pytest

from pinprompt.data.language import LANGUAGES, guess, name_of

TEXTS = {
    "en": ["the food was cold and the waiter did not care", "I have never been happier with a phone"],
    "de": ["das Essen war kalt und der Kellner nicht freundlich", "ich bin mit dem Gerät sehr zufrieden"],
    "fr": ["le repas était froid et le serveur n'est pas venu", "je suis très content de ce téléphone"],
    "es": ["la comida estaba fría y el camarero no vino", "estoy muy contento con el teléfono que compré"],
    "it": ["il cibo era freddo e il cameriere non è venuto", "sono molto contento del telefono che ho comprato"],
    "pt": ["a comida estava fria e o garçom não veio", "estou muito feliz com o telefone que comprei"],
    "nl": ["het eten was koud en de ober was niet vriendelijk", "ik ben heel blij met het toestel"],
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_common_words_tell_the_language(language: str) -> None:
    assert guess(TEXTS[language]) == language


def test_scripts_tell_the_others() -> None:
    assert "Cyrillic" in guess(["еда была холодной, и официант не пришёл"])
    assert guess(["밥이 차가웠고 종업원이 오지 않았어요"]) == "Korean"
    assert name_of("Korean") == "Korean"
    assert name_of("de") == "German"


@pytest.mark.parametrize(
    "texts", [[], [""], ["12 34"], ["ok", "lol"], ["a café with a naïve clientèle is not the best"]]
)
def test_unclear_texts_count_as_english(texts: list[str]) -> None:
    assert guess(texts) == "en"
