"""GEPA with its default adapter: the instruction is a system message, the text the user's message."""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gepa
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult

ROWS = 32  # rows of the validation set: each accepted candidate is scored on all of them


def post(url, messages, tokens, temperature=0.0):
    body = {"model": "arena", "messages": messages, "max_tokens": tokens, "temperature": temperature}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


class Together(DefaultAdapter):
    """The default adapter; the calls of a batch are sent together instead of one by one."""

    def evaluate(self, batch, candidate, capture_traces=False):
        system = next(iter(candidate.values()))
        chats = [[{"role": "system", "content": system}, {"role": "user", "content": one["input"]}] for one in batch]
        with ThreadPoolExecutor(16) as pool:
            known = {json.dumps(chat): text for chat, text in zip(chats, pool.map(self.send, chats), strict=True)}
        self.model = lambda messages: known[json.dumps(list(messages))]
        return super().evaluate(batch, candidate, capture_traces)


def main():
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    task, url = job["task"], job["base_url"]
    labels = [label.lower() for label in task["labels"]]

    def evaluator(data, response):
        if labels:
            said = next(
                (w for w in "".join(c if c.isalnum() else " " for c in response.lower()).split() if w in labels), ""
            )
            right = said == data["answer"].lower()
        else:
            right = response.strip().strip("\"'`*.").strip().lower() == data["answer"].lower()
        feedback = "Correct." if right else f"Wrong: the correct answer is '{data['answer']}', and nothing else."
        return EvaluationResult(score=float(right), feedback=feedback)

    def spent(state):
        with urllib.request.urlopen(url.rsplit("/", 1)[0]) as answer:
            return json.load(answer)["calls"] >= job["limit"] - 6  # the least that an iteration takes

    rows = {part: [{"input": r["input"], "answer": r["target"], "additional_context": {}} for r in task["rows"][part]]
            for part in ("train", "dev")}  # fmt: skip
    adapter = Together(model=lambda messages: "", evaluator=evaluator)
    adapter.send = lambda chat: post(url, chat, 32)
    best = gepa.optimize(
        seed_candidate={"system_prompt": task["instruction"]},
        trainset=rows["train"],
        valset=rows["dev"][:ROWS],
        adapter=adapter,
        reflection_lm=lambda prompt: post(url, _chat(prompt), 150, 1.0),
        max_metric_calls=job["limit"],
        stop_callbacks=[spent],
        raise_on_exception=False,
        seed=job["seed"],
    )
    system = best.best_candidate["system_prompt"]
    chats = {part: [[{"role": "system", "content": system}, {"role": "user", "content": row["input"]}] for row in own]
             for part, own in task["rows"].items()}  # fmt: skip
    note = f"default adapter; {best.num_candidates} candidates"
    result = {"prompt": system, "chats": chats, "prefix": "", "note": note}
    Path(job["out"]).write_text(json.dumps(result), encoding="utf-8")


def _chat(prompt):
    return prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]


if __name__ == "__main__":
    main()
