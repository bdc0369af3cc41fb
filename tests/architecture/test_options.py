"""Which options exist? ``options.txt`` pins names, types, bounds and defaults; the docs and the schema have them all.

After a change on purpose:  python tests/architecture/test_options.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tightrope.algorithms.options import CONFIGS
from tightrope.config.catalogue import by_stage, options_of, walk
from tightrope.config.explain import at
from tightrope.config.other_tools import KNOWN_NAMES
from tightrope.config.suggestions import all_paths, key_tree

PINNED = Path(__file__).with_name("options.txt")
DOCS = Path(__file__).parents[2] / "docs/options.md"


def option_lines() -> list[str]:
    """``stages key: type (bounds) = default`` for every option, each once, sorted by key."""
    found = by_stage(CONFIGS)
    lines = [(option.line, stages) for option, stages in found.items() if option.type != "section"]
    return [f"{' '.join(stages):<20} {line}" for line, stages in sorted(lines)]


def test_the_option_list_is_the_pinned_one():
    assert option_lines() == PINNED.read_text().splitlines()


def test_every_option_and_every_section_says_what_it_is():
    assert [option.key for option in by_stage(CONFIGS) if not option.description] == []


def test_the_docs_have_every_option_with_its_type_default_and_description():
    rows = [[cell.strip() for cell in line.split(" | ")] for line in DOCS.read_text().splitlines()]
    table = {row[0].removeprefix("| ").strip("`"): row for row in rows if len(row) >= 4}
    for option in by_stage(CONFIGS):
        if option.type == "section":
            continue
        row = " | ".join(table[option.key])
        assert option.default in row or not option.default
        assert option.description.replace("|", "\\|") in row and option.bounds in row


@pytest.mark.parametrize("stage", CONFIGS)
def test_the_list_has_what_the_classes_have(stage):
    """The catalogue is read from the JSON schema; here from the fields. A schedule's keys are part of one option."""
    listed = {option.key: option.is_section for option in options_of(CONFIGS[stage])}
    known = [".".join(path) for path in all_paths(key_tree(CONFIGS[stage]))]
    assert sorted(listed) == sorted(key for key in known if listed.get(key.rpartition(".")[0], True))


@pytest.mark.parametrize("stage", CONFIGS)
def test_the_defaults_listed_are_those_of_a_run(stage):
    config_class = CONFIGS[stage]
    smallest = {"output": "x", "model": {"name": "m"}, "data": {"train": "t"}}
    if "reward" in config_class.model_fields:
        smallest |= {"reward": {"model": "r"}, "rollout": {"samples_per_prompt": 2}}
    dumped = config_class.model_validate_json(json.dumps(smallest)).model_dump(mode="json")
    for option in options_of(config_class):
        above, _, name = option.key.rpartition(".")
        section = at(dumped, above)[0] if above else dumped
        if option.default and isinstance(section, dict) and not at(smallest, option.key)[1]:
            assert json.dumps(section[name]) == option.default, option.key


def test_a_value_of_several_kinds_is_one_option_and_readable():
    schedule = {"type": "object", "properties": {"from": {"type": "number"}}}
    section = {"properties": {"beta": {"anyOf": [{"type": "number", "minimum": 0}, {"$ref": "#/$defs/Schedule"}]}}}
    (option,) = walk(section, "kl.", {"Schedule": schedule})
    assert option.line == "kl.beta: float or schedule (at least 0) = null" and not option.is_section


def test_names_of_other_tools_lead_to_keys_that_exist():
    known = {".".join(path) for config_class in CONFIGS.values() for path in all_paths(key_tree(config_class))}
    assert {key for keys in KNOWN_NAMES.values() for key in keys} <= known


def test_options_and_their_loading_need_no_torch():
    code = (
        "import sys, tightrope.algorithms.options, tightrope.config.load\n"
        "sys.exit(any(name.split('.')[0] in ('torch', 'transformers', 'numpy') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


if __name__ == "__main__":
    PINNED.write_text("\n".join(option_lines()) + "\n")
