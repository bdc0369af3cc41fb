"""Writes the reference pages that the code itself knows: every option and every metric.

python docs/build.py          write docs/options.md and docs/metrics.md
python docs/build.py --check  exit 1 when a page differs from what the code says
"""

from __future__ import annotations

import sys
from pathlib import Path

from tightrope.algorithms.options import CONFIGS
from tightrope.config.catalogue import Option, options_of
from tightrope.guardian.metric_cards import CARDS

HERE = Path(__file__).parent
STAGE_TITLES = {
    "sft": "`tightrope sft`",
    "rm": "`tightrope rm train`",
    "dpo": "`tightrope dpo`",
    "ppo": "`tightrope ppo`",
    "rloo": "`tightrope rloo`",
}


def options_page() -> str:
    lines = [
        "# Options",
        "",
        "One YAML a run; any key can be given on the command line too, as `kl.beta=0.1`: see",
        "[configuration.md](configuration.md). Written by `make docs`.",
    ]
    seen: set[str] = set()
    for stage, config in CONFIGS.items():
        rows = [option for option in options_of(config) if option.type != "section" and option.key not in seen]
        lines += ["", f"## {STAGE_TITLES[stage]}" + (", beyond those above" if seen else ""), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [row_of(option) for option in rows]
        seen.update(option.key for option in rows)
    return "\n".join(lines) + "\n"


def row_of(option: Option) -> str:
    kind = f"{option.type}, {option.bounds}" if option.bounds else option.type
    default = f"`{option.default}`" if option.default else "required"
    cells = [f"`{option.key}`", kind, default, option.description]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "What a run reports at each step. An undefined metric is absent, never 0. Written by `make docs`.",
        "",
        "| metric | unit | what it is | healthy | what to do |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{card.name}` | {card.unit} | {card.formula} | {card.healthy} | {card.what_to_do} |"
        for card in CARDS.values()
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    stale = []
    for name, text in (("options.md", options_page()), ("metrics.md", metrics_page())):
        path = HERE / name
        if "--check" in sys.argv:
            stale += [name] if not path.exists() or path.read_text() != text else []
        else:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
