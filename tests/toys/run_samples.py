"""Realistic run folders, written file by file as docs/run-folder.md describes them."""

from __future__ import annotations

import base64
import csv
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

WORDS = [
    "Review",
    "rating",
    "film",
    "says",
    "overall",
    "absolutely",
    "mood",
    "honest",
    "verdict",
    "score",
    "feels",
    "critics",
]
LEVEL = {"pin": 0.74, "rlprompt": 0.68, "random": 0.66}


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Write files by name: text as it is, .jsonl from rows, .csv from rows, .json from anything else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        path = folder / name
        if isinstance(value, str):
            path.write_text(value, encoding="utf-8")
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in value), encoding="utf-8")
        elif name.endswith(".csv"):
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(value[0]))
                writer.writeheader()
                writer.writerows(value)
        else:
            path.write_text(json.dumps(value), encoding="utf-8")
    return folder


def recipe(method: str, seed: int, *, task: dict[str, Any], calls: int = 12288, k: int = 256, **more: Any) -> str:
    """A resolved recipe as TOML."""
    lines = [f"method = {json.dumps(method)}", f"seed = {seed}", "", "[task]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in task.items()]
    lines += ["", "[policy]", 'model = "smollm2"', f"length = {more.get('length', 5)}", f"k = {k}"]
    lines += ["", "[q_learning]", f"alpha = {more.get('alpha', 1.0)}", "", "[budget]", f"calls = {calls}"]
    return "\n".join(lines) + "\n"


def metrics(value: float, rows: int, primary: str = "accuracy", half: float = 0.04) -> dict[str, Any]:
    """Metrics of one split with an interval and, for accuracy, the rows that are right."""
    right = round(value * rows)
    outcomes = {"outcomes": {primary: "1" * right + "0" * (rows - right)}} if primary == "accuracy" else {}
    return {
        **outcomes,
        primary: value,
        "macro_f1": value - 0.01,
        "rows": rows,
        "intervals": {primary: [value - half, value + half]},
    }


def classification(folder: Path, method: str = "pin", seed: int = 0, split: int = 13, **more: Any) -> Path:
    """A finished classification run. `test`, `manual`, `dataset`, `model`, `calls`, `fingerprint`, `k` may be given."""
    rng = random.Random(f"{method}/{seed}/{split}")
    dataset, length = more.get("dataset", "sst-2"), more.get("length", 5)
    test = more.get("test", LEVEL.get(method, 0.6) + rng.uniform(-0.015, 0.015))
    manual = more.get("manual", 0.55 + split / 1000)
    task = {
        "kind": "classification",
        "dataset": dataset,
        "model": more.get("model", "smollm2"),
        "split": split,
        **more.get("task", {}),
    }
    prompts = [" " + " ".join(rng.sample(WORDS, length)) for _ in range(60)]
    scored = sorted((rng.gauss(45, 9) for _ in prompts), reverse=True)
    events: list[dict[str, Any]] = [
        {
            "event": "start",
            "step": 0,
            "method": method,
            "task": "classification",
            "seed": seed,
            "length": length,
            "primary": "accuracy",
        }
    ]
    costs = []
    for step in range(1, 41):
        gain = 35 * (1 - 0.93**step)
        events.append(
            {
                "event": "step",
                "step": step,
                "score_mean": 10 + gain + rng.gauss(0, 3),
                "score_best": 25 + gain + rng.gauss(0, 2),
                "best_prompt": prompts[step % 60],
                "reward_mean": 0.0,
                "distinct": 16,
                "repeats": 0,
                "support": [max(1, int(250 * 0.9 ** (step * (1 + place / 3)))) for place in range(length)],
                "loss": 1 / step,
                "q_min": -1.0,
                "q_max": 2.0,
                "v_min": 0.0,
                "v_max": 2.1,
                "calls": step * 512,
            }
        )
        costs.append(
            {
                "event": "step",
                "step": step,
                "write": 1.1,
                "score": 4.2,
                "learn": 0.6,
                "elapsed": 6.0 * step,
                "paid_calls": 512,
            }
        )
        if step % 10 == 0:
            events.append(
                {"event": "greedy", "step": step, "prompt": prompts[step], "score": 40.0, "dev": 0.6 + step / 250}
            )
    events.append({"event": "end", "step": 40, "stopped": "budget", "calls": 12288, "prompts": 60})
    texts = [
        ("a gorgeous , witty , seductive movie .", "great", "great", 0.93),
        ("it 's slow -- very , very slow .", "terrible", "great", 0.71),
        (
            "an ambitious work that never quite comes together , though never less than watchable",
            "great",
            "terrible",
            0.55,
        ),
        ("bleak and desperate", "terrible", "terrible", 0.82),
    ]
    result = {
        "method": method,
        "prompt": prompts[0],
        "score": scored[0],
        "dev": metrics(test + 0.03, 32, half=0.12),
        "test": metrics(test, 500),
        "calls": 12288,
        "paid_calls": 11904,
        "seconds": 260.1,
        "stopped": "budget",
        "steps": 40,
        "primary": "accuracy",
        "task": "classification",
        "fingerprint": more.get("fingerprint", f"fp-{dataset}-{split}"),
        "seed": seed,
        "top": [
            {"prompt": p, "source": "sampled" if i else "greedy", "score": s, "dev": 0.8 - i / 100}
            for i, (p, s) in enumerate(zip(prompts[:16], scored[:16], strict=True))
        ],
        "baselines": {
            "manual": {"prompt": "It was", "dev": metrics(manual, 32, half=0.15), "test": metrics(manual, 500)},
            "instructions": {
                "prompt": "In this task, you are given sentences from movie reviews.",
                "test": metrics(manual + 0.03, 500),
            },
        },
        "tokens": [
            {
                "token": " " + word,
                "q": 1.9 - i / 10,
                "runners_up": [[" " + other, 1.7 - i / 10 - j / 7] for j, other in enumerate(rng.sample(WORDS, 4))],
                "score_without": scored[0] - rng.uniform(-2, 14),
            }
            for i, word in enumerate(prompts[0].split())
        ],
        "readability": {
            "perplexity": 120.0 + 10 * seed + 60 * (method != "pin"),
            "in_text": 2.5 - 0.1 * seed - 0.75 * (method != "pin"),
            "dictionary_words": 0.9 if method == "pin" else 0.7,
            "repeated_tokens": 0,
            "stable": True,
        },
        "tables": {
            "confusion": {"labels": ["terrible", "great"], "counts": [[171, 79], [51, 199]]},
            "examples": [{"text": t, "label": a, "predicted": b, "probability": c} for t, a, b, c in texts * 4],
        },
        "judges": more.get("judges", {}),
    }
    return write(
        folder,
        {
            "recipe.toml": recipe(
                method, seed, task=task, **{key: more[key] for key in ("calls", "k", "length", "alpha") if key in more}
            ),
            "events.jsonl": events,
            "costs.jsonl": costs,
            "prompts.csv": [
                {"prompt": p, "score": s, "step": i} for i, (p, s) in enumerate(zip(prompts, scored, strict=True))
            ],
            "result.json": result,
            "environment.json": {
                "python": "3.11.9",
                "packages": {"torch": "2.13.0+cpu", "transformers": "5.22.0"},
                "device": "cpu",
                "threads": 2,
            },
        },
    )


def sweep(
    folder: Path,
    methods: tuple[str, ...] = ("pin", "rlprompt", "random"),
    splits: tuple[int, ...] = (13, 21, 42),
    seeds: tuple[int, ...] = (0,),
) -> list[Path]:
    """A folder of runs: methods x splits x seeds."""
    return [
        classification(folder / f"{method}-{split}-{seed}", method, seed, split)
        for method in methods
        for split in splits
        for seed in seeds
    ]


def png(size: int = 96, colour: tuple[int, int, int] = (240, 180, 40)) -> str:
    """A disc on a pale ground as a PNG in a data URI, packed by hand."""
    rows = b""
    for y in range(size):
        rows += b"\0"
        for x in range(size):
            inside = (x - size / 2) ** 2 + (y - size / 2) ** 2 < (size * 0.38) ** 2
            rows += bytes(colour if inside else (236, 240, 244))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def inversion(folder: Path, method: str = "pin", seed: int = 0, image: str = "sun.png") -> Path:
    """A finished inversion run with its picture, a front of score against perplexity, and two drawings."""
    rng = random.Random(f"{method}/{seed}/{image}")
    prompts = [
        " ".join(rng.sample(["sun", "face", "yellow", "disc", "bright", "sky", "round", "smile"], 5)) for _ in range(80)
    ]
    rows = [{"prompt": p, "score": 0.2 + 0.15 * rng.random(), "in_text": 40 * 40 ** rng.random()} for p in prompts]
    rows.sort(key=lambda row: -float(row["score"]))
    events: list[dict[str, Any]] = [
        {
            "event": "start",
            "step": 0,
            "method": method,
            "task": "inversion",
            "seed": seed,
            "length": 8,
            "primary": "score",
        }
    ]
    events += [
        {
            "event": "step",
            "step": s,
            "score_mean": 0.1 + s / 300,
            "score_best": 0.15 + s / 200,
            "support": [200 - 4 * s] * 8,
            "calls": 32 * s,
        }
        for s in range(1, 31)
    ]
    best = rows[0]
    result = {
        "method": method,
        "prompt": best["prompt"],
        "score": best["score"],
        "test": {"score": best["score"], "rows": 1},
        "calls": 960,
        "paid_calls": 960,
        "seconds": 61.0,
        "stopped": "finished",
        "steps": 30,
        "primary": "score",
        "task": "inversion",
        "fingerprint": f"fp-{image}",
        "seed": seed,
        "top": [dict(row, source="sampled") for row in rows[:10]],
        "tokens": [
            {"token": " " + w, "q": 0.3, "runners_up": [[" moon", 0.2]], "score_without": 0.2}
            for w in str(best["prompt"]).split()
        ],
        "readability": {
            "perplexity": best["in_text"],
            "dictionary_words": 1.0,
            "repeated_tokens": 0,
            "stable": True,
        },
        "images": [{"name": image, "data_uri": png()}],
        "drawings": [
            {"name": f"drawing {i}", "data_uri": png(colour=(230, 150 + 30 * i, 60)), "similarity": 0.71 - i / 50}
            for i in range(2)
        ],
    }
    task = {"kind": "inversion", "model": "emoji-clip", "images": [image]}
    return write(
        folder,
        {
            "recipe.toml": recipe(method, seed, task=task, calls=960, length=8),
            "events.jsonl": events,
            "prompts.csv": rows,
            "result.json": result,
        },
    )


def style(folder: Path, method: str = "pin", seed: int = 0) -> Path:
    """A finished style-transfer run with judges and rewrites."""
    values = {"j": 46.2, "gm": 77.6, "content": 55.6, "style": 95.4, "fluency": 89.4, "rows": 100}
    result = {
        "method": method,
        "prompt": "Rewrite it cheerfully:",
        "score": 61.0,
        "test": dict(values, intervals={"j": [43.0, 49.5]}),
        "dev": dict(values, j=48.0),
        "calls": 9000,
        "seconds": 700.0,
        "stopped": "budget",
        "steps": 70,
        "primary": "j",
        "task": "style_transfer",
        "fingerprint": "fp-yelp",
        "seed": seed,
        "judges": {
            "style": "tf-idf logistic regression, 94.1 % on held-out",
            "content": "minilm cosine",
            "fluency": "smollm2 perplexity",
        },
        "baselines": {
            "manual": {
                "prompt": "Make it positive:",
                "test": dict(values, j=45.0, intervals={"j": [42.0, 48.0]}),
            }
        },
        "tables": {
            "rewrites": [
                {
                    "source": "the food was cold and bland .",
                    "rewrite": "the food was warm and lovely .",
                    "content": 71.0,
                    "style": 99.0,
                    "fluency": 90.0,
                    "j": 63.3,
                }
            ]
            * 5
        },
        "readability": {"perplexity": 80.0, "dictionary_words": 1.0, "repeated_tokens": 0, "stable": True},
    }
    task = {"kind": "style_transfer", "dataset": "yelp", "model": "smollm2"}
    return write(folder, {"recipe.toml": recipe(method, seed, task=task), "result.json": result})
