"""Under which name does a number of a record appear in a tracker? Ours; on demand those of TRL's PPO beside them."""

from __future__ import annotations

from collections.abc import Mapping

from tightrope.records import StepRecord

TRL_NAMES: Mapping[str, str] = {
    "objective/kl": "kl_seq",
    "objective/entropy": "entropy_seq",
    "objective/scores": "reward_raw",
    "objective/rlhf_reward": "reward_minus_kl",
    "objective/non_score_reward": "kl_cost",
    "policy/approxkl_avg": "approx_kl",
    "policy/clipfrac_avg": "clip_fraction",
    "policy/entropy_avg": "entropy_tok",
    "loss/policy_avg": "loss_policy",
    "loss/value_avg": "loss_value",
    "val/clipfrac_avg": "value_clip_fraction",
    "val/ratio": "ratio",
    "val/num_eos_tokens": "stopped_responses",
    "lr": "learning_rate",
}
"""TRL's name -> ours. A metric that the run does not have is absent under both names."""


def tracked_metrics(record: StepRecord, *, learning_rate: float, trl_names: bool) -> dict[str, float]:
    """Every number of a record, the seconds by phase too; a probe's names stand under ``probe/``.

    >>> record = StepRecord("ppo/probe", 3, 0, {"reward": 0.5}, seconds={"probe": 0.2})
    >>> tracked_metrics(record, learning_rate=1e-5, trl_names=False)
    {'probe/reward': 0.5, 'probe/seconds/probe': 0.2}
    """
    _, _, part = record.stage.partition("/")
    prefix = f"{part}/" if part else ""
    found = dict(record.metrics) | dict(record.controls)
    found |= {f"seconds/{name}": value for name, value in record.seconds.items()}
    if trl_names and not part:
        found |= trl_metrics(record, learning_rate)
    return {f"{prefix}{name}": float(value) for name, value in found.items()}


def trl_metrics(record: StepRecord, learning_rate: float) -> dict[str, float]:
    """TRL counts what the KL costs per response (-beta x KL) as ``non_score_reward``, and ``eps`` is episodes a second.

    >>> record = StepRecord("ppo", 0, 0, {"kl_seq": 2.0, "reward": 1.0}, {"beta": 0.1})
    >>> trl_metrics(record, 1e-5)["objective/rlhf_reward"]
    0.8
    """
    known = dict(record.metrics)
    if "learning_rate_factor" in record.controls:
        known["learning_rate"] = record.controls["learning_rate_factor"] * learning_rate
    if "kl_seq" in known and "beta" in record.controls:
        known["kl_cost"] = -record.controls["beta"] * known["kl_seq"]
        if "reward" in known:
            known["reward_minus_kl"] = known["reward"] + known["kl_cost"]
    if "stopped_share" in known and "sequences" in known:
        known["stopped_responses"] = known["stopped_share"] * known["sequences"]
    found = {theirs: known[ours] for theirs, ours in TRL_NAMES.items() if ours in known}
    seconds = sum(record.seconds.values())
    return found | ({"eps": known["sequences"] / seconds} if seconds > 0 and "sequences" in known else {})
