"""Which key was meant? By spelling, by the section it belongs to, and by the names other tools use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from tightrope.config.base import Section
from tightrope.config.sources import KeyPath

CLOSE = 0.72
"""Similarity (difflib ratio) from which a key is taken for a misspelling of another."""
SHORTEST_START = 3
"""So many letters of a key's beginning are taken for the key."""

KNOWN_NAMES: Mapping[str, tuple[str, ...]] = {
    # KL
    "init_kl_coef": ("kl.beta",),
    "init_kl_coeff": ("kl.beta",),
    "kl_coef": ("kl.beta",),
    "kl_coeff": ("kl.beta",),
    "kl_loss_coef": ("kl.beta",),
    "kl_penalty": ("kl.beta",),
    "kl_ctl": ("kl.mode",),
    "adap_kl_ctrl": ("kl.mode",),
    "adaptive_kl_ctrl": ("kl.mode",),
    "kl_target": ("kl.target",),
    "target_kl_coef": ("kl.target",),
    "kl_horizon": ("kl.horizon",),
    # update
    "cliprange": ("ppo.clip_range", "rloo.clip_range"),
    "clip_eps": ("ppo.clip_range", "rloo.clip_range"),
    "eps_clip": ("ppo.clip_range", "rloo.clip_range"),
    "clip_ratio": ("ppo.clip_range", "rloo.clip_range"),
    "clip_epsilon": ("ppo.clip_range", "rloo.clip_range"),
    "epsilon": ("ppo.clip_range", "rloo.clip_range", "optimizer.eps"),
    "cliprange_value": ("ppo.value_clip",),
    "value_clip_range": ("ppo.value_clip",),
    "cliprange_critic": ("ppo.value_clip",),
    "vf_coef": ("ppo.value_coef",),
    "value_loss_coef": ("ppo.value_coef",),
    "gae_lambda": ("ppo.lam",),
    "lambd": ("ppo.lam",),
    "lambda": ("ppo.lam",),
    "num_ppo_epochs": ("ppo.epochs", "rloo.epochs"),
    "ppo_epochs": ("ppo.epochs", "rloo.epochs"),
    "num_mini_batches": ("ppo.minibatches", "rloo.minibatches"),
    "ppo_mini_batch_size": ("ppo.minibatches", "rloo.minibatches"),
    "mini_batch_size": ("ppo.minibatches", "rloo.minibatches"),
    "whiten_rewards": ("ppo.whiten_advantages", "reward.normalise"),
    "normalize_advantages": ("ppo.whiten_advantages",),
    "critic_warmup": ("ppo.value_warmup_steps",),
    "freezing_actor_steps": ("ppo.value_warmup_steps",),
    # batch
    "per_device_train_batch_size": ("training.token_budget",),
    "per_gpu_train_batch_size": ("training.token_budget",),
    "micro_train_batch_size": ("training.token_budget",),
    "micro_batch_size": ("training.token_budget",),
    "ppo_micro_batch_size_per_gpu": ("training.token_budget",),
    "ppo_max_token_len_per_gpu": ("training.token_budget",),
    "gradient_accumulation_steps": ("training.token_budget",),
    "batch_size": ("sft.batch_size", "reward_model.batch_size", "dpo.batch_size", "rollout.prompts_per_step"),
    "train_batch_size": ("sft.batch_size", "reward_model.batch_size", "dpo.batch_size", "rollout.prompts_per_step"),
    "rollout_batch_size": ("rollout.prompts_per_step",),
    "max_steps": ("training.steps",),
    "total_steps": ("training.steps",),
    "total_training_steps": ("training.steps",),
    "num_steps": ("training.steps",),
    "total_episodes": ("training.steps",),
    "num_train_epochs": ("training.steps",),
    # rollout
    "response_length": ("rollout.max_new_tokens",),
    "max_response_length": ("rollout.max_new_tokens",),
    "max_completion_length": ("rollout.max_new_tokens",),
    "generate_max_len": ("rollout.max_new_tokens",),
    "max_tokens": ("rollout.max_new_tokens",),
    "num_generations": ("rollout.samples_per_prompt",),
    "n_samples_per_prompt": ("rollout.samples_per_prompt",),
    "rloo_k": ("rollout.samples_per_prompt",),
    "n": ("rollout.samples_per_prompt",),
    # reward
    "reward_model_path": ("reward.model",),
    "reward_pretrain": ("reward.model",),
    "reward_funcs": ("reward.function",),
    "reward_fn": ("reward.function",),
    "custom_reward_function": ("reward.function",),
    "missing_eos_penalty": ("reward.missing_eos.value",),
    "non_eos_penalty": ("reward.missing_eos.value",),
    "normalize_reward": ("reward.normalise",),
    "normalize": ("reward.normalise",),
    # optimiser
    "lr": ("optimizer.learning_rate",),
    "actor_learning_rate": ("optimizer.learning_rate",),
    "critic_lr": ("optimizer.critic_learning_rate",),
    "lr_scheduler_type": ("optimizer.schedule",),
    "lr_scheduler": ("optimizer.schedule",),
    "lr_warmup_steps": ("optimizer.warmup_steps",),
    "warmup_ratio": ("optimizer.warmup_steps",),
    "lr_warmup_ratio": ("optimizer.warmup_steps",),
    "adam_betas": ("optimizer.betas",),
    "adam_beta1": ("optimizer.betas",),
    "adam_beta2": ("optimizer.betas",),
    "adam_epsilon": ("optimizer.eps",),
    "adam_eps": ("optimizer.eps",),
    "max_norm": ("optimizer.max_grad_norm",),
    "grad_clip": ("optimizer.max_grad_norm",),
    "gradient_clipping": ("optimizer.max_grad_norm",),
    "l2": ("optimizer.weight_decay",),
    # model
    "path": ("model.name",),
    "model_name_or_path": ("model.name",),
    "model_name": ("model.name",),
    "pretrain": ("model.name",),
    "sft_model_path": ("model.name",),
    "torch_dtype": ("model.dtype",),
    "bf16": ("model.dtype",),
    "fp16": ("model.dtype",),
    "use_peft": ("model.lora",),
    "lora_r": ("model.lora.rank",),
    "lora_rank": ("model.lora.rank",),
    "r": ("model.lora.rank",),
    "lora_alpha": ("model.lora.alpha",),
    "lora_dropout": ("model.lora.dropout",),
    # data
    "dataset": ("data.train",),
    "dataset_name": ("data.train",),
    "train_files": ("data.train",),
    "train_file": ("data.train",),
    "prompt_data": ("data.train",),
    "eval_dataset": ("data.evaluation",),
    "val_files": ("data.evaluation",),
    "validation_file": ("data.evaluation",),
    "max_prompt_length": ("data.max_prompt_tokens",),
    "prompt_max_len": ("data.max_prompt_tokens",),
    "max_length": ("data.max_prompt_tokens",),
    "max_len": ("data.max_prompt_tokens",),
    "truncation": ("data.overlong",),
    "max_samples": ("data.limit",),
    # run
    "output_dir": ("output",),
    "save_path": ("output",),
    "default_local_dir": ("output",),
    "random_seed": ("seed",),
    "save_steps": ("checkpoint.every",),
    "save_freq": ("checkpoint.every",),
    "save_total_limit": ("checkpoint.keep",),
    "max_ckpt_num": ("checkpoint.keep",),
    "eval_steps": ("evaluation.every",),
    "test_freq": ("evaluation.every",),
    "num_sample_generations": ("samples.every",),
    "center_rewards_coefficient": ("reward_model.center_coef",),
}
"""Names of TRL, OpenRLHF, verl and their like -> our keys; the first one the stage has is meant."""


