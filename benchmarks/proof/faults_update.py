"""Faults of the update: losses, clips, gradients, optimizers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.proof.faults import Fault, Function, Patch
from benchmarks.proof.faults_credit import LONG_TRACE
from tightrope.algorithms import ppo
from tightrope.assemble import parts
from tightrope.maths.advantages import gae
from tightrope.maths.value_losses import ValueLoss
from tightrope.training import learner
from tightrope.training.optimisers import NamedAdamW
from tightrope.types import Experience, Loss, LossTerm, PolicyOutput

EPS = 1e-8


def mean_of_means(scaled_total: Function) -> Function:
    return lambda loss, counts: scaled_total(loss, {name: term.count for name, term in loss.terms.items()})


def optimistic_value_clip(clipped_value_loss: Function) -> Function:
    def smaller(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> ValueLoss:
        assert clip is not None
        near = old_values + (values - old_values).clamp(-clip, clip)
        losses = torch.minimum((values - returns).square(), (near - returns).square()) / 2
        return ValueLoss(losses, clipped_value_loss(values, old_values, returns, clip).clipped)

    return smaller


def optimistic_policy_clip(ppo_clip: Function) -> Function:
    def larger(logprobs: Tensor, old: Tensor, advantages: Tensor, low: float, high: float, dual: float | None) -> Any:
        ratio = (logprobs - old).exp()
        losses = torch.minimum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
        return ppo_clip(logprobs, old, advantages, low, high, dual)._replace(losses=losses)

    return larger


def old_logprobs_are_new(loss: Function) -> Function:
    def followed(self: Any, output: PolicyOutput, batch: Experience) -> Loss:
        return loss(self, output, replace(batch, old_logprobs=output.logprobs.detach()))

    return followed


def advantages_recomputed(loss: Function) -> Function:
    def fresh(self: Any, output: PolicyOutput, batch: Experience) -> Loss:
        assert output.values is not None
        advantages, _ = gae(batch.rewards, output.values.detach(), batch.rows.action_offsets, 1.0, 1.0)
        white = (advantages - advantages.mean()) / (advantages.std() + EPS)
        return loss(self, output, replace(batch, advantages=white))

    return fresh


def advantages_with_gradient(loss: Function) -> Function:
    def leaking(self: Any, output: PolicyOutput, batch: Experience) -> Loss:
        assert output.values is not None and batch.returns is not None
        advantages = batch.returns - output.values
        white = (advantages - advantages.detach().mean()) / (advantages.detach().std() + EPS)
        return loss(self, output, replace(batch, advantages=white))

    return leaking


def entropy_sign(loss: Function) -> Function:
    def negated(self: Any, output: PolicyOutput, batch: Experience) -> Loss:
        found: Loss = loss(self, output, batch)
        terms = dict(found.terms)
        if "entropy" in terms:
            terms["entropy"] = LossTerm(-terms["entropy"].sum, terms["entropy"].count, terms["entropy"].weight)
        return Loss(terms, found.stats)

    return negated


def gradients_kept(clear_gradients: Function) -> Function:
    return lambda self: None


def one_rate_for_all(group_options: Function) -> Function:
    return lambda section, group: group_options(section, "policy")


def schedule_one_step_ahead(linear_decay_with_warmup: Function) -> Function:
    return lambda step, total, warmup: linear_decay_with_warmup(step + 1, total, warmup)


def last_rows_left_out(split_evenly: Function) -> Function:
    """Minibatches of equal size; what does not fill the last one is dropped."""
    return lambda order, pieces: split_evenly(order[: len(order) // pieces * pieces], pieces)


UPDATE_FAULTS = (
    Fault(
        "mean of micro-batch means",
        (Patch(learner, "scaled_total", mean_of_means),),
        LONG_TRACE.but("training", token_budget=512),
    ),
    Fault("value clip takes the smaller loss", (Patch(ppo, "clipped_value_loss", optimistic_value_clip),), LONG_TRACE),
    Fault("policy clip takes the smaller loss", (Patch(ppo, "ppo_clip", optimistic_policy_clip),), LONG_TRACE),
    Fault("old log-probs replaced by the new ones", (Patch(ppo.PPO, "loss", old_logprobs_are_new),), LONG_TRACE),
    Fault("advantages recomputed with new values", (Patch(ppo.PPO, "loss", advantages_recomputed),), LONG_TRACE),
    Fault("policy loss trains the critic", (Patch(ppo.PPO, "loss", advantages_with_gradient),), LONG_TRACE),
    Fault("entropy bonus with the wrong sign", (Patch(ppo.PPO, "loss", entropy_sign),), LONG_TRACE),
    Fault("gradients not cleared", (Patch(NamedAdamW, "clear_gradients", gradients_kept),), LONG_TRACE),
    Fault("critic has the policy's learning rate", (Patch(parts, "group_options", one_rate_for_all),), LONG_TRACE),
    Fault(
        "learning rate one step ahead", (Patch(parts, "linear_decay_with_warmup", schedule_one_step_ahead),), LONG_TRACE
    ),
    Fault("last rows of an epoch left out", (Patch(learner, "split_evenly", last_rows_left_out),), LONG_TRACE),
)
