"""The whole way on real text: corpus, SFT, synthetic preferences, reward model, perhaps DPO, PPO, and who judges it.

Every stage is the product's own, run through the same code as its command. The preferences are *synthetic*: samples of
the SFT model labelled by the gold judge, a classifier fitted on reviews that no other part sees. Nothing is trained on
the independent judge. Budgets are in steps; seconds are what they took. What differs between the sizes is a ``Recipe``
(demo/small.py, demo/standard.py).
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightrope.algorithms.options import CONFIGS
from tightrope.assemble.stage import DisplayFor, Finished, start
from tightrope.demo.card import HONEST, DemoResult, Evaluated
from tightrope.demo.evaluation import Answers, Judges, Limits, best_of, judged, mean_kl, sampled
from tightrope.demo.files import DemoFiles, widest_pairs, write_preferences
from tightrope.demo.forgetting import Forgetting, Knowledge, knowledge_of
from tightrope.maths.diagnostics import Interval, best_of_n_kl
from tightrope.models.manifest import read_manifest
from tightrope.types import Rollout, SampleKey

PAIR_DRAWS, HELD_OUT_DRAWS = 1, 2  # name the random numbers of the samples that no training step draws

Say = Callable[[str], None]


@dataclass(frozen=True)
class Beginning:
    """What everything starts from; ``told`` says it in a line. ``honest``: what the card says of these judges."""

    base: Path
    judges: Judges
    told: str
    honest: Sequence[str] = ()


@dataclass(frozen=True)
class Recipe:
    """What makes a size of the demo.

    ``begin`` writes the texts into the files, and finds or makes base model and judges; the folder is the demo's.
    ``stages``: what each changes of its defaults, in the order they are walked.
    """

    begin: Callable[[Recipe, DemoFiles, Path, int], Beginning]
    stages: Mapping[str, Mapping[str, Any]]
    pairs: int
    samples_per_pair: int
    held_out_pairs: int
    held_out: int
    best_of: int
    limits: Limits
    base_title: str
    probes_forgetting: bool = False
    honest: Sequence[str] = HONEST

    def steps(self, stage: str) -> int:
        return int(self.stages[stage]["training"]["steps"])


class StageEnded(Exception):
    """A stage did not reach its last step; ``done`` says how it ended."""

    def __init__(self, done: Finished) -> None:
        super().__init__(f"{done.stage} {done.outcome} after {done.steps} steps")
        self.done = done


class Demo:
    """One walk through all stages in ``folder``. ``seconds`` by part, filled on the way."""

    def __init__(self, recipe: Recipe, folder: Path, seed: int, display_for: DisplayFor, say: Say) -> None:
        self.folder = folder
        self.files = DemoFiles(folder / "data")
        self.seconds: dict[str, float] = {}
        self._recipe = recipe
        self._seed = seed
        self._display_for = display_for
        self._say = say

    def run(self) -> DemoResult:
        """Raises StageEnded when a stage was interrupted or stopped."""
        began = time.monotonic()
        begun = self.begin()
        self.train("sft", begun.base, self.files.demonstrations)
        pairs = self.label(begun.judges)
        for stage in ("rm", "dpo"):
            if stage in self._recipe.stages:
                self.train(stage, self.result_of("sft"), self.files.preferences)
        self.train("ppo", self.result_of("sft"), self.files.prompts)
        return self.told(begun, pairs, self.evaluate(begun), self.forgetting(begun), began)

    def begin(self) -> Beginning:
        """Texts, judges and the model that everything starts from."""
        with self.timed("data", "reading movie reviews and fitting the judges"):
            self.files.folder.mkdir(parents=True, exist_ok=True)
            begun = self._recipe.begin(self._recipe, self.files, self.folder, self._seed)
        self._say(begun.told)
        return begun

    def label(self, judges: Judges) -> int:
        """Several answers of the SFT model to each prompt, and the judge's noisy vote on two: synthetic preferences."""
        count, several = self._recipe.pairs, self._recipe.samples_per_pair
        with self.timed("pairs", f"sampling {count:,} synthetic pairs; the gold judge votes"):
            rollout = self.sampled(self.result_of("sft"), self.files.prompts, count, several, PAIR_DRAWS)
            texts = rollout.responses
            answers = [texts[start : start + several] for start in range(0, len(texts), several)]
            pairs = widest_pairs([prompt.text for prompt in rollout.prompts], answers, judges.gold, self._seed)
            return write_preferences(self.files, pairs, judges.gold, self._seed)

    def evaluate(self, begun: Beginning) -> dict[str, Evaluated]:
        """Every model on the same held-out prompts with the same random numbers."""
        count, n = self._recipe.held_out, self._recipe.best_of
        sft = self.result_of("sft")
        with self.timed("evaluation", f"judging every model on {count} held-out prompts"):
            several = self.sampled(sft, self.files.held_out, count, n, HELD_OUT_DRAWS)
            first = several.select(range(0, several.n_sequences, n))
            best = several.select(best_of(several, self.result_of("rm"), n, self._recipe.limits))
            answers = {
                "base": Answers(self._recipe.base_title, self.held_out_answers(begun.base)),
                "sft": Answers("SFT", first, 0.0),
                "best": Answers(f"best of {n}", best, best_of_n_kl(n)),
            }
            for stage in ("dpo", "ppo"):
                if stage in self._recipe.stages:
                    rollout = self.held_out_answers(self.result_of(stage))
                    kl = mean_kl(self.result_of(stage), sft, rollout, self._recipe.limits)
                    answers[stage] = Answers(stage.upper(), rollout, kl)
            return judged(answers, begun.judges)

    def forgetting(self, begun: Beginning) -> Forgetting | None:
        """From the model as it came to what PPO left of it."""
        if not self._recipe.probes_forgetting:
            return None
        with self.timed("forgetting", "what was forgotten? plain English and facts"):
            known = dict[str, Knowledge]()
            for name, folder in (("before", begun.base), ("after", self.result_of("ppo"))):
                known[name] = knowledge_of(folder)
                gc.collect()
        return Forgetting(**known)

    def told(
        self,
        begun: Beginning,
        pairs: int,
        models: Mapping[str, Evaluated],
        forgetting: Forgetting | None,
        began: float,
    ) -> DemoResult:
        manifest = read_manifest(self.result_of("rm"))
        assert manifest is not None and manifest.accuracy is not None and manifest.accuracy_interval is not None
        return DemoResult(
            base=models["base"],
            sft=models["sft"],
            best_of_n=models["best"],
            dpo=models.get("dpo"),
            ppo=models["ppo"],
            n=self._recipe.best_of,
            pairs=pairs,
            rm_accuracy=Interval(manifest.accuracy, *manifest.accuracy_interval),
            seed=self._seed,
            seconds=time.monotonic() - began,
            peak_rss_bytes=peak_rss_bytes(),
            next_commands=next_commands(self.folder, self._recipe.steps("ppo")),
            stage_seconds=self.seconds,
            forgetting=forgetting,
            honest=(*self._recipe.honest, *begun.honest),
        )

    def result_of(self, stage: str) -> Path:
        return self.folder / stage / "export"

    def sampled(self, model: Path, prompts: Path, count: int, samples: int, draws: int) -> Rollout:
        rollout = sampled(model, prompts, count, samples, SampleKey(self._seed, 0, draws), self._recipe.limits)
        gc.collect()
        return rollout

    def held_out_answers(self, model: Path) -> Rollout:
        return self.sampled(model, self.files.held_out, self._recipe.held_out, 1, HELD_OUT_DRAWS)

    def train(self, stage: str, model: Path, data: Path) -> None:
        settings = dict(self._recipe.stages[stage])
        content: dict[str, Any] = {
            **settings,
            "output": self.folder / stage,
            "seed": self._seed,
            "model": {**settings.get("model", {}), "name": model},
            "data": {"train": data, "held_out": self._recipe.held_out_pairs if stage in ("rm", "dpo") else 64},
        }
        if stage == "ppo":
            content["reward"] = {**settings.get("reward", {}), "model": self.folder / "rm"}
        with self.timed(stage, f"{stage}: {self._recipe.steps(stage)} steps"):
            done = start(stage, CONFIGS[stage].model_validate(content), self._display_for)
        if done.outcome != "finished":
            raise StageEnded(done)

    @contextmanager
    def timed(self, part: str, what: str) -> Iterator[None]:
        self._say(what)
        began = time.monotonic()
        yield
        gc.collect()  # networks are held in cycles, and the next part loads its own
        self.seconds[part] = time.monotonic() - began


def next_commands(folder: Path, steps: int) -> tuple[str, str, str]:
    return (
        f"tightrope samples {folder}/ppo --step {steps}",
        f"tightrope generate {folder}/ppo {folder}/data/held_out.jsonl --output answers.jsonl --limit 30",
        "tightrope label answers.jsonl",
    )


def peak_rss_bytes() -> int:
    """Largest resident memory so far, of this process or of a child that has ended, whichever is larger.

    Linux counts in KiB, macOS in bytes.
    """
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return peak if sys.platform == "darwin" else 1024 * peak
