"""The sections of a recipe, each a frozen pydantic model; field descriptions are also the text of docs/recipe.md.

Sections of tasks and of task models are in `task_sections`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A frozen section of a recipe; unknown keys are an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False, use_attribute_docstrings=True
    )


# Settings of the writer of prompts.


class Constraints(Section):
    """Constraints on every prompt. Each is a mask on the action set, so every prompt that is tried satisfies it."""

    banned: tuple[str, ...] = ()
    """Words that a prompt must not contain (whole words, any case)."""
    banned_file: str | None = None
    """File with one banned word or phrase per line; PINPROMPT_BAN_FILE sets one for all runs."""
    required: tuple[str, ...] = ()
    """Words that every prompt must contain, with this exact spelling."""
    charset: Literal["any", "ascii", "letters", "tags"] = "any"
    """Characters allowed: any; ascii; letters (letters and spaces); tags (a to z, commas and spaces)."""
    whole_words: bool = False
    """Only allow tokens that are whole words with a leading space."""
    dictionary: bool = False
    """Only allow tokens that are whole words of an English dictionary, with a leading space."""
    max_chars: int | None = Field(None, ge=1, le=1_000_000)
    """Maximum length of a prompt in characters."""
    no_repeats: Literal["off", "tokens", "words"] = "off"
    """Never use twice in a prompt: a token; or a word, except function words (a, of, with)."""
    stable: bool = True
    """Only allow tokens whose text is tokenised to the same token again."""


class PolicySettings(Section):
    """The frozen language model that writes prompts, and its constraints."""

    model: str = "facebook/opt-125m"
    """The language model that writes prompts: hub id, folder, .gguf file or alias."""
    length: int = Field(5, ge=1, le=512)
    """Number of tokens in a prompt (L)."""
    k: int | None = Field(10_000, ge=1, le=1_000_000)
    """The filter keeps the k most likely next tokens; none: no filter."""
    context: Literal["none", "task"] | str = "none"
    """Text the LM reads before the prompt: none, task (provided by the task), or your own text."""
    hidden: int = Field(2048, ge=1, le=16_384)
    """Width of the hidden layer of psi."""
    batch: int = Field(16, ge=1, le=512)
    """Prefixes in every forward pass of the LM: fixed, so that results are the same."""
    tree_mb: int = Field(1024, ge=1, le=16_384)
    """Memory for cached prefixes, in MiB."""
    constraints: Constraints = Field(default_factory=Constraints)
    """Constraints on prompts."""


# Settings of the RL methods. The defaults are PIN's, as in the paper except for the target, which is the Monte-Carlo
# return of the released code (docs/deviations.md, 1); `presets.toml` has what each method changes.

Target = Literal["bootstrap", "monte-carlo", "path-single", "path-multi", "path-mean"]


class QLearningSettings(Section):
    """Q-learning over tokens with an entropy bonus (pin, pin-no-fluency, rlprompt and its variants)."""

    entropy: Literal["tsallis", "shannon"] = "tsallis"
    """Entropy bonus: tsallis gives a sparsemax policy (PIN), shannon a softmax (RLPrompt)."""
    target: Target = "monte-carlo"
    """Regression target of Q: the Monte-Carlo return (as in the released PIN code), the bootstrapped value (as in the
    paper), or RLPrompt's path consistency (single step, multi step, or their mean)."""
    replay: bool = True
    """Learn from a replay buffer of all episodes; false: from the current step's prompts only."""
    filter: Literal["values", "sampling", "off"] = "values"
    """Where unlikely tokens are filtered out: in policy and values, in sampling only, or nowhere."""
    filter_from: int = Field(0, ge=0, le=100_000_000)
    """Number of prompts before the filter applies to sampling."""
    top_q: int | None = Field(None, ge=1, le=1_000_000)
    """Sample only from this many tokens with the largest Q; none: all."""
    top_q_from: int = Field(0, ge=0, le=100_000_000)
    """Number of prompts before top_q applies."""
    explore: float = Field(0.0, ge=0, lt=1)
    """Share of tokens drawn uniformly from the kept tokens instead of from the policy."""
    alpha: float = Field(1.0, gt=0)
    """Weight of the entropy bonus; 1/alpha is the reward scale."""
    rewards: Literal["prompt", "prefix"] = "prompt"
    """What is rewarded: the whole prompt (as in the paper), or each token by its gain in score, for which every prefix
    of a prompt is scored too."""
    reward_shift: float = 0.0
    """Constant added to the scaled reward."""
    logit_bias: float = 0.0
    """Constant added to every Q/alpha (RLPrompt's style transfer uses -10)."""
    rho: float = Field(0.999, ge=0, le=1)
    """Momentum of the target network (the slow copy of psi) at each step."""
    normalise: Literal["batch", "input", "none"] = "batch"
    """Z-score raw scores over the step's prompts (batch), per input, or not at all."""
    renormalise: bool = False
    """Z-score replayed scores over the whole replay buffer; false: keep the z-scores of their step."""
    steps: int = Field(6000, ge=1, le=10_000_000)
    """Number of search steps."""
    prompts: int = Field(16, ge=1, le=4096)
    """Prompts written and scored per step."""
    updates: int = Field(1, ge=1, le=10_000)
    """Gradient steps per search step."""
    capacity: int = Field(64_000, ge=1, le=10_000_000)
    """Episodes in the replay buffer; the oldest are dropped first."""
    keep_best: int = Field(0, ge=0, le=1_000_000)
    """Number of best episodes that are never dropped from the replay buffer."""
    batch: int = Field(256, ge=1, le=16_384)
    """Episodes per gradient step; the first step waits until the replay has as many."""
    learning_rate: float = Field(5e-5, gt=0)
    """Adam's learning rate."""
    eval_every: int = Field(20, ge=1, le=10_000_000)
    """Score the greedy prompt on dev every N steps."""
    on_collapse: Literal["restart", "stop", "ignore"] = "ignore"
    """After three steps without a new prompt: restart with new weights, stop, or continue (ignore)."""

    def planned(self, length: int, finalists: int) -> tuple[int, int]:
        """The maximum number of prompts scored on train and on dev; greedy prompts are scored on both."""
        greedy = self.steps // self.eval_every + 1
        each = length if self.rewards == "prefix" else 1
        return self.steps * self.prompts * each + greedy, greedy + finalists

    @model_validator(mode="after")
    def _gains_are_known(self) -> QLearningSettings:
        if self.rewards == "prefix":
            if self.target not in ("monte-carlo", "bootstrap"):
                raise ValueError(
                    f"rewards = 'prefix' needs the target monte-carlo or bootstrap; '{self.target}' only supports "
                    "rewards for whole prompts"
                )
            if not self.replay or not (self.normalise == "none" or self.renormalise):
                raise ValueError(
                    "rewards = 'prefix' needs a replay buffer, and scores of all steps on one scale: set replay to "
                    "true, and either renormalise to true or normalise to 'none'"
                )
        return self

    @model_validator(mode="after")
    def _a_replay_that_can_be_warm(self) -> QLearningSettings:
        if self.replay and self.capacity < self.batch:
            raise ValueError(
                f"capacity ({self.capacity} episodes) is smaller than the {self.batch} episodes needed before an "
                "update (batch), so nothing would be learnt; raise capacity or lower batch"
            )
        return self


