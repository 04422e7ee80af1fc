"""Algorithm 1 of the paper, for all Q-learning methods: write, score, store, learn."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from pinprompt.errors import BudgetSpent
from pinprompt.methods.pin.learner import Learner, Update
from pinprompt.methods.pin.replay import Replay, normalise
from pinprompt.methods.protocol import Candidate, Outcome, Search
from pinprompt.methods.trials import Trials
from pinprompt.recipe.sections import QLearningSettings
from pinprompt.values import Episode, Event, Prompt, Score, derive

PATIENCE = 3
"""Number of steps without a new prompt that counts as a collapse."""


def search_prompts(search: Search, settings: QLearningSettings) -> Outcome:
    """Run Algorithm 1 until its steps or the budget end; candidates are the greedy and the best sampled prompts."""
    run = _Learning(search, settings)
    trials, writer, stopped = run.trials, run.writer, "finished"
    for step in range(run.begin(), settings.steps):
        before = step * settings.prompts
        try:
            if step and step % settings.eval_every == 0:
                run.try_greedy(step)
            # Sample z_t ~ pi_theta(. | z_{0:t-1}) with F_I[Q_theta], for t = 0 ... L-1.
            with trials.phase("write"):
                written = writer.sample(
                    settings.prompts,
                    trials.streams["policy"],
                    settings.entropy,
                    top_q=settings.top_q if before >= settings.top_q_from else None,
                    logit_bias=settings.logit_bias,
                    filtered=settings.filter != "off" and before >= settings.filter_from,
                    explore=settings.explore,
                )
            # Observe R(y(z, x)) from the task model.
            with trials.phase("score"):
                scores, paths = run.score(written.prompts, step)
        except BudgetSpent:
            stopped = "budget"
            break
        # Add {z_0 ... z_{L-1}, R} to D.
        episodes = run.add(written.prompts, scores, paths)
        # Sample from D, estimate the targets with F_I[Q_theta'], step on theta, let theta' follow.
        with trials.phase("learn"):
            updates = run.learn(episodes)
        run.tell(step, scores, written.support, updates)
        if run.collapsed() and settings.on_collapse == "restart":
            run.restart(step)
        run.remember(step + 1)
        if run.collapsed() and settings.on_collapse == "stop":
            stopped = "collapsed"
            break
        trials.save_if_due()
    return run.finish(stopped)


def search_untrained(search: Search, settings: QLearningSettings) -> Outcome:
    """The control: the same loop with no gradient step, so that only learning differs from `search_prompts`."""
    return search_prompts(search, settings.model_copy(update={"updates": 0}))


class _Learning:
    """The state of Algorithm 1 besides the trials: theta and theta', D, and the greedy prompts."""

    def __init__(self, search: Search, settings: QLearningSettings) -> None:
        self.search, self.settings = search, settings
        self.writer = writer = search.writer()
        self.trials = Trials(search, "sampled", ("policy", "replay"))
        self.by_prefix = settings.rewards == "prefix"
        self.replay = Replay(settings.capacity, writer.length, settings.keep_best, self.by_prefix)
        self.learner = Learner(writer, settings)
        self.greedy: list[Candidate] = []
        self.greedy_draws: list[tuple[str, str | None]] = []
        """Their draws on train and dev, by which a resumed run finds their scores."""
        self.restarts: list[int] = []
        """How many prompts had been scored at each restart."""
        self.scored = 0
        self.stale = 0
        self.updates = 0
        self.before = 0
        """How many prompts had been scored before the first update; all of them, if there was none."""

    def begin(self) -> int:
        """Resume from the last checkpoint, if there is one; returns the first step to do."""
        resumed = self.trials.resume()
        if resumed is None:
            self.remember(0)
            return 0
        state, tensors = resumed
        self.learner.restore(tensors)
        recall = self.search.evaluator.recall
        for text, ids, draw, dev in state["greedy"]:
            prompt = Prompt(text, tuple(ids))
            on_dev = None if dev is None else recall(prompt, "dev", dev).value
            self.greedy.append(Candidate(prompt, "greedy", recall(prompt, draw=draw).value, on_dev))
        self.greedy_draws = [(draw, dev) for _, _, draw, dev in state["greedy"]]
        self.restarts, self.stale = state["restarts"], state["stale"]
        self.updates, self.before = state["updates"], state["before"]
        for batch in self.trials.batches():
            self._drop_repeats()
            episodes = self._episodes(*self._by_prompt(batch))
            self.replay.add(episodes)
            self.scored += len(episodes)
        self._drop_repeats()
        return self.trials.step

    def remember(self, step: int) -> None:
        """Everything that the next step depends on; theta changes only after a step has its scores."""
        greedy = [[one.prompt.text, list(one.prompt.ids), *draws]
                  for one, draws in zip(self.greedy, self.greedy_draws, strict=True)]  # fmt: skip
        state = {"greedy": greedy, "restarts": self.restarts, "stale": self.stale}
        state |= {"updates": self.updates, "before": self.before}
        self.trials.remember(step, state, self.learner.state)

    def score(self, prompts: list[Prompt], step: int) -> tuple[list[Score], list[tuple[float, ...]]]:
        """The scores of prompts and, if each token is rewarded, those of all their prefixes."""
        if not self.by_prefix:
            return self.trials.score(prompts, step), [()] * len(prompts)
        beginnings = [
            [*(self._beginning(prompt, end) for end in range(1, len(prompt.ids))), prompt] for prompt in prompts
        ]
        asked = [one for path in beginnings for one in path]
        _, scores, paths = self._by_prompt(list(zip(asked, self.trials.score(asked), strict=True)))
        return scores, paths

    def _by_prompt(
        self, scored: Sequence[tuple[Prompt, Score]]
    ) -> tuple[list[Prompt], list[Score], list[tuple[float, ...]]]:
        """The prompts of a scoring, their scores and, if each token is rewarded, the scores of their prefixes."""
        if not self.by_prefix:
            return [prompt for prompt, _ in scored], [score for _, score in scored], [()] * len(scored)
        size = self.writer.length  # every prompt has as many prefixes, and comes last
        parts = [scored[start : start + size] for start in range(0, len(scored), size)]
        paths = [tuple(score.value for _, score in part) for part in parts]
        return [part[-1][0] for part in parts], [part[-1][1] for part in parts], paths

    def _beginning(self, prompt: Prompt, end: int) -> Prompt:
        return self.writer.prompt(self.writer.completed(prompt.ids[:end]))

    def add(self, prompts: list[Prompt], scores: list[Score], paths: list[tuple[float, ...]]) -> list[Episode]:
        """A step's prompts with their rewards as episodes, added to the replay."""
        episodes = self._episodes(prompts, scores, paths)
        self.replay.add(episodes)
        self.scored += len(episodes)
        self.stale = 0 if self.trials.new else self.stale + 1
        return episodes

    def _episodes(
        self, prompts: Sequence[Prompt], scores: Sequence[Score], paths: Sequence[tuple[float, ...]]
    ) -> list[Episode]:
        rewards = normalise(scores, self.settings.normalise)
        return [
            Episode(prompt.ids, score.value, reward, path)
            for prompt, score, reward, path in zip(prompts, scores, rewards, paths, strict=True)
        ]

    def learn(self, episodes: list[Episode]) -> list[Update]:
        """`updates` gradient steps, from the replay once it is warm, or from this step's episodes."""
        settings = self.settings
        self.before = self.before if self.updates else self.scored
        if settings.replay and len(self.replay) < settings.batch:
            return []
        results = []
        for _ in range(settings.updates):
            if settings.replay:
                ids, rewards = self.replay.sample(settings.batch, self.trials.streams["replay"], settings.renormalise)
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
        prompt, dev = self.writer.greedy(), None
        with self.trials.phase("score"):
            [score] = self.search.score([prompt])
            if "dev" in self.search.splits:
                [dev] = self.search.score([prompt], "dev")
        on_dev = None if dev is None else dev.value
        if all(known.prompt.text != prompt.text for known in self.greedy):
            self.greedy.append(Candidate(prompt, "greedy", score.value, on_dev))
            self.greedy_draws.append((score.draw, None if dev is None else dev.draw))
        self.search.emit(Event("greedy", step, {"prompt": prompt.text, "score": score.value, "dev": on_dev}))

    def collapsed(self) -> bool:
        """Whether there was no new prompt for some steps in a row."""
        return self.stale >= PATIENCE

    def restart(self, step: int) -> None:
        """Restart with a new psi; the trials are kept, and the replay without repeats."""
        self.restarts.append(self.scored)
        self.stale = 0
        self._drop_repeats()
        self.learner.restart(derive(self.search.seed, "psi", len(self.restarts)))
        self.search.emit(Event("restart", step, {"reason": f"no new prompt for {PATIENCE} steps"}))

    def _drop_repeats(self) -> None:
        """Repeat the effect of a restart on the replay, if there was one after this number of prompts."""
        if self.scored in self.restarts:
            self.replay.drop_repeats()

    def tell(self, step: int, scores: list[Score], support: list[float], updates: list[Update]) -> None:
        """Emit the event of this step: the facts of the trials and the learner's statistics."""
        learned: dict[str, Any] = {"loss": None}
        if updates:
            learned = {
                "updates": self.updates,
                "loss": sum(update.loss for update in updates) / len(updates),
                "q_min": round(min(update.q_min for update in updates), 6),
                "q_max": round(max(update.q_max for update in updates), 6),
                "v_min": round(min(update.v_min for update in updates), 6),
                "v_max": round(max(update.v_max for update in updates), 6),
            }
        tree = {"tree_hits": self.writer.tree.hits, "tree_misses": self.writer.tree.misses}
        asked = len(scores) * (self.writer.length if self.by_prefix else 1)
        facts = {"repeats": asked - self.trials.new, "support": [round(size, 3) for size in support], **learned}
        self.trials.tell(step, [score.value for score in scores], tree, **facts)

    def finish(self, stopped: str) -> Outcome:
        """Save the end of the search, so that a killed run need not search again, and return the candidates."""
        self.trials.save()
        self.search.open_reserve()
        with contextlib.suppress(BudgetSpent):
            self.try_greedy(self.trials.step)
        candidates = self.greedy + self.trials.best()
        after = round(1 - self.before / self.scored, 4) if self.updates else 0.0
        facts = {"restarts": len(self.restarts), "updates": self.updates, "share_after_update": after}
        return Outcome(candidates, stopped, self.trials.step, facts)
