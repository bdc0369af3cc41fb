"""Does `tightrope chat` talk, through a pipe and in a terminal, and is it never commanded by the model?"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pexpect
import pytest

from tests.commands import call, hear_interrupts
from tests.rollouts import engine_of, prompts_of
from tests.runs import run_quietly, tiny_config, tiny_files
from tests.tiny import tiny_llama
from tightrope.assemble import conversation
from tightrope.config.errors import TightropeError
from tightrope.types import SampleKey, Sampling

TERMINAL = str(Path(sys.executable).with_name("tightrope"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    files = tiny_files(folder)
    for stage in ("sft", "rm"):
        run_quietly(stage, tiny_config(stage, files, folder / stage, steps=2, lora=True))
    return folder


def say(monkeypatch, capsys, model, *lines, options=()):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
    return call(capsys, "chat", model, "--max-new-tokens", "6", *options)


def test_the_stream_is_what_generate_draws(place):
    engine = engine_of(place / "model")
    for prompt in prompts_of(place / "model")[:4]:
        sampling, key = Sampling(1.0, 8, (1,)), SampleKey(3, 0, 7)
        whole = engine.generate([prompt], 1, sampling, key).rows.actions(0).tolist()
        assert list(engine.stream(prompt, sampling, key)) == [token for token in whole if token != 1]


def test_a_conversation_through_a_pipe(place, tmp_path, monkeypatch, capsys):
    saved = tmp_path / "talk.jsonl"
    lines = ["the cat sat", "/retry", "a dog", "/undo", "/system be good", "/set temperature 0.5", f"/save {saved}"]
    code, out, err = say(monkeypatch, capsys, place / "model", *lines, "/quit", "never asked")
    assert code == 0, err
    assert len(out.splitlines()) == 3
    row = json.loads(saved.read_text())
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant"]
    assert row["messages"][1]["content"] == "the cat sat"
    assert row["messages"][2]["content"].strip() == out.splitlines()[1].strip()


def test_reward_and_base_stand_beside(place, monkeypatch, capsys):
    options = ["--reward", place / "rm"]
    code, out, err = say(monkeypatch, capsys, place / "sft", "the cat", "/compare", options=options)
    assert code == 0 and "reward " in err and "base:" in err
    assert len(out.splitlines()) == 2
    assert "no base" in say(monkeypatch, capsys, place / "model", "the cat", "/compare")[2]


def test_old_turns_are_dropped_with_a_notice(place, monkeypatch, capsys):
    code, out, err = say(monkeypatch, capsys, place / "model", *["the cat sat on the mat and the dog ran"] * 6)
    assert code == 0 and "turns were dropped" in err
    assert len(out.splitlines()) == 6
    assert "too long" in say(monkeypatch, capsys, place / "model", "cat " * 80)[2]


def test_mistakes_are_told_and_the_talk_goes_on(place, monkeypatch, capsys):
    code, out, err = say(
        monkeypatch,
        capsys,
        place / "model",
        "/undo",
        "/nonsense",
        "/set heat 1",
        "/set temperature 1e-300",
        "/set temperature inf",
        "/save",
        "the cat",
    )
    assert code == 0 and len(out.splitlines()) == 1
    for says in ("nothing was asked", "no command /nonsense", "/set temperature 0.7", "/save FILE.jsonl"):
        assert says in err


def test_a_question_without_an_answer_is_no_part_of_the_talk(place, monkeypatch, capsys):
    broken = iter([False, True, True, False, False])
    answer = conversation.Talker.answer

    def sometimes(self, talk, temperature, new_tokens, *, base=False):
        if next(broken):
            raise TightropeError("no numbers")
        return answer(self, talk, temperature, new_tokens, base=base)

    monkeypatch.setattr(conversation.Talker, "answer", sometimes)
    code, out, err = say(monkeypatch, capsys, place / "model", "the cat", "a dog", "/retry", "/retry", "a bird")
    assert code == 0 and len(out.splitlines()) == 3 and err.count("error: no numbers") == 2
    assert "out of order" not in err and "nothing was asked" not in err


def test_hostile_text_is_escaped(place, monkeypatch, capsys):
    monkeypatch.setattr(conversation.Talker, "_text", lambda self, ids: "\x1b[2J\u202e" if ids else "")
    out = say(monkeypatch, capsys, place / "model", "the cat")[1]
    assert "\x1b" not in out and "\u202e" not in out and "\\x1b[2J" in out


def test_a_model_without_template_goes_on_with_the_text(tmp_path, monkeypatch, capsys):
    folder = tiny_llama(tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    code, out, err = say(monkeypatch, capsys, folder, "the cat", "sat")
    assert code == 0 and "no chat template" in err and len(out.splitlines()) == 2


def test_wrong_input_is_one_line(place, monkeypatch, capsys):
    for options, says in ((["--temperature", "0"], "--temperature"), (["--reward", place / "sft"], "not a reward")):
        code, out, err = say(monkeypatch, capsys, place / "model", options=options)
        assert (code, out) == (2, "") and err.count("\n") == 1 and says in err, err
    assert "not a policy" in say(monkeypatch, capsys, place / "rm")[2]


def test_in_a_terminal(place):
    terminal = pexpect.spawn(
        TERMINAL,
        ["chat", str(place / "model"), "--max-new-tokens", "4"],
        encoding="utf-8",
        timeout=300,
        echo=False,
        preexec_fn=hear_interrupts,
    )
    terminal.expect_exact("> ")
    terminal.sendline("the cat")
    terminal.expect_exact("\r\n> ")
    terminal.sendintr()
    terminal.expect_exact("Ctrl-D leaves")
    terminal.expect_exact("> ")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0


def test_ctrl_c_keeps_what_was_written(place, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        yield "the cat"
        raise KeyboardInterrupt

    monkeypatch.setattr(conversation.Talker, "answer", interrupted)
    saved = tmp_path / "talk.jsonl"
    code, out, err = say(monkeypatch, capsys, place / "model", "who", "why", f"/save {saved}")
    assert code == 0 and out.splitlines() == ["the cat", "the cat"] and err.count("(stopped)") == 2
    assert json.loads(saved.read_text())["messages"][1]["content"] == "the cat"
