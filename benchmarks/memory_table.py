"""Does a run take the memory that `tightrope check` says? Each line is a run in a process of its own, on the CPU.

    python benchmarks/memory_table.py                 # the table of docs/memory.md, about 20 minutes on one core
    python benchmarks/memory_table.py --only 0 3      # some lines
    python benchmarks/memory_table.py --as-is         # with glibc's own habits: it keeps much of what torch gives back

"measured" is the most resident memory of the process during the run, less what it held when Python, torch and a small
run of the same kind were warm ("process", listed apart).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

TINY = {"hidden": 64, "inner": 128, "layers": 2, "heads": 4, "kv_heads": 2, "vocabulary": 512}
FIVE = {"hidden": 192, "inner": 512, "layers": 6, "heads": 6, "kv_heads": 2, "vocabulary": 8192}
TWENTY = {"hidden": 384, "inner": 1024, "layers": 8, "heads": 6, "kv_heads": 3, "vocabulary": 16384}
SIXTY = {"hidden": 576, "inner": 1536, "layers": 12, "heads": 9, "kv_heads": 3, "vocabulary": 32768}
STANDARD = {"hidden": 576, "inner": 1536, "layers": 30, "heads": 9, "kv_heads": 3, "vocabulary": 49152}
"""SmolLM2-135M's."""
UNTIED = TWENTY | {"tied": False}
WORDY = {"family": "gemma2", "hidden": 128, "inner": 512, "layers": 4, "heads": 4, "kv_heads": 2, "vocabulary": 256000}
"""Gemma's vocabulary, on a small body whose attention is soft-capped and has windows."""
PADDED = {"family": "gpt_neox", "hidden": 384, "inner": 1024, "layers": 8, "heads": 6, "vocabulary": 16384}
WRITTEN_OUT = {"family": "bloom", "hidden": 384, "layers": 8, "heads": 6, "vocabulary": 16384}
"""Padded as well; its attention is no kernel of torch."""
Case = tuple[str, dict[str, Any], dict[str, Any]]
CASES: list[Case] = [
    ("sft", FIVE, {"tokens": 2048}),
    ("sft", FIVE, {"tokens": 8192}),
    ("sft", TWENTY, {"tokens": 2048}),
    ("sft", TWENTY, {"tokens": 4096, "recompute": True}),
    ("sft", TWENTY, {"tokens": 4096, "lora": True}),
    ("sft", TWENTY, {"tokens": 4096, "lora": True, "recompute": True}),
    ("rm", TWENTY, {"tokens": 4096}),
    ("rm", TWENTY, {"tokens": 4096, "lora": True}),
    ("dpo", TWENTY, {"tokens": 2048}),
    ("dpo", TWENTY, {"tokens": 4096, "lora": True}),
    ("ppo", FIVE, {"tokens": 4096}),
    ("ppo", TWENTY, {"tokens": 2048}),
    ("ppo", TWENTY, {"tokens": 4096, "lora": True}),
    ("ppo", TWENTY, {"tokens": 2048, "critic": "separate"}),
    ("ppo", TWENTY, {"tokens": 2048, "lora": True, "critic": "separate"}),
    ("sft", SIXTY, {"tokens": 2048}),
    ("ppo", SIXTY, {"tokens": 1024}),
    ("ppo", SIXTY, {"tokens": 2048, "lora": True}),
    ("ppo", SIXTY, {"tokens": 2048, "lora": True, "recompute": True}),
    ("sft", STANDARD, {"tokens": 640, "lora": True}),
    ("ppo", STANDARD, {"tokens": 640, "lora": True, "reward": "adapter"}),
    ("ppo", SIXTY, {"tokens": 1024, "lora": True, "reward": "adapter"}),
    ("ppo", TWENTY, {"tokens": 1024, "lora": True, "reward": "of another base"}),
    ("ppo", TWENTY, {"tokens": 1024, "reward": "of another base"}),
    ("rm", UNTIED, {"tokens": 2048}),
    ("ppo", UNTIED, {"tokens": 2048, "critic": "separate"}),
    ("sft", TWENTY, {"tokens": 4096, "row": 2048}),
    ("sft", TWENTY, {"tokens": 4096, "lora": True, "dtype": "bfloat16"}),
    ("sft", WORDY, {"tokens": 1024}),
    ("sft", WORDY, {"tokens": 1024, "row": 1024, "lora": True}),
    ("ppo", WORDY, {"tokens": 1024, "lora": True}),
    ("sft", PADDED, {"tokens": 2048}),
    ("ppo", PADDED, {"tokens": 2048, "lora": True}),
    ("sft", WRITTEN_OUT, {"tokens": 2048, "row": 512}),
]
"""``row``: tokens of a prompt and its answer together."""
ROW = 128
MIB = 2**20
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Pieces over 64 KiB come from the system and go back to it when they are freed."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimate against measurement, one process a line.")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of lines")
    parser.add_argument("--as-is", action="store_true", help="leave the allocator alone")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measured(json.loads(asked.child))))
        return
    print("| stage | model | trained | tokens | row | recompute | process | estimate | measured | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for number, case in enumerate(CASES):
        if asked.only is None or number in asked.only:
            print(line(case, in_a_process_of_its_own(case, {} if asked.as_is else GIVE_BACK)), flush=True)


def in_a_process_of_its_own(case: Case, allocator: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | allocator)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def line(case: Case, found: dict[str, Any]) -> str:
    stage, shape, options = case
    kind = "LoRA" if options.get("lora") else "full"
    kind += f", {options['critic']} critic" if "critic" in options else ""
    kind += f", reward {options['reward']}" if "reward" in options else ""
    kind += f", {options['dtype']}" if "dtype" in options else ""
    estimate, used = found["estimate"] / MIB, found["measured"] / MIB
    family = shape.get("family", "llama") + ("" if shape.get("tied", True) else ", untied")
    return (
        f"| {stage} | {found['parameters'] / 1e6:.1f} M {family} | {kind} | {options['tokens']} | "
        f"{options.get('row', ROW)} | {'yes' if options.get('recompute') else 'no'} | "
        f"{found['process'] / MIB:.0f} MiB | {estimate:.0f} MiB | {used:.0f} MiB | {estimate / used:.2f} |"
    )


def measured(case: Case) -> dict[str, Any]:
    from tightrope.assemble.fanout import Nobody
    from tightrope.assemble.inputs import read_inputs
    from tightrope.assemble.memory import work_of
    from tightrope.assemble.stage import start
    from tightrope.models.memory import estimate

    stage, shape, options = case
    with tempfile.TemporaryDirectory() as place:
        small = config_of(stage, TINY, options | {"tokens": 256, "row": ROW}, Path(place) / "small")
        start(stage, small, lambda name, settings: Nobody())
        config = config_of(stage, shape, options, Path(place) / "real")
        inputs = read_inputs(config)
        needed = estimate(inputs.folder, config.model, work_of(config, inputs))
        del inputs
        process = psutil.Process().memory_info().rss
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
        start(stage, config, lambda name, settings: Nobody())
    peak = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return {
        "process": process,
        "estimate": needed.total,
        "measured": int(peak.split()[1]) * 1024 - process,
        "parameters": needed.parameters,
    }


def config_of(stage: str, shape: dict[str, Any], options: dict[str, Any], place: Path) -> Any:
    from tightrope.algorithms.options import CONFIGS

    place.mkdir()
    make(place / "model", shape, None)
    row = options.get("row", ROW)
    answers = 2 * options["tokens"] // row  # two micro-batches a step
    model: dict[str, Any] = {
        "name": str(place / "model"),
        "gradient_checkpointing": options.get("recompute", False),
        "dtype": options.get("dtype", "auto"),
    }
    if options.get("lora"):
        model["lora"] = LORA
    content: dict[str, Any] = {
        "output": place / "run",
        "model": model,
        "data": {"train": rows_of(stage, shape, max(answers, 16), row // 2, place), "held_out": 0},
        "training": {"steps": 2, "token_budget": options["tokens"]},
        "checkpoint": {"every": 2},
    }
    if stage == "ppo":
        content["rollout"] = {"prompts_per_step": answers, "max_new_tokens": row // 2}
        content["reward"] = {"normalise_samples": 8} | reward_of(shape, options, place)
        content["evaluation"] = {"prompts": 0}
        content["ppo"] = {
            "epochs": 1,
            "minibatches": 1,
            "value_warmup_steps": 0,
            "critic": options.get("critic", "shared"),
        }
    else:
        section = {"sft": "sft", "rm": "reward_model", "dpo": "dpo"}[stage]
        content[section] = {"batch_size": answers if stage == "sft" else max(1, answers // 2)}
    return CONFIGS[stage].model_validate(content)


def reward_of(shape: dict[str, Any], options: dict[str, Any], place: Path) -> dict[str, str]:
    """A function, a reward model that is an adapter on the policy's own base, or one of a base of its own."""
    if "reward" not in options:
        return {"function": f"{Path(__file__).resolve()}:words"}
    if options["reward"] == "adapter":
        make(place / "reward", shape, place / "model")
    else:
        make(place / "other", {**shape, "layers": 2 * shape["layers"]}, None)
        make(place / "reward", shape, place / "other")
    return {"model": str(place / "reward")}


def make(folder: Path, shape: dict[str, Any], base: Path | None) -> None:
    """A model of random weights, or a reward model trained on ``base``. In a child: drawing and saving weights would
    leave its own mark on the peak."""
    command = [sys.executable, "-c", MAKE, json.dumps(shape), str(folder), "" if base is None else str(base)]
    subprocess.run(command, check=True, cwd=Path(__file__).parent, capture_output=True)


def rows_of(stage: str, shape: dict[str, Any], count: int, length: int, place: Path) -> Path:
    import random

    draw, words = random.Random(0), [f"w{number}" for number in range(shape["vocabulary"] - 8)]

    def text(length: int) -> str:
        return " ".join(draw.choices(words, k=length))

    columns = {"sft": ("completion",), "rm": ("chosen", "rejected"), "dpo": ("chosen", "rejected"), "ppo": ()}[stage]
    path = place / "rows.jsonl"
    with path.open("w") as file:
        for _ in range(count):
            answers = {column: text(length - 1) for column in columns}
            file.write(json.dumps({"prompt": text(length), **answers}) + "\n")
    return path


def words(samples: list[Any]) -> list[float]:
    """A reward that costs no memory."""
    return [float(len(set(sample.response))) for sample in samples]


LORA = {"rank": 16}
MAKE = """
import json, sys
from pathlib import Path
from memory_table import LORA, written
written(json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
"""


def written(shape: dict[str, Any], folder: Path, base: str) -> None:
    import torch
    from gpu_models import Shape, write_model
    from transformers import AutoConfig, AutoModelForCausalLM

    from tightrope.config.schema import ModelSection
    from tightrope.demo.tokenizer import EOS, PAD, SPECIAL, word_tokenizer
    from tightrope.models.export import RewardFacts, export_reward
    from tightrope.models.roles import offline_roles

    shape = dict(shape)
    family = shape.pop("family", "llama")
    if base:
        role = offline_roles(ModelSection.model_validate({"name": base, "lora": LORA}), "rm", 0).reward
        assert role is not None
        export_reward(role, Path(base), folder, RewardFacts((), None, None, 0, None))
    elif family == "llama":
        write_model(Shape(**({"tied": True} | shape)), folder)
    else:
        names = {
            "hidden": "hidden_size",
            "inner": "intermediate_size",
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "kv_heads": "num_key_value_heads",
            "vocabulary": "vocab_size",
        }
        if family == "bloom":
            names |= {"layers": "n_layer", "heads": "n_head"}
        fields = {names[key]: value for key, value in shape.items()}
        fields["seq_length" if family == "bloom" else "max_position_embeddings"] = 2048
        if family == "gemma2":
            fields["head_dim"] = shape["hidden"] // shape["heads"]
        special = {"bos_token_id": None, "eos_token_id": SPECIAL.index(EOS), "pad_token_id": SPECIAL.index(PAD)}
        config = AutoConfig.for_model(family, **fields, **special)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        words = [*SPECIAL, *(f"w{number}" for number in range(shape["vocabulary"] - len(SPECIAL)))]
        word_tokenizer(words, 2048).save_pretrained(folder)


if __name__ == "__main__":
    main()
