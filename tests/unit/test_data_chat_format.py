"""Are a text's ids the same wherever it is used: one BOS or none, the EOS learned, the loss on answers alone?"""

from __future__ import annotations

import json

import pytest
from tokenizers.processors import TemplateProcessing

from tests.tiny import tiny_tokenizer
from tightrope.config.schema import DataSection
from tightrope.data.chat_format import ChatFormat
from tightrope.data.demonstrations import load_demonstrations
from tightrope.data.preferences import load_preferences
from tightrope.data.prompts import load_prompts

USER = {"role": "user", "content": "the cat"}
SAT = {"role": "assistant", "content": "sat on the mat"}
BOS_TEMPLATE = "{{ bos_token }} {% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% if m['role'] == 'assistant' %}{{ eos_token }} {% endif %}{% endfor %}{% if add_generation_prompt %}assistant : {% endif %}"  # noqa: E501


def bos_tokenizer(*, adds: bool, in_template: bool):
    """Has "<bos>"; puts it before every text, or writes it in the template, or both, as published tokenizers do."""
    tokenizer = tiny_tokenizer(["<bos>", *["user", ":", "assistant", "the", "cat", "sat", "on", "mat", "ran"]])
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    if adds:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
        )
    if in_template:
        tokenizer.chat_template = BOS_TEMPLATE
    return tokenizer


