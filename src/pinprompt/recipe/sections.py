"""The sections of a recipe, one frozen model per room: each field is described once, for `--help` and the docs.

The sections of tasks and of the models that they ask are in `task_sections`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A frozen part of a recipe; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


# Settings of the writer of prompts.


class Constraints(Section):
    """What every prompt must obey; each is a mask on the action set, so it holds for everything explored."""

    banned: tuple[str, ...] = Field((), description="Words that a prompt must not contain (whole words, any case).")
    banned_file: str | None = Field(
        None, description="A file with one banned word or phrase per line; PINPROMPT_BAN_FILE names one for all runs."
    )
    banned_pattern: str | None = Field(
        None, description="A regular expression that no prompt, and no beginning of one, may match."
    )
    required: tuple[str, ...] = Field((), description="Words that every prompt must contain, spelled like this.")
    charset: Literal["any", "ascii", "letters"] = Field(
        "any", description="Characters allowed: any, ASCII only, or letters and spaces only."
    )
    whole_words: bool = Field(False, description="Only tokens that are whole words with a space before them.")
    dictionary: bool = Field(
        False, description="Only tokens that are whole words of an English dictionary, with a space before them."
    )
    max_chars: int | None = Field(None, ge=1, description="Maximum length of a prompt in characters.")
    no_repeats: bool = Field(False, description="No token twice in one prompt.")
    no_repeated_words: bool = Field(
        False, description="No token that is a word twice in one prompt, function words (a, of, with) aside."
    )
    stable: bool = Field(True, description="Only tokens that do not change when their text is tokenised again.")


class PolicySettings(Section):
    """The frozen language model that writes prompts, and what it may write."""

    model: str = Field("facebook/opt-125m", description="The writer: hub id, folder, .gguf file or alias.")
    length: int = Field(5, ge=1, le=512, description="Tokens in a prompt (L).")
    k: int | None = Field(
        10_000, ge=1, description="Tokens kept by the filter: the k likeliest of the prefix; none switches it off."
    )
    context: Literal["none", "task"] | str = Field(
        "none", description="Text the writer reads before the prompt: none, task (the task offers its own), or a text."
    )
    hidden: int = Field(2048, ge=1, description="Width of the hidden layer of psi.")
    rows: int = Field(
        16, ge=1, description="Rows in every pass of the writer; fixed, so that a state never depends on its batch."
    )
    tree_mb: int = Field(1024, ge=1, description="Memory for known prefixes, in MiB; the least recently used go first.")
    constraints: Constraints = Field(default_factory=Constraints, description="Masks on what may be written.")


# Settings of the RL family. The defaults are PIN as the paper has it; `methods/table.py` says what each name changes.

Target = Literal["bootstrap", "monte-carlo", "path-single", "path-multi", "path-mean"]


class QLearningSettings(Section):
    """Q-learning over tokens under an entropy bonus (pin, pin-no-fluency, pin-lm, rlprompt and its variants)."""

    entropy: Literal["tsallis", "shannon"] = Field(
        "tsallis", description="Entropy bonus: tsallis gives a sparsemax policy (PIN), shannon a softmax (RLPrompt)."
    )
    prior: Literal["uniform", "lm"] = Field(
        "uniform",
        description="Prior of the policy over the kept tokens: uniform (the paper), or the LM's own distribution "
        "(lm), so that the search begins like random search.",
    )
    target: Target = Field(
        "monte-carlo",
        description="What Q is regressed on: the Monte-Carlo return (as the released PIN code), the bootstrapped value "
        "(as the paper's text), or RLPrompt's path consistency (single step, multi step, their mean).",
    )
    replay: bool = Field(True, description="Learn from a replay of all episodes; off: from this step's prompts only.")
    filter: Literal["values", "sampling", "off"] = Field(
        "values", description="Where the filter of unlikely tokens works: policy and values, sampling only, or nowhere."
    )
    top_q: int | None = Field(None, ge=1, description="Sample among the tokens with the largest Q only; none: all.")
    top_q_from: int = Field(
        0,
        ge=0,
        description="Prompts written before top_q applies: at the start the largest Q are the same tokens everywhere.",
    )
    explore: float = Field(
        0.0, ge=0, lt=1, description="Share of tokens drawn evenly from the kept ones instead of from the policy."
    )
    alpha: float = Field(1.0, gt=0, description="Weight of the entropy bonus; 1/alpha is the reward scale.")
    rewards: Literal["prompt", "prefix"] = Field(
        "prompt",
        description="What is rewarded: the whole prompt (the paper), or each token with its gain in score, for which "
        "every beginning of a prompt is scored too.",
    )
    reward_shift: float = Field(0.0, description="Added to the scaled reward.")
    logit_bias: float = Field(0.0, description="Added to every Q/alpha (RLPrompt's style transfer uses -10).")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount per token.")
    rho: float = Field(0.999, ge=0, le=1, description="How much of the slow copy of psi stays at each step.")
    normalise: Literal["batch", "input", "none"] = Field(
        "batch", description="Z-score of raw scores: over the step's prompts, per input, or none."
    )
    renormalise: bool = Field(
        False, description="Z-score replayed scores again over the whole replay; off: keep the z-scores of their step."
    )
    steps: int = Field(6000, ge=1, description="Iterations of the search.")
    prompts: int = Field(16, ge=1, description="Prompts written and scored at each step.")
    updates: int = Field(1, ge=1, description="Gradient steps at each iteration.")
    capacity: int = Field(64_000, ge=1, description="Episodes that the replay holds; the oldest go first.")
    keep_best: int = Field(0, ge=0, description="Best episodes that are kept when the replay drops them.")
    batch: int = Field(256, ge=1, description="Episodes per gradient step.")
    warmup: int | None = Field(None, ge=1, description="Episodes before the first update; none: one batch.")
    learning_rate: float = Field(5e-5, gt=0, description="Adam's learning rate.")
    clip: float = Field(5.0, gt=0, description="Greatest gradient norm.")
    eval_every: int = Field(20, ge=1, description="Steps between scorings of the greedy prompt on dev.")
    finalists: int = Field(16, ge=1, description="Best sampled prompts that are scored on dev at the end.")
    on_collapse: Literal["restart", "stop", "ignore"] = Field(
        "ignore",
        description="After `patience` steps without a new prompt: restart with new weights, stop, or continue.",
    )
    patience: int = Field(10, ge=1, description="Steps without a new prompt that count as a collapse.")

    def planned(self, length: int) -> tuple[int, int]:
        """The most prompts on train and on dev: the greedy ones are scored on both."""
        greedy = self.steps // self.eval_every + 1
        each = length if self.rewards == "prefix" else 1
        return self.steps * self.prompts * each + greedy, greedy + self.finalists

    @model_validator(mode="after")
    def _gains_are_known(self) -> QLearningSettings:
        if self.rewards == "prefix":
            if self.target not in ("monte-carlo", "bootstrap"):
                raise ValueError(
                    f"rewards = 'prefix' needs the target monte-carlo or bootstrap; '{self.target}' knows rewards of "
                    "whole prompts only"
                )
            if not self.replay or not (self.normalise == "none" or self.renormalise):
                raise ValueError(
                    "rewards = 'prefix' needs a replay, and scores of all steps on one scale: set replay to true, and "
                    "renormalise to true or normalise to 'none'"
                )
        return self

    @model_validator(mode="after")
    def _one_set_of_tokens(self) -> QLearningSettings:
        if self.prior == "lm" and self.filter != "values":
            raise ValueError(
                f"prior = 'lm' is a distribution over the kept tokens, so filter must be 'values', not "
                f"'{self.filter}'; set policy.k to none to keep all tokens"
            )
        return self

    @model_validator(mode="after")
    def _a_replay_that_can_be_warm(self) -> QLearningSettings:
        needed = max(self.batch, self.warmup or 0)
        if self.replay and self.capacity < needed:
            raise ValueError(
                f"a replay of {self.capacity} episodes never holds the {needed} that an update waits for "
                "(batch, or warmup), so nothing would be learnt; raise capacity or lower them"
            )
        return self


# Settings of the methods that PIN is compared with. The defaults are the published ones where there are any.


class UntrainedSettings(Section):
    """What searches that learn nothing share: the frozen LM writes, and the best of many prompts is chosen."""

    prompts: int = Field(96_000, ge=1, description="Different prompts to score; as many as PIN's published schedule.")
    batch: int = Field(16, ge=1, description="Prompts scored at each step.")
    finalists: int = Field(16, ge=1, description="Best prompts that are scored on dev at the end.")

    def planned(self, length: int) -> tuple[int, int]:
        """The most prompts on train and on dev."""
        return self.prompts, self.finalists


class RandomSettings(UntrainedSettings):
    """Random search: samples of the frozen LM; the baseline that any search has to beat."""

    temperature: float = Field(1.0, gt=0, description="Temperature of the writer; 1 is the LM itself.")


class BeamSettings(UntrainedSettings):
    """Beam search over the frozen LM: the most likely prompts are scored, with wider and wider beams."""

    width: int = Field(16, ge=1, description="Width of the first beam; each further one is twice as wide.")


class RaceSettings(Section):
    """Race: a pool of phrases scored on a few rows, the best ones on ever more; the default of the verbs for people."""

    prompts: int = Field(69, ge=2, description="Prompts in the first block where no budget of calls decides it.")
    keep: float = Field(1 / 3, gt=0, le=1, description="Share of the prompts that advance to the next block.")
    least: int = Field(4, ge=1, description="Least number of prompts that advance.")
    batch: int = Field(8, ge=1, description="Prompts scored at once in the first block, before the next are picked.")
    screen: bool = Field(
        True, description="Pick half of the first block by a model of the scores so far; off: all in the LM's order."
    )
    explore: float = Field(1.0, ge=0, description="Standard deviations that an uncertain prompt gets as a bonus.")
    max_perplexity: float | None = Field(
        400.0, gt=0, description="Prompts that the LM finds less likely than this stay out; none: all may enter."
    )
    prune: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the calls that is kept to take needless words out of the answer; 0: none.",
    )
    choose: Literal["score", "readable", "paired"] = Field(
        "score",
        description="The answer: the best score, the likeliest of those within a standard error of it, or (paired) the "
        "best score if it beats the best hand-written prompt on dev by more than a standard error, else that prompt.",
    )
    written: int = Field(200, ge=0, description="Prompts that the LM writes for the pool (three times what enters).")
    words: int = Field(5, ge=1, description="At most this many words after a head; two more without one.")
    temperature: float = Field(1.0, gt=0, description="Temperature of the writer; 1 is the LM itself.")
    heads: tuple[str, ...] = Field(
        (
            "It", "It is", "It was", "This", "This is", "This is about", "That", "The", "The topic", "The whole thing",
            "I", "I think", "Overall, it", "In short, it", "All in all,", "In other words, it is", "What a",
            "To me, this", "There is", "A",
        ),
        description="Beginnings that the LM continues.",
    )  # fmt: skip
    openers: tuple[str, ...] = Field(
        (
            "All in all,", "In other words,", "To be honest,", "If you ask me,", "As far as I can tell,",
            "At the end of the day,", "In my opinion,",
        ),
        description="First halves of stock phrases; each is combined with every core.",
    )  # fmt: skip
    cores: tuple[str, ...] = Field(
        (
            "this is", "it is", "it was", "that was", "the whole thing is", "everything about it is", "the tone is",
            "the mood is", "the sentiment is", "the result is", "the message is", "it makes me feel", "it sounds",
            "I would call it", "what a", "the answer is", "the topic is", "this is about", "the subject is",
            "the category is", "it belongs under", "it is all about", "the theme is",
        ),
        description="Second halves of stock phrases.",
    )  # fmt: skip

    def planned(self, length: int) -> tuple[int, int]:
        """The most prompts on train and on dev."""
        return self.prompts, self.least


class GuidedSettings(Section):
    """Guided decoding: LM and task choose every next token together, in a beam; the default for pictures."""

    beams: int = Field(8, ge=1, description="Beams of the first round; each further round has twice as many.")
    tokens: int = Field(96, ge=1, description="Tokens that every beam is continued with and scored: the likeliest.")
    hints: bool = Field(
        True,
        description="Choose half of these tokens by what single words are worth, where the task can say (pictures); "
        "each word counts as a call, and without room for them there are none.",
    )
    rounds: int = Field(2, ge=1, le=16, description="How often the whole beam is decoded, with ever more beams.")
    revisions: int = Field(
        8, ge=0, description="Times that the best prompt is revised at most: one token exchanged or left out."
    )
    weight: float = Field(
        0.03, ge=0, description="What the mean log-probability of a prompt's tokens counts beside its score."
    )
    finalists: int = Field(16, ge=1, description="Best prompts that are handed over; dev decides where there is one.")

    def planned(self, length: int) -> tuple[int, int]:
        """The most prompts on train and on dev."""
        beams = sum(self.beams << number for number in range(self.rounds))
        return (max(1, length - 1) * (beams + self.revisions)) * (self.tokens + 1), self.finalists


class SoftPromptSettings(Section):
    """Soft prompt tuning: vectors in place of words, trained by gradient; the answer is a tensor."""

    vectors: int | None = Field(None, ge=1, le=4096, description="Prompt vectors; none: policy.length.")
    epochs: int = Field(400, ge=1, description="Passes over the training rows.")
    batch: int = Field(16, ge=1, description="Training rows per gradient step.")
    learning_rate: float = Field(1e-2, gt=0, le=1e30, description="Adam's learning rate.")
    init: Literal["vocabulary", "random"] = Field(
        "vocabulary", description="Where the vectors start: at random words of the task model, or at random points."
    )
    eval_every: int = Field(5, ge=1, description="Epochs between scorings on train and on dev; the best on dev stays.")

    def planned(self, length: int) -> tuple[int, int]:
        """The most prompts' worth on train and on dev: the start and the end are scored too."""
        scored = self.epochs // self.eval_every + 2
        return 3 * self.epochs + scored, scored


