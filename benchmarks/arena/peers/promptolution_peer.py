"""promptolution: CAPO or EvoPrompt (genetic), which put instruction, examples and text into one message of the user."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from promptolution.llms import APILLM
from promptolution.optimizers.capo import CAPO
from promptolution.optimizers.evoprompt_ga import EvoPromptGA
from promptolution.predictors import FirstOccurrencePredictor, MarkerBasedPredictor
from promptolution.tasks.classification_tasks import ClassificationTask
from promptolution.utils.prompt_creation import create_prompt_variation
from promptolution.utils.templates import DEFAULT_SYS_PROMPT

START = 4  # prompts to start from: the instruction and variations of it by the model


def main():
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    task, variant = job["task"], job["variant"]
    random.seed(job["seed"])
    np.random.seed(job["seed"])
    labels = [label.lower() for label in task["labels"]]
    given = {"api_url": job["base_url"], "model_id": "arena", "api_key": "none", "call_timeout_s": 3600.0,
             "gather_timeout_s": 7200.0, "max_retries": 0, "client_kwargs": {"max_retries": 0}}  # fmt: skip
    downstream = APILLM(**given, max_tokens=32, call_kwargs={"temperature": 0.0})
    proposer = APILLM(**given, max_tokens=150, call_kwargs={"temperature": 0.7})
    instruction = task["instruction"]
    if labels:
        predictor = FirstOccurrencePredictor(downstream, classes=labels)
    else:
        instruction += " Write the answer between <final_answer> and </final_answer>."
        predictor = MarkerBasedPredictor(downstream)
    rows = task["rows"]["train"] + task["rows"]["dev"]
    random.Random(job["seed"]).shuffle(rows)
    frame = pd.DataFrame({"x": [row["input"] for row in rows], "y": [row["target"].lower() for row in rows]})
    # Blocks of 8 rows for the race of CAPO; EvoPrompt scores each prompt on one block of 16.
    block = 8 if variant == "capo" else 16
    own = ClassificationTask(frame, task_description=task["instruction"], n_subsamples=block,
                             eval_strategy="sequential_block", seed=job["seed"])  # fmt: skip
    varied = create_prompt_variation([instruction] * (START - 1), proposer)
    start = list(dict.fromkeys([instruction, *(one for one in varied if one.strip())]))
    best = {"prompt": None}

    class Keep:
        """The best prompt after each step, should the calls end within the next one."""

        def on_step_end(self, optimizer):
            best["prompt"] = optimizer.prompts[0]
            return True

        def on_train_end(self, optimizer):
            return True

    if variant == "capo":
        small = {"crossovers_per_iter": 2, "upper_shots": 3, "create_fs_reasoning": False}
        optimizer = CAPO(predictor, own, proposer, start, **small, callbacks=[Keep()])
    else:
        optimizer = EvoPromptGA(predictor, own, proposer, start, callbacks=[Keep()])
    note = f"{len(start)} prompts to start from, blocks of {block} rows"
    try:
        prompts = optimizer.optimize(n_steps=20)
        found = best["prompt"] or prompts[0]
    except Exception as error:  # the calls ended before the first step
        found, note = best["prompt"] or optimizer.prompts[0], f"{note}; ended early: {str(error)[:80]}"
    text = str(found)
    chats = {part: [[{"role": "system", "content": DEFAULT_SYS_PROMPT},
                     {"role": "user", "content": text + "\n" + row["input"]}] for row in own_rows]
             for part, own_rows in task["rows"].items()}  # fmt: skip
    result = {"prompt": text, "chats": chats, "prefix": "" if labels else "<final_answer>", "note": note}
    Path(job["out"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
