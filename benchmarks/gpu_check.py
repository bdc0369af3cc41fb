"""Does everything work on this machine's GPU, and what does it cost? One script for any CUDA machine.

python -m benchmarks.gpu_check [--model NAME] [--output FILE.json]
python -m benchmarks.gpu_check --device cpu --quick      the script itself, with tiny shapes, anywhere

PPO, RLOO, DPO and an interrupted and resumed PPO, each with a tiny and a 135M model, in float32 (all weights trained)
and bfloat16 (LoRA on a bfloat16 backbone); then one PPO step of an 8B model with four LoRA roles on one backbone. The
models have random weights; ``--model`` puts a real one in the place of the 135M. Each check is a process of its own, so
that a failure hides no other. Every run passes the product's self-test at step 0 within its bounds, or fails here. A
resumed run must equal the uninterrupted one bit for bit, with torch's deterministic kernels. Exit code: 1 when a check
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STAGES = ("ppo", "rloo", "dpo", "resume")
SECONDS = 240
"""Of one check at most."""
COLUMNS = ("check", "result", "seconds", "tokens/s", "peak MiB", "estimate MiB", "note")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, few steps")
    parser.add_argument("--model", help="a real model in the place of the random 135M")
    parser.add_argument("--only", default="", help="checks whose name holds this")
    parser.add_argument("--output", type=Path, default=Path("gpu-check.json"))
    options = parser.parse_args()
    names = [f"{stage} {size} {dtype}" for size in ("tiny", "135m") for dtype in ("fp32", "bf16") for stage in STAGES]
    rows: list[dict[str, Any]] = []
    print(line_of(dict(zip(COLUMNS, COLUMNS, strict=True))))
    for name in [*names, "memory 8b bf16"]:
        if options.only in name:
            rows.append(checked(name, options))
            print(line_of(rows[-1]), flush=True)
    failed = sum(row["result"] != "ok" for row in rows)
    options.output.write_text(json.dumps({"device": options.device, "quick": options.quick, "checks": rows}, indent=2))
    print(f"{len(rows) - failed} of {len(rows)} checks passed; {options.output}")
    return 1 if failed or not rows else 0


def checked(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """In a child; what it prints last is its result."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.gpu_check_one",
        name,
        options.device,
        "quick" if options.quick else "full",
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        words += [folder, *([options.model] if options.model else [])]
        # cuBLAS gives the same bits in two runs only with a workspace of fixed size.
        settings = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        try:
            done = subprocess.run(words, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return {"check": name, "result": "FAILED", "seconds": SECONDS, "note": f"no result after {SECONDS} s"}
    seconds = round(time.monotonic() - began, 1)
    if done.returncode:
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return {"check": name, "result": "FAILED", "seconds": seconds, "note": why[:200]}
    return {"check": name, "result": "ok", "seconds": seconds, **json.loads(done.stdout.splitlines()[-1])}


def line_of(row: dict[str, Any]) -> str:
    widths = (18, 7, 8, 9, 9, 13, 0)
    return " ".join(f"{row.get(column, '')!s:<{width}}" for column, width in zip(COLUMNS, widths, strict=True)).rstrip()


if __name__ == "__main__":
    sys.exit(main())
