"""Labels: votes hold, undo takes back, pairs are fair, preferences say what was chosen."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.config.errors import TightropeError
from tightrope.storage.labels import (
    LabelItem,
    LabelSession,
    export_preferences,
    pairs_of,
    preference_rows,
    preferences_of,
    read_items,
    read_votes,
    votes_path,
    write_items,
)


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "answers.jsonl"
    write_items(path, [LabelItem("x", "p", ("one", "two")), LabelItem("y", "q", ("three", "four", "five"))])
    return path


def session_of(labels, annotator="ann"):
    return LabelSession(labels, annotator)


def test_items_come_back_equal(tmp_path):
    items = [
        LabelItem(
            "a", "p\u2028", ("x", ""), ({"role": "user", "content": "p"},), {"label": 3}, ("policy", "reference")
        ),
        LabelItem("b", "", ()),
    ]
    write_items(tmp_path / "l.jsonl", items)
    assert read_items(tmp_path / "l.jsonl") == items


def test_an_id_used_twice_is_named(tmp_path):
    write_items(tmp_path / "l.jsonl", [LabelItem("a", "p", ("x", "y"))] * 2)
    with pytest.raises(TightropeError, match=r"l\.jsonl:2.*twice"):
        read_items(tmp_path / "l.jsonl")


def test_an_export_that_cannot_be_written_is_one_clear_error(labels, tmp_path):
    with pytest.raises(TightropeError, match=r"missing/out\.jsonl.*cannot be written"):
        export_preferences(labels, tmp_path / "missing" / "out.jsonl")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TightropeError, match="cannot be read"):
        read_items(tmp_path / "missing.jsonl")


def test_every_pair_of_different_responses_is_asked_once():
    item = LabelItem("a", "p", ("x", "y", "x", "z"))
    pairs = {pair.key[1:] for pair in pairs_of(item, 0, "ann")}
    assert pairs == {(0, 1), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert len(pairs_of(item, 0, "ann")) == 5


def test_sides_are_balanced_and_fixed_by_seed_and_annotator():
    items = [LabelItem(str(i), "p", ("x", "y")) for i in range(400)]
    sides = [pairs_of(item, 0, "ann")[0].first for item in items]
    assert 150 < sum(sides) < 250  # 5 standard deviations around 200
    assert sides == [pairs_of(item, 0, "ann")[0].first for item in items]
    assert sides != [pairs_of(item, 1, "ann")[0].first for item in items]
    assert sides != [pairs_of(item, 0, "bob")[0].first for item in items]


def test_all_prompts_are_asked_about_before_any_is_asked_again(labels):
    session = session_of(labels)
    asked = []
    while (pair := session.next_pair()) is not None:
        asked.append(pair.item.id)
        session.vote(pair, "tie", 1.0)
    assert asked == ["x", "y", "y", "y"] and session.done == session.total == 4


@pytest.mark.parametrize(("choice", "chosen"), [("A", 0), ("B", 1)])
def test_the_choice_refers_to_the_order_shown(labels, choice, chosen):
    session = session_of(labels)
    pair = session.next_pair()
    session.vote(pair, choice, 2.0)
    order = (pair.first, pair.second)
    (row,) = preference_rows(labels)
    assert row == {
        "prompt": "p",
        "chosen": pair.item.responses[order[chosen]],
        "rejected": pair.item.responses[order[1 - chosen]],
    }


def test_ties_skips_and_unknown_items_make_no_rows(labels):
    session = session_of(labels)
    for choice in ("tie", "skip", "A"):
        session.vote(session.next_pair(), choice, 1.0)
    found = preferences_of([LabelItem("x", "p", ("one", "two"))], read_votes(labels))
    assert (found.rows, found.ties, found.skips, found.unknown) == ([], 1, 1, 2)


def test_conversations_give_message_lists(tmp_path):
    messages = ({"role": "user", "content": "hi"},)
    write_items(tmp_path / "l.jsonl", [LabelItem("a", "hi", ("x", "y"), messages)])
    session = session_of(tmp_path / "l.jsonl")
    pair = session.next_pair()
    session.vote(pair, "A", 1.0)
    (row,) = preference_rows(tmp_path / "l.jsonl")
    assert row["prompt"] == list(messages)
    assert row["chosen"] == [{"role": "assistant", "content": pair.item.responses[pair.first]}]


def test_undo_is_an_event_of_its_own_and_works_after_a_restart(labels):
    first = session_of(labels)
    pair = first.next_pair()
    first.vote(pair, "A", 1.0)
    first.close()
    second = session_of(labels)
    assert second.undo().item == "x"
    assert second.next_pair() == pair and read_votes(labels) == []
    assert second.undo() is None
    assert [json.loads(line)["event"] for line in votes_path(labels).read_text().splitlines()] == ["vote", "undo"]


def test_people_do_not_undo_each_others_votes(labels):
    ann, bob = session_of(labels), session_of(labels, "bob")
    ann.vote(ann.next_pair(), "A", 1.0)
    bob.vote(bob.next_pair(), "B", 1.0)
    assert ann.undo().annotator == "ann" and ann.undo() is None
    assert [vote.annotator for vote in read_votes(labels)] == ["bob"]


def test_of_two_votes_of_one_person_on_one_pair_the_later_holds(labels):
    one, two = session_of(labels), session_of(labels)  # two windows
    pair = one.next_pair()
    one.vote(pair, "A", 1.0)
    two.vote(pair, "B", 1.0)
    assert [vote.choice for vote in read_votes(labels)] == ["B"]


def test_a_vote_cut_short_by_a_kill_is_left_out_and_asked_again(labels):
    session = session_of(labels)
    session.vote(session.next_pair(), "A", 1.0)
    pair = session.next_pair()
    session.vote(pair, "A", 1.0)
    path = votes_path(labels)
    path.write_bytes(path.read_bytes()[:-9])
    again = session_of(labels)
    assert again.done == 1 and again.next_pair() == pair
    again.vote(pair, "B", 1.0)
    assert [vote.choice for vote in read_votes(labels)] == ["A", "B"]


def test_a_line_that_is_no_vote_is_named(labels):
    votes_path(labels).write_text('{"event": "vote", "choice": "C"}\n{"event": "undo", "vote": "none"}\n')
    with pytest.raises(TightropeError, match=r"votes\.jsonl:1"):
        read_votes(labels)


def test_export_writes_the_rows(labels, tmp_path):
    session = session_of(labels)
    session.vote(session.next_pair(), "A", 1.0)
    found = export_preferences(labels, tmp_path / "out.jsonl")
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == found.rows
    assert found.rows == preference_rows(labels)


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(st.sampled_from(["A", "B", "tie", "skip", "undo", "restart"]), max_size=25))
def test_any_history_of_votes_undos_and_restarts_equals_a_simple_list(tmp_path_factory, actions):
    path = tmp_path_factory.mktemp("labels") / "l.jsonl"
    write_items(path, [LabelItem(str(i), "p", ("x", "y", "z")) for i in range(4)])
    session, model = session_of(path), []
    for action in actions:
        if action == "restart":
            session.close()
            session = session_of(path)
        elif action == "undo":
            assert (session.undo() is None) == (not model)
            model = model[:-1]
        elif (pair := session.next_pair()) is not None:
            session.vote(pair, action, 0.0)
            model.append((pair.key, action))
    session.close()
    assert [(vote.key, vote.choice) for vote in read_votes(path)] == model
    assert max(Counter(key for key, _ in model).values(), default=1) == 1
