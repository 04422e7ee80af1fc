from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pinprompt.remote.client import RemoteClient


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_resends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteClient, "resends", 0)


@pytest.fixture(scope="session")
def lm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")
