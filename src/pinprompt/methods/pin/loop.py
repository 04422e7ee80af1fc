"""Algorithm 1 of the paper, for all Q-learning methods: write, score, store, learn."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch

from pinprompt.errors import BudgetSpent
from pinprompt.methods.bookkeeping import Book
from pinprompt.methods.pin.learner import Learner, Update
from pinprompt.methods.pin.replay import Replay, normalise
from pinprompt.methods.protocol import Candidate, Outcome, Search
from pinprompt.recipe.sections import QLearningSettings
from pinprompt.values import Episode, Event, Prompt, Score, derive


def search_prompts(search: Search, settings: QLearningSettings) -> Outcome:
    """Run Algorithm 1 until its steps or the budget end; candidates are the greedy and the best sampled prompts."""
    run = _Run(search, settings)
    book, writer, stopped = run.book, run.writer, "finished"
    for step in range(run.begin(), settings.steps):
        try:
            if step and step % settings.eval_every == 0:
                run.try_greedy(step)
            # Sample z_t ~ pi_theta(. | z_{0:t-1}) with F_I[Q_theta], for t = 0 ... L-1.
            with book.phase("write"):
                written = writer.sample(
                    settings.prompts,
                    book.streams["policy"],
                    settings.entropy,
                    top_q=settings.top_q if step * settings.prompts >= settings.top_q_from else None,
                    logit_bias=settings.logit_bias,
                    filtered=settings.filter != "off",
                    explore=settings.explore,
                )
            # Observe R(y(z, x)) from the task model.
            # Each prompt carries its step and position, for tasks that draw new inputs at each step.
            prompts = [replace(prompt, draw=(step, place)) for place, prompt in enumerate(written.prompts)]
            with book.phase("score"):
                scores, paths = run.score(prompts)
        except BudgetSpent:
            stopped = "budget"
            break
        # Add {z_0 ... z_{L-1}, R} to D.
        episodes = run.add(prompts, scores, paths)
        # Sample from D, estimate the targets with F_I[Q_theta'], step on theta, let theta' follow.
        with book.phase("learn"):
            updates = run.learn(episodes)
        run.tell(step, scores, written.support, updates)
        if run.collapsed() and settings.on_collapse == "restart":
            run.restart(step)
        run.remember(step + 1)
        if run.collapsed() and settings.on_collapse == "stop":
            stopped = "collapsed"
            break
        book.save_if_due()
    return run.finish(stopped)


class _Run:
    """The state of Algorithm 1 besides the book: theta and theta', D, and the greedy prompts."""

    def __init__(self, search: Search, settings: QLearningSettings) -> None:
        self.search, self.settings = search, settings
        self.writer = writer = search.writer()
        self.book = Book(search, "sampled", ("policy", "replay"))
        self.by_prefix = settings.rewards == "prefix"
        self.replay = Replay(settings.capacity, writer.length, settings.keep_best, self.by_prefix)
        self.learner = Learner(writer, settings)
        self.greedy: list[Candidate] = []
        self.restarts: list[int] = []
        """How many prompts had been scored at each restart."""
        self.scored = 0
        self.stale = 0
        self.updates = 0

    def begin(self) -> int:
        """Resume from the last checkpoint, if there is one; returns the first step to do."""
        resumed = self.book.resume()
        if resumed is None:
            self.remember(0)
            return 0
        state, tensors = resumed
        self.learner.restore(tensors)
        # Checkpoints of earlier versions have no dev score.
        self.greedy = [
            Candidate(Prompt(text, tuple(ids)), "greedy", score, *dev) for text, ids, score, *dev in state["greedy"]
        ]
        self.restarts, self.stale, self.updates = state["restarts"], state["stale"], state.get("updates", 0)
        for row in self.book.rows():
            if "reward" not in row:
                continue  # a prefix of a prompt, if each token is rewarded
            self._drop_repeats()
            self.replay.add([Episode(tuple(row["ids"]), row["score"], row["reward"], tuple(row.get("path", ())))])
            self.scored += 1
        self._drop_repeats()
        return self.book.step

    def remember(self, step: int) -> None:
        """Everything that the next step depends on; theta changes only after a step has its scores."""
        greedy = [[one.prompt.text, one.prompt.ids, one.score, one.dev] for one in self.greedy]
        state = {"greedy": greedy, "restarts": self.restarts, "stale": self.stale, "updates": self.updates}
        self.book.remember(step, state, self.learner.state)

    def score(self, prompts: list[Prompt]) -> tuple[list[Score], list[tuple[float, ...]]]:
        """The scores of prompts and, if each token is rewarded, those of all their prefixes."""
        if not self.by_prefix:
            return self.book.score(prompts), [()] * len(prompts)
        beginnings = [
            [*(self._beginning(prompt, end) for end in range(1, len(prompt.ids))), prompt] for prompt in prompts
        ]
        values = iter(self.book.score([one for path in beginnings for one in path]))
        scores = [[next(values) for _ in path] for path in beginnings]
        return [path[-1] for path in scores], [tuple(score.value for score in path) for path in scores]

    def _beginning(self, prompt: Prompt, end: int) -> Prompt:
        return self.writer.prompt(self.writer.completed(prompt.ids[:end]))

    def add(self, prompts: list[Prompt], scores: list[Score], paths: list[tuple[float, ...]]) -> list[Episode]:
        """A step's prompts with their rewards as episodes, added to the replay."""
        rewards = normalise(scores, self.settings.normalise)
        episodes = [
            Episode(prompt.ids, score.value, reward, path)
            for prompt, score, reward, path in zip(prompts, scores, rewards, paths, strict=True)
        ]
        notes: list[dict[str, Any]] = []
        for episode in episodes:
            # Prefixes were scored before the prompt itself, and are not episodes.
            notes += [{} for _ in episode.path[1:]]
            notes.append({"reward": episode.reward, **({"path": episode.path} if episode.path else {})})
        self.book.annotate(notes)
        self.replay.add(episodes)
        self.scored += len(episodes)
        self.stale = 0 if self.book.new else self.stale + 1
        return episodes

    def learn(self, episodes: list[Episode]) -> list[Update]:
        """`updates` gradient steps, from the replay once it is warm, or from this step's episodes."""
        settings = self.settings
        if settings.replay and len(self.replay) < (settings.warmup or settings.batch):
            return []
        results = []
        for _ in range(settings.updates):
            if settings.replay:
                ids, rewards = self.replay.sample(settings.batch, self.book.streams["replay"], settings.renormalise)
            else:
                ids = torch.tensor([episode.ids for episode in episodes])
                rewards = torch.tensor([episode.reward for episode in episodes])
            rewards = rewards / settings.alpha
            if rewards.ndim == 2:
                rewards[:, -1] += settings.reward_shift
            else:
                rewards = rewards + settings.reward_shift
            results.append(self.learner.update(ids, rewards))
        self.updates += len(results)
        return results

    def try_greedy(self, step: int) -> None:
        """Score the greedy prompt, also on dev if there is a dev split."""
        prompt, dev = self.writer.greedy(entropy=self.settings.entropy)[0], None
        with self.book.phase("score"):
            score = self.book.score_whole(prompt)
            if "dev" in self.search.task.splits:
                dev = self.search.evaluator.score([prompt], "dev")[0].value
        if all(known.prompt.text != prompt.text for known in self.greedy):
            self.greedy.append(Candidate(prompt, "greedy", score, dev))
        self.search.emit(Event("greedy", step, {"prompt": prompt.text, "score": score, "dev": dev}))

    def collapsed(self) -> bool:
        """Whether there was no new prompt for `patience` steps in a row."""
        return self.stale >= self.settings.patience

    def restart(self, step: int) -> None:
        """Restart with a new psi; the book is kept, and the replay without repeats."""
        self.restarts.append(self.scored)
        self.stale = 0
        self._drop_repeats()
        self.learner.restart(derive(self.search.seed, "psi", len(self.restarts)))
        self.search.emit(Event("restart", step, {"reason": f"no new prompt for {self.settings.patience} steps"}))

    def _drop_repeats(self) -> None:
        """Repeat the effect of a restart on the replay, if there was one after this number of prompts."""
        if self.scored in self.restarts:
            self.replay.drop_repeats()

    def tell(self, step: int, scores: list[Score], support: list[float], updates: list[Update]) -> None:
        """Emit the event of this step: the book's facts and the learner's statistics."""
        learned: dict[str, Any] = {"loss": None}
        if updates:
            learned = {
                "loss": sum(update.loss for update in updates) / len(updates),
                "q_min": round(min(update.q_min for update in updates), 6),
                "q_max": round(max(update.q_max for update in updates), 6),
                "v_min": round(min(update.v_min for update in updates), 6),
                "v_max": round(max(update.v_max for update in updates), 6),
            }
        tree = {"tree_hits": self.writer.tree.hits, "tree_misses": self.writer.tree.misses}
        asked = len(scores) * (self.writer.length if self.by_prefix else 1)
        facts = {"repeats": asked - self.book.new, "support": [round(size, 3) for size in support], **learned}
        self.book.tell(step, [score.value for score in scores], tree, **facts)

    def finish(self, stopped: str) -> Outcome:
        """Save the end of the search, so that a killed run need not search again, and return the candidates."""
        self.book.save()
        self.search.open_reserve()
        with contextlib.suppress(BudgetSpent):
            self.try_greedy(self.book.step)
        candidates = self.greedy + self.book.best(self.settings.finalists)
        return Outcome(candidates, stopped, self.book.step, {"restarts": len(self.restarts), "updates": self.updates})
