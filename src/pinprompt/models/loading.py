"""Loads frozen models of every kind with their tokenizers, optionally in lower precision."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch

from pinprompt.errors import ModelError, NotFetched
from pinprompt.models import sources
from pinprompt.models.cache import may_fetch
from pinprompt.models.sources import ADVICE, Source, config_of, quiet, resolve, trusted

Precision = Literal["float32", "bf16"]


_OPEN: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
"""Causal LMs in use, by the arguments they were loaded with."""


def load_causal_lm(name: str, device: str = "cpu", precision: Precision | None = None) -> tuple[Any, Any]:
    """A frozen causal language model and its tokenizer.

    A model that is already in use is returned again: if the writer is also the task model, it is loaded once.
    """
    source = resolve(name)
    where = (name, source.revision, str(source.path))  # another cache may have another model of the same name
    asked = (*where, device, trusted(), _dtype(precision, device))
    model = _OPEN.get(asked)
    if model is None:
        model, tokenizer = _load("AutoModelForCausalLM", name, device, precision)
        model.pinprompt_tokenizer = tokenizer
        _OPEN[asked] = model
    return model, model.pinprompt_tokenizer


def _dtype(precision: Precision | None, device: str) -> torch.dtype | Literal["auto"]:
    if precision is None:
        # Half precision on a CPU is several times slower than float32; a GPU keeps the checkpoint's dtype.
        return "auto" if device.startswith("cuda") else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _load(auto_class: str, name: str, device: str = "cpu", precision: Precision | None = None) -> tuple[Any, Any]:
    source = resolve(name)
    with quiet():
        import transformers

        where: dict[str, Any] = {"trust_remote_code": trusted()}
        place = str(source.path)
        if source.kind == "hub":
            place, where["revision"], where["local_files_only"] = source.name, source.revision, not may_fetch()
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, **where)
            # Pickled weights (of many older hub models) are read by torch's weights-only reader, which runs no code;
            # safetensors are preferred.
            model, report = getattr(transformers, auto_class).from_pretrained(
                place, dtype=_dtype(precision, device), weights_only=True, output_loading_info=True, **where
            )
        except ModelError:
            raise
        except Exception as error:  # transformers may raise anything for a broken or unsupported checkpoint
            kind = NotFetched if source.kind == "hub" and not may_fetch() else ModelError
            raise kind(_cannot_load(source, auto_class, error)) from error
    _refuse_new_weights(source, auto_class, report)
    model = model.eval().requires_grad_(False)
    try:
        return model.to(device), tokenizer
    except (RuntimeError, AssertionError) as error:  # torch raises an AssertionError if it was built without the device
        reason = str(error).splitlines()[0]
        raise ModelError(f"'{name}' cannot be put on the device '{device}': {reason} Use --device cpu.") from error


load_masked_lm = partial(_load, "AutoModelForMaskedLM")
load_encoder = partial(_load, "AutoModel")
load_sequence_classifier = partial(_load, "AutoModelForSequenceClassification")
"""Frozen models of other kinds with their tokenizers, by name, device and precision; an encoder has no head."""


def _refuse_new_weights(source: Source, auto_class: str, report: dict[str, Any]) -> None:
    """Raise an error if the checkpoint has no weights for the head, which would be random without notice."""
    missing = sorted(key for key in report.get("missing_keys", ()) if "pooler" not in key and "position_ids" not in key)
    if missing and auto_class != "AutoModel":
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        trained = ", ".join(config_of(source.name, source.path).get("architectures") or ("nothing",))
        raise ModelError(
            f"'{source.name}' cannot serve as {auto_class.removeprefix('AutoModelFor')}: it has no weights for "
            f"{missing[0]}{more}, so that its answers would be random. Its config says that it was saved as {trained}."
        )


def _cannot_load(source: Source, auto_class: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if source.kind == "hub" and not may_fetch():
        return f"'{source.name}' is only partly in the hub's cache ({source.path})"
    if source.kind == "hub":
        down = sources.unreachable()
        if down is not None:
            return (
                f"'{source.name}' is only partly in the hub's cache ({source.path}), and {down}. Load it once where "
                f"the hub can be reached, or do something else: {ADVICE}"
            )
    if "trust_remote_code" in str(error):
        return f"'{source.name}' brings its own code; read it, and if you trust it give --trust-remote-code: {reason}"
    return f"'{source.name}' ({source.path}) cannot be loaded with {auto_class}: {reason}"
