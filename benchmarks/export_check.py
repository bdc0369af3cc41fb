"""Do transformers and peft read from an exported run what the run itself computes? On 20 texts of its own data.

python -m benchmarks.export_check RUN [--texts 20]

A policy: log-probs of every token of its prompts (demonstrations, pairs), by the run's checkpoint with its adapter
still apart, against the merged folder in ``AutoModelForCausalLM`` and the adapter folder in ``PeftModel``. A reward
model: what ``tightrope rm score`` prints against ``AutoModelForSequenceClassification``. Log-probs in float64, where a
difference is a fault, to 1e-5; then in float32 as people use them, to 2e-4, with what float32 moves by itself (the same
model in both precisions). Scores in float32 to 1e-4. Exit code 1 over a bound. The run is only read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tightrope.algorithms.plugins import STAGES
from tightrope.assemble.export import export_run, trained_role
from tightrope.assemble.inputs import read_inputs
from tightrope.config.load import load_resolved
from tightrope.config.schema import RunConfig
from tightrope.data.chat_format import ChatFormat
from tightrope.data.prompts import PromptData
from tightrope.data.readers import read_rows
from tightrope.models.export import Form
from tightrope.models.load import resolve_model_folder
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role
from tightrope.storage.checkpoints import CheckpointStore, read_state
from tightrope.storage.run_folder import RunFolder
from tightrope.types import TokenRows

MAIN = "from tightrope.cli.main import main; main()"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--texts", type=int, default=20)
    options = parser.parse_args()
    run = RunFolder.read(options.run)
    stage, config = load_resolved(run.resolved, STAGES)
    with tempfile.TemporaryDirectory() as name:
        merged, adapter = Path(name) / "merged", Path(name) / "adapter"
        done = export_run(options.run, "latest", merged, Form(adapter=False))
        forms = {"merged": merged}
        if config.model.lora is not None:
            export_run(options.run, "latest", adapter, Form(merged=False))
            forms["adapter"] = adapter
        base = resolve_model_folder(config.model.name, config.model.revision)
        check = scores if stage == "rm" else logprobs
        worst = check(run, config, done.step, base, forms, options.texts)
    for one in worst:
        print(f"{one.what:<42} {one.found:.1e}  {one.verdict}")
    return int(any(one.failed for one in worst))


@dataclass(frozen=True)
class Difference:
    """``bound`` None: nothing is asked of it."""

    what: str
    found: float
    bound: float | None

    @property
    def failed(self) -> bool:
        return self.bound is not None and not self.found <= self.bound

    @property
    def verdict(self) -> str:
        return "" if self.bound is None else f"{'OVER' if self.failed else 'within'} {self.bound:g}"


@torch.no_grad()
def logprobs(
    run: RunFolder, config: RunConfig, step: int, base: Path, forms: dict[str, Path], texts: int
) -> list[Difference]:
    """Largest differences of a log-prob, nats."""
    store = CheckpointStore(run.checkpoints)
    weights = read_state(run.checkpoints / f"iter-{step:06d}", store.manifest(step))["weights"]
    stage = load_resolved(run.resolved, STAGES)[0]
    sequences = token_ids(config, texts)
    rows = TokenRows.of([(ids[:1], ids[1:]) for ids in sequences])
    role = trained_role(stage, config, weights)
    models: dict[str, torch.nn.Module] = {
        "merged": AutoModelForCausalLM.from_pretrained(forms["merged"], dtype=torch.float32)
    }
    if "adapter" in forms:
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        models["adapter"] = PeftModel.from_pretrained(plain, str(forms["adapter"]))
    single, ours = {name: of_transformers(model, sequences) for name, model in models.items()}, of_role(role, rows)
    double = {name: of_transformers(model.double(), sequences) for name, model in models.items()}
    role.network.model.double()
    exact = of_role(role, rows)
    print(f"{len(ours)} log-probs, mean {float(ours.mean()):.4f}; largest differences in nats")
    return [
        *(Difference(f"float64: tightrope, {name}", gap(exact, double[name]), 1e-5) for name in models),
        *(Difference(f"float32: tightrope, {name}", gap(ours, single[name]), 2e-4) for name in models),
        *(Difference(f"float32, float64: {name}", gap(single[name], double[name]), None) for name in models),
        Difference("float32, float64: tightrope", gap(ours, exact), None),
    ]


def of_role(role: Role, rows: TokenRows) -> Tensor:
    with role.network.using(role.adapter):
        return token_logprobs(role, rows, 1.0).logprobs


def token_ids(config: RunConfig, texts: int) -> list[list[int]]:
    data = read_inputs(config).data
    if isinstance(data, PromptData):
        return [list(prompt.token_ids) for prompt in data.train[:texts]]
    return [data.train.rows.sequence(i).tolist() for i in range(min(texts, data.train.rows.n_sequences))]


def of_transformers(model: torch.nn.Module, sequences: Sequence[list[int]]) -> Tensor:
    parts: list[Tensor] = []
    for ids in sequences:
        tokens = torch.tensor(ids)
        logits = model(tokens[None]).logits[0, :-1]
        parts.append(logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0])
    return torch.cat(parts)


def gap(one: Tensor, two: Tensor) -> float:
    return float((one.double() - two.double()).abs().max())


@torch.no_grad()
def scores(
    run: RunFolder, config: RunConfig, step: int, base: Path, forms: dict[str, Path], texts: int
) -> list[Difference]:
    """Largest differences of a score. ``rm score`` runs as a person runs it, on the merged folder."""
    pairs = [dict(row.values) for row in read_rows(config.data.train)[:texts]]
    file = forms["merged"].with_name("pairs.jsonl")
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    command = [sys.executable, "-c", MAIN, "rm", "score", str(forms["merged"]), str(file)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    ours = torch.tensor([json.loads(line)["score"] for line in told], dtype=torch.float64)
    chat = ChatFormat(AutoTokenizer.from_pretrained(forms["merged"]))
    conversations: list[list[int]] = []
    for pair in pairs:
        _, prompt, chosen, rejected = chat.preference(pair)
        conversations += [[*prompt, *chat.answer_ids(answer, end=True)] for answer in (chosen, rejected)]
    models = {"merged": AutoModelForSequenceClassification.from_pretrained(forms["merged"], dtype=torch.float32)}
    if "adapter" in forms:
        plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
        plain.config.pad_token_id = models["merged"].config.pad_token_id  # as the adapter's card says
        models["adapter"] = PeftModel.from_pretrained(plain, str(forms["adapter"]))
    found = {
        name: torch.cat([model(torch.tensor([ids])).logits[0] for ids in conversations])
        for name, model in models.items()
    }
    print(f"{len(ours)} scores, from {float(ours.min()):.4f} to {float(ours.max()):.4f}")
    return [Difference(f"rm score, {name}", gap(ours, theirs), 1e-4) for name, theirs in found.items()]


if __name__ == "__main__":
    sys.exit(main())
