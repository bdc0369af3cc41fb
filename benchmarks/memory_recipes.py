"""Which model trains with PPO on a card of 8, 12, 16 or 24 GB, and how? Estimates from shapes; nothing is measured.

    python benchmarks/memory_recipes.py              # the tables of docs/memory.md, some minutes
    python benchmarks/memory_recipes.py --example    # one line of them term by term, seconds

Every number is `tightrope.models.memory.estimate_of`: PPO with the critic on the policy's trunk, prompts and responses
of 256 tokens each. With LoRA (rank 16) the policy and the reward model are adapters over one bfloat16 base; without,
policy, reference and reward model are float32 networks of their own.
"""

from __future__ import annotations

import sys

import torch
from gpu_models import LARGE_8B, SMALL_135M, Shape, config_of

from tightrope.assemble.memory import fitting
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.memory import MemoryEstimate, Work, estimate_of
from tightrope.rollout.local_engine import budgeted

SHAPES = {
    "135M (SmolLM2)": SMALL_135M,
    "0.5B (Qwen2.5)": Shape(896, 4864, 24, 14, 2, 151936),
    "1.5B (Qwen2.5)": Shape(1536, 8960, 28, 12, 2, 151936),
    "3B (Llama 3.2)": Shape(3072, 8192, 28, 24, 8, 128256),
    "8B (Llama 3)": LARGE_8B,
}
CARDS = (8, 12, 16, 24)
BUDGETS = (8192, 4096, 2048, 1024, 512)
ROOM = 512
SEQUENCES = 64
CONTEXT_BYTES = 10**9
"""What CUDA, its libraries and the desktop take, by assumption."""
SLACK = 0.9
"""Share of the rest that an allocator can use before it fragments, by assumption."""
GIB = 2**30
Key = tuple[str, bool, bool, int]
"""Model, LoRA, recompute, tokens."""
HEADER = "| model | trained | recompute | tokens | weights | gradients | Adam | activations | rollout | total GiB |"
RULE = "|---" * 11 + "|"


def main() -> None:
    if "--example" in sys.argv:
        example("1.5B (Qwen2.5)", 2048)
        return
    found = {
        (name, lora, recompute, budget): estimate(shape, lora, recompute, budget)
        for name, shape in SHAPES.items()
        for lora in (False, True)
        for recompute in (False, True)
        for budget in BUDGETS
    }
    print(f"{HEADER}\n{RULE.removeprefix('|---')}")
    for key, needed in found.items():
        if key[3] == 2048:
            print(row(key, needed))
    print("\n| model | " + " | ".join(f"{card} GB" for card in CARDS) + " |")
    print("|---|" + "---|" * len(CARDS))
    for name in SHAPES:
        print(f"| {name} | " + " | ".join(told(recipe(found, name, usable(card))) for card in CARDS) + " |")
    print(f"\n| card, usable {HEADER}\n{RULE}")
    for card in CARDS:
        key = [fits for name in SHAPES if (fits := recipe(found, name, usable(card))) is not None][-1]
        print(f"| {card} GB, {usable(card) / GIB:.1f} GiB {row(key, found[key])}")


def estimate(shape: Shape, lora: bool, recompute: bool, budget: int) -> MemoryEstimate:
    section = ModelSection(
        name="shape",
        lora=LoraSection() if lora else None,
        gradient_checkpointing=recompute,
    )
    dtype = torch.bfloat16 if lora else torch.float32
    config, half = config_of(shape), ROOM // 2
    alone = estimate_of(config, section, dtype, "cuda", Work(ROOM, ROOM))
    reward = alone.trained * 4 if lora else alone.parameters * 4  # an adapter, or a network
    work = Work(
        budget,
        ROOM,
        copies=0 if lora else 1,
        apart=reward,
        critic="shared",
        responses=fitting(SEQUENCES, budgeted(half, half), budget),
        prompt=half,
        new=half,
        scored=fitting(SEQUENCES, ROOM, budget) * ROOM,
    )
    return estimate_of(config, section, dtype, "cuda", work)


def example(name: str, budget: int) -> None:
    """With LoRA, nothing computed again."""
    shape, needed = SHAPES[name], estimate(SHAPES[name], True, False, budget)
    half, dim = ROOM // 2, shape.hidden // shape.heads
    together = fitting(SEQUENCES, budgeted(half, half), budget)
    token = 2 * shape.layers * shape.kv_heads * dim * 2
    adapter = needed.trained
    terms = {
        f"base: {needed.parameters:,} parameters x 2 bytes": needed.parameters * 2,
        f"adapters of policy and reward model: 2 x {adapter:,} x 4 bytes": 2 * adapter * 4,
        f"gradients: {adapter:,} x 4 bytes": needed.gradients,
        f"Adam's moments: 2 x {adapter:,} x 4 bytes": needed.optimizer,
        f"activations of {budget} tokens, counted": needed.activations,
        f"not then: {together} responses x ({2 * half} + {half} tokens) x {token:,} bytes of keys and values, "
        f"4 x 4 bytes x {shape.vocabulary:,} logits each": needed.rollout,
        "total without the last": needed.total,
    }
    print("| term | GiB |\n|---|---|")
    for words_of_it, bytes_of_it in terms.items():
        print(f"| {words_of_it} | {bytes_of_it / GIB:.2f} |")


def usable(card: int) -> float:
    return (card * 10**9 - CONTEXT_BYTES) * SLACK


def recipe(found: dict[Key, MemoryEstimate], name: str, room: float) -> Key | None:
    """The first that fits: all weights before adapters, kept activations before recomputed ones, large passes first."""
    for lora in (False, True):
        for recompute in (False, True):
            for budget in BUDGETS:
                if found[name, lora, recompute, budget].total <= room:
                    return name, lora, recompute, budget
    return None


def told(key: Key | None) -> str:
    if key is None:
        return "does not fit"
    _, lora, recompute, budget = key
    return f"{'LoRA' if lora else 'full'}{', recompute' if recompute else ''}, {budget} tokens"


def row(key: Key, needed: MemoryEstimate) -> str:
    name, lora, recompute, budget = key
    parts = (
        needed.weights,
        needed.gradients,
        needed.optimizer,
        needed.activations,
        needed.rollout,
    )
    numbers = " | ".join(f"{part / GIB:.2f}" for part in parts)
    kind = f"{'LoRA, bf16 base' if lora else 'full, fp32'} | {'yes' if recompute else 'no'}"
    return f"| {name} | {kind} | {budget} | {numbers} | **{needed.total / GIB:.1f}** |"


if __name__ == "__main__":
    main()
