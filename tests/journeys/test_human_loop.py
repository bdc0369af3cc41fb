"""Does docs/human-loop.md still work? Its own commands and YAML, typed in order, on a tiny model."""

import json
import re
import shlex
import sys
from pathlib import Path

import pexpect
import pytest

from tests.commands import call
from tests.tiny import WORDS, tiny_llama
from tightrope.storage.labels import read_votes
from tightrope.storage.run_folder import RunFolder
from tightrope.storage.samples import SampleStore

PAGE = (Path(__file__).parents[2] / "docs" / "human-loop.md").read_text()
CONFIGS = re.findall(r"`(\w+\.yaml)`:\n\n```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^\$ tightrope (.*)$", PAGE, re.MULTILINE)
TERMINAL = str(Path(sys.executable).with_name("tightrope"))
VOTES = 30


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with what the demo leaves: an SFT model and prompts."""
    tiny_llama(tmp_path / "runs/demo/sft")
    (tmp_path / "runs/demo/data").mkdir()
    for name, count in (("held_out", 40), ("prompts", 200)):
        rows = [{"prompt": f"the {WORDS[i % 40]} {WORDS[i // 40 + 3]}"} for i in range(count)]
        (tmp_path / f"runs/demo/data/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in CONFIGS:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def vote(words, folder):
    """Thirty votes in a pseudo-terminal: the longer answer wins."""
    terminal = pexpect.spawn(TERMINAL, words, cwd=str(folder), encoding="utf-8", timeout=30, dimensions=(60, 400))
    for _ in range(VOTES):
        terminal.expect_exact("q quit > ")
        first, second = (re.search(rf"\[{side}\] (.*?)\r\n", terminal.before).group(1) for side in "AB")
        terminal.send("a" if len(first) > len(second) else "b")
    terminal.expect_exact("q quit > ")
    terminal.send("q")
    terminal.expect_exact(f"{VOTES} preferences written to answers.preferences.jsonl")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0


def test_every_command_of_the_page_works_in_its_order(desk, capsys):
    said = []
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "label":
            vote(words, desk)
            continue
        code, out, err = call(capsys, *words)
        assert code == 0, err
        said.append(out + err)
    said = "\n".join(said)
    assert [name for name, _ in CONFIGS] == ["reward.yaml", "ppo.yaml"]
    assert len(read_votes(desk / "answers.jsonl")) == VOTES
    for line in (
        "next: tightrope label answers.jsonl",
        "of 4 held-out pairs in the right order",
        "next: tightrope ppo CONFIG.yaml reward.model=runs/loop/reward",
        "30 pairs: ",
        "next: tightrope samples runs/loop/ppo",
        "step 12, probe prompts",
    ):
        assert line in said and line in PAGE
    store = SampleStore(RunFolder.read(desk / "runs/loop/ppo").database, read_only=True)
    assert store.steps("train")[-1] == 11
    store.close()
