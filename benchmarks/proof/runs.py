"""A run on a table, through the parts that the command line builds: which options, and what share of the optimum.

``build_online`` gives engine, judge, algorithm and learner, and ``train_step`` walks: nothing is written again here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.proof.problem import Problem, Scale, fixed_length, outcome, share_of_optimum, variable_length
from benchmarks.proof.table_model import policy_logits, table_roles
from tightrope.algorithms.options import CONFIGS
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.inputs import Inputs
from tightrope.assemble.online import build_online, critic_of
from tightrope.assemble.own_loop import NoJournal, NoStore
from tightrope.assemble.parts import Assembled, Outputs
from tightrope.config.schema import OnlineConfig
from tightrope.data.preflight import PreflightReport
from tightrope.data.prompts import PromptData
from tightrope.demo.tokenizer import EOS, PAD, UNKNOWN, word_tokenizer
from tightrope.training.run import OnlineRun
from tightrope.training.selftest import require
from tightrope.training.step import train_step
from tightrope.types import Experience, Prompt, Rollout, Scores

Form = Literal["fixed", "variable"]
PROBLEMS = {"fixed": fixed_length(), "variable": variable_length()}
STEPS = 200
TABLE_RATE = 0.05
LORA_RATE = 0.01
"""A step of Adam moves each factor of B·A by the rate, so each logit by many rates: with 0.05 one update leaves the
clip range far behind and the run falls below the reference, with a critic of its own as with a shared one. Between
0.005 and 0.02 it reaches 0.985 of the optimum or more."""


@dataclass(frozen=True)
class Variant:
    """One way to train: ``changes`` are config sections over those of ``config_of``."""

    form: Form = "fixed"
    stage: Literal["ppo", "rloo"] = "ppo"
    lora: bool = False
    steps: int = STEPS
    seed: int = 0
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @property
    def problem(self) -> Problem:
        return PROBLEMS[self.form]

    def but(self, section: str, **settings: Any) -> Variant:
        """The same with settings of a section changed."""
        return replace(self, changes={**self.changes, section: {**self.changes.get(section, {}), **settings}})


@dataclass(frozen=True)
class Result:
    """``share`` of the optimum, ``kl`` of the trained policy in nats per response; both exact."""

    share: float
    kl: float


def result_of(variant: Variant, with_self_test: bool = True) -> Result:
    """Trains, then computes what the policy is worth from its weights alone."""
    table = Table.of(variant)
    table.prepare()
    if with_self_test:
        require(table.built.self_test())
    for _ in range(variant.steps):
        table.step()
    return table.result()


@dataclass(frozen=True)
class Pieces:
    """What the first three lines of a step made."""

    rollout: Rollout
    scores: Scores
    experience: Experience


@dataclass(frozen=True)
class Table:
    """A run before its first step."""

    variant: Variant
    config: OnlineConfig
    built: Assembled
    run: OnlineRun

    @staticmethod
    def of(variant: Variant) -> Table:
        config = config_of(variant)
        roles = table_roles(variant.problem, critic_of(config), config.model.lora, config.seed)
        outputs = Outputs(NoStore(), NoJournal(), Nobody(), Nobody())
        built = build_online(config, inputs_of(variant.problem), outputs, roles)
        assert isinstance(built.run, OnlineRun)
        return Table(variant, config, built, built.run)

    def prepare(self) -> None:
        self.built.prepare()

    def pieces(self) -> Pieces:
        """The step up to its update, as ``train_step`` walks."""
        run = self.run
        rollout = run.engine.generate(run.prompts.next_batch(), run.samples_per_prompt, run.sampling, run.key())
        scores = run.judge.score(rollout)
        return Pieces(rollout, scores, run.algorithm.credit(rollout, scores))

    def step(self) -> None:
        train_step(self.run)
        self.run.core.progress.advance()

    def scale(self) -> Scale:
        """Gain and bias that the run measured before its first step; the optimum is that of the same scale."""
        measured = self.run.core.state["normaliser"].state_dict()
        return Scale(measured["gain"], measured["bias"])

    def result(self) -> Result:
        problem, logits = self.variant.problem, policy_logits(self.variant.problem, self.built.roles)
        scale = self.scale()
        return Result(share_of_optimum(problem, logits, scale), outcome(problem, logits, scale).kl)


def config_of(variant: Variant) -> OnlineConfig:
    """Options as the product has them, but for what is named here."""
    problem = variant.problem
    content: dict[str, dict[str, Any]] = {
        "model": {"name": "a table"} | ({"lora": {"rank": 16, "alpha": 32.0}} if variant.lora else {}),
        "data": {"train": Path("unused")},
        # 256 responses a step. RLOO compares 16 siblings; to PPO they are 256 responses.
        "rollout": {
            "prompts_per_step": 16,
            "samples_per_prompt": 16,
            "max_new_tokens": problem.cap,
            "temperature": problem.temperature,
        },
        # The fixed-length form has its reward as it is, and no response of it can end by itself. The other form goes
        # through both: the normaliser (many samples, so that its constants are good) and the price of being cut.
        "reward": {"function": "benchmarks.proof.problem:reward"}
        | (
            {"normalise": "off", "missing_eos": {"mode": "off"}}
            if variant.form == "fixed"
            else {"normalise": "samples", "missing_eos": {"mode": "subtract", "value": problem.cut_penalty}}
        ),
        "kl": {"beta": problem.beta, "mode": "fixed"},
        # Adam with the usual betas. Its epsilon is 1e-8: the gradient of a table's row is the mean over thousands of
        # actions of which few are the row's, so 1e-5 would be as large as the gradient and stop rare rows.
        "optimizer": {"learning_rate": LORA_RATE if variant.lora else TABLE_RATE, "eps": 1e-8},
        "training": {"steps": variant.steps},
        # The optimum lies 7 nats away and faulty runs go further; the guardian would raise beta and change the problem.
        "guardian": {"kl_limit": 1e9},
        "evaluation": {"prompts": 0},
        # One optimizer step an epoch and four epochs. No early stop: it is a brake for large models, and which epochs
        # it takes away would be a second thing that differs between variants.
        variant.stage: {"epochs": 4, "minibatches": 1, "target_kl": None}
        | ({"critic": "separate"} if variant.stage == "ppo" else {}),
    }
    for section, settings in variant.changes.items():
        content[section] = content.get(section, {}) | dict(settings)
    config = CONFIGS[variant.stage].model_validate({"output": Path("unused"), "seed": variant.seed, **content})
    assert isinstance(config, OnlineConfig)
    return config


def inputs_of(problem: Problem) -> Inputs:
    """The words are w0, w1, ...; the tokenizer's special tokens come after the words that the table knows, and its end
    token is the table's where there is one."""
    words = problem.vocabulary - (problem.end is not None)
    tokenizer = word_tokenizer([*(f"w{token}" for token in range(words)), EOS, PAD, UNKNOWN], problem.positions)
    prompts = [
        Prompt(n, ids, text, {"prompt": text, "rewards": problem.rewards[n].tolist()})
        for n, ids in enumerate(problem.prompts)
        for text in [" ".join(f"w{token}" for token in ids)]
    ]
    longest = max(map(len, problem.prompts))
    report = PreflightReport("prompts", len(prompts), len(prompts), 0, (), (), longest, problem.positions, (), ())
    return Inputs(Path("unused"), None, tokenizer, PromptData(prompts, [], report), {})
