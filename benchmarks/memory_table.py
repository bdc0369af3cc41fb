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
CASES: list[tuple[str, dict[str, int], dict[str, Any]]] = [
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
    ("sft", SIXTY, {"tokens": 2048}),
    ("ppo", SIXTY, {"tokens": 1024}),
    ("ppo", SIXTY, {"tokens": 2048, "lora": True}),
    ("ppo", SIXTY, {"tokens": 2048, "lora": True, "recompute": True}),
]
LENGTH = 64
"""Tokens of a prompt, and of an answer."""
MIB = 2**20
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
"""Pieces over 1 MiB come from the system and go back to it when they are freed."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimate against measurement, one process a line.")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of lines")
    parser.add_argument("--as-is", action="store_true", help="leave the allocator alone")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measured(json.loads(asked.child))))
        return
    print("| stage | parameters | trained | tokens | recompute | process | estimate | measured | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number, case in enumerate(CASES):
        if asked.only is None or number in asked.only:
            print(line(case, in_a_process_of_its_own(case, {} if asked.as_is else GIVE_BACK)), flush=True)


def in_a_process_of_its_own(
    case: tuple[str, dict[str, int], dict[str, Any]], allocator: dict[str, str]
) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | allocator)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def line(case: tuple[str, dict[str, int], dict[str, Any]], found: dict[str, Any]) -> str:
    stage, _, options = case
    kind = "LoRA" if options.get("lora") else "full"
    kind += ", separate critic" if options.get("critic") else ""
    estimate, used = found["estimate"] / MIB, found["measured"] / MIB
    return (
        f"| {stage} | {found['parameters'] / 1e6:.1f} M | {kind} | {options['tokens']} | "
        f"{'yes' if options.get('recompute') else 'no'} | {found['process'] / MIB:.0f} MiB | {estimate:.0f} MiB | "
        f"{used:.0f} MiB | {estimate / used:.2f} |"
    )


def measured(case: tuple[str, dict[str, int], dict[str, Any]]) -> dict[str, Any]:
    from tightrope.assemble.fanout import Nobody
    from tightrope.assemble.inputs import read_inputs
    from tightrope.assemble.memory import work_of
    from tightrope.assemble.stage import start
    from tightrope.models.memory import estimate

    stage, shape, options = case
    with tempfile.TemporaryDirectory() as place:
        small = config_of(stage, TINY, options | {"tokens": 256}, Path(place) / "small")
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


def config_of(stage: str, shape: dict[str, int], options: dict[str, Any], place: Path) -> Any:
    from tightrope.algorithms.options import CONFIGS

    place.mkdir()
    # In a child: drawing and saving random weights would leave its own mark on the peak.
    subprocess.run(
        [sys.executable, "-c", MAKE, json.dumps(shape), str(place / "model")], check=True, cwd=Path(__file__).parent
    )
    answers = 2 * options["tokens"] // (2 * LENGTH)  # two micro-batches a step
    model: dict[str, Any] = {"name": str(place / "model"), "gradient_checkpointing": options.get("recompute", False)}
    if options.get("lora"):
        model["lora"] = {"rank": 16}
    content: dict[str, Any] = {
        "output": place / "run",
        "model": model,
        "data": {"train": rows_of(stage, shape, max(answers, 16), place), "held_out": 0},
        "training": {"steps": 2, "token_budget": options["tokens"]},
        "checkpoint": {"every": 2},
    }
    if stage == "ppo":
        content["rollout"] = {"prompts_per_step": answers, "max_new_tokens": LENGTH}
        content["reward"] = {"function": f"{Path(__file__).resolve()}:words", "normalise_samples": 8}
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


def rows_of(stage: str, shape: dict[str, int], count: int, place: Path) -> Path:
    import random

    draw, words = random.Random(0), [f"w{number}" for number in range(shape["vocabulary"] - 8)]

    def text(length: int) -> str:
        return " ".join(draw.choices(words, k=length))

    columns = {"sft": ("completion",), "rm": ("chosen", "rejected"), "dpo": ("chosen", "rejected"), "ppo": ()}[stage]
    path = place / "rows.jsonl"
    with path.open("w") as file:
        for _ in range(count):
            answers = {column: text(LENGTH - 1) for column in columns}
            file.write(json.dumps({"prompt": text(LENGTH), **answers}) + "\n")
    return path


def words(samples: list[Any]) -> list[float]:
    """A reward that costs no memory."""
    return [float(len(set(sample.response))) for sample in samples]


MAKE = """
import json, sys
from pathlib import Path
from gpu_models import Shape, write_model
write_model(Shape(**json.loads(sys.argv[1]), tied=True), Path(sys.argv[2]))
"""

if __name__ == "__main__":
    main()
