"""The model hub, as far as it can be reached: fails within seconds, and with a sentence."""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

from pinprompt.errors import ModelError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def looks_like_id(name: str) -> bool:
    """Whether a name could be a hub id: 'name' or 'owner/name'."""
    return _ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def endpoint() -> str:
    """Where the hub is: HF_ENDPOINT, else huggingface.co."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def offline() -> bool:
    """Whether the user has said that the hub is not to be asked (HF_HUB_OFFLINE)."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def unreachable(seconds: float = 3.0) -> str | None:
    """Why the hub cannot be reached, or None where it answers; never takes much longer than the seconds given."""
    if offline():
        return "HF_HUB_OFFLINE is set"
    answer: list[str | None] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(endpoint(), method="HEAD")
            urllib.request.urlopen(request, timeout=seconds).close()  # nosec B310
            answer.append(None)
        except urllib.error.HTTPError as error:
            # The hub itself answers HEAD with 200; a proxy that forbids it says 403 or 407, a broken one 5xx.
            bad = error.code in (403, 407) or error.code >= 500
            answer.append(f"{endpoint()} answers with {error.code} {error.reason}" if bad else None)
        except (OSError, ValueError) as error:
            answer.append(f"{endpoint()} cannot be reached ({getattr(error, 'reason', error)})")

    # A thread, since looking up a name has no timeout of its own; a daemon, so that it never holds the program up.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else f"{endpoint()} did not answer within {seconds:g} s"


def cache_folder() -> Path:
    """Where the hub's own client keeps what it fetched."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    root = os.environ.get("HF_HOME")
    if root:
        return Path(root).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


def snapshot(name: str, advice: str) -> tuple[Path, str]:
    """The cached folder and the commit of a hub model, whose config.json is fetched first where it is not there."""
    from huggingface_hub import hf_hub_download

    config = None
    try:
        config = hf_hub_download(name, "config.json", local_files_only=True)
    except Exception:  # not cached: every kind of error of the client means this here
        reason = unreachable()
        if reason is not None:
            raise ModelError(
                f"'{name}' was asked for as a model of the hub: it is not in the hub's cache on this machine, and "
                f"{reason}. {advice}"
            ) from None
    if config is None:
        try:
            config = hf_hub_download(name, "config.json", etag_timeout=5)
        except Exception as error:
            raise ModelError(
                f"'{name}' cannot be had from the hub: {_first_line(error)}. Check the spelling, or 'hf auth login' "
                f"where it is gated. {advice}"
            ) from error
    folder = Path(config).parent
    return folder, folder.name


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
