"""Do learning experiments lose nothing, repeat nothing, and read what they found rightly?"""

from __future__ import annotations

import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning.best_of_n import curves_of
from benchmarks.learning.chart import Panel, Series, chart
from benchmarks.learning.experiments import EXPERIMENTS
from benchmarks.learning.figures import curve, figures_of
from benchmarks.learning.fit import NEAREST, best_of_weights, peak_kl, rl_fit
from benchmarks.learning.ledger import Entry, Ledger, Results
from benchmarks.learning.plots import IMAGES, plots
from benchmarks.learning.settings import Experiment, Setting, config_hash
from benchmarks.learning.tables import MARKS, PAGE, filled
from benchmarks.learning.work import claimed, work
from tests.runs import tiny_config, tiny_files
from tightrope import api

STUB = Experiment("stub", "Does it go on?", [Setting("one"), Setting("two", {"kl.target": 2.0})], seeds=(0, 1))


class Runner:
    """Says what it was asked for; is interrupted at the run numbered ``stop_at``."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.asked: list[tuple[str, int]] = []
        self._stop_at = stop_at

    def __call__(self, setting: Setting, seed: int, config: str) -> dict:
        if len(self.asked) == self._stop_at:
            raise KeyboardInterrupt
        self.asked.append((setting.name, seed))
        return {"name": setting.name, "seed": seed}


def test_a_series_that_was_interrupted_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    ledger, interrupted, rest, again = Ledger(tmp_path / "ledger.jsonl"), Runner(stop_at=1), Runner(), Runner()
    with pytest.raises(KeyboardInterrupt):
        work(STUB, STUB.seeds, ledger, tmp_path, interrupted)
    assert [entry.run for entry in ledger.read()] == [("stub", "one", 0)]
    assert work(STUB, STUB.seeds, ledger, tmp_path, rest) == 3
    assert rest.asked == [("two", 0), ("one", 1), ("two", 1)]
    assert work(STUB, STUB.seeds, ledger, tmp_path, again) == 0 and again.asked == []
    assert Results(ledger.read()).figures("stub", "two") == {s: {"name": "two", "seed": s} for s in (0, 1)}


def test_a_run_that_another_worker_has_is_left_to_it(tmp_path: Path) -> None:
    ledger, runner = Ledger(tmp_path / "ledger.jsonl"), Runner()
    lock = tmp_path / "claims" / f"{config_hash(STUB.setting('one'), 0)}.lock"
    with claimed(lock) as mine, claimed(lock) as other:
        assert mine and not other
        work(STUB, [0], ledger, tmp_path, runner)
    assert runner.asked == [("two", 0)]


def test_the_same_config_in_another_experiment_is_not_run_again(tmp_path: Path) -> None:
    ledger, runner = Ledger(tmp_path / "ledger.jsonl"), Runner()
    work(STUB, [0], ledger, tmp_path, Runner())
    other = Experiment("other", "?", [Setting("mine", {"kl.target": 2.0}), Setting("new", {"kl.target": 3.0})])
    work(other, [0], ledger, tmp_path, runner)
    assert runner.asked == [("new", 0)]
    assert ledger.read()[2].same_as == "stub/two"
    assert Results(ledger.read()).figures("other", "mine") == {0: {"name": "two", "seed": 0}}


def test_a_repeated_run_counts_by_its_newest_line(tmp_path: Path) -> None:
    old, new = (Entry("e", "s", 0, config, figures={"of": config}) for config in ("old", "new"))
    assert Results([old, new]).figures("e", "s") == {0: {"of": "new"}}
    assert Results([Entry("e", "s", 0, "gone", same_as="x/y")]).figures("e", "s") == {}


def test_a_half_line_is_told_skipped_and_not_continued(tmp_path: Path, capsys) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(Entry("e", "first", 0, "a"))
    with ledger.path.open("a") as file:
        file.write('{"experiment": "e", "sett')
    assert [entry.setting for entry in ledger.read()] == ["first"]
    assert "ledger.jsonl:2 is no ledger line" in capsys.readouterr().err
    ledger.append(Entry("e", "second", 0, "b"))
    assert [entry.setting for entry in ledger.read()] == ["first", "second"]


def test_lines_of_workers_that_write_at_once_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entries = [Entry("e", str(i), i, "c", figures={"much": "x" * 3000}) for i in range(60)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda entry: Ledger(path).append(entry), entries))
    assert sorted(entry.seed for entry in Ledger(path).read()) == list(range(60))


@pytest.mark.parametrize(
    "changed",
    [
        Setting("", {"kl.target": 2.0}),
        Setting("", {"ppo.target_kl": None}),
        Setting("", {"optimizer.critic_learning_rate": 2e-4}),
        Setting("", reward="true"),
        Setting("", kind="best_of_n"),
        Setting("", reward="100"),
    ],
)
def test_the_hash_changes_with_what_changes_the_run(changed) -> None:
    assert config_hash(changed, 0) != config_hash(Setting(""), 0)


def test_the_hash_knows_the_seed_and_the_value_of_a_default_but_no_names_and_no_places() -> None:
    plain = config_hash(Setting("a name"), 0)
    assert plain == config_hash(Setting("another", {"ppo.lam": 0.95, "checkpoint.keep": 3}), 0)
    assert plain != config_hash(Setting("a name"), 1)


def test_every_setting_is_a_valid_config_and_has_a_hash_of_its_own_in_its_experiment() -> None:
    for experiment in EXPERIMENTS.values():
        hashes = [config_hash(setting, 0) for setting in experiment.settings]
        assert len(set(hashes)) == len({setting.name for setting in experiment.settings}) == len(hashes)


def test_the_fit_finds_alpha_and_beta_and_says_how_noisy_the_points_were() -> None:
    kl = [0.01 * i * i for i in range(1, 41)]

    def reward(k: float) -> float:
        return math.sqrt(k) * (1.5 - 0.7 * math.log(math.sqrt(k)))

    exact = rl_fit(kl, [reward(k) if k >= NEAREST**2 else 1e6 for k in kl])  # what lies near the start is not read
    assert exact is not None and (exact.alpha, exact.beta, exact.r2) == pytest.approx((1.5, 0.7, 1.0))
    assert exact.points == 36
    assert peak_kl(exact) == pytest.approx(math.exp(2 * (1.5 / 0.7 - 1)))
    noise = np.random.default_rng(0).normal(0.0, 0.3, len(kl))
    points = [(k, reward(k) + float(e)) for k, e in zip(kl, noise, strict=True)]
    noisy = rl_fit(*zip(*points, strict=True))
    assert noisy is not None and noisy.alpha == pytest.approx(1.5, abs=0.3)
    far = [(math.sqrt(k), r) for k, r in points if k >= NEAREST**2]
    missed = sum((r - d * (noisy.alpha - noisy.beta * math.log(d))) ** 2 for d, r in far)
    assert noisy.r2 == pytest.approx(1 - missed / (len(far) * np.var([r for _, r in far])))
    assert noisy.r2 < 0.9
    assert rl_fit([0.01, 0.02], [1.0, 2.0]) is None


def test_best_of_n_is_the_mean_over_all_subsets() -> None:
    odds = np.array([[0.3, -1.0, 2.0, 0.5], [1.0, 0.0, -2.0, 4.0]])
    proxy = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    for n in (1, 2, 3):
        assert sum(best_of_weights(4, n)) == pytest.approx(1.0)
        rows = [
            np.mean([odds[row, max(some, key=lambda i: proxy[row, i])] for some in itertools.combinations(range(4), n)])
            for row in (0, 1)
        ]
        order = np.argsort(proxy, axis=1)
        ours = np.take_along_axis(odds, order, axis=1) @ best_of_weights(4, n)
        assert ours.tolist() == pytest.approx(rows)
    found = curves_of(np.tile(odds, 16), np.tile(proxy, 16))
    assert found["n"][-1] == 64
    assert found["odds"][-1] == pytest.approx(
        float((-1.0 * 0 + 0.3 + 4.0) / 2 - odds.mean()) / float(odds.std()), rel=1e-3
    )


class LetterJudge:
    """Log-odds 1 for a text with an `a`, else -1."""

    def log_odds(self, texts: list[str]) -> np.ndarray:
        return np.array([1.0 if "a" in text else -1.0 for text in texts])


def test_figures_are_read_from_a_run_and_fit_a_line(tmp_path: Path) -> None:
    config = tiny_config("ppo", tiny_files(tmp_path), tmp_path / "run", steps=6, changes={"samples": {"count": 64}})
    view = api.train(config)
    found = figures_of(view, LetterJudge(), "finished")  # pyright: ignore[reportArgumentType]
    rows = view.records("ppo")
    assert [value for _, value in curve(found, "kl")] == pytest.approx(
        [row.metrics["kl_seq"] for row in rows], abs=1e-3
    )
    assert found["steps"] == 6 and found["every"] == 1 and found["start"]["kl"] == pytest.approx(0.0, abs=1e-3)
    shares = [np.mean(["a" in sample.prompt + sample.response for sample in view.samples(row.step)]) for row in rows]
    low, high = 1 / (1 + math.e), math.e / (1 + math.e)
    assert found["curves"]["true"] == pytest.approx([low + share * (high - low) for share in shares], abs=1e-3)
    assert found["last_third"]["kl"] == pytest.approx(np.mean([row.metrics["kl_seq"] for row in rows[4:]]), rel=1e-3)
    assert len(json.dumps(found)) < 4096


def test_a_chart_is_the_same_each_time_and_marks_lie_where_the_numbers_are() -> None:
    panel = Panel(
        "a < b", "x", "y", [Series([(0.0, 0.0), (10.0, 4.0)], name="up"), Series([(5.0, 2.0)], 1, style="marks")]
    )
    picture = chart("title", [panel])
    assert picture == chart("title", [panel])
    assert '<polyline points="52.0,260.0 388.0,64.0"' in picture and 'cx="220.0" cy="162.0"' in picture
    assert "a &lt; b" in picture and ">up</text>" in picture


def test_the_tables_of_the_page_are_the_ledgers() -> None:
    """``python -m benchmarks.learning tables --write`` makes them so."""
    page = PAGE.read_text()
    assert filled(page, Results(Ledger().read())) == page
    assert {found[1] for found in MARKS.finditer(page)} <= set(EXPERIMENTS)


def test_every_picture_is_drawn_from_the_ledger_and_stands_on_the_page() -> None:
    """``python -m benchmarks.learning plots`` draws them."""
    drawn, page = plots(Results(Ledger().read())), PAGE.read_text()
    kept = {path.name: path.read_text() for path in IMAGES.glob("science-*.svg")}
    assert kept == drawn
    assert all(f"(images/{name})" in page for name in drawn)
