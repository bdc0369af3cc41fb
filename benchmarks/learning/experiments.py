"""Which experiments are there, and what is fixed before they run?

All start from the SFT model of the demo's small size (``benchmarks/learning/settings.py`` has the base recipe and the
seeds) and change only what their settings name. The true reward is the gold judge's probability, 0 to 1; the learned
reward is the demo's reward model.

Over-optimisation, conditions fixed beforehand: reward models from 100, 1,000 and 10,000 pairs labelled by the gold
judge without noise; PPO for ``OVER_STEPS`` steps of 64 at a constant learning rate, with a KL coefficient of 1e-9 (not
0, so that the reference is loaded and KL is measured; 1e-9 of a reward cannot be seen in float32) and no guardian. True
score: the gold judge's log-odds of the training samples; proxy: the reward model; both in standard deviations over
samples of the SFT model, from its mean. R = d (alpha - beta log d) with d = sqrt(KL) is fitted to each seed's true
score, points with d < 0.5 dropped. No run is left out, whatever comes.
"""

from __future__ import annotations

from benchmarks.learning.settings import (
    DEMO_MODEL,
    LEARNING_RATE,
    PROMPTS,
    PROXY_PAIRS,
    STEPS,
    TRUE,
    Experiment,
    Setting,
)
from tightrope.demo.model import LAYERS

TARGETS = (1, 2, 4, 8)
OVER_STEPS = 200
UNGUARDED = {"guardian.kl_limit": 1e9}
"""Where the trouble itself is what is to be seen."""
FREE = {"kl.mode": "fixed", "kl.beta": 1e-9, "optimizer.schedule": "constant", "training.steps": OVER_STEPS}
NAMES = {TRUE: "true reward", DEMO_MODEL: "learned reward"}
BATCHES = (2, 8, 32, 128)
BATCH_SAMPLES = STEPS * PROMPTS
HALF_BETA = 0.12

OWN_CRITIC: dict[str, object] = {"kl.target": 7.0, "ppo.critic": "separate"}
FASTER: dict[str, object] = {"optimizer.learning_rate": 5e-4, "optimizer.critic_learning_rate": 1e-3}
"""Chosen among six on another seed (10)."""
FRONTIER = Experiment(
    "frontier",
    "How much true reward does a nat of KL buy: PPO towards the true and towards the learned reward, and best of n?",
    [
        Setting(f"{NAMES[reward]}, target {target}", {"kl.target": float(target)}, reward)
        for reward in (TRUE, DEMO_MODEL)
        for target in TARGETS
    ]
    + [
        Setting("true reward, target 7, separate critic", OWN_CRITIC, TRUE),
        Setting("true reward, target 7, separate critic, faster", OWN_CRITIC | FASTER, TRUE),
        Setting("true reward, target 7.7, separate critic, faster", OWN_CRITIC | FASTER | {"kl.target": 7.7}, TRUE),
    ]
    + [Setting(f"best of n, {NAMES[reward]}", {}, reward, "best_of_n") for reward in (TRUE, DEMO_MODEL)],
)
CONTROLLERS: dict[str, dict[str, object]] = {
    "default": {},
    "lookahead 0": {"kl.lookahead": 0.0},
    "ziegler": {"kl.mode": "ziegler"},
}
CONTROLLER = Experiment(
    "controller",
    "Does the controller hold KL at its target in the last third of the run?",
    [
        Setting(f"{name}, target {target}", {"kl.target": float(target), **changes})
        for name, changes in CONTROLLERS.items()
        for target in (2, 4, 8)
    ],
)
DEFAULT_FACTOR = 5


def critic_setting(factor: int, warm: bool = True, critic: str = "shared") -> Setting:
    """The critic learns ``factor`` times as fast as the policy; what is the default is not said."""
    changes: dict[str, object] = {"ppo.value_warmup_steps": 2 if warm else 0}
    if factor != DEFAULT_FACTOR:
        changes["optimizer.critic_learning_rate"] = factor * LEARNING_RATE
    if critic != "shared":
        changes["ppo.critic"] = critic
    return Setting(f"{critic}, x{factor}, {'warm-up' if warm else 'no warm-up'}", changes)


