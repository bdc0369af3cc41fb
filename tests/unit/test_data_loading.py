"""What becomes of each row: read in any format, kept, cut, left out or held out, and all of it reported."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import tiny_tokenizer
from tightrope.config.schema import DataSection
from tightrope.data.demonstrations import load_demonstrations
from tightrope.data.preferences import load_preferences
from tightrope.data.preflight import PreflightReport
from tightrope.data.prompts import load_prompts
from tightrope.data.readers import read_rows
from tightrope.data.splits import prompt_key, split_by_prompt
from tightrope.storage.labels import LabelItem, LabelSession, export_preferences, write_items

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_token_id
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def write(tmp_path, rows, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prompts(path, context=32, new_tokens=8, **section):
    data = load_prompts(DataSection(train=path, **section), TOKENIZER, context=context, new_tokens=new_tokens)
    assert accounted(data.report)
    return data


def demonstrations(path, context, **section):
    data = load_demonstrations(DataSection(train=path, held_out=0, **section), TOKENIZER, context=context)
    assert accounted(data.report)
    return data


def preferences(path, context=32, **section):
    data = load_preferences(DataSection(train=path, **{"held_out": 0, **section}), TOKENIZER, context=context)
    assert accounted(data.report)
    return data


def accounted(report: PreflightReport) -> bool:
    return report.train + report.held_out + len(report.dropped) == report.read


def words(ids):
    return TOKENIZER.convert_ids_to_tokens(list(ids))


ROWS = [{"prompt": 'the cat\nsat, "on"', "n": "1"}, {"prompt": "café 🐈 مرحبا \u200d \u00a0x ", "n": "2"}]


def test_the_same_rows_from_every_format(tmp_path):
    import csv

    jsonl = write(tmp_path, ROWS)
    with (tmp_path / "rows.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["prompt", "n"])
        writer.writeheader()
        writer.writerows(ROWS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for path in (jsonl, tmp_path / "rows.csv", tmp_path / "rows.parquet"):
        assert [dict(row.values) for row in read_rows(path)] == ROWS


def test_byte_order_mark_windows_line_ends_and_blank_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \r\n{"prompt": "b"}')
    rows = read_rows(path)
    assert [(row.number, row.values["prompt"]) for row in rows] == [(1, "a"), (4, "b")]


def test_a_line_separator_inside_a_text_ends_no_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a\u2028b\u0085c"}\n{"prompt": "d"}\n', encoding="utf-8")
    assert [row.values["prompt"] for row in read_rows(path)] == ["a\u2028b\u0085c", "d"]


@pytest.mark.parametrize("name", ["big.jsonl", "big.csv"])
def test_a_row_of_ten_megabytes(tmp_path, name):
    text = "cat " * 2_500_000
    path = tmp_path / name
    path.write_text(json.dumps({"prompt": text}) if name.endswith("jsonl") else f'prompt\n"{text}"\n')
    assert read_rows(path)[0].values["prompt"] == text


def test_extra_columns_are_kept_for_reward_functions(tmp_path):  # FAULTS B70, B83
    row = {"prompt": "  the  cat \u00a0", "answer": [1, {"x": None}], "id": 7, "": "odd"}
    prompt = prompts(write(tmp_path, [row])).train[0]
    assert dict(prompt.row) == row
    assert prompt.text == row["prompt"]


def test_an_index_names_one_row_of_both_files(tmp_path):
    train = write(tmp_path, [{"prompt": word} for word in WORDS])
    other = write(tmp_path, [{"prompt": "cat"}, {"prompt": "dog"}], "other.jsonl")
    data = prompts(train, evaluation=other, limit=4)
    assert [prompt.index for prompt in data.train] == [0, 1, 2, 3]
    assert [prompt.index for prompt in data.held_out] == [4, 5]
    assert data.report.read == 6


def test_prompts_in_both_files_are_told(tmp_path):
    train = write(tmp_path, [{"prompt": "the cat"}, {"prompt": "the dog"}])
    other = write(tmp_path, [{"prompt": "a bird"}, {"prompt": "the   cat"}], "other.jsonl")
    (warning,) = prompts(train, evaluation=other).report.warnings
    assert warning.startswith("1 prompts of ") and f"{other}:2" in warning


@pytest.mark.parametrize(
    ("policy", "kept", "dropped", "trimmed"),
    [("drop", ["the"], ["rows.jsonl:1"], []), ("trim", ["one", "the"], [], ["rows.jsonl:1"])],
)
def test_overlong_prompts(tmp_path, policy, kept, dropped, trimmed):  # FAULTS B68
    path = write(tmp_path, [{"prompt": "four three two one"}, {"prompt": "the"}])
    data = prompts(path, context=9, new_tokens=8, overlong=policy, held_out=0)
    assert [words(prompt.token_ids)[0] for prompt in data.train] == kept
    assert all(len(prompt.token_ids) + 8 <= 9 for prompt in data.train)
    assert [note.where.split("/")[-1] for note in data.report.dropped] == dropped
    assert [note.where.split("/")[-1] for note in data.report.trimmed] == trimmed
    assert data.report.longest == 1


def test_prompt_of_exactly_the_limit_fits(tmp_path):
    path = write(tmp_path, [{"prompt": " ".join(WORDS)}])
    assert len(prompts(path, context=18, new_tokens=8).train[0].token_ids) == 10
    assert len(prompts(path, max_prompt_tokens=3, overlong="trim").train[0].token_ids) == 3


def test_completions_longer_than_the_cap_are_warned_of(tmp_path):
    rows = [{"prompt": "the cat", "completion": " ".join(WORDS[:n])} for n in (8, 9, 2)]
    (warning,) = prompts(write(tmp_path, rows), held_out=0).report.warnings
    assert "67% of the completions" in warning
    assert prompts(write(tmp_path, rows[1:]), held_out=0).report.warnings == ()


# Rows that do not fit: ten words of prompt, four of answer. FAULTS B50
def test_trimming_cuts_the_prompts_beginning_first(tmp_path):
    path = write(tmp_path, [{"prompt": " ".join(WORDS), "completion": "cat dog bird fish"}])
    rows = demonstrations(path, 10, overlong="trim").train.rows
    assert words(rows.sequence(0).tolist()) == [
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "cat",
        "dog",
        "bird",
        "fish",
        "<eos>",
    ]
    assert words(rows.actions(0).tolist()) == ["cat", "dog", "bird", "fish", "<eos>"]


def test_a_cut_answer_has_no_eos(tmp_path):
    path = write(tmp_path, [{"prompt": " ".join(WORDS), "completion": "cat dog bird fish"}])
    rows = demonstrations(path, 5, overlong="trim").train.rows
    assert words(rows.sequence(0).tolist()) == ["ten", "cat", "dog", "bird", "fish"]
    assert rows.action_counts.tolist() == [4]


def test_a_long_prompt_alone_can_be_the_reason(tmp_path):
    path = write(tmp_path, [{"prompt": " ".join(WORDS), "completion": "cat"}, {"prompt": "the", "completion": "cat"}])
    assert len(demonstrations(path, 32, overlong="drop", max_prompt_tokens=5).train) == 1
    rows = demonstrations(path, 32, overlong="trim", max_prompt_tokens=2).train.rows
    assert words(rows.sequence(0).tolist()) == ["nine", "ten", "cat", "<eos>"]


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.integers(1, 12), answer=st.integers(1, 12), context=st.integers(2, 20), cap=st.none() | st.integers(1, 8)
)
def test_trimmed_rows_fit_and_always_have_something_to_learn(tmp_path_factory, prompt, answer, context, cap):
    path = write(
        tmp_path_factory.mktemp("trim"), [{"prompt": "cat " * prompt, "completion": " ".join(["dog"] * answer)}]
    )
    rows = demonstrations(path, context, overlong="trim", max_prompt_tokens=cap).train.rows
    n_prompt = rows.n_tokens - rows.n_actions
    assert rows.n_tokens <= context and rows.n_actions >= 1 and 1 <= n_prompt <= min(prompt, cap or prompt)
    whole = rows.n_actions == answer + 1
    assert (rows.tokens[-1] == EOS) == whole
    assert whole or rows.n_tokens == context
    assert whole or n_prompt == 1  # the answer loses nothing before the prompt has lost all it can


def test_pairs_lose_only_the_prompts_beginning(tmp_path):
    rows = [
        {"prompt": " ".join(WORDS), "chosen": "cat dog", "rejected": "cat"},
        {"prompt": "the", "chosen": "cat", "rejected": "dog " * 20},
    ]
    data = preferences(write(tmp_path, rows), context=8, overlong="trim")
    assert words(data.train.rows.sequence(0).tolist()) == [
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "cat",
        "dog",
        "<eos>",
    ]
    assert words(data.train.rows.sequence(1).tolist()) == ["six", "seven", "eight", "nine", "ten", "cat", "<eos>"]
    assert len(data.train) == 1 and "an answer alone" in data.report.dropped[0].reason


def test_pairs_of_the_same_tokens_are_left_out_and_named(tmp_path):  # FAULTS B26
    rows = [
        {"prompt": "the", "chosen": "zebra", "rejected": "giraffe"},
        {"prompt": "a", "chosen": "cat", "rejected": "dog"},
    ]
    data = preferences(write(tmp_path, rows))
    assert len(data.train) == 1
    assert data.report.dropped[0].where.endswith("rows.jsonl:1") and "same tokens" in data.report.dropped[0].reason


def test_the_report_shows_rows_with_their_loss_mask(tmp_path):  # FAULTS B52
    data = preferences(write(tmp_path, [{"prompt": "the cat", "chosen": "sat", "rejected": "ran"}]))
    assert data.report.lines()[-2:] == ["chosen ▸  the cat⟦sat <eos>⟧", "rejected ▸  the cat⟦ran <eos>⟧"]


def test_what_label_writes_is_what_the_reward_model_reads(tmp_path):
    labels = tmp_path / "answers.jsonl"
    conversation = ({"role": "user", "content": "the cat"},)
    write_items(
        labels, [LabelItem("a", "the dog", ("ran", "sat")), LabelItem("b", "", ("ran", "sat"), messages=conversation)]
    )
    session = LabelSession(labels, "someone")
    while pair := session.next_pair():
        session.vote(pair, "A" if pair.item.responses[pair.first] == "sat" else "B", 1.0)
    session.close()
    output = tmp_path / "preferences.jsonl"
    export_preferences(labels, output)
    rows = preferences(output).train.rows
    assert sorted(" ".join(words(rows.sequence(i).tolist())) for i in (0, 2)) == [
        "the dog sat <eos>",
        "user : the cat assistant : sat <eos>",
    ]


PROMPT_KEYS = st.lists(st.sampled_from("abcdefghijklmnopqrst"), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(keys=PROMPT_KEYS, held_out=st.integers(0, 80))
def test_a_split_uses_every_row_and_shares_no_prompt(keys, held_out):
    split = split_by_prompt(keys, held_out)
    assert sorted((*split.train, *split.held_out)) == list(range(len(keys)))
    assert not {keys[i] for i in split.train} & {keys[i] for i in split.held_out}
    assert split.train
    assert bool(split.held_out) == (held_out > 0 and len(set(keys)) > 1)


def test_a_split_is_about_prompts_and_not_about_places():
    keys = [f"prompt {i}" for i in range(200)]
    held_out = {keys[i] for i in split_by_prompt(keys, 20).held_out}
    assert len(held_out) == 20
    backwards = keys[::-1]
    assert {backwards[i] for i in split_by_prompt(backwards, 20).held_out} == held_out
    assert split_by_prompt(keys, 20).note is None


def test_a_small_file_holds_out_fewer_rows_and_says_so():
    split = split_by_prompt([str(i) for i in range(10)], 64)
    assert len(split.held_out) == 2
    assert split.note == "2 rows are held out, not 64: the file has 10 prompts"


def test_prompts_that_differ_in_white_space_are_one_prompt(tmp_path):
    rows = [{"prompt": "the" + " " * n + "cat"} for n in range(1, 30)] + [{"prompt": "the dog"}]
    data = prompts(write(tmp_path, rows), held_out=5)
    assert {prompt_key(p.text) for p in data.train}.isdisjoint({prompt_key(p.text) for p in data.held_out})
