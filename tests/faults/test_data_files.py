"""What does a person read when a data file is broken? One line, ``file:line`` first, and what to do."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiny import tiny_tokenizer
from tightrope.config.errors import TightropeError
from tightrope.config.schema import DataSection
from tightrope.data.demonstrations import load_demonstrations
from tightrope.data.preferences import load_preferences
from tightrope.data.prompts import load_prompts
from tightrope.data.readers import read_rows

TOKENIZER = tiny_tokenizer()
PROMPT = '{"prompt": "the cat"}\n'
SFT = '{"prompt": "the cat", "completion": "sat"}\n'
PAIR = '{"prompt": "the cat", "chosen": "sat", "rejected": "ran"}\n'


def load(kind, section):
    if kind == "prompts":
        return load_prompts(section, TOKENIZER, context=32, new_tokens=8)
    if kind == "sft":
        return load_demonstrations(section, TOKENIZER, context=32)
    return load_preferences(section, TOKENIZER, context=32)


def complaint(tmp_path, kind, content, name="rows.jsonl", **section):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with pytest.raises(TightropeError) as caught:
        load(kind, DataSection(train=path, held_out=0, **section))
    said = str(caught.value)
    assert said.isprintable()
    return said.replace(str(path), name)


def turns(*roles, column="messages"):
    return json.dumps({column: [{"role": role, "content": "the cat"} for role in roles]}) + "\n"


BROKEN = [
    # the file
    ("prompts", "", "rows.jsonl: ", "no rows"),
    ("prompts", "\n\n", "rows.jsonl: ", "no rows"),
    ("prompts", PROMPT * 6 + '{"prompt": "the cat"\n', "rows.jsonl:7: ", "broken JSON"),
    ("prompts", PROMPT * 6 + "{'prompt': 'the cat'}\n", "rows.jsonl:7: ", "broken JSON"),
    ("prompts", PROMPT + '{"prompt": "the cat"} {"prompt": "x"}\n', "rows.jsonl:2: ", "Extra data"),
    ("prompts", PROMPT + "hello\n", "rows.jsonl:2: ", "found hello"),
    ("prompts", "[" + PROMPT.strip() + "]", "rows.jsonl:1: ", "one JSON object a line"),
    ("prompts", PROMPT + '"the cat"\n', "rows.jsonl:2: ", "not an object"),
    ("prompts", PROMPT + "null\n", "rows.jsonl:2: ", "not an object"),
    ("prompts", PROMPT + '{"prompt": "the cat", "score": NaN}\n', "rows.jsonl:2: ", "NaN is not JSON; write null"),
    ("prompts", PROMPT + '{"prompt": "the cat", "score": -Infinity}\n', "rows.jsonl:2: ", "-Infinity is not JSON"),
    ("prompts", PROMPT + '{"prompt": "a", "prompt": "b"}\n', "rows.jsonl:2: ", "`prompt` is there twice"),
    ("prompts", PROMPT + '{"prompt": "a", "n": ' + "1" * 5000 + "}\n", "rows.jsonl:2: ", "cannot be read"),
    ("prompts", PROMPT + '{"prompt": ' + "[" * 100_000 + "\n", "rows.jsonl:2: ", "JSON"),
    ("prompts", PROMPT.encode() + b'{"prompt": "caf\xe9"}\n', "rows.jsonl:2: ", "not UTF-8; found byte 0xe9"),
    ("prompts", PROMPT.encode("utf-16"), "rows.jsonl:1: ", "UTF-16"),
    # columns
    ("prompts", '{"input": "the cat", "output": "sat"}\n', "rows.jsonl:1: ",
     "expected `prompt`, found input, output; rename `input` to `prompt`, if it holds that"),
    ("prompts", '{"promt": "the cat"}\n', "rows.jsonl:1: ", "rename `promt` to `"),
    ("prompts", PROMPT + "{}\n", "rows.jsonl:2: ", "found no columns"),
    ("sft", '{"prompt": "the cat", "response": "sat"}\n', "rows.jsonl:1: ", "rename `response` to `"),
    ("sft", '{"conversations": []}\n', "rows.jsonl:1: ", "rename `conversations` to `"),
    ("rm", '{"prompt": "the cat", "chosen": "sat"}\n', "rows.jsonl:1: ", "expected `rejected`"),
    ("rm", '{"prompt": "the cat", "winner": "sat", "loser": "ran"}\n', "rows.jsonl:1: ", "rename `winner` to `"),
    # texts
    ("prompts", PROMPT + '{"prompt": null}\n', "rows.jsonl:2: ", "`prompt` is null; expected text"),
    ("prompts", PROMPT + '{"prompt": ""}\n', "rows.jsonl:2: ", "`prompt` is empty; expected text"),
    ("prompts", PROMPT + '{"prompt": " \\n"}\n', "rows.jsonl:2: ", "`prompt` is empty"),
    ("prompts", PROMPT + '{"prompt": 3}\n', "rows.jsonl:2: ", "`prompt` is not text; expected text, found int 3"),
    ("prompts", PROMPT + '{"prompt": "a \\ud800 b"}\n', "rows.jsonl:2: ", "lone surrogate"),
    ("sft", SFT + '{"prompt": "the cat", "completion": ""}\n', "rows.jsonl:2: ", "`completion` is empty"),
    ("sft", SFT + '{"prompt": "the cat", "completion": null}\n', "rows.jsonl:2: ", "`completion` is null"),
    ("sft", SFT + '{"text": ""}\n', "rows.jsonl:2: ", "`text` is empty"),
    ("rm", PAIR + '{"prompt": "the cat", "chosen": null, "rejected": "ran"}\n', "rows.jsonl:2: ", "`chosen` is null"),
    ("rm", PAIR + '{"prompt": "a", "chosen": "sat", "rejected": "sat"}\n', "rows.jsonl:2: ", "text; remove the row"),
    # conversations
    ("sft", turns("user"), "rows.jsonl:1: ", "ends without an answer"),
    ("sft", turns("assistant"), "rows.jsonl:1: ", "turn 1 of `messages` is out of order"),
    ("sft", turns("user", "user", "assistant"), "rows.jsonl:1: ", "turn 2 of `messages` is out of order"),
    ("sft", turns("user", "system", "assistant"), "rows.jsonl:1: ", "found system after user"),
    ("sft", turns("human", "assistant"), "rows.jsonl:1: ", "unknown role"),
    ("sft", '{"messages": []}\n', "rows.jsonl:1: ", "found an empty list"),
    ("sft", '{"messages": "hello"}\n', "rows.jsonl:1: ", "no conversation"),
    ("sft", '{"messages": [{"from": "user", "value": "x"}]}\n', "rows.jsonl:1: ", "rename `from` to `"),
    ("sft", '{"messages": [{"role": "user", "content": null}]}\n', "rows.jsonl:1: ", "content of turn 1"),
    ("prompts", turns("user", "assistant", column="prompt"), "rows.jsonl:1: ", "remove the answer from the prompt"),
    ("prompts", turns("system", column="prompt"), "rows.jsonl:1: ", "asks nothing"),
    ("prompts", '{"prompt": []}\n', "rows.jsonl:1: ", "an empty list"),
    # lengths
    ("prompts", PROMPT + json.dumps({"prompt": "cat " * 25}) + "\n", "rows.jsonl:2: ", "at most 24 tokens, found 25"),
    ("sft", SFT + json.dumps({"prompt": "cat", "completion": "cat " * 32}), "rows.jsonl:2: ", "at most 32 tokens"),
    ("rm", PAIR + json.dumps({"prompt": "cat", "chosen": "cat " * 31, "rejected": "dog"}) + "\n", "rows.jsonl:2: ",
     "at most 32 tokens, found 33"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "content", "begins", "says"), BROKEN)
def test_broken_rows_are_named_with_their_line(tmp_path, kind, content, begins, says):
    said = complaint(tmp_path, kind, content)
    assert said.startswith(begins)
    assert says in said


@pytest.mark.parametrize(
    ("content", "begins", "says"),
    [
        ("prompt\n", "rows.csv: ", "no rows"),
        ("prompt,x\nthe cat,1\nthe, cat,1\n", "rows.csv:3: ", "expected 2 cells, found 3"),
        ("prompt,x\nthe cat,1\nthe cat\n", "rows.csv:3: ", "expected 2 cells, found 1"),
        ('prompt,x\n"the\ncat",1\n"open,2\n', "rows.csv:4: ", "broken CSV"),
        ('prompt\n"the\ncat"\n" "\n', "rows.csv:4: ", "`prompt` is empty"),
        ("prompt,prompt\na,b\n", "rows.csv:1: ", "a column is there twice; found prompt"),
        ("question\nthe cat\n", "rows.csv:2: ", "rename `question` to `"),
        (b"prompt\nthe cat\ncaf\xe9\n", "rows.csv:3: ", "not UTF-8"),
    ],
)
def test_broken_csv_is_named_with_its_line(tmp_path, content, begins, says):
    said = complaint(tmp_path, "prompts", content, name="rows.csv")
    assert said.startswith(begins) and says in said


def test_broken_parquet_is_named_with_its_row(tmp_path):
    said = complaint(tmp_path, "prompts", b"PAR1 not really", name="rows.parquet")
    assert said.startswith("rows.parquet: the parquet file cannot be read")
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["the cat", None]}), path)
    with pytest.raises(TightropeError, match=r"rows\.parquet:2: `prompt` is null"):
        load("prompts", DataSection(train=path))


@pytest.mark.parametrize(
    ("name", "says"),
    [("row.jsonl", "did you mean .*rows.jsonl"), ("rows.xlsx", "unknown kind"), ("rows", "found no ending")],
)
def test_a_wrong_file_name(tmp_path, name, says):
    (tmp_path / "rows.jsonl").write_text(PROMPT)
    with pytest.raises(TightropeError, match=says):
        load("prompts", DataSection(train=tmp_path / name))


def test_a_folder_is_no_data_file(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(TightropeError, match="cannot be read"):
        load("prompts", DataSection(train=tmp_path / "folder.jsonl"))


def test_no_row_left_says_why(tmp_path):
    rows = json.dumps({"prompt": "cat " * 25}) + "\n"
    said = complaint(tmp_path, "prompts", rows * 3, overlong="drop")
    assert "no row of the file can be used; found dropped 3 (the prompt over 24 tokens): rows.jsonl:1," in said


def test_a_cap_as_long_as_the_context_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(PROMPT)
    with pytest.raises(TightropeError, match="no room for a prompt; expected less than the model's context of 32"):
        load_prompts(DataSection(train=path), TOKENIZER, context=32, new_tokens=32)
    with pytest.raises(TightropeError, match=r"set data\.max_prompt_tokens to at most 24"):
        load_prompts(DataSection(train=path, max_prompt_tokens=25), TOKENIZER, context=32, new_tokens=8)


def test_a_tokenizer_without_eos_cannot_teach_stopping(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(SFT)
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(TightropeError, match="no EOS token, so no answer can end"):
        load_demonstrations(DataSection(train=path), tokenizer, context=32)


def test_a_conversation_needs_a_template(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(turns("user", "assistant"))
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(TightropeError, match=r"rows\.jsonl:1: a conversation, but the tokenizer has no chat template"):
        load_demonstrations(DataSection(train=path), tokenizer, context=32)


def test_a_template_that_raises_is_told_with_the_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(turns("user", "assistant"))
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('only one turn please') }}"
    with pytest.raises(TightropeError, match=r"rows\.jsonl:1: the chat template refuses .*only one turn please"):
        load_demonstrations(DataSection(train=path), tokenizer, context=32)


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(turns("user", "assistant", "user", "assistant"))
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }} : {% if loop.last %}{{ m['content'] }}{% endif %} {% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    with pytest.raises(TightropeError, match=r"rows\.jsonl:1: the chat template rewrites earlier text at turn"):
        load_demonstrations(DataSection(train=path), tokenizer, context=32)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
    name=st.sampled_from(["fuzz.jsonl", "fuzz.csv", "fuzz.parquet"]),
)
def test_no_bytes_break_the_readers(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)
    try:
        assert read_rows(path)
    except TightropeError as error:
        assert str(error).isprintable()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
COLUMNS = st.sampled_from(["prompt", "messages", "completion", "text", "chosen", "rejected", "role", "content"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row=st.dictionaries(COLUMNS, JSON_VALUES | st.lists(st.dictionaries(COLUMNS, JSON_VALUES), max_size=3), max_size=4),
    kind=st.sampled_from(["prompts", "sft", "rm"]),
)
def test_no_row_breaks_the_loaders(tmp_path, row, kind):
    path = tmp_path / "fuzz.jsonl"
    path.write_text(json.dumps(row) + "\n")
    try:
        load(kind, DataSection(train=path, held_out=0))
    except TightropeError as error:
        assert str(error).isprintable()
