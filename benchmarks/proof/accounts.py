"""Every number that one step hands on, recomputed from the tables and the texts, token by token in float64.

What is compared is what the live objects of the step hold. PPO's lambda is 1 or 0 here, so that no recursion is needed
to know a return: it is the sum of the rewards to come, whatever the critic says, or one reward and the next value.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from benchmarks.proof.problem import Array
from benchmarks.proof.reading import Reading
from benchmarks.proof.runs import Pieces, Table, Variant
from benchmarks.proof.table_model import policy_logits, value_table
from tightrope.training.describe import online_record

Entry = tuple[str, float, float]
"""What, the largest difference, its bound."""
CLOSE = 1e-5
"""Float32 log-probs, values, rewards and their sums against float64: 4e-7 was measured."""
STEPS_BEFORE = 3
"""So that policy and reference differ and the critic is not zero."""


def accounts(variant: Variant) -> Iterator[Entry]:
    variant = variant.but(variant.stage, epochs=1)  # the update's statistics are then those of the sampling policy
    if variant.stage == "ppo":
        variant = variant.but("ppo", value_warmup_steps=0)
    table = Table.of(variant)
    table.prepare()
    for _ in range(STEPS_BEFORE):
        table.step()
    logits, pieces = policy_logits(variant.problem, table.built.roles), table.pieces()
    reading = Reading.of(variant.problem, pieces.rollout)
    yield from of_the_rollout(table, pieces, reading, logits)
    if variant.stage == "rloo":
        yield (
            "advantages",
            difference(pieces.experience.advantages, leave_one_out(table, pieces, reading, logits)),
            CLOSE,
        )
    elif not variant.lora:
        yield from of_the_critic(table, pieces, reading, logits)
    yield from of_the_record(table, pieces, reading, logits)


def of_the_rollout(table: Table, pieces: Pieces, reading: Reading, logits: Array) -> Iterator[Entry]:
    yield "responses whose actions are not what was sampled", wrong_rows(pieces, reading), 0.0
    logprobs, ref_logprobs = reading.logprobs(logits), reading.logprobs(reading.problem.reference)
    yield "log-probs of the sampler", difference(pieces.rollout.behaviour_logprobs, logprobs), CLOSE
    yield "log-probs before the update", difference(pieces.experience.old_logprobs, logprobs), CLOSE
    yield "log-probs of the reference", difference(pieces.scores.ref_logprobs, ref_logprobs), CLOSE
    yield "reward of a response", difference(pieces.scores.reward, reading.scores(table.scale())), CLOSE
    yield "rewards of the actions", difference(pieces.experience.rewards, token_rewards(table, reading, logits)), CLOSE


def of_the_critic(table: Table, pieces: Pieces, reading: Reading, logits: Array) -> Iterator[Entry]:
    table_of_values = value_table(reading.problem, table.built.roles)
    values = reading.values(table_of_values)
    yield "values", difference(pieces.scores.values, values), CLOSE
    rewards, options = token_rewards(table, reading, logits), table.variant.changes["ppo"]
    ending = reading.end_values(table_of_values) * options.get("bootstrap_truncated", False)
    if options["lam"] == 1:
        returns = reading.to_go(rewards) + reading.for_each_action(ending)
    else:
        returns = rewards + reading.one_later(values, ending)
    yield "returns", difference(pieces.experience.returns, returns), CLOSE
    raw = returns - values
    yield "advantages", difference(pieces.experience.advantages, (raw - raw.mean()) / raw.std()), 10 * CLOSE


def of_the_record(table: Table, pieces: Pieces, reading: Reading, logits: Array) -> Iterator[Entry]:
    report = table.run.learner.update(pieces.experience)
    metrics = online_record(table.run, pieces.rollout, pieces.scores, pieces.experience, report).metrics
    kl = reading.logprobs(logits) - reading.logprobs(reading.problem.reference)
    yield "metric kl_seq", abs(metrics["kl_seq"] - reading.per_response(kl).mean()), CLOSE
    yield "metric entropy_tok", abs(metrics["entropy_tok"] - reading.entropy(logits).mean()), CLOSE
    yield "metric ratio_error in the first epoch", metrics["ratio_error"], CLOSE


def token_rewards(table: Table, reading: Reading, logits: Array) -> Array:
    rewards = -reading.problem.beta * (reading.logprobs(logits) - reading.logprobs(reading.problem.reference))
    rewards[reading.ends - 1] += reading.scores(table.scale())
    return rewards


def leave_one_out(table: Table, pieces: Pieces, reading: Reading, logits: Array) -> Array:
    """Each response against the mean of the others that answer the same prompt of the batch."""
    totals, group = reading.per_response(token_rewards(table, reading, logits)), pieces.rollout.prompt_index.numpy()
    siblings = [(group == own) & (np.arange(len(group)) != i) for i, own in enumerate(group)]
    return reading.for_each_action(totals - np.array([totals[others].mean() for others in siblings]))


def wrong_rows(pieces: Pieces, reading: Reading) -> float:
    """Responses of which the rows do not say: prompt, then exactly the sampled tokens, each an action once."""
    rows, wrong = pieces.rollout.rows, 0
    for index, response in enumerate(reading.responses):
        prompt = reading.problem.prompts[response.prompt]
        start, end = rows.action_offsets[index : index + 2].tolist()
        begin = int(rows.sequence_offsets[index]) + len(prompt)
        expected = list(range(begin, begin + len(response.tokens)))
        right = rows.sequence(index).tolist() == [*prompt, *response.tokens]
        wrong += not (right and rows.action_positions[start:end].tolist() == expected)
    return float(wrong)


def difference(found: Tensor | None, expected: Array) -> float:
    """The largest; infinite where there are more or fewer numbers."""
    if found is None or found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found.double().numpy() - expected).max())