class AutoPromptSettings(Section):
    """AutoPrompt: one token at a time is exchanged for what the gradient says would lower the loss."""

    tokens: int | None = Field(None, ge=1, le=512, description="Tokens in a prompt; none: policy.length.")
    steps: int = Field(100, ge=1, description="Exchanges that are tried.")
    batch: int = Field(16, ge=1, description="Training rows per gradient pass.")
    accumulate: int = Field(10, ge=1, description="Gradient passes per step, at most one round of the training rows.")
    candidates: int = Field(10, ge=1, description="Tokens that are tried at each step.")
    criterion: Literal["accuracy", "score"] = Field(
        "accuracy", description="What a candidate must raise: accuracy (where the task has one), or the task's score."
    )
    init: Literal["mask", "vocabulary"] = Field(
        "mask", description="The first prompt: mask tokens (where the model has one), or random words."
    )
    skip_label_words: bool = Field(True, description="Keep the label words out of prompts.")
    skip_capitals: bool = Field(False, description="Keep words with a capital letter out of prompts.")
    finalists: int = Field(16, ge=1, description="Best prompts to choose from; dev decides.")

    def planned(self, length: int) -> tuple[int, int]:
        """The most prompts' worth on train and on dev."""
        return self.steps * (3 + self.candidates) + 1, self.steps + 1


