"""What does the policy answer: batched sampling in this process, with the weights the trainer holds.

The prompts of a batch run once; then one token a step for the sequences still running. A sequence leaves at
any of the end ids (finish reason ``stop``) or at the limit (``length``). What was sampled is never overwritten.
A critic on the policy's trunk is read on the way: the state that a token is drawn from is the one it values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tightrope.config.errors import TightropeError
from tightrope.maths.ragged import result_dtype
from tightrope.models.heads import Head
from tightrope.models.roles import Role
from tightrope.rollout.decode_products import decode_products
from tightrope.rollout.decoders import prefill
from tightrope.rollout.sampling import NonFiniteLogits, draw, uniforms
from tightrope.types import Prompt, Rollout, SampleKey, Sampling, TokenRows, microbatch_indices

HELD = 4
"""New tokens that a budget counts as one: a prompt's go through a pass together, a new one leaves keys and values, a
tenth or less of what an update keeps of it. A step of few sequences costs nearly as much as one of many."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What was sampled: ``tokens`` and ``logprobs`` [sequences, max_new_tokens], of which ``counts`` are real.

    ``values`` as ``logprobs``, None without a critic; ``end_values`` [sequences], 0 where a response ended itself,
    None where nobody asks.
    """

    tokens: Tensor
    logprobs: Tensor
    counts: Tensor
    stopped: Tensor
    values: Tensor | None
    end_values: Tensor | None

    def on_cpu(self) -> Draws:
        values, ends = (None if x is None else x.cpu() for x in (self.values, self.end_values))
        return Draws(self.tokens.cpu(), self.logprobs.cpu(), self.counts.cpu(), self.stopped.cpu(), values, ends)


class LocalEngine:
    """``token_budget`` bounds the sequences that run together, see ``budgeted``; None: all of them do.

    ``critic``: its values come with the rollout; with ``end_values`` those after the last token of cut responses too.
    """

    def __init__(
        self,
        policy: Role,
        tokenizer: PreTrainedTokenizerBase,
        policy_version: Callable[[], int],
        token_budget: int | None = None,
        critic: Role | None = None,
        end_values: bool = False,
    ) -> None:
        """Raises ValueError for a critic that is not a head on the policy's trunk and adapter."""
        self._policy = policy
        self._tokenizer = tokenizer
        self._policy_version = policy_version
        self._token_budget = token_budget
        self._head = None if critic is None else head_on(policy, critic)
        self._end_values = end_values

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: Sampling, key: SampleKey
    ) -> Rollout:
        """Sequences in the order of the prompts, samples of one prompt side by side.

        Raises TightropeError for a prompt that is empty or too long for the context, NonFiniteLogits when the
        policy's output is not numbers.
        """
        for prompt in prompts:
            require_room(prompt, sampling, self._policy.network.context_length)
        prompt_index = torch.arange(len(prompts)).repeat_interleave(samples_per_prompt)
        sample_index = sample_numbers(prompts, samples_per_prompt)
        lengths = torch.tensor([budgeted(len(prompt.token_ids), sampling.max_new_tokens) for prompt in prompts])
        network = self._policy.network
        with network.using(self._policy.adapter), decode_products(network, sampling.max_new_tokens):
            draws = [
                self._sample(prompts, prompt_index[batch], sample_index[batch], sampling, key)
                for batch in microbatch_indices(lengths[prompt_index], self._token_budget)
            ]
        return self._rollout(prompts, prompt_index, sample_index, sampling, draws)

    @torch.no_grad()
    def stream(self, prompt: Prompt, sampling: Sampling, key: SampleKey) -> Iterator[int]:
        """The tokens of one response as they are drawn, the same as ``generate`` draws; the end token is left out."""
        require_room(prompt, sampling, self._policy.network.context_length)
        network = self._policy.network
        uniform = uniforms(key, [(prompt.index, 0)], sampling.max_new_tokens).to(network.device)
        with network.using(self._policy.adapter):
            decoder, hidden = prefill(network, [prompt.token_ids], torch.zeros(1, dtype=torch.int64), uniform.shape[1])
            for position in range(sampling.max_new_tokens):
                token, logprob = draw(network.logits(hidden), sampling.temperature, uniform[:, position])
                if not bool(logprob.isfinite().all()):
                    raise non_finite(prompt, position, self._policy_version())
                if int(token) in sampling.eos_ids:
                    return
                yield int(token)
                if position + 1 < sampling.max_new_tokens:
                    hidden = decoder.step(token)

    def _sample(
        self, prompts: Sequence[Prompt], prompt_of: Tensor, sample_of: Tensor, sampling: Sampling, key: SampleKey
    ) -> Draws:
        """Sequences that run together. The loop works on tensors of the running sequences only."""
        network = self._policy.network
        names = [(prompts[p].index, s) for p, s in zip(prompt_of.tolist(), sample_of.tolist(), strict=True)]
        uniform = uniforms(key, names, sampling.max_new_tokens).to(network.device)
        ends = torch.tensor(sampling.eos_ids, dtype=torch.int64, device=network.device)
        ends_or_stops = torch.cat([ends, torch.tensor(sampling.stop_ids, dtype=torch.int64, device=network.device)])
        tokens = torch.zeros(uniform.shape, dtype=torch.int64, device=network.device)
        logprobs = torch.zeros(uniform.shape, dtype=result_dtype(network.unembedding_weight), device=network.device)
        counts = torch.full((len(names),), sampling.max_new_tokens, device=network.device)
        stopped = torch.zeros(len(names), dtype=torch.bool, device=network.device)
        head = self._head
        values = None if head is None else torch.zeros(uniform.shape, dtype=head.weight.dtype, device=network.device)

        running = torch.arange(len(names), device=network.device)
        needed, row_of = prompt_of.unique(return_inverse=True)  # each prompt of the batch runs once
        decoder, hidden = prefill(
            network, [prompts[p].token_ids for p in needed.tolist()], row_of, sampling.max_new_tokens
        )
        for position in range(sampling.max_new_tokens):
            token, logprob = draw(network.logits(hidden), sampling.temperature, uniform[running, position])
            if not bool(logprob.isfinite().all()):
                broken = int(running[(~logprob.isfinite()).nonzero()[0, 0]])
                raise non_finite(prompts[int(prompt_of[broken])], position, self._policy_version())
            tokens[running, position] = token
            logprobs[running, position] = logprob
            if head is not None and values is not None:
                values[running, position] = head(hidden)
            ended = torch.isin(token, ends if position < sampling.stop_after else ends_or_stops)
            if bool(ended.any()):
                counts[running[ended]] = position + 1
                stopped[running[ended]] = True
                if bool(ended.all()):
                    break
                left = decoder.keep(~ended)
                running, token = running[left], token[left]
            if position + 1 < sampling.max_new_tokens:
                hidden = decoder.step(token)
        end_values = None
        if head is not None and self._end_values:
            end_values = torch.zeros(len(names), dtype=head.weight.dtype, device=network.device)
            cut = running[~stopped[running]]
            if len(cut):
                end_values[cut] = head(decoder.step(token))
        return Draws(tokens, logprobs, counts, stopped, values, end_values).on_cpu()

    def _rollout(
        self,
        prompts: Sequence[Prompt],
        prompt_index: Tensor,
        sample_index: Tensor,
        sampling: Sampling,
        draws: Sequence[Draws],
    ) -> Rollout:
        """Ragged from here on: each sequence keeps exactly the tokens that were sampled for it."""
        responses = [ids[:n] for d in draws for ids, n in zip(d.tokens.tolist(), d.counts.tolist(), strict=True)]
        stopped = [flag for d in draws for flag in d.stopped.tolist()]
        sampled = [torch.arange(d.tokens.shape[1]) < d.counts[:, None] for d in draws]
        # The end token is an action but not text, whether or not the tokenizer calls it special.
        texts = [
            ids[:-1] if flag and ids[-1] in sampling.eos_ids else ids
            for ids, flag in zip(responses, stopped, strict=True)
        ]
        pairs = [(prompts[p].token_ids, ids) for p, ids in zip(prompt_index.tolist(), responses, strict=True)]
        return Rollout(
            rows=TokenRows.of(pairs),
            behaviour_logprobs=torch.cat([d.logprobs[real] for d, real in zip(draws, sampled, strict=True)]),
            finish_reason=tuple("stop" if flag else "length" for flag in stopped),
            responses=tuple(self._tokenizer.batch_decode(texts, skip_special_tokens=True)),
            prompts=tuple(prompts),
            prompt_index=prompt_index,
            sample_index=sample_index,
            policy_version=self._policy_version(),
            temperature=sampling.temperature,
            values=joined(
                [None if d.values is None else d.values[real] for d, real in zip(draws, sampled, strict=True)]
            ),
            end_values=joined([d.end_values for d in draws]),
        )