CRITIC = Experiment(
    "critic",
    "How fast must the critic learn, does it need a head start, and what does a network of its own bring?",
    [
        *(critic_setting(factor, warm) for factor in (1, 5, 20) for warm in (True, False)),
        *(critic_setting(factor, critic="separate") for factor in (1, 5)),
    ],
)
CLIP = Experiment(
    "clip",
    "Why does PPO clip: what happens in 4 epochs without it? (The KL stop of epochs is off, and no guardian acts.)",
    [
        Setting(
            "off" if clip is None else f"{clip}",
            {
                "ppo.clip_range": 0.999 if clip is None else clip,
                **({"ppo.clip_range_high": 1e6} if clip is None else {}),
                "ppo.target_kl": None,
                **UNGUARDED,
            },
        )
        for clip in (None, 0.1, 0.2, 0.3)
    ],
)
LAM = Experiment(
    "lam", "How far back does GAE look?", [Setting(f"lam {lam}", {"ppo.lam": lam}) for lam in (0.9, 0.95, 1.0)]
)
GAMMA = Experiment(
    "gamma", "Does a discount help?", [Setting(f"gamma {gamma}", {"ppo.gamma": gamma}) for gamma in (0.9, 1.0)]
)
EPOCHS = Experiment(
    "epochs", "How often is a rollout used?", [Setting(f"{n} epochs", {"ppo.epochs": n}) for n in (1, 4)]
)
LORA_RATE = 1e-3
"""Chosen among 5e-4, 1e-3, 2e-3 and 4e-3 on another seed (10)."""
BETA = Experiment(
    "beta",
    "Who should move beta?",
    [
        Setting(f"fixed {HALF_BETA}", {"kl.mode": "fixed", "kl.beta": HALF_BETA}),
        Setting(f"falling {2 * HALF_BETA} to 0", {"kl.mode": "fixed", "kl.beta": {"from": 2 * HALF_BETA, "to": 0.0}}),
        Setting("adaptive, target 4"),
    ],
)
BATCH = Experiment(
    "batch",
    f"How much noise does a small rollout bring? Every setting sees {BATCH_SAMPLES} samples.",
    [
        Setting(
            f"{size} prompts",
            {
                "rollout.prompts_per_step": size,
                "training.steps": BATCH_SAMPLES // size,
                "ppo.minibatches": min(4, size),
            },
        )
        for size in BATCHES
    ],
)
OVEROPTIMISATION = Experiment(
    "overoptimisation",
    "When does a learned reward stop being worth following, and how does that depend on its data?",
    [
        *(Setting(f"{pairs} pairs", FREE | UNGUARDED, str(pairs)) for pairs in PROXY_PAIRS),
        *(Setting(f"best of n, {pairs} pairs", {}, str(pairs), "best_of_n") for pairs in PROXY_PAIRS),
    ],
)
LORA: dict[str, object] = {"model.lora": {"rank": 16, "alpha": 32.0}, "optimizer.learning_rate": LORA_RATE}
UPPER_HALF = LORA | {"model.lora": {"rank": 16, "alpha": 32.0, "from_layer": LAYERS // 2}}
ROLES = Experiment(
    "roles",
    "What do a critic on the policy's trunk, and adapters on one frozen backbone, change at equal samples and KL?",
    [
        Setting("full, separate critic", {"ppo.critic": "separate"}),
        Setting("full, shared critic"),
        Setting("LoRA, shared critic", LORA),
        Setting("LoRA in the upper half, shared critic", UPPER_HALF),
    ],
    seeds=(0, 1, 2, 3, 4),
)
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (FRONTIER, CONTROLLER, CRITIC, ROLES, OVEROPTIMISATION, CLIP, LAM, GAMMA, EPOCHS, BETA, BATCH)
}