class PezSettings(Section):
    """PEZ: gradient at the nearest words, applied to vectors that stay continuous."""

    tokens: int | None = Field(None, ge=1, le=512, description="Tokens in a prompt; none: policy.length.")
    steps: int = Field(5000, ge=1, description="Gradient steps.")
    batch: int = Field(16, ge=1, description="Training rows per gradient step.")
    optimiser: Literal["adafactor", "adamw"] = Field(
        "adafactor", description="adafactor as published for language models, adamw as published for CLIP."
    )
    learning_rate: float = Field(0.3, gt=0, le=1e30, description="The optimiser's learning rate.")
    weight_decay: float = Field(0.0, ge=0, description="The optimiser's weight decay.")
    clip: float | None = Field(1.0, gt=0, description="Greatest gradient norm; none: any.")
    init: Literal["labels", "vocabulary"] = Field(
        "labels", description="Where the vectors start: at the label words (where there are some), or at random words."
    )
    eval_every: int = Field(
        100, ge=1, description="Steps between scorings: of the prompt as it is, and of the least loss since."
    )
    skip_label_words: bool = Field(False, description="Keep the label words out of prompts.")
    degenerate: bool = Field(
        False, description="Forget the continuous vectors at every step, as the released language-model code does."
    )
    finalists: int = Field(16, ge=1, description="Best prompts to choose from; dev decides.")

    def planned(self, length: int) -> tuple[int, int]:
        """The most prompts' worth on train and on dev: each scoring is of two prompts."""
        scored = 2 * (self.steps // self.eval_every + 2)
        return 3 * self.steps + scored, scored


class GripsSettings(Section):
    """GrIPS: phrases of an instruction are deleted, swapped, paraphrased and put back, as long as that helps."""

    start: Literal["instructions", "manual"] = Field(
        "instructions", description="The prompt to edit: the task's instruction, or its manual prompt."
    )
    level: Literal["phrase", "word", "sentence"] = Field("phrase", description="What is edited as one piece.")
    candidates: int = Field(5, ge=1, description="Edited prompts at each step (m).")
    edits: int = Field(1, ge=1, description="Edits per candidate (l).")
    steps: int = Field(10, ge=1, description="Maximum number of steps (n).")
    patience: int = Field(2, ge=1, description="Steps in a row without a better prompt that end the search (P).")
    annealing: bool = Field(False, description="Sometimes accept a worse prompt, at the temperature 10 exp(-i/5).")
    operations: tuple[Literal["delete", "swap", "substitute", "add"], ...] = Field(
        ("delete", "swap", "substitute", "add"), min_length=1, description="Edits to choose among."
    )
    entropy_weight: float = Field(10.0, ge=0, description="Weight of the entropy of the predicted labels.")
    parser: str = Field(
        "chunker", description="What finds phrases: chunker (ours), supar:crf-con-en (published), or module:function."
    )
    paraphraser: str = Field(
        "writer",
        description="What rewrites phrases: writer (the policy LM), pegasus (published), seq2seq:MODEL, or "
        "module:function.",
    )
    paraphrases: int = Field(10, ge=1, le=100, description="Rewritings of a phrase, of which one is taken at random.")
    finalists: int = Field(16, ge=1, description="Best prompts that are scored on dev at the end.")

    def planned(self, length: int) -> tuple[int, int]:
        """The most prompts on train and on dev."""
        return self.steps * self.candidates + 1, self.finalists


# Settings of budget, memo and workers.


class Price(Section):
    """What a million tokens of a remote model cost."""

    input: float = Field(0.0, ge=0, description="Per million tokens sent.")
    output: float = Field(0.0, ge=0, description="Per million tokens received.")


class BudgetSettings(Section):
    """What a run may spend; the first limit that is reached ends the search, none means no limit."""

    calls: int | None = Field(
        None, ge=1, description="Rows that the search may have answered (a call is a row); the report's come on top."
    )
    total_calls: int | None = Field(
        None,
        ge=1,
        description="Calls of search and report, and of requests that were sent again or lost. None: for a model "
        "behind an API, calls, what the report takes, and a tenth of both for what gets lost.",
    )
    tokens: int | None = Field(None, ge=1, description="Tokens sent and received, by search and report.")
    money: float | None = Field(None, gt=0, description="Cost by the price table, of search and report.")
    minutes: float | None = Field(None, gt=0, description="Minutes of searching; the report is made after them.")
    clock: Literal["wall", "cpu"] = Field(
        "wall",
        description="What minutes are: those on the wall, or this process's own of a CPU, which a busy machine does "
        "not shorten (for comparisons; all threads add up).",
    )
    prices: dict[str, Price] = Field(default_factory=dict, description="Price table: model name to prices.")
    currency: str = Field("", max_length=20, description="The currency of money and prices, to be shown with sums.")


class ScoringSettings(Section):
    """How prompts become scores."""

    memo: bool = Field(True, description="Keep scores of deterministic tasks across runs.")
    memoise_stochastic: bool = Field(
        False, description="Keep scores of stochastic tasks too (changes what is measured)."
    )
    engine: str = Field("inline", description="Where prompts are scored: inline, or ray.")
    workers: int = Field(1, ge=1, le=256, description="Number of task models that work in parallel (engine ray).")
    race: int = Field(
        0,
        ge=0,
        description="Score prompts on a few rows first: one gets more while it is among this many best; 0: all rows.",
    )
    choose: Literal["dev", "rows"] = Field(
        "dev",
        description="The answer: best of the method's finalists on dev, or, hand-written prompts among them, on all "
        "rows of train and dev.",
    )
