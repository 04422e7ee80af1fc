"""Algorithm 1 of the paper, for the whole RL family: write, score, remember, learn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pinprompt.errors import BudgetSpent
from pinprompt.methods.pin.board import Board
from pinprompt.methods.pin.learner import Learner, Update
from pinprompt.methods.pin.replay import Replay, normalise
from pinprompt.methods.protocol import Candidate, Outcome, Search
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import QLearningSettings
from pinprompt.seeds import derive
from pinprompt.values import Episode, Event, Prompt, Score


def search_prompts(search: Search, writer: Writer, settings: QLearningSettings) -> Outcome:
    """Run Algorithm 1 until its steps or the budget end; candidates are the greedy and the best sampled prompts."""
    run = _Run(search, writer, settings)
    stopped = "finished"
    for step in range(run.resume(), settings.steps):
        run.remember(step)
        prompts: list[Prompt] = []
        try:
            if step and step % settings.eval_every == 0:
                run.try_greedy(step)
            # Sample z_t ~ pi_theta(. | z_{0:t-1}) with F_I[Q_theta], for t = 0 ... L-1.
            with run.phase("write"):
                written = writer.sample(
                    settings.prompts,
                    run.policy_stream,
                    settings.entropy,
                    top_q=settings.top_q,
                    logit_bias=settings.logit_bias,
                    filtered=settings.filter != "off",
                    explore=settings.explore,
                )
            prompts = written.prompts
            # Observe R(y(z, x)) from the task model.
            with run.phase("score"):
                scores = search.evaluator.score(prompts)
        except BudgetSpent as spent:
            run.book_partly(spent, prompts)
            stopped = "budget"
            break
        # Add {z_0 ... z_{L-1}, R} to D.
        episodes = run.book(prompts, scores)
        # Sample from D, estimate the targets with F_I[Q_theta'], step on theta, let theta' follow.
        with run.phase("learn"):
            updates = run.learn(episodes)
        run.tell(step, scores, written.support, updates)
        if run.collapsed() and settings.on_collapse == "restart":
            run.restart(step)
        run.remember(step + 1)
        if run.collapsed() and settings.on_collapse == "stop":
            stopped = "collapsed"
            break
        if search.checkpoint.due():
            run.save()
    return run.finish(stopped)


@dataclass
class _Run:
    """What changes while Algorithm 1 runs."""

    search: Search
    writer: Writer
    settings: QLearningSettings
    greedy: list[Candidate] = field(default_factory=list)
    restarts: int = 0
    stale: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.board = Board()
        self.replay = Replay(self.settings.capacity, self.writer.length, self.settings.keep_best)
        self.learner = Learner(self.writer, self.settings)
        self.policy_stream = torch.Generator().manual_seed(derive(self.search.seed, "policy"))
        self.replay_stream = torch.Generator().manual_seed(derive(self.search.seed, "replay"))
        self.seconds: dict[str, float] = {}
        self.streams: dict[str, torch.Tensor] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note how long a phase of the step takes."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def book(self, prompts: list[Prompt], scores: list[Score]) -> list[Episode]:
        """Raw scores and rewards of a step's prompts into the replay and onto the board."""
        rewards = normalise(scores, self.settings.normalise)
        episodes = [
            Episode(prompt.ids, score.value, reward, score.group)
            for prompt, score, reward in zip(prompts, scores, rewards, strict=True)
        ]
        new = [self.board.note(prompt, score.value) for prompt, score in zip(prompts, scores, strict=True)]
        self.stale = 0 if any(new) else self.stale + 1
        self.repeats = len(new) - sum(new)
        self.replay.add(episodes)
        self.search.checkpoint.append(
            "episodes", [{"ids": e.ids, "score": e.score, "reward": e.reward, "group": e.group} for e in episodes]
        )
        return episodes

    def book_partly(self, spent: BudgetSpent, prompts: list[Prompt]) -> None:
        """The budget ended within a step: what it paid for still counts as candidates, the step itself is undone."""
        for prompt, score in zip(prompts, spent.scores, strict=False):
            self.board.note(prompt, score.value)

    def learn(self, episodes: list[Episode]) -> list[Update]:
        """`updates` gradient steps, from the replay once it is warm, or from this step's episodes."""
        settings = self.settings
        if settings.replay and len(self.replay) < (settings.warmup or settings.batch):
            return []
        results = []
        for _ in range(settings.updates):
            if settings.replay:
                ids, rewards = self.replay.sample(settings.batch, self.replay_stream, settings.renormalise)
            else:
                ids = torch.tensor([episode.ids for episode in episodes])
                rewards = torch.tensor([episode.reward for episode in episodes])
            results.append(self.learner.update(ids, rewards / settings.alpha + settings.reward_shift))
        return results

    def try_greedy(self, step: int) -> None:
        """Score the greedy prompt, on dev too where there is a dev split; dev decides in the end."""
        prompt = self.writer.greedy(entropy=self.settings.entropy)[0]
        dev = None
        with self.phase("score"):
            score = self.search.evaluator.score([prompt])[0].value
            if "dev" in self.search.task.splits:
                dev = self.search.evaluator.score([prompt], "dev")[0].value
        if all(known.prompt.text != prompt.text for known in self.greedy):
            self.greedy.append(Candidate(prompt, "greedy", score))
        self.search.emit(Event("greedy", step, {"prompt": prompt.text, "score": score, "dev": dev}))

    def collapsed(self) -> bool:
        """True after `patience` steps in a row without one new prompt."""
        return self.stale >= self.settings.patience

    def restart(self, step: int) -> None:
        """Begin anew from a fresh psi; the replay and the board stay."""
        self.restarts += 1
        self.stale = 0
        self.learner.restart(derive(self.search.seed, "psi", self.restarts))
        self.search.emit(Event("restart", step, {"reason": f"no new prompt for {self.settings.patience} steps"}))

    def tell(self, step: int, scores: list[Score], support: list[float], updates: list[Update]) -> None:
        """What this step showed, to whoever listens."""
        best = self.board.best(1)[0]
        values = [score.value for score in scores]
        learned: dict[str, Any] = {"loss": None}
        if updates:
            learned = {
                "loss": round(sum(update.loss for update in updates) / len(updates), 6),
                "q_min": round(min(update.q_min for update in updates), 6),
                "q_max": round(max(update.q_max for update in updates), 6),
                "v_min": round(min(update.v_min for update in updates), 6),
                "v_max": round(max(update.v_max for update in updates), 6),
            }
        data = {
            "score_mean": round(sum(values) / len(values), 6),
            "score_best": round(best.score, 6),
            "best_prompt": best.prompt.text,
            "distinct": len(self.board),
            "repeats": self.repeats,
            "support": [round(size, 3) for size in support],
            **learned,
            "calls": self.search.evaluator.charged_calls,
        }
        costs = {phase: round(seconds, 4) for phase, seconds in self.seconds.items()}
        costs |= {"tree_hits": self.writer.tree.hits, "tree_misses": self.writer.tree.misses}
        costs |= {"paid_calls": self.search.evaluator.paid_calls, "memo_hits": self.search.evaluator.memo_hits}
        self.seconds = {}
        self.search.emit(Event("step", step, data, costs))

    def remember(self, step: int) -> None:
        """Note where the run and its random streams stand before a step, so that an undone step can be done again."""
        self.steps = step
        self.streams = {"rng.policy": self.policy_stream.get_state(), "rng.replay": self.replay_stream.get_state()}

    def save(self) -> None:
        """Keep everything that the next step depends on."""
        state = {
            "greedy": [[c.prompt.text, c.prompt.ids, c.score] for c in self.greedy],
            "restarts": self.restarts,
            "stale": self.stale,
        }
        self.search.checkpoint.save(self.steps, state, self.learner.state() | self.streams)

    def resume(self) -> int:
        """Go on from the last checkpoint, if there is one; returns the first step to do."""
        loaded = self.search.checkpoint.load()
        if loaded is None:
            return 0
        step, state, tensors = loaded
        self.learner.restore(tensors)
        self.policy_stream.set_state(tensors["rng.policy"])
        self.replay_stream.set_state(tensors["rng.replay"])
        self.greedy = [Candidate(Prompt(text, tuple(ids)), "greedy", score) for text, ids, score in state["greedy"]]
        self.restarts, self.stale, self.steps = state["restarts"], state["stale"], step
        for row in self.search.checkpoint.stream("episodes"):
            episode = Episode(tuple(row["ids"]), row["score"], row["reward"], row["group"])
            self.replay.add([episode])
            self.board.note(self.writer.prompt(episode.ids), episode.score)
        return step

    def finish(self, stopped: str) -> Outcome:
        """Keep the end of the search, so that a killed run need not search again, and hand over the candidates."""
        self.save()
        with contextlib.suppress(BudgetSpent):
            self.try_greedy(self.steps)
        candidates = self.greedy + self.board.best(self.settings.finalists)
        return Outcome(candidates, stopped, self.steps, {"restarts": self.restarts})
