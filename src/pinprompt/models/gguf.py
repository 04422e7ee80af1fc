"""GGUF files: dequantised once and kept as safetensors, since a quantised one is many times slower on a CPU."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
from pathlib import Path

from pinprompt.errors import ModelError
from pinprompt.models.cache import home, known_sha256_of, place
from pinprompt.models.quiet import quiet

log = logging.getLogger("pinprompt.models")

NOTE = "source.json"


def converted(file: Path) -> Path:
    """The folder in the cache that holds a .gguf file as safetensors; made at the first call."""
    digest = known_sha256_of(file)
    target = home() / "models" / f"gguf-{digest[:24]}"
    with place(target, f"'{file.name}' as safetensors") as folder:
        if folder is not None:
            convert(file, folder)
            (folder / NOTE).write_text(json.dumps({"file": str(file), "sha256": digest}), encoding="utf-8")
    return target


def convert(file: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a .gguf file into a folder, in full precision."""
    with open(file, "rb") as handle:
        if handle.read(4) != b"GGUF":
            raise ModelError(f"{file} is not a GGUF file: it does not begin with 'GGUF'. Download it again.")
    log.info("dequantising %s once (a quarter of a minute for a small model)", file.name)
    # The converter has a bar of its own that no switch turns off.
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(file.parent),
                gguf_file=file.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
            )
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
            model.save_pretrained(str(folder))
            tokenizer.save_pretrained(str(folder))
        except Exception as error:  # readers of broken files raise anything: struct.error, KeyError, ValueError, ...
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if "No space left on device" in str(error):  # safetensors has its own error for it
                raise OSError(errno.ENOSPC, "No space left on device") from error
            raise ModelError(
                f"{file} cannot be read as a language model in GGUF: {error}. It may be cut short, or of a kind that "
                "transformers does not know; give a folder in transformers' format instead."
            ) from error