# Settings of the baselines. The defaults are the published values where there are any.


class UntrainedSettings(Section):
    """Searches that learn nothing (random, beam): the frozen LM writes many prompts and the best one is chosen."""

    prompts: int = Field(96_000, ge=1, le=10_000_000)
    """Number of different prompts to score; by default as many as in PIN's published schedule."""

    def planned(self, length: int, finalists: int) -> tuple[int, int]:
        return self.prompts, finalists


class RaceSettings(Section):
    """Race: scores a pool of phrases on a first block of rows and the best of them on larger and larger blocks."""

    prompts: ClassVar[int] = 69
    """Number of prompts in the first block if there is no call limit to derive it from."""
    first_block: int = Field(8, ge=1, le=100_000)
    """Rows in the first block, rounded up to the same number per class; each block doubles them."""
    keep: float = Field(1 / 3, gt=0, le=1)
    """Share of prompts that advance to the next block."""
    least: int = Field(4, ge=1, le=10_000)
    """Minimum number of prompts that advance."""
    batch: int = Field(8, ge=1, le=4096)
    """Prompts scored together in the first block."""
    max_perplexity: float | None = Field(400.0, gt=0)
    """Leave out prompts with a higher perplexity under the LM; none: no limit."""
    prune: float = Field(0.1, ge=0, lt=1)
    """Share of the calls reserved for removing needless words from the answer; 0: none."""
    choose: Literal["score", "readable", "paired"] = "readable"
    """How the answer is chosen: score: the best score; readable: of those within a standard error of it, a phrase that
    people wrote before others, then the most likely one; paired: the best score if it beats the best hand-written
    prompt on dev by more than a standard error, otherwise that hand-written prompt."""
    early_stop: bool = True
    """Stop if a hand-written prompt is right on all rows of train and dev: nothing is to be gained."""

    def planned(self, length: int, finalists: int) -> tuple[int, int]:
        return self.prompts, self.least


class GuidedSettings(Section):
    """Guided decoding: a beam search in which LM and task score choose each token; the default for pictures."""

    beams: int = Field(8, ge=1, le=256)
    """Number of beams in the first round; it doubles each round."""
    tokens: int = Field(96, ge=1, le=1024)
    """Number of most likely tokens with which each beam is extended and scored."""
    rounds: int = Field(2, ge=1, le=6)
    """Number of times the whole beam search is run."""
    revisions: int = Field(8, ge=0, le=10_000)
    """Maximum number of revisions of the best prompt; each replaces or removes one token."""
    weight: float = Field(0.03, ge=0)
    """Weight of the mean log-probability of a prompt's tokens relative to its score."""

    def planned(self, length: int, finalists: int) -> tuple[int, int]:
        beams = sum(self.beams << number for number in range(self.rounds))
        return (max(1, length - 1) * (beams + self.revisions)) * (self.tokens + 1), finalists


