"""DSPy: MIPROv2, or BootstrapFewShotWithRandomSearch, of a single Predict."""

import json
import sys
from pathlib import Path
from typing import Literal

import dspy

ROWS = 32  # rows on which each program is scored


def main():
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    task, variant = job["task"], job["variant"]
    labels = tuple(label.lower() for label in task["labels"])
    dspy.configure_cache(enable_disk_cache=False)  # answers in memory are not paid for twice, as by default
    given = {"api_base": job["base_url"], "api_key": "none", "num_retries": 0, "timeout": 3600}
    lm = dspy.LM("openai/arena", **given, temperature=0.0, max_tokens=48)
    proposer = dspy.LM("openai/arena", **given, temperature=1.0, max_tokens=150)
    dspy.configure(lm=lm)
    kind = Literal[labels] if labels else str
    name = "label" if labels else "answer"
    signature = dspy.Signature(
        {"text": (str, dspy.InputField()), name: (kind, dspy.OutputField())}, task["instruction"]
    )
    student = dspy.Predict(signature)

    def metric(example, prediction, trace=None):
        return str(getattr(prediction, name)).strip().lower() == str(getattr(example, name)).strip().lower()

    def examples(part):
        targets = [row["target"].lower() if labels else row["target"] for row in task["rows"][part]]
        rows = zip(task["rows"][part], targets, strict=True)
        return [dspy.Example(text=row["input"], **{name: target}).with_inputs("text") for row, target in rows]

    train, dev = examples("train"), examples("dev")[:ROWS]
    if variant == "mipro":
        note = "4 candidates, 6 trials on 32 rows (auto='light' takes more than 300 calls)"
        optimizer = dspy.MIPROv2(metric=metric, prompt_model=proposer, task_model=lm, auto=None, num_candidates=4,
                                 num_threads=16, max_errors=10_000, seed=job["seed"])  # fmt: skip
        found = optimizer.compile(student, trainset=train, valset=dev, num_trials=6, minibatch=False)
    else:
        note = "5 random programs of up to 4 bootstrapped and 16 labelled examples, on 32 rows"
        optimizer = dspy.BootstrapFewShotWithRandomSearch(metric=metric, num_candidate_programs=5, num_threads=16,
                                                          max_errors=10_000)  # fmt: skip
        found = optimizer.compile(student, trainset=train, valset=dev)
    [predictor] = found.predictors()
    adapter = dspy.ChatAdapter()

    def chat(row):
        return adapter.format(signature=predictor.signature, demos=predictor.demos, inputs={"text": row["input"]})

    chats = {part: [plain(chat(row)) for row in rows] for part, rows in task["rows"].items()}
    words = "\n\n".join(
        [predictor.signature.instructions] + [f"{one['text']} -> {one[name]}" for one in predictor.demos]
    )
    result = {"prompt": words, "chats": chats, "prefix": f"[[ ## {name} ## ]]\n", "note": note}
    Path(job["out"]).write_text(json.dumps(result), encoding="utf-8")


def plain(messages):
    def text(content):
        return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)

    return [{"role": one["role"], "content": text(one["content"])} for one in messages]


if __name__ == "__main__":
    main()
