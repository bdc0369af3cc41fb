"""Does the script for a GPU do its work, with tiny shapes on a CPU? That a GPU passes it is for a machine with one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ppo tiny bf16", "rloo 135m fp32", "dpo tiny fp32", "resume tiny fp32", "memory 8b bf16"]
)
def test_each_kind_of_check_passes_with_tiny_shapes_on_a_cpu(tmp_path, name):
    table = tmp_path / "table.json"
    words = ["--device", "cpu", "--quick", "--only", name, "--output", str(table)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    (row,) = json.loads(table.read_text())["checks"]
    assert row["check"] == name and row["result"] == "ok" and row["peak MiB"] > 0


def test_a_check_that_fails_is_told_and_the_others_still_run(tmp_path, monkeypatch, capsys):
    from benchmarks import gpu_check

    monkeypatch.setattr(gpu_check, "checked", answer)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--output", str(tmp_path / "table.json")])
    assert gpu_check.main() == 1
    assert "16 of 17 checks passed" in capsys.readouterr().out


def answer(name, options):
    return {"check": name, "result": "FAILED" if name == "ppo tiny fp32" else "ok"}
