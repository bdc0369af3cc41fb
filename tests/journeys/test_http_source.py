"""Does a reward source behind HTTP give a run the numbers of this process, and its failures a name?"""

from __future__ import annotations

import threading

import pytest

from tests.invariance.test_resume import differing
from tests.journeys.test_reward_sources import config_of
from tests.runs import run_quietly, tiny_files
from tightrope.config.errors import TightropeError
from tightrope.scoring.functions import load_function
from tightrope.scoring.remote_protocol import Health
from tightrope.scoring.reward_server import RewardServer, Service


def test_a_service_trains_as_the_function_behind_it(tmp_path, monkeypatch):
    files = tiny_files(tmp_path)
    monkeypatch.setenv("WORDS_TOKEN", "secret")
    service = Service(load_function("tests.runs:word_share"), Health(name="w", fingerprint="f"), "secret")
    server = RewardServer(("127.0.0.1", 0), service, quiet=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    http = {"url": server.url, "token_env": "WORDS_TOKEN", "batch_size": 5, "fingerprint": "f"}
    far = config_of(files, tmp_path / "far", {"name": "words", "http": http, "retries": 0})
    near = config_of(files, tmp_path / "near", {"name": "words", "function": "tests.runs:word_share"})
    assert differing(run_quietly("ppo", far).folder, run_quietly("ppo", near).folder) == []
    server.shutdown()
    server.server_close()
    gone = config_of(files, tmp_path / "gone", {"name": "words", "http": http | {"fingerprint": None}, "retries": 0})
    with pytest.raises(TightropeError, match=r"reward source `words` .http. gave no rewards"):
        run_quietly("ppo", gone)
    assert not gone.output.exists()
