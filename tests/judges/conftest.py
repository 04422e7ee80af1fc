"""A small classifier of the real class, for tests of whoever asks one."""

from __future__ import annotations

from pathlib import Path

import pytest
from style_toys import encoder, save

from pinprompt.judges.frozen import Classifier
from pinprompt.models.loading import load_sequence_classifier


@pytest.fixture
def classifier(tmp_path: Path) -> Classifier:
    folder = save(tmp_path / "judge", encoder(["negative", "positive"]), wrap=True)
    return Classifier(*load_sequence_classifier(folder), name="judge")
