"""A conversation with one model: its turns, what of them fits the context, and answers as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tightrope.algorithms.plugins import STAGES
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_resolved
from tightrope.config.schema import ModelSection
from tightrope.data.chat_format import ChatFormat
from tightrope.models.load import context_length, eos_ids, load_network, load_tokenizer, resolve_model_folder
from tightrope.models.lora import add_adapter, load_adapter, read_shape
from tightrope.models.manifest import ADAPTER_FOLDER, base_hash, read_manifest, require_kind
from tightrope.models.roles import Role, load_policy, load_reward
from tightrope.rollout.local_engine import LocalEngine
from tightrope.scoring.reward_model import RewardModel
from tightrope.types import Prompt, Sample, SampleKey, Sampling

HALF_WRITTEN = "\N{REPLACEMENT CHARACTER}"
"""How a decoder shows a character of which only the first bytes are there."""


@dataclass
class Conversation:
    """``turns`` are messages without the system's, which is ``system``."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    @property
    def messages(self) -> list[dict[str, str]]:
        first = [] if not self.system else [{"role": "system", "content": self.system}]
        return [*first, *self.turns]


class Talker:
    """``compares``: the model is a LoRA run over a base that can still be found, so the base answers too, with
    the adapter switched off. ``context``: tokens of prompt and answer together.
    """

    def __init__(self, name: Path, reward: Path | None, seed: int) -> None:
        folder = resolve_model_folder(name)
        require_kind(folder, "policy")
        reward_folder = None if reward is None else resolve_model_folder(reward)
        if reward_folder is not None:
            require_kind(reward_folder, "reward")
        self.context = context_length(folder)
        tokenizer = load_tokenizer(folder)
        self._format = ChatFormat(tokenizer)
        self._eos_ids = eos_ids(folder, tokenizer)
        policy, base = loaded(name, folder)
        self._engine = LocalEngine(policy, tokenizer, lambda: 0)
        self._base = None if base is None else LocalEngine(base, tokenizer, lambda: 0)
        self._reward = None
        if reward_folder is not None:
            self._reward = RewardModel(load_reward(reward_folder), load_tokenizer(reward_folder))
        self._seed, self._asked = seed, 0

    @property
    def has_template(self) -> bool:
        return bool(self._format.tokenizer.chat_template)

    @property
    def compares(self) -> bool:
        return self._base is not None

    def fit(self, talk: Conversation, new_tokens: int) -> int:
        """Drops the oldest turns until question and answer fit; returns how many went."""
        dropped = 0
        while len(self._prompt(talk).token_ids) + new_tokens > self.context:
            if len(talk.turns) < 2:
                raise TightropeError(
                    "the question is too long for the model",
                    expected=f"at most {self.context - new_tokens} tokens",
                    found=str(len(self._prompt(talk).token_ids)),
                )
            # With a template a conversation begins with the user: question and answer go together.
            going = 2 if len(talk.turns) > 2 else 1
            del talk.turns[:going]
            dropped += going
        return dropped

    def answer(self, talk: Conversation, temperature: float, new_tokens: int, *, base: bool = False) -> Iterator[str]:
        """Pieces of text; another answer each time, the same for the same seed and number of the question."""
        engine = self._base if base else self._engine
        assert engine is not None
        self._asked += 1
        key, ids, shown = SampleKey(self._seed, 0, self._asked), list[int](), 0
        sampling = Sampling(temperature, new_tokens, self._eos_ids)
        for token in engine.stream(self._prompt(talk), sampling, key):
            ids.append(token)
            text = self._text(ids)
            if not text.endswith(HALF_WRITTEN):
                yield text[shown:]
                shown = len(text)
        yield self._text(ids)[shown:]

    def score(self, talk: Conversation, answer: str) -> float | None:
        """What the reward model says about the answer to the conversation so far; None without a reward model."""
        if self._reward is None:
            return None
        return self._reward.score([Sample(self._prompt(talk), answer, "stop", 0)])[0]

    def _text(self, ids: list[int]) -> str:
        return str(self._format.tokenizer.decode(ids, skip_special_tokens=True))

    def _prompt(self, talk: Conversation) -> Prompt:
        row = (
            {"messages": talk.messages}
            if self.has_template
            else {"prompt": "\n".join(message["content"] for message in talk.messages)}
        )
        text, ids = self._format.prompt(row)
        return Prompt(0, ids, text, row)


def loaded(name: Path, folder: Path) -> tuple[Role, Role | None]:
    """The model, and its base behind the same weights where the adapter was trained on a base that is still there."""
    adapter = folder / ADAPTER_FOLDER
    manifest = read_manifest(folder)
    if manifest is not None and (adapter / "adapter_config.json").is_file() and (name / "resolved.yaml").is_file():
        _, config = load_resolved(name / "resolved.yaml", STAGES)
        base = Path(config.model.name)
        if base.exists():
            base = resolve_model_folder(base)
            if base_hash(base) == manifest.base:
                network = load_network(base, ModelSection(name=str(base)))
                add_adapter(network, "policy", read_shape(adapter), seed=0)
                load_adapter(network, "policy", adapter)
                return Role("policy", network, "policy"), Role("base", network)
    return load_policy(folder), None
