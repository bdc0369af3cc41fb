"""Do our functions reproduce numbers that were computed independently, in float64 and in float32?

``golden.json`` holds the cases of everything that is built. Its (B, T) tensors are padded and masked; they are turned
into our ragged form by their mask, and what they hold behind it (9.0, 7.0, 50.0) must never be seen. A case passes only
when every number it expects was compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.scripted_engine import rollout_of
from tightrope.maths import (
    advantages,
    controllers,
    diagnostics,
    kl,
    penalties,
    policy_losses,
    preference_losses,
    ranking_losses,
)
from tightrope.maths.logprobs import chunked_logprobs, logprobs_and_entropy
from tightrope.maths.ragged import discounted_to_go, segment_last_index, segment_sum
from tightrope.maths.statistics import combine, gain_and_bias, moments
from tightrope.maths.value_losses import clipped_value_loss, explained_variance
from tightrope.training.learner import scaled_total
from tightrope.types import Loss, LossTerm, offsets_of

FILE = json.loads((Path(__file__).parent / "golden.json").read_text())
CASES = {case["name"]: case for case in FILE["cases"]}
NAMES = [
    "gae_full_mask",
    "gae_right_pad",
    "gae_discounted",
    "gae_lambda1_is_mc",
    "gae_lambda0_is_td",
    "gae_truncated_bootstrap",
    "gae_decoupled",
    "gae_length_adaptive",
    "gae_interior_mask",
    "kl_estimators",
    "kl_gradients_exact",
    "entropy_logprob_T1.0",
    "entropy_logprob_T0.7",
    "entropy_logprob_T2.0",
    "reward_terminal",
    "reward_terminal_clipped",
    "truncate_after_0",
    "truncate_after_2",
    "whiten_shift1_ddof0",
    "whiten_shift1_ddof1",
    "whiten_shift0_ddof0",
    "rm_normalisation",
    "running_reward_scaling",
    "ppo_clip",
    "ppo_clip_tight",
    "ppo_clip_higher",
    "ppo_microbatch_invariance",
    "value_loss_clip_0.2",
    "value_loss_clip_None",
    "kl_controller_ziegler",
    "kl_controller_saturation",
    "bt_pairwise",
    "bt_margin",
    "bt_label_smoothing",
    "bt_centering",
    "plackett_luce",
    "best_of_n_ce",
    "dpo",
    "cdpo",
    "rloo_advantages",
    "dynamic_sampling_filter",
    "reinforce_pp",
    "rloo_sequence_clip_loss",
    "length_linear",
    "ppo_dual_clip",
    "ppo_seq_mean_token_mean",
    "ppo_seq_mean_token_sum",
    "ppo_token_sum_const",
    "length_budget",
    "length_stop_properly",
    "length_soft_overlong",
    "missing_eos_subtract",
    "best_of_n_kl",
]


class Case:
    """One case in one precision; remembers which expected numbers were compared."""

    def __init__(self, case: Mapping, dtype: torch.dtype) -> None:
        self.params, self._inputs, self._expected = case["params"], case["inputs"], case["expected"]
        self.dtype = dtype
        self.tolerance = FILE["tolerance"][str(dtype).removeprefix("torch.")]
        self.unread = set(self._expected)

    def tensor(self, name: str) -> Tensor:
        return torch.tensor(self._inputs[name], dtype=self.dtype)

    def raw(self, name: str) -> list:
        return self._inputs[name]

    def has(self, name: str) -> bool:
        return name in self._inputs

    @property
    def mask(self) -> Tensor:
        return torch.tensor(self._inputs["mask"]).bool()

    @property
    def offsets(self) -> Tensor:
        return offsets_of(self.mask.reshape(-1, self.mask.shape[-1]).sum(1))

    def actions(self, name: str) -> Tensor:
        """A (B, T) tensor without what is masked, back to back: [actions]."""
        return self.tensor(name)[self.mask]

    def check(self, name: str, found: Tensor | float | list | None) -> None:
        """``found`` has the shape of the expected number, or is [actions] of a (B, T) tensor that is 0 elsewhere."""
        self.unread.discard(name)
        expected = torch.tensor(self._expected[name], dtype=torch.float64)
        if isinstance(found, Tensor):
            assert found.dtype in (self.dtype, torch.bool), f"{name} is {found.dtype}"
        found = torch.as_tensor(found, dtype=torch.float64).detach()
        if "mask" in self._inputs and found.shape != expected.shape and expected.shape == self.mask.shape:
            padded = torch.zeros_like(expected)
            padded[self.mask] = found
            found = padded
        torch.testing.assert_close(found, expected, **self.tolerance, msg=lambda text: f"{name}: {text}")


def gae(case: Case) -> None:
    rewards, values = case.actions("rewards"), case.actions("values")
    found = advantages.gae(
        rewards, values, case.offsets, case.params["gamma"], case.params["lam"], case.tensor("bootstrap_value")
    )
    case.check("advantages", found[0])
    case.check("returns", found[1])


def gae_interior_mask(case: Case) -> None:
    found = advantages.gae(case.actions("rewards"), case.actions("values"), case.offsets, **case.params)
    case.check("advantages", found[0])
    case.check("returns", found[1])


def gae_decoupled(case: Case) -> None:
    found = advantages.decoupled_gae(case.actions("rewards"), case.actions("values"), case.offsets, **case.params)
    case.check("advantages", found[0])
    case.check("returns", found[1])


def gae_length_adaptive(case: Case) -> None:
    lam = advantages.length_adaptive_lambda(case.offsets, case.params["alpha"])
    case.check("lam", lam.tolist() if case.dtype == torch.float32 else lam)
    found, _ = advantages.gae(case.actions("rewards"), case.actions("values"), case.offsets, case.params["gamma"], lam)
    case.check("advantages", found)


def kl_estimators(case: Case) -> None:
    policy, reference = case.actions("logprobs"), case.actions("ref_logprobs")
    for estimator in (kl.k1, kl.k2, kl.k3):
        name, found = estimator.__name__, estimator(policy, reference)
        case.check(name, found)
        case.check(f"{name}_token_mean", found.mean())
    per_sequence = segment_sum(kl.k1(policy, reference), case.offsets)
    case.check("k1_per_sequence", per_sequence)
    case.check("k1_sequence_mean", per_sequence.mean())


def kl_gradients(case: Case) -> None:
    """Every token of the vocabulary is an action; its estimate is weighted by its probability, exactly."""
    logits = case.tensor("policy_logits").requires_grad_()
    policy, reference = logits.log_softmax(0), case.tensor("ref_logits").log_softmax(0)
    weight = policy.exp().detach()
    ratio = (policy - policy.detach()).exp()

    def gradient(objective: Tensor) -> Tensor:
        return torch.autograd.grad(objective.sum(), logits, retain_graph=True)[0]

    case.check("reverse_kl", (weight * kl.k1(policy, reference)).sum())
    case.check("forward_kl", (reference.exp() * kl.k1(reference, policy)).sum())
    case.check("grad_reverse_kl", gradient(policy.exp() * kl.k1(policy, reference)))
    case.check("grad_forward_kl", gradient(reference.exp() * kl.k1(reference, policy)))
    case.check("k1_in_reward", gradient(weight * kl.k1(policy, reference).detach() * policy))
    case.check("k3_in_reward", gradient(weight * kl.k3(policy, reference).detach() * policy))
    case.check("k1_as_loss", gradient(weight * kl.k1(policy, reference)))
    case.check("k2_as_loss", gradient(weight * kl.k2(policy, reference)))
    case.check("k3_as_loss", gradient(weight * kl.k3(policy, reference)))
    case.check("ratio_times_k1_as_loss", gradient(weight * ratio * kl.k1(policy, reference)))
    case.check("ratio_times_k3_as_loss", gradient(weight * ratio * kl.k3(policy, reference)))


def entropy_and_logprobs(case: Case) -> None:
    logits, tokens = case.tensor("logits"), torch.tensor(case.raw("tokens"))
    flat, temperature = logits.reshape(-1, logits.shape[-1]), case.params["temperature"]
    identity = torch.eye(logits.shape[-1], dtype=case.dtype)
    for logprobs, entropy in (
        logprobs_and_entropy(flat, tokens.flatten(), temperature),
        chunked_logprobs(flat, identity, None, tokens.flatten(), temperature, chunk_size=3),
    ):
        assert entropy is not None
        case.check("logprobs", logprobs.reshape(tokens.shape))
        case.check("entropy", entropy.reshape(tokens.shape))


def token_rewards(case: Case) -> None:
    k1 = kl.k1(case.actions("logprobs"), case.actions("ref_logprobs"))
    rewards = advantages.token_rewards(
        case.tensor("scores"), k1, case.params["beta"], case.offsets, case.params["score_clip"]
    )
    case.check("token_rewards", rewards)
    case.check("last_index", (segment_last_index(case.offsets) - case.offsets[:-1]).tolist())
    case.check("kl_per_sequence", segment_sum(k1, case.offsets))
    total = segment_sum(rewards, case.offsets)
    case.check("total_reward", total)
    case.check("objective_mean", total.mean())


def truncate_at_token(case: Case) -> None:
    """The engine ends the responses; what it drew no more is ``pad_token`` in this file."""
    stops, after = (case.params["stop_token"],), case.params["truncate_after"]
    rollout = rollout_of(case.raw("responses"), eos_ids=(), stop_ids=stops, after=after)
    rows = [rollout.rows.actions(i).tolist() for i in range(rollout.n_sequences)]
    width = len(case.raw("responses")[0])
    case.check("responses", [ids + [case.params["pad_token"]] * (width - len(ids)) for ids in rows])
    case.check("valid", rollout.stopped)
    case.check("lengths", rollout.rows.action_counts.tolist())
    replaced = penalties.missing_eos(case.tensor("scores"), rollout.stopped, -case.params["missing_score"], "replace")
    case.check("scores", replaced)


def missing_eos(case: Case) -> None:
    case.check("scores", penalties.missing_eos(case.tensor("scores"), torch.tensor(case.raw("stopped")), **case.params))


def masked_whiten(case: Case) -> None:
    case.check("out", advantages.whiten(case.actions("x"), **case.params))


def rm_gain_bias(case: Case) -> None:
    raw = case.tensor("raw_scores")
    gain, bias = gain_and_bias(raw, **case.params)
    case.check("gain", gain)
    case.check("bias", bias)
    case.check("out", gain * raw + bias)


def running_moments(case: Case) -> None:
    seen = moments(torch.empty(0))
    for batch in case.raw("batches"):
        seen = combine(seen, moments(torch.tensor(batch, dtype=case.dtype)))
    assert seen.std is not None
    last = case.raw("batches")[-1][-1]
    case.check("count", seen.count)
    case.check("mean", seen.mean)
    case.check("variance", seen.std**2)
    case.check("last_scaled", last / seen.std)
    case.check("last_normalised", (last - seen.mean) / seen.std)


def ppo_policy_loss(case: Case) -> None:
    new, old = case.actions("new_logprobs").requires_grad_(), case.actions("old_logprobs")
    params = {"dual_clip": None, "aggregation": "token_mean", "max_tokens": 1} | case.params
    clips = [params[name] for name in ("clip_low", "clip_high", "dual_clip")]
    loss = policy_losses.ppo_clip(new, old, case.actions("advantages"), *clips)
    weights, count = policy_losses.aggregation_weights(case.offsets, params["aggregation"], params["max_tokens"])
    mean = scaled_total(
        Loss({"policy": LossTerm((weights.to(case.dtype) * loss.losses).sum(), count)}), {"policy": count}
    )
    mean.backward()
    assert new.grad is not None
    case.check("loss", mean)
    case.check("grad_new_logprobs", new.grad)
    case.check("ratio", loss.ratio)
    case.check("ratio_mean", loss.ratio.mean())
    case.check("clip_fraction", loss.clipped.to(case.dtype).mean())
    if params["dual_clip"] is not None:
        case.check("dual_clip_fraction", loss.dual_clipped.to(case.dtype).mean())
    case.check("clip_fraction_low", loss.clipped_low.to(case.dtype).mean())
    case.check("clip_fraction_high", loss.clipped_high.to(case.dtype).mean())
    case.check("approx_kl_k1", kl.k1(old, new).mean())
    case.check("approx_kl_k2", kl.k2(old, new).mean())
    case.check("approx_kl_k3", diagnostics.approx_kl(new, old).mean())


def ppo_policy_loss_microbatched(case: Case) -> None:
    """One sequence at a time: the global count gives the right gradient, and a mean of means the wrong one."""
    names, offsets = ("new_logprobs", "old_logprobs", "advantages"), case.offsets.tolist()
    pieces = [slice(a, b) for a, b in pairwise(offsets)]

    def gradient(count_of: Callable[[int], float]) -> Tensor:
        new, old, advantage = map(case.actions, names)
        new.requires_grad_()
        for piece in pieces:
            loss = policy_losses.ppo_clip(new[piece], old[piece], advantage[piece], **case.params).losses
            scaled_total(Loss({"policy": LossTerm(loss.sum(), len(loss))}), {"policy": count_of(len(loss))}).backward()
        assert new.grad is not None
        return new.grad

    case.check("grad_new_logprobs", gradient(lambda _: offsets[-1]))
    case.check("wrong_mean_of_means_grad", gradient(lambda length: length * len(pieces)))


def sequence_clip_loss(case: Case) -> None:
    new, old = case.actions("new_logprobs"), case.actions("old_logprobs")
    loss = policy_losses.sequence_clip(new, old, case.tensor("advantages"), case.offsets, **case.params)
    case.check("seq_ratio", loss.ratio)
    case.check("loss", loss.losses.mean())


def value_loss(case: Case) -> None:
    new, old, returns = case.actions("new_values").requires_grad_(), case.actions("old_values"), case.actions("returns")
    loss = clipped_value_loss(new, old, returns, case.params["value_clip"])
    loss.losses.mean().backward()
    assert new.grad is not None
    explained = explained_variance(old, returns)
    case.check("loss", loss.losses.mean())
    case.check("grad_new_values", new.grad)
    case.check("clip_fraction", loss.clipped.to(case.dtype).mean())
    case.check("explained_variance", explained["explained_variance"])
    case.check("var_explained_mse", explained["explained_variance_mse"])


def adaptive_kl(case: Case) -> None:
    beta, seen = case.params["init_beta"], []
    for measured in case.raw("kl"):
        beta = controllers.ziegler_step(
            beta, measured, case.params["target"], case.params["batch_size"], case.params["horizon"]
        )
        seen.append(beta)
    case.check("beta", torch.tensor(seen, dtype=torch.float64).to(case.dtype))


def adaptive_kl_steps_to_multiply(case: Case) -> None:
    beta, batches = 1.0, 0
    while beta < case.params["factor"] and batches < 1000:  # 227, in the file
        beta = controllers.ziegler_step(beta, 1e9, 6.0, case.params["batch_size"], case.params["horizon"])
        batches += 1
    case.check("batches", batches)


def bt_loss(case: Case) -> None:
    chosen, rejected = case.tensor("chosen").requires_grad_(), case.tensor("rejected")
    margin = case.tensor("margin") if case.has("margin") else None
    losses = preference_losses.bradley_terry(chosen, rejected, margin, case.params.get("label_smoothing", 0.0))
    centre = preference_losses.centering(chosen, rejected)
    mean = losses.mean() + case.params.get("center_coef", 0.0) * centre.mean()
    (gradient,) = torch.autograd.grad(mean, chosen)
    outcomes = diagnostics.pair_outcomes(chosen, rejected)
    found = {
        "per_pair": losses,
        "loss": mean,
        "grad_chosen": gradient,
        "center_term": centre.mean(),
        "mean_margin": (chosen - rejected).mean(),
        "accuracy": outcomes.right / len(chosen),  # this file counts a tie as wrong; ours shows ties beside it
    }
    assert outcomes.tied == 1
    for name in sorted(case.unread):
        case.check(name, found[name])


def plackett_luce(case: Case) -> None:
    scores = case.tensor("scores_by_rank")
    shuffled = torch.tensor([2, 0, 3, 1])
    found = ranking_losses.plackett_luce(scores[shuffled], shuffled + 1, torch.tensor([0, len(scores)]))
    case.check("loss", found.squeeze())


def best_of_n_ce(case: Case) -> None:
    scores, best = case.tensor("scores"), torch.tensor([case.raw("best")])
    case.check("loss", ranking_losses.best_of_n(scores, best, torch.tensor([0, len(scores)])).squeeze())


def dpo_loss(case: Case) -> None:
    inputs = [case.tensor(n) for n in ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")]
    inputs[0].requires_grad_()
    pairs = preference_losses.dpo(*inputs, **case.params)
    (gradient,) = torch.autograd.grad(pairs.losses.mean(), inputs[0])
    found = {
        "per_pair": pairs.losses,
        "loss": pairs.losses.mean(),
        "grad_policy_chosen": gradient,
        "reward_chosen": pairs.chosen_rewards,
        "reward_rejected": pairs.rejected_rewards,
        "margin": (pairs.chosen_rewards - pairs.rejected_rewards).mean(),
        "accuracy": diagnostics.pair_outcomes(pairs.chosen_rewards, pairs.rejected_rewards).accuracy,
    }
    for name in sorted(case.unread):
        case.check(name, found[name])


def grouped_advantages(case: Case) -> Tensor:
    rewards = case.tensor("rewards")
    group = torch.arange(len(rewards))[:, None].expand_as(rewards).flatten()
    return advantages.rloo_advantages(rewards.flatten(), group).reshape(rewards.shape)


def group_advantages(case: Case) -> None:
    case.check("advantages", grouped_advantages(case))


def dynamic_sampling_filter(case: Case) -> None:
    case.check("keep_group", (grouped_advantages(case) != 0).any(1))


def reinforce_pp(case: Case) -> None:
    returns = discounted_to_go(case.actions("token_rewards"), case.offsets, case.params["gamma"])
    case.check("returns", returns)
    case.check("advantages", advantages.whiten(returns, ddof=case.params["ddof"], eps=case.params["eps"]))


def length_penalty(case: Case) -> None:
    scores, cost = case.tensor("scores"), case.params["coef"]
    match case.params.get("kind", "linear"):
        case "linear":
            found = penalties.length_cost(scores, torch.tensor(case.raw("lengths")), cost)
        case "over_budget":
            found = penalties.over_budget(scores, torch.tensor(case.raw("lengths")), cost, case.params["budget"])
        case "soft_overlong":
            lengths, budget, buffer = torch.tensor(case.raw("lengths")), case.params["budget"], case.params["buffer"]
            found = penalties.soft_overlong(scores, lengths, cost, budget, buffer)
        case _:
            found = penalties.stop_properly(scores, ~torch.tensor(case.raw("truncated")), cost)
    case.check("scores", found)


def best_of_n_kl(case: Case) -> None:
    case.check(
        "kl", torch.tensor([diagnostics.best_of_n_kl(n) for n in case.raw("n")], dtype=torch.float64).to(case.dtype)
    )


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        adaptive_kl,
        adaptive_kl_steps_to_multiply,
        best_of_n_ce,
        best_of_n_kl,
        bt_loss,
        dpo_loss,
        dynamic_sampling_filter,
        entropy_and_logprobs,
        gae,
        gae_decoupled,
        gae_interior_mask,
        gae_length_adaptive,
        group_advantages,
        kl_estimators,
        kl_gradients,
        length_penalty,
        masked_whiten,
        missing_eos,
        plackett_luce,
        ppo_policy_loss,
        ppo_policy_loss_microbatched,
        reinforce_pp,
        rm_gain_bias,
        running_moments,
        sequence_clip_loss,
        token_rewards,
        truncate_at_token,
        value_loss,
    )
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, dtype: torch.dtype) -> None:
    case = Case(CASES[name], dtype)
    CHECKS[CASES[name]["fn"]](case)
    assert not case.unread, f"expected numbers that were never compared: {sorted(case.unread)}"


def test_every_case_of_the_file_is_run_and_none_is_missing() -> None:
    assert len(FILE["cases"]) == len(CASES)
    assert sorted(CASES) == sorted(NAMES)
    assert {case["fn"] for case in CASES.values()} == set(CHECKS)


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, list):
        for entry in value:
            yield from numbers(entry)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        yield value


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_case_fails_on_a_number_that_is_a_little_wrong(name: str) -> None:
    """The comparison itself can fail: each expected value, moved by a ten-thousandth, is noticed."""
    for key, expected in CASES[name]["expected"].items():
        if not list(numbers(expected)):
            continue
        moved = json.loads(json.dumps(CASES[name]))
        moved["expected"][key] = shift(expected)
        with pytest.raises(AssertionError):
            CHECKS[moved["fn"]](Case(moved, torch.float64))


def shift(value: list | float) -> list | float:
    return [shift(entry) for entry in value] if isinstance(value, list) else value + 1e-4
