"""The numbers of the README: the demo with several seeds, as a Markdown table.

python benchmarks/demo_table.py 0 1 2
python benchmarks/demo_table.py --size standard 0
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

COLUMNS = (
    "seed",
    "gold positive, SFT → PPO",
    "independent, SFT → PPO",
    "difference (95 %)",
    "KL, nats",
    "tokens, SFT → PPO",
    "independent, DPO",
    "independent, best of 4",
    "reward model, held out",
    "seconds",
    "peak memory",
)
FORGETTING_COLUMNS = ("distinct-3, SFT → PPO", "perplexity of plain English", "facts right")


def header_of(columns: tuple[str, ...]) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def card_of(size: str, seed: int, folder: Path) -> dict[str, Any]:
    command = ["tightrope", "demo", "--size", size, "--quiet", "--json", "--seed", str(seed)]
    command += ["--output", str(folder / f"seed{seed}")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def row_of(card: dict[str, Any]) -> str:
    low, high = card["independent_interval"]
    cells = [
        str(card["seed"]),
        f"{card['gold_positive_before']:.0%} → {card['gold_positive_after']:.0%}",
        f"{card['independent_before']:+.2f} → {card['independent_after']:+.2f}",
        f"{card['independent_after'] - card['independent_before']:+.2f} ({low:+.2f} to {high:+.2f})",
        f"{card['kl_seq']:.1f}",
        f"{card['response_length_before']:.1f} → {card['response_length_after']:.1f}",
        "-" if card["dpo_independent_after"] is None else f"{card['dpo_independent_after']:+.2f}",
        f"{card['best_of_n_independent']:+.2f}",
        f"{card['rm_heldout_accuracy']:.0%}",
        f"{card['seconds']:.0f}",
        f"{card['peak_rss_bytes'] / 2**20:.0f} MiB",
    ]
    if "forgetting_ppl_ratio" in card:
        cells += [
            f"{card['distinct_3_before']:.2f} → {card['distinct_3_after']:.2f}",
            f"x {card['forgetting_ppl_ratio']:.3f}",
            f"{card['facts_before']:.0%} → {card['facts_after']:.0%}",
        ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="The demo with several seeds, as a Markdown table.")
    parser.add_argument("--size", choices=("small", "standard"), default="small")
    parser.add_argument("seeds", type=int, nargs="*", default=[0, 1, 2])
    asked = parser.parse_args()
    print(header_of(COLUMNS + (FORGETTING_COLUMNS if asked.size == "standard" else ())), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for seed in asked.seeds:
            print(row_of(card_of(asked.size, seed, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
