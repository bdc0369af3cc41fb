"""What do both sides start from? Folders made once and kept: a model, a reward model with a random head, prompts.

    $TIGHTROPE_CACHE/speed/<size>-<edition>/
        model          Hugging Face folder; of size M a link to the converted SmolLM2-135M
        reward         the same weights with a random head, also as an adapter of them
        prompts.jsonl  text and token ids; one step's, and every step answers all of them
        answers.jsonl  the prompts with two random answers each, for the stages that read a data set

Size S learns a minute from Zipf-distributed words whose sentences end with a constant hazard, so that the lengths of
sampled responses vary as they do in practice.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.speed.sizes import LORA, Size
from tightrope.config.schema import ModelSection
from tightrope.data.chat_format import ChatFormat
from tightrope.demo.standard import model_file
from tightrope.demo.tokenizer import EOS, PAD, SPECIAL, word_tokenizer
from tightrope.models.export import RewardFacts, export_reward
from tightrope.models.gguf import converted
from tightrope.models.load import load_tokenizer
from tightrope.models.roles import offline_roles
from tightrope.models.sources import cache_root

EDITION = 1
"""Goes up when what is made here changes."""
STAGE_ROWS = 64
NOUNS = """ocean river mountain music history science bread garden winter engine letter bridge island market painting
school window forest planet kitchen doctor farmer teacher camera guitar train airport museum library castle desert
harvest candle"""
THINGS = NOUNS.split()
QUESTIONS = (
    "Name one {0}.",
    "Describe a {0} in one short sentence.",
    "Is a {0} bigger than a {1}? Answer yes or no.",
    "Find a title of two words about {0} and {1}.",
    "Which single word comes to mind when you think of a {0}, a {1} and a {2}?",
    "Write one short and friendly sentence in which a {0}, a {1}, a {2} and a {3} all appear somewhere.",
    "Today I saw these: {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}. Which of them is the largest? One word, please.",
)


@dataclass(frozen=True, slots=True)
class Material:
    folder: Path

    @property
    def model(self) -> Path:
        return (self.folder / "model").resolve()

    @property
    def reward(self) -> Path:
        return self.folder / "reward"

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.jsonl"

    @property
    def answers(self) -> Path:
        return self.folder / "answers.jsonl"


def material(size: Size) -> Material:
    """Made where it is missing: a minute or two."""
    made = Material(cache_root() / "speed" / f"{size.name}-{EDITION}")
    made.folder.mkdir(parents=True, exist_ok=True)
    if not made.model.is_dir():
        make_model(size, made.folder / "model")
    if not made.reward.is_dir():
        section = ModelSection.model_validate({"name": str(made.model), "lora": LORA})
        role = offline_roles(section, "rm", 0).reward
        assert role is not None
        export_reward(role, made.model, made.reward, RewardFacts((), None, None, 0, None))
    if not made.answers.is_file():
        write_rows(size, made)
    return made


def make_model(size: Size, folder: Path) -> None:
    if size.shape is None:
        folder.symlink_to(converted(model_file()))
    else:
        pretrained(size).save_pretrained(folder)
        word_tokenizer(words_of(size), size.shape.context).save_pretrained(folder)


def words_of(size: Size) -> list[str]:
    assert size.shape is not None
    return [*SPECIAL, *(f"w{number}" for number in range(size.shape.vocabulary - len(SPECIAL)))]


def pretrained(size: Size) -> LlamaForCausalLM:
    shape = size.shape
    assert shape is not None
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(EOS),
        pad_token_id=SPECIAL.index(PAD),
    )
    model, draw = LlamaForCausalLM(config), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(size.pretraining_steps):
        # Rows of one length: what a sentence's end is followed by begins anew, so none needs padding.
        tokens = torch.tensor([running_text(size, draw, 96) for _ in range(16)])
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def running_text(size: Size, draw: random.Random, length: int) -> list[int]:
    eos = SPECIAL.index(EOS)
    words = zipf_ids(size, draw, length)
    return [eos if place >= 8 and draw.random() < size.hazard else word for place, word in enumerate(words)]


def zipf_ids(size: Size, draw: random.Random, length: int) -> list[int]:
    """The word of rank r has a chance in proportion to 1 / r."""
    assert size.shape is not None
    ranks = range(1, size.shape.vocabulary - len(SPECIAL) + 1)
    return [rank + len(SPECIAL) - 1 for rank in draw.choices(ranks, weights=[1 / rank for rank in ranks], k=length)]


def write_rows(size: Size, made: Material) -> None:
    chat, draw = ChatFormat(load_tokenizer(made.model)), random.Random(1)
    texts = [prompt_text(size, chat, draw) for _ in range(max(size.prompts, STAGE_ROWS))]
    prompts = [{"prompt": text, "ids": chat.prompt({"prompt": text})[1]} for text in texts]
    write_jsonl(made.prompts, prompts[: size.prompts])
    rows = []
    for row in prompts[:STAGE_ROWS]:
        texts_of = [decoded(chat, answer_ids(size, chat, draw)) for _ in range(2)]
        chosen, rejected = (list(chat.answer_ids(text, end=True)) for text in texts_of)
        columns = dict(zip(("chosen", "rejected"), texts_of, strict=True))
        rows.append(row | columns | {"completion": texts_of[0], "chosen_ids": chosen, "rejected_ids": rejected})
    write_jsonl(made.answers, rows)


def prompt_text(size: Size, chat: ChatFormat, draw: random.Random) -> str:
    while True:
        if size.shape is not None:
            ids = zipf_ids(size, draw, draw.randint(size.shortest, size.longest))
            return decoded(chat, ids)
        question = draw.choice(QUESTIONS).format(*draw.sample(THINGS, 8))
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        if size.shortest <= len(chat.prompt({"prompt": text})[1]) <= size.longest:
            return text


def decoded(chat: ChatFormat, ids: list[int]) -> str:
    return str(chat.tokenizer.decode(ids))


def answer_ids(size: Size, chat: ChatFormat, draw: random.Random) -> list[int]:
    """Random words, ended by chance as in the small model's text."""
    length = 1
    while length < size.new_tokens - 1 and draw.random() >= 1 / 24:
        length += 1
    if size.shape is not None:
        return zipf_ids(size, draw, length)
    return list(chat.plain_ids(" ".join(draw.choices(THINGS, k=length))))[:length]


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