def key_tree(section: type[Section]) -> dict[str, Any]:
    """Every key a config class knows: name -> None, or the keys of the section below it."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        below = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        found[name] = key_tree(below[0]) if below else None
    return found


def all_paths(tree: Mapping[str, Any], above: KeyPath = ()) -> list[KeyPath]:
    """Every key and section, as paths."""
    found: list[KeyPath] = []
    for name, below in tree.items():
        found.append((*above, name))
        if below is not None:
            found += all_paths(cast(Mapping[str, Any], below), (*above, name))
    return found


def suggest(path: KeyPath, config_class: type[Section]) -> str | None:
    """The key that was probably meant, as a dotted path."""
    tree = key_tree(config_class)
    paths = all_paths(tree)
    name = path[-1].strip().lower().replace("-", "_").replace(" ", "_")
    level = [known for known in paths if known[:-1] == path[:-1]]
    choices = (
        [known for known in level if known[-1] == name]
        or by_other_tool(name, path[:-1], paths)
        or closest(name, {known[-1]: known for known in level})
        or beginning(name, level)
        or [known for known in nearest_section(path, paths) if known[-1] == name]
        or closest(name, {known[-1]: known for known in reversed(nearest_section(path, paths))})
        or closest(".".join((*path[:-1], name)), {".".join(known): known for known in paths})
    )
    return ".".join(choices[0]) if choices else None


def by_other_tool(name: str, section: KeyPath, paths: Iterable[KeyPath]) -> list[KeyPath]:
    """Our key for another tool's name; one in the section it was written in goes first."""
    known = set(paths)
    found = [key for key in (tuple(text.split(".")) for text in KNOWN_NAMES.get(name, ())) if key in known]
    return sorted(found, key=lambda key: key[:-1] != section)


def nearest_section(path: KeyPath, paths: Iterable[KeyPath]) -> list[KeyPath]:
    """Keys in the order in which their section resembles the one that was written, then by depth."""
    above = ".".join(path[:-1])
    return sorted(paths, key=lambda known: (-similarity(above, ".".join(known[:-1])), len(known)))


def closest(name: str, choices: Mapping[str, KeyPath]) -> list[KeyPath]:
    return [choices[near] for near in difflib.get_close_matches(name, list(choices), n=1, cutoff=CLOSE)]


def beginning(name: str, level: Iterable[KeyPath]) -> list[KeyPath]:
    """The one key that begins like this."""
    found = [known for known in level if known[-1].startswith(name)] if len(name) >= SHORTEST_START else []
    return found if len(found) == 1 else []


def is_section(name: str | None, config_class: type[Section]) -> bool:
    return any(".".join(path[:-1]) == name for path in all_paths(key_tree(config_class)) if path[1:])


def suggest_inside(section: KeyPath, below: Iterable[str], config_class: type[Section]) -> tuple[KeyPath, str] | None:
    """For a section that does not exist: a key in it that does, elsewhere, and where."""
    for name in below:
        meant = suggest((*section, name), config_class)
        if meant is not None:
            return (*section, name), meant
    return None


def similarity(left: str, right: str) -> float:
    return difflib.SequenceMatcher(None, left, right).ratio()
