"""Does each switch of benchmarks/unmoved reach what it switches, and does the page say what the ledger says?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.learning.ledger import Entry, Ledger
from benchmarks.learning.settings import merged
from benchmarks.unmoved.__main__ import LEDGER, missing_runs, work
from benchmarks.unmoved.runs import RECIPES, common_hash, run_of
from benchmarks.unmoved.switches import PRODUCT, SWITCHES, Place, Switch, product_of
from benchmarks.unmoved.tables import MARKS, PAGE, TABLES, comparisons, filled
from benchmarks.unmoved.verdicts import BIT_EQUAL, MOVED, WITHIN, apart, compared
from tests.runs import run_quietly, tiny_config, tiny_files
from tightrope.algorithms.options import CONFIGS, PPOConfig
from tightrope.kernels.products import WIDE_VECTORS

STEPS = 2
ROUNDING = 2e-4
"""Of the distance between two policies after one update, as a share of its length: 6e-6 was measured for one switch and
2e-5 for all at once."""
needs_wide_vectors = pytest.mark.skipif(not WIDE_VECTORS, reason="nothing of oneDNN is on here")


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, PPOConfig]:
    """By recipe, each with a reward model."""
    folder = tmp_path_factory.mktemp("unmoved")
    files = tiny_files(folder)
    run_quietly("rm", tiny_config("rm", files, folder / "rm"))
    changes = {"rollout": {"max_new_tokens": 16}, "ppo": {"value_warmup_steps": 0}, "training": {"token_budget": None}}
    found: dict[str, PPOConfig] = {}
    for recipe, sections in RECIPES.items():
        plain = tiny_config("ppo", files, folder / "run", steps=STEPS, reward_model=folder / "rm", changes=changes)
        config = CONFIGS["ppo"].model_validate(merged(plain.model_dump(), sections))
        assert isinstance(config, PPOConfig)
        found[recipe] = config
    return found


@pytest.fixture(scope="module")
def products(configs: Mapping[str, PPOConfig]) -> Mapping[str, tuple[dict[str, Any], Counter[Place]]]:
    """Figures of the product by recipe, and how often it called every watched function."""
    places = {place for switch in SWITCHES for place in (switch.quick, switch.slow) if place is not None}
    found: dict[str, tuple[dict[str, Any], Counter[Place]]] = {}
    for recipe, config in configs.items():
        with watched(places) as calls:
            found[recipe] = run_of(config, product_of(recipe)), calls
    return found


@contextmanager
def watched(places: set[Place]) -> Iterator[Counter[Place]]:
    calls: Counter[Place] = Counter()

    def counting(place: Place, function: Any) -> Any:
        @wraps(function)
        def call(*args: Any, **others: Any) -> Any:
            calls[place] += 1
            return function(*args, **others)

        return call

    with ExitStack() as stack:
        for place in places:
            owner, name = place
            original = vars(owner)[name]
            if isinstance(original, staticmethod):
                exchanged: Any = staticmethod(counting(place, original.__func__))
            else:
                exchanged = counting(place, original)
            stack.enter_context(patch.object(owner, name, exchanged))
        yield calls


@needs_wide_vectors
@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
def test_a_switch_reaches_its_function_and_changes_rounding_alone(switch: Switch, configs, products) -> None:
    figures, without = products[switch.recipe]
    with watched({place for place in (switch.quick, switch.slow) if place is not None}) as calls:
        found = run_of(configs[switch.recipe], switch)
    if switch.quick is not None:
        assert calls[switch.quick] < without[switch.quick]
    if switch.slow is not None:
        assert calls[switch.slow] > without[switch.slow]
    assert all(found["calls"]) and len(found["calls"]) == len(switch.patches)
    difference = apart(figures["moved"]["first"], found["moved"]["first"])
    if not switch.patches:
        assert found == {**figures, "cpu_seconds": found["cpu_seconds"]}
    elif switch.name != "fault: stale copies":  # which is right in the first rollout
        assert (difference > 1000 * ROUNDING) if switch.is_fault else (difference < ROUNDING)


def test_a_switch_that_is_not_reached_is_an_error(configs) -> None:
    adapters = next(switch for switch in SWITCHES if switch.name == "lower layers")
    with pytest.raises(RuntimeError, match="lower layers: a patch was never called"):
        run_of(configs["whole"], adapters)


def test_names_and_recipes_are_known_and_every_name_is_one_switchs() -> None:
    names = [switch.name for switch in SWITCHES]
    assert len(set(names)) == len(names) and PRODUCT not in names
    assert {switch.recipe for switch in SWITCHES} == set(RECIPES)


def figures_of(weights: str, reward: float, kl: float, curve: float = 0.0) -> dict[str, Any]:
    return {
        "weights": list(weights),
        "drawn": list(weights),
        "reward": [curve] * len(weights),
        "moved": {"first": [1.0, 0.0], "last": [0.0, 2.0]},
        "end": {"reward": reward, "kl": kl},
    }


def pairs_with(rewards: list[float], kls: list[float], weights: str = "abx") -> list[tuple[dict, dict]]:
    """Products that end at 0, 1, 2 and 3; the others differ from them by these."""
    return [
        (figures_of("abc", float(seed), float(seed)), figures_of(weights, seed + reward, seed + kl, curve=0.25))
        for seed, (reward, kl) in enumerate(zip(rewards, kls, strict=True))
    ]


def test_moved_is_a_sure_difference_that_is_not_small() -> None:
    noise = [0.5, -0.4, 0.3, -0.5]
    assert compared(pairs_with(noise, noise)).verdict == WITHIN
    assert compared(pairs_with([2 + x for x in noise], noise)).verdict == MOVED
    assert compared(pairs_with(noise, [-2 + x for x in noise])).verdict == MOVED
    assert compared(pairs_with([0.05] * 4, noise)).verdict == WITHIN  # sure, but a twentieth of the spread
    found = compared(pairs_with(noise, noise))
    assert (found.steps, found.equal_weights, found.equal_draws, found.curve) == (12, 8, 8, 0.25)
    assert found.reward.spread == pytest.approx(1.2910, abs=1e-4)
    assert found.reward.error == pytest.approx(0.2496, abs=1e-4)


def test_another_first_update_is_moved_however_the_run_ends_but_only_from_the_same_rollouts() -> None:
    same = figures_of("abcd", 1.0, 1.0)
    another = figures_of("abcx", 1.0, 1.0) | {"moved": {"first": [1.0, 0.01], "last": [0.0, 2.0]}}
    found = compared([(same, same), (same, another)])
    assert found.first == pytest.approx(0.01) and found.verdict == MOVED
    drawn_otherwise = another | {"drawn": list("abxx")}
    assert compared([(same, same), (same, drawn_otherwise)]).verdict == WITHIN
    assert compared([(same, drawn_otherwise)] * 2).first is None


def test_bit_equal_is_every_step_of_every_seed() -> None:
    same = figures_of("abc", 1.0, 1.0)
    assert compared([(same, same)] * 3).verdict == BIT_EQUAL
    assert compared([(same, same), (same, figures_of("abx", 1.0, 1.0)), (same, same)]).verdict == WITHIN


def test_a_stopped_series_goes_on_and_another_state_of_the_sources_is_run_again(tmp_path: Path) -> None:
    ledger, wanted = Ledger(tmp_path / "ledger.jsonl"), SWITCHES[1:2]
    everything = list(missing_runs(wanted, [0, 1], ledger, "now"))
    assert [(switch.name, seed) for switch, seed, _ in everything] == [
        (PRODUCT, 0),
        ("products", 0),
        (PRODUCT, 1),
        ("products", 1),
    ]

    def run(switch: Switch, seed: int) -> dict[str, Any]:
        return figures_of("abc", float(seed), 0.0) | {"cpu_seconds": 1.5}

    assert work(everything, ledger, 0.0, run) == 0
    assert work(everything[:3], ledger, 1e9, run) == 3
    assert [(s.name, seed) for s, seed, _ in missing_runs(wanted, [0, 1], ledger, "now")] == [("products", 1)]
    assert len(list(missing_runs(wanted, [0, 1], ledger, "later"))) == 4


def test_only_runs_of_the_same_sources_are_compared() -> None:
    def entry(setting: str, seed: int, sources: str) -> Entry:
        return Entry("whole", setting, seed, common_hash("whole", seed, sources), figures=figures_of("abc", seed, 0.0))

    old = [entry(name, seed, "old") for name in (PRODUCT, "products") for seed in (0, 1)]
    newer = [entry("products", seed, "newer") for seed in (0, 1)]
    assert comparisons(old)["products"].verdict == BIT_EQUAL
    assert "products" not in comparisons([*old, *newer])


def test_the_page_says_what_the_ledger_says() -> None:
    """``python -m benchmarks.unmoved --write`` makes it so."""
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, Ledger(LEDGER).read()) == page
    assert {found[1] for found in MARKS.finditer(page)} == set(TABLES)