def budgeted(prompt: int, new: int) -> int:
    """What a sequence takes of a token budget while it is written.

    >>> budgeted(prompt=40, new=510)
    168
    """
    return prompt + -(-new // HELD)


def head_on(policy: Role, critic: Role) -> Head:
    if critic.head is None or critic.network is not policy.network or critic.adapter != policy.adapter:
        raise ValueError(f"{critic.name} is no head on the trunk of {policy.name}: its values need a pass of their own")
    return critic.head


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """All of them or none are there."""
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def sample_numbers(prompts: Sequence[Prompt], samples_per_prompt: int) -> Tensor:
    """Sample number of each sequence. A prompt that comes again in the same call goes on counting: no sample twice."""
    seen: Counter[int] = Counter()
    numbers: list[int] = []
    for prompt in prompts:
        numbers.extend(range(seen[prompt.index], seen[prompt.index] + samples_per_prompt))
        seen[prompt.index] += samples_per_prompt
    return torch.tensor(numbers, dtype=torch.int64)


def require_room(prompt: Prompt, sampling: Sampling, context: int) -> None:
    if not prompt.token_ids:
        raise TightropeError(
            "the prompt has no tokens", where=f"prompt {prompt.index}", fix="give it text: sampling needs a first token"
        )
    needed = len(prompt.token_ids) + sampling.max_new_tokens
    if needed > context:
        raise TightropeError(
            "prompt and new tokens are longer than the model's context",
            where=f"prompt {prompt.index}",
            expected=f"at most {context}",
            found=f"{len(prompt.token_ids)} + {sampling.max_new_tokens}",
            fix="lower rollout.max_new_tokens or set data.overlong",
        )


def non_finite(prompt: Prompt, position: int, policy_version: int) -> NonFiniteLogits:
    """``policy_version`` 0: nothing was trained here yet."""
    trained = "an earlier update broke the weights: resume from an earlier checkpoint with a lower learning rate"
    return NonFiniteLogits(
        "the policy's logits are not finite numbers",
        found=f"NaN or infinity at response token {position} of prompt {prompt.index}",
        fix=trained if policy_version else "the model's weights give them: take another model",
    )