def write(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataSection(train=path, held_out=0)


def texts(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(list(ids))


@pytest.mark.parametrize(
    ("adds", "in_template", "plain_bos", "chat_bos"),
    [(True, True, 1, 1), (True, False, 1, 1), (False, True, 0, 1), (False, False, 0, 0)],
)
def test_one_bos_in_every_stage(tmp_path, adds, in_template, plain_bos, chat_bos):  # FAULTS B58
    tokenizer = bos_tokenizer(adds=adds, in_template=in_template)
    bos = tokenizer.bos_token_id
    for question, expected in (("the cat", plain_bos), ([USER], chat_bos)):
        answer = "sat" if isinstance(question, str) else [{"role": "assistant", "content": "sat"}]
        other = "ran" if isinstance(question, str) else [{"role": "assistant", "content": "ran"}]
        prompts = load_prompts(write(tmp_path, {"prompt": question}), tokenizer, context=64, new_tokens=8)
        pairs = write(tmp_path, {"prompt": question, "chosen": answer, "rejected": other})
        preferences = load_preferences(pairs, tokenizer, context=64).train
        sft = write(tmp_path, {"prompt": question, "completion": "sat"})
        demonstrations = load_demonstrations(sft, tokenizer, context=64).train
        sequences = [
            list(prompts.train[0].token_ids),
            *(preferences.rows.sequence(i).tolist() for i in range(2)),
            demonstrations.rows.sequence(0).tolist(),
        ]
        for ids in sequences:
            assert ids.count(bos) == expected
            assert expected == 0 or ids[0] == bos
    conversation = load_demonstrations(write(tmp_path, {"messages": [USER, SAT, USER, SAT]}), tokenizer, context=64)
    assert conversation.train.rows.tokens.tolist().count(bos) == chat_bos
    language = load_demonstrations(write(tmp_path, {"text": "the cat sat"}), tokenizer, context=64)
    assert language.train.rows.tokens.tolist().count(bos) == plain_bos


def test_a_bos_written_in_the_text_is_not_doubled():
    chat = ChatFormat(bos_tokenizer(adds=True, in_template=True))
    assert texts(chat.tokenizer, chat.prompt({"prompt": "<bos> <bos> the cat"})[1]) == ["<bos>", "the", "cat"]


def test_no_bos_and_no_none():  # FAULTS B49
    tokenizer = tiny_tokenizer()
    assert tokenizer.bos_token_id is None
    chat = ChatFormat(tokenizer)
    for row in ({"prompt": "the cat"}, {"prompt": [USER]}, {"messages": [USER]}):
        assert all(type(token) is int for token in chat.prompt(row)[1])


def test_an_eos_the_tokenizer_appends_is_not_put_into_prompts():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", tokenizer.eos_token_id)]
    )
    chat = ChatFormat(tokenizer)
    assert texts(tokenizer, chat.prompt({"prompt": "the cat"})[1]) == ["the", "cat"]
    assert texts(tokenizer, chat.completion({"prompt": "the cat", "completion": "sat"}).ids) == [
        "the", "cat", "sat", "<eos>",
    ]  # fmt: skip


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_the_eos_is_learned_also_when_it_is_the_pad(tmp_path, pad_is_eos):  # FAULTS B13, B12
    tokenizer = tiny_tokenizer(pad_is_eos=pad_is_eos)
    rows = [
        {"prompt": "the cat", "completion": "sat on"},
        {"messages": [USER, SAT]},
        {"text": "the cat sat"},
    ]
    data = load_demonstrations(write(tmp_path, *rows), tokenizer, context=64).train
    for sequence in range(3):
        assert data.rows.actions(sequence)[-1] == tokenizer.eos_token_id
        assert data.rows.sequence(sequence)[-1] == tokenizer.eos_token_id
    assert texts(tokenizer, data.rows.actions(0).tolist()) == ["sat", "on", "<eos>"]
    assert texts(tokenizer, data.rows.actions(1).tolist()) == ["sat", "on", "the", "mat", "<eos>"]
    assert texts(tokenizer, data.rows.actions(2).tolist()) == ["cat", "sat", "<eos>"]


def test_every_assistant_turn_is_trained_on_and_nothing_else():
    tokenizer = tiny_tokenizer()
    system = {"role": "system", "content": "good"}
    marked = ChatFormat(tokenizer).conversation({"messages": [system, USER, SAT, USER, SAT]})
    pairs = zip(texts(tokenizer, marked.ids), marked.is_action, strict=True)
    shown = [f"[{word}]" if action else word for word, action in pairs]
    assert " ".join(shown) == (
        "<unk> : good user : the cat assistant : [sat] [on] [the] [mat] [<eos>] "
        "user : the cat assistant : [sat] [on] [the] [mat] [<eos>]"
    )


def test_a_conversation_is_the_templates_own_ids():
    tokenizer = tiny_tokenizer()
    messages = [USER, SAT, USER, SAT]
    marked = ChatFormat(tokenizer).conversation({"messages": messages})
    assert list(marked.ids) == tokenizer(tokenizer.apply_chat_template(messages, tokenize=False))["input_ids"]


def test_a_template_that_never_writes_the_eos_gets_one_at_the_end():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    marked = ChatFormat(tokenizer).conversation({"messages": [USER, SAT, USER, SAT]})
    words = texts(tokenizer, marked.ids)
    assert words.count("<eos>") == 1 and words[-1] == "<eos>" and marked.is_action[-1]


def test_text_after_the_last_turn_is_left_out():
    """ChatML writes a line end after the end-of-turn token: a policy never samples it, so it is not taught."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {{ eos_token }} . {% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    marked = ChatFormat(tokenizer).conversation({"messages": [USER, SAT, USER, SAT]})
    words = texts(tokenizer, marked.ids)
    assert words[-1] == "<eos>"
    first_end = [i for i, word in enumerate(words) if word == "<eos>"][1]
    assert words[first_end + 1] == "." and marked.is_action[first_end] and not marked.is_action[first_end + 1]


def test_training_and_scoring_see_the_same_ids(tmp_path):  # FAULTS B21
    """What a reward model is trained on, and what PPO's scoring builds from the row and the response text."""
    chat = ChatFormat(tiny_tokenizer())
    for question, answer in (("the cat", "sat"), ([USER], [{"role": "assistant", "content": "sat"}])):
        other = "ran" if isinstance(question, str) else [{"role": "assistant", "content": "ran"}]
        row = {"prompt": question, "chosen": answer, "rejected": other}
        trained = load_preferences(write(tmp_path, row), chat.tokenizer, context=64).train.rows.sequence(0).tolist()
        scored = [*chat.prompt(row)[1], *chat.answer_ids("sat", end=True)]
        assert trained == scored
        generated_from = load_prompts(write(tmp_path, row), chat.tokenizer, context=64, new_tokens=8).train[0].token_ids
        assert trained[: len(generated_from)] == list(generated_from)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [SAT], "rejected": [{**SAT, "content": "ran"}]},
        {"prompt": "the cat", "chosen": [SAT], "rejected": [{**SAT, "content": "ran"}]},
        {"prompt": "the cat", "chosen": [USER, SAT], "rejected": [USER, {**SAT, "content": "ran"}]},
        {"chosen": [USER, SAT], "rejected": [USER, {**SAT, "content": "ran"}]},
        {"prompt": [USER], "chosen": "sat on the mat", "rejected": "ran"},
    ],
)
def test_every_form_of_a_conversational_pair_is_the_same_pair(tmp_path, row):
    tokenizer = tiny_tokenizer()
    rows = load_preferences(write(tmp_path, row), tokenizer, context=64).train.rows
    question = ["user", ":", "the", "cat", "assistant", ":"]
    assert texts(tokenizer, rows.sequence(0).tolist()) == [*question, "sat", "on", "the", "mat", "<eos>"]
    assert texts(tokenizer, rows.sequence(1).tolist()) == [*question, "ran", "<eos>"]
    assert rows.action_counts.tolist() == [5, 2]
