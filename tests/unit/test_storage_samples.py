"""Samples: what is kept, what is computed, and that model text cannot command a terminal."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightrope.config.errors import TightropeError
from tightrope.storage.metrics import MetricStore
from tightrope.storage.samples import SampleStore, printable
from tightrope.types import Prompt, Rollout, Scores, TokenRows


def rollout_of(responses, lengths, first_index=10):
    prompts = tuple(Prompt(first_index + i, (1,), f"prompt {first_index + i}", {}) for i in range(len(responses)))
    rows = TokenRows.of([([1], [2] * length) for length in lengths])
    return Rollout(
        rows=rows,
        behaviour_logprobs=torch.full((sum(lengths),), -1.0),
        finish_reason=tuple("stop" for _ in responses),
        responses=tuple(responses),
        prompts=prompts,
        prompt_index=torch.arange(len(responses)),
        sample_index=torch.zeros(len(responses), dtype=torch.int64),
        policy_version=0,
        temperature=1.0,
    )


def scores_of(rollout, **fields):
    n = rollout.n_sequences
    return Scores(torch.arange(n, dtype=torch.float32), {"raw": torch.arange(n) * 2.0}, **fields)


@pytest.fixture
def store(tmp_path):
    opened = SampleStore(tmp_path / "run.db")
    yield opened
    opened.close()


def test_a_sample_comes_back_with_its_numbers(store):
    rollout = rollout_of(["one", "two"], [1, 3])
    store.keep(4, 1, rollout, scores_of(rollout, ref_logprobs=torch.full((4,), -1.5)), "train")
    sample = store.read(4, "train")[1]
    assert (sample.prompt, sample.response, sample.prompt_index, sample.attempt) == ("prompt 11", "two", 11, 1)
    assert (sample.n_tokens, sample.reward, sample.parts, sample.kl) == (3, 1.0, {"raw": 2.0}, 1.5)
    assert sample.finish_reason == "stop" and sample.reference is None


def test_kl_uses_the_trainers_logprobs_where_it_recomputed_them(store):
    rollout = rollout_of(["one"], [2])
    scores = scores_of(rollout, ref_logprobs=torch.full((2,), -1.5), policy_logprobs=torch.full((2,), -1.25))
    store.keep(0, 0, rollout, scores, "train")
    assert store.read(0, "train")[0].kl == 0.5


def test_without_a_reference_there_is_no_kl(store):
    rollout = rollout_of(["one"], [2])
    store.keep(0, 0, rollout, scores_of(rollout), "train")
    assert store.read(0, "train")[0].kl is None


def test_a_repeated_step_replaces_its_samples(store):
    for texts in (["a", "b"], ["c", "d"]):
        rollout = rollout_of(texts, [1, 1])
        store.keep(3, 0, rollout, scores_of(rollout), "train")
    assert [sample.response for sample in store.read(3, "train")] == ["c", "d"]


def test_count_and_every_limit_what_is_kept(tmp_path):
    store = SampleStore(tmp_path / "run.db", count=2, every=2)
    rollout = rollout_of(list("abcd"), [1] * 4)
    for step in range(4):
        for split in ("train", "probe"):
            store.keep(step, 0, rollout, scores_of(rollout), split)
    assert store.steps("train") == [0, 2] and store.steps("probe") == [0, 1, 2, 3]
    assert [sample.response for sample in store.read(2, "train")] == ["a", "c"]
    store.close()


def test_keep_steps_leaves_the_newest_steps_and_the_first_probe(tmp_path):
    store = SampleStore(tmp_path / "run.db", every=2, keep_steps=3)
    rollout = rollout_of(["a"], [1])
    for step in range(12):
        for split in ("train", "probe"):
            store.keep(step, 0, rollout, scores_of(rollout), split)
    assert store.steps("train") == [6, 8, 10]
    assert store.steps("probe") == [0, 9, 10, 11]
    assert store.read(11, "probe")[0].reference == "a"
    store.close()


def test_a_resume_prunes_to_the_same_steps(tmp_path):
    store = SampleStore(tmp_path / "run.db", keep_steps=2)
    rollout = rollout_of(["a"], [1])
    for steps in (range(6), range(4, 9)):  # killed after step 5, resumed from a checkpoint entering step 4
        store.cut_after(steps[0] - 1)
        for step in steps:
            store.keep(step, 0, rollout, scores_of(rollout), "train")
    assert store.steps("train") == [7, 8]
    store.close()


def test_probe_rows_show_the_first_probe_until_the_reference_itself_is_stored(store):
    for step, texts in ((0, ["start a", "start b"]), (10, ["later a", "later b"])):
        rollout = rollout_of(texts, [1, 1])
        store.keep(step, 0, rollout, scores_of(rollout), "probe")
    assert [sample.reference for sample in store.read(10, "probe")] == ["start a", "start b"]
    assert [sample.reference for sample in store.read(0, "probe")] == [None, None]
    store.keep_references(rollout_of(["ref a", "ref b"], [1, 1]), "probe")
    assert [sample.reference for sample in store.read(10, "probe")] == ["ref a", "ref b"]


def test_cut_after_forgets_later_steps(store):
    rollout = rollout_of(["a"], [1])
    for step in range(4):
        store.keep(step, 0, rollout, scores_of(rollout), "train")
    assert store.cut_after(1) == 2
    assert store.steps("train") == [0, 1]


def test_hostile_and_broken_text_is_stored_and_read_back(store):
    texts = ["\x1b[2J\x00\u202e", "half a pair \ud800", "'; DROP TABLE samples; --"]
    rollout = rollout_of(texts, [1, 1, 1])
    store.keep(0, 0, rollout, scores_of(rollout), "train")
    assert [sample.response for sample in store.read(0, "train")] == [texts[0], "half a pair \\ud800", texts[2]]


def test_a_run_without_samples_says_so(tmp_path):
    MetricStore(tmp_path / "run.db").close()
    with pytest.raises(TightropeError, match="holds no samples"):
        SampleStore(tmp_path / "run.db", read_only=True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x08", "a\\x0db\\x08"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eevil\u2069", "\\u202eevil\\u2069"),
        ("\u200e\u061c\ufeff\u2028", "\\u200e\\u061c\\ufeff\\u2028"),
        ("line\n\ttab", "line\n\ttab"),
        ("👩‍💻 é 漢字 سلام", "👩‍💻 é 漢字 سلام"),
    ],
)
def test_printable_escapes_commands_and_keeps_writing(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_printable_leaves_no_control_character_and_can_be_encoded(text):
    shown = printable(text)
    shown.encode()
    assert not any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert printable(shown) == shown
