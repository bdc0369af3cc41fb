"""Faults of sampling, of the forward pass, and of who is who: tokens, positions, temperature, roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.proof import table_model
from benchmarks.proof.faults import Fault, Function, Patch
from benchmarks.proof.faults_credit import LONG_TRACE
from benchmarks.proof.runs import Variant
from tightrope.assemble import online
from tightrope.models import packed_forward
from tightrope.models.backbone import Network
from tightrope.models.packed_forward import PackedLayout, token_logprobs
from tightrope.models.roles import Role
from tightrope.rollout import local_engine
from tightrope.rollout.local_engine import LocalEngine
from tightrope.scoring import judge
from tightrope.training import policy_objective
from tightrope.training.run import OnlineRun
from tightrope.types import Rollout, SampleKey, TokenRows, offsets_of

ADAPTERS = Variant(form="fixed", lora=True)


def at_temperature_one(logprobs: Function) -> Function:
    return lambda role, rows, temperature, **others: logprobs(role, rows, 1.0, **others)


def drawn_at_temperature_one(draw: Function) -> Function:
    return lambda logits, temperature, uniform: draw(logits, 1.0, uniform)


def dropout_on(init: Function) -> Function:
    def training(self: Network, *given: Any, **others: Any) -> None:
        init(self, *given, **others)
        self.model.train()

    return training


def rewritten(rollout: Rollout, sequences: list[tuple[list[int], list[bool], Tensor]]) -> Rollout:
    """The rollout with other tokens, marks of actions and log-probs of those."""
    return replace(
        rollout,
        rows=TokenRows.with_mask([ids for ids, _, _ in sequences], [marks for _, marks, _ in sequences]),
        behaviour_logprobs=torch.cat([logprobs for _, _, logprobs in sequences]),
    )


def parts_of(rollout: Rollout, index: int) -> tuple[list[int], list[bool], Tensor]:
    ids, start, end = rollout.rows.sequence(index).tolist(), *rollout.rows.action_offsets[index : index + 2].tolist()
    marks = [False] * (len(ids) - (end - start)) + [True] * (end - start)
    return ids, marks, rollout.behaviour_logprobs[start:end]


def end_token_no_action(rollout_of: Function) -> Function:
    """The usual mask made of ids: everything that is the end (or pad) token is left out of the loss."""

    def masked(self: LocalEngine, *given: Any) -> Rollout:
        rollout: Rollout = rollout_of(self, *given)
        sequences = []
        for index, stopped in enumerate(rollout.stopped.tolist()):
            ids, marks, logprobs = parts_of(rollout, index)
            sequences.append((ids, [*marks[:-1], False], logprobs[:-1]) if stopped else (ids, marks, logprobs))
        return rewritten(rollout, sequences)

    return masked


def prompt_token_is_action(rollout_of: Function) -> Function:
    """The last token of a prompt that has more than one."""

    def widened(self: LocalEngine, *given: Any) -> Rollout:
        rollout: Rollout = rollout_of(self, *given)
        sequences = []
        for index in range(rollout.n_sequences):
            ids, marks, logprobs = parts_of(rollout, index)
            last = marks.index(True) - 1
            if last > 0:
                row = TokenRows.of([(ids[:last], [ids[last]])])
                own = token_logprobs(self._policy, row, rollout.temperature).logprobs.detach()
                marks, logprobs = [*marks[:last], True, *marks[last + 1 :]], torch.cat([own, logprobs])
            sequences.append((ids, marks, logprobs))
        return rewritten(rollout, sequences)

    return widened


def last_action_twice(rollout_of: Function) -> Function:
    def doubled(self: LocalEngine, *given: Any) -> Rollout:
        rollout: Rollout = rollout_of(self, *given)
        rows, last = rollout.rows, rollout.rows.action_offsets[1:] - 1
        repeats = torch.ones(rows.n_actions, dtype=torch.int64).index_fill(0, last, 2)
        return replace(
            rollout,
            rows=replace(
                rows,
                action_positions=rows.action_positions.repeat_interleave(repeats),
                action_offsets=offsets_of(rows.action_counts + 1),
            ),
            behaviour_logprobs=rollout.behaviour_logprobs.repeat_interleave(repeats),
        )

    return doubled


def same_numbers_every_step(key: Function) -> Function:
    return lambda self: SampleKey(self.core.seed, 0, 0)


def sampler_keeps_old_weights(made: Function) -> Function:
    def stale(policy: Role, *others: Any) -> LocalEngine:
        return made(Role("policy", policy.network.copy()), *others)

    return stale


def positions_run_on(network_states: Function) -> Function:
    """As far as the model has positions; then from the start again."""

    def states(network: Network, rows: TokenRows) -> Tensor:
        positions = torch.arange(rows.n_tokens) % network.context_length
        layout = PackedLayout(rows.sequence_offsets)
        return network.trunk(rows.tokens[None], positions[None], layout, use_cache=False).last_hidden_state[0]

    return states


def neighbours_attend(init: Function) -> Function:
    return lambda self, offsets, *others: init(self, offsets[[0, -1]], *others)


def no_shift(predicting_positions: Function) -> Function:
    return lambda rows: rows.action_positions


def reference_is_policy(reference_of: Function) -> Function:
    return lambda network, lora: Role("reference", network)


def adapter_never_on(activate: Function) -> Function:
    return lambda self, adapter: activate(self, None)


def adapter_always_on(activate: Function) -> Function:
    return lambda self, adapter: activate(self, "policy" if "policy" in self.adapters else None)


ROLLOUT_FAULTS = (
    Fault("dropout on", (Patch(Network, "__init__", dropout_on),), LONG_TRACE),
    Fault("temperature forgotten by the sampler", (Patch(local_engine, "draw", drawn_at_temperature_one),), LONG_TRACE),
    Fault(
        "temperature forgotten in the update",
        (Patch(policy_objective, "token_logprobs", at_temperature_one),),
        LONG_TRACE,
    ),
    Fault("temperature forgotten for the reference", (Patch(judge, "token_logprobs", at_temperature_one),), LONG_TRACE),
    Fault("end token left out of the loss", (Patch(LocalEngine, "_rollout", end_token_no_action),), LONG_TRACE),
    Fault(
        "last prompt token counted as an action", (Patch(LocalEngine, "_rollout", prompt_token_is_action),), LONG_TRACE
    ),
    Fault("last action counted twice", (Patch(LocalEngine, "_rollout", last_action_twice),), LONG_TRACE),
    Fault("the same random numbers in every step", (Patch(OnlineRun, "key", same_numbers_every_step),), LONG_TRACE),
    Fault("sampler keeps the first weights", (Patch(online, "LocalEngine", sampler_keeps_old_weights),), LONG_TRACE),
    Fault(
        "positions run on into the next row", (Patch(packed_forward, "network_states", positions_run_on),), LONG_TRACE
    ),
    Fault(
        "packed rows see their neighbours",
        (Patch(PackedLayout, "__init__", neighbours_attend),),
        LONG_TRACE,
    ),
    Fault("no next-token shift", (Patch(packed_forward, "_predicting_positions", no_shift),), LONG_TRACE),
    Fault("reference is the policy itself", (Patch(table_model, "reference_of", reference_is_policy),), LONG_TRACE),
    Fault("adapter never switched on", (Patch(Network, "_activate", adapter_never_on),), ADAPTERS),
    Fault("adapter never switched off", (Patch(Network, "_activate", adapter_always_on),), ADAPTERS),
)