class SoftPromptSettings(Section):
    """Soft prompt tuning: vectors instead of words, trained by gradient descent; the answer is a tensor."""

    eval_every: ClassVar[int] = 5
    """Number of epochs between scores on train and dev; the best vectors on dev are kept."""
    epochs: int = Field(400, ge=1, le=1_000_000)
    """Passes over the training rows."""
    learning_rate: float = Field(1e-2, gt=0, le=1e30)
    """Adam's learning rate."""

    def planned(self, length: int, finalists: int) -> tuple[int, int]:
        """The maximum cost on train and on dev, in prompts; the start and the end are scored too."""
        scored = self.epochs // self.eval_every + 2
        return 3 * self.epochs + scored, scored


class AutoPromptSettings(Section):
    """AutoPrompt: replaces one token at a time with the one that should lower the loss most by the gradient."""

    candidates: ClassVar[int] = 10
    """Candidate tokens per step, as published; 5 and 20 were no better (docs/notebook.md)."""
    steps: int = Field(100, ge=1, le=1_000_000)
    """Number of replacements to try."""

    def planned(self, length: int, finalists: int) -> tuple[int, int]:
        """The maximum cost on train and on dev, in prompts."""
        return self.steps * (3 + self.candidates) + 1, self.steps + 1


class PezSettings(Section):
    """PEZ: computes the gradient at the nearest words and applies it to continuous vectors."""

    steps: int = Field(5000, ge=1, le=10_000_000)
    """Gradient steps."""
    optimiser: Literal["adafactor", "adamw"] = "adafactor"
    """adafactor (as published for language models) or adamw (as published for CLIP)."""
    learning_rate: float = Field(0.3, gt=0, le=1e30)
    """Learning rate."""
    eval_every: int = Field(100, ge=1, le=10_000_000)
    """Every N steps, score the current prompt and the one with the lowest loss since then."""

    def planned(self, length: int, finalists: int) -> tuple[int, int]:
        """The maximum cost on train and on dev, in prompts; two prompts are scored each time."""
        scored = 2 * (self.steps // self.eval_every + 2)
        return 3 * self.steps + scored, scored


class GripsSettings(Section):
    """GrIPS: deletes, swaps, paraphrases and restores phrases of an instruction as long as the score improves."""

    candidates: ClassVar[int] = 5
    """Prompts per step, each one edit away (m; l = 1), as published."""
    patience: ClassVar[int] = 2
    """Number of steps in a row without a better prompt after which the search stops (P), as published."""
    steps: int = Field(10, ge=1, le=1_000_000)
    """Maximum number of steps (n)."""

    def planned(self, length: int, finalists: int) -> tuple[int, int]:
        return self.steps * self.candidates + 1, finalists


# Settings of budget, memo and workers.


class Price(Section):
    """Price of a million tokens of a remote model."""

    input: float = Field(0.0, ge=0)
    """Per million tokens sent."""
    output: float = Field(0.0, ge=0)
    """Per million tokens received."""


class BudgetSettings(Section):
    """Limits of a run; the first one reached ends the search. None means no limit."""

    calls: int | None = Field(None, ge=1, le=10**15)
    """Maximum number of calls in the search (a call is one example); the report's calls are extra. For a model behind
    an API: everything that is sent, the report included."""
    total_calls: int | None = Field(None, ge=1, le=10**15)
    """Maximum number of calls in search and report, including repeated and lost requests. None: for a model behind an
    API, `calls`. If it is given, `calls` limits the search alone."""
    tokens: int | None = Field(None, ge=1, le=10**15)
    """Maximum number of tokens sent and received in search and report."""
    money: float | None = Field(None, gt=0)
    """Maximum cost of search and report, by the price table."""
    minutes: float | None = Field(None, gt=0)
    """Maximum minutes for the search; the report takes extra time, except where outputs are sampled."""
    clock: Literal["wall", "cpu"] = "wall"
    """How minutes are measured: wall-clock time, or CPU time of this process (all threads added up)."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Price table: model name to price per million tokens."""


class ScoringSettings(Section):
    """How prompts become scores."""

    memo: bool = True
    """Reuse answers of deterministic tasks across runs (the memo)."""
    workers: int = Field(1, ge=1, le=256)
    """Number of task models that score prompts in parallel; more than one needs Ray."""
    choose: Literal["dev", "rows", "greedy"] = "dev"
    """How the answer is chosen: dev: the method's finalist with the best score on dev; rows: the best on all rows of
    train and dev, with hand-written prompts among the candidates; greedy: the greedy prompt with the best score on dev,
    as in the released code of the Q-learning methods."""
    finalists: int = Field(16, ge=1, le=10_000)
    """Number of best prompts of a search that the answer is chosen from."""
    ensemble: int = Field(1, ge=1, le=32)
    """Labels: use the mean output of this many prompts, the answer and those that add most to it on the rows of train
    and dev; each labels every text, so a text costs as many calls."""
    word_values: Literal["auto", "on", "off"] = "auto"
    """Whether the report scores the found prompt without each of its words; auto: unless calls are expensive (a model
    behind an API, free answers, rewriting within `budget.minutes`)."""
