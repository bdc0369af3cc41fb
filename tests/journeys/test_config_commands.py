"""Does ``tightrope config`` say what an option is and where its value comes from, and does its schema know the YAML?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.commands import call
from tightrope import api
from tightrope.algorithms.options import CONFIGS
from tightrope.config.catalogue import by_stage, options_of
from tightrope.config.explain import explain_key
from tightrope.config.presets import FOLDER

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
STAGES = {"reward": "rm"}
RUN = (
    "preset: rlhf\noutput: x\nmodel: {name: m}\ndata: {train: t.jsonl}\nreward: {model: rm}\nkl:\n  gain: 0.2\n"
    "ppo: {lam: 0.9}\n"
)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def stage_of(example: Path) -> str:
    word = example.stem.partition("-")[0]
    return STAGES.get(word, word)


def test_every_option_and_section_can_be_explained():
    for option, stages in by_stage(CONFIGS).items():
        lines = explain_key(option.key, CONFIGS)
        assert lines[0] == option.key and lines[1] == f"  {option.description}"
        said = {line[:12].strip(): line[12:] for line in lines if line.startswith("  ")}
        assert said["type"].startswith(option.type)
        assert {"rm train" if stage == "rm" else stage for stage in stages} <= set(said["commands"].split(", "))
        assert option.is_section or said["default"] == (option.default or "none: it must be written")


def test_the_command_prints_what_is_explained(capsys):
    assert call(capsys, "config", "explain", "kl") == (0, "\n".join(explain_key("kl", CONFIGS)) + "\n", "")


def test_an_option_names_its_presets_its_relatives_and_its_other_names(capsys):
    _, out, _ = call(capsys, "config", "explain", "kl.beta")
    assert "rlhf: 0.05; verifiable: 0.001" in out and "init_kl_coef" in out and "kl.target" in out


def test_a_section_lists_its_options(capsys):
    _, out, _ = call(capsys, "config", "explain", "reward.missing_eos")
    assert re.findall(r"^  (reward\S+)", out, re.MULTILINE) == ["reward.missing_eos.mode", "reward.missing_eos.value"]


def test_a_name_of_another_tool_is_explained_as_ours(capsys):
    _, out, _ = call(capsys, "config", "explain", "critic.optim.lr")
    assert out.startswith("`critic.optim.lr` is another tool's name; here it is `optimizer.critic_learning_rate`")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("kl.bta", "there is no option `kl.bta`; did you mean `kl.beta`?"),
        ("clip_range", "did you mean `ppo.clip_range` or `rloo.clip_range`?"),
        ("vllm_mode", "no counterpart: responses are sampled by the weights that are trained"),
        ("zzzqqq", "there is no option `zzzqqq`; see docs/options.md"),
    ],
)
def test_an_option_that_does_not_exist_is_one_line(capsys, key, says):
    code, out, err = call(capsys, "config", "explain", key)
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kl.gain", "0.2, from {run}:7"),
        ("kl.beta", "0.05, from {run}:1 (preset rlhf, line 12)"),
        ("ppo.lam", "0.8, from override ppo.lam"),
        ("seed", "0, the default"),
        ("preset", '"rlhf", from {run}:1'),
        ("samples", "not in {run}: all defaults"),
    ],
)
def test_a_value_in_a_file_says_where_it_comes_from(capsys, run, key, value):
    _, out, _ = call(capsys, "config", "explain", key, "--config", run, "ppo.lam=0.8")
    assert f"  value     {value.format(run=run)}\n" in out


def test_show_lists_what_was_set_and_with_all_every_option(capsys, run):
    _, out, _ = call(capsys, "config", "show", run, "ppo.lam=0.8")
    assert f"kl.gain: 0.2 # {run}:7" in re.sub(" +", " ", out) and "seed" not in out
    assert f'kl.mode: "adaptive" # {run}:1 (preset rlhf, line 11)' in re.sub(" +", " ", out)
    _, out, _ = call(capsys, "config", "show", run, "--all")
    listed = {line.partition(":")[0] for line in out.splitlines()}
    assert listed == {option.key for option in options_of(CONFIGS["ppo"]) if option.type != "section"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_say_which_command_they_are_for(capsys, example):
    assert api.load_config(example).stage == stage_of(example)
    assert call(capsys, "config", "show", example)[0] == 0


def test_a_section_of_one_stage_alone_tells_the_command(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    assert api.load_config(path).stage == "ppo"


def test_a_file_for_no_command_in_particular_asks_for_one(capsys, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("output: x\n")
    code, _, err = call(capsys, "config", "show", path)
    assert code == 2 and "add --stage sft|rm|dpo|ppo|rloo" in err
    assert call(capsys, "config", "show", path, "--stage", "sft")[0] == 0


def test_explaining_needs_no_torch(run):
    code = (
        "import sys\nfrom tightrope.cli.main import main\n"
        f"main(['config', 'explain', 'kl.beta', '--config', {str(run)!r}])\nmain(['config', 'schema'])\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ppo", "run.yaml", "--init_kl_coef", "0.1"], "write options of a run as key=value: kl.beta=0.1"),
        (["ppo", "run.yaml", "--kl.beta=0.1"], "write options of a run as key=value: kl.beta=0.1"),
        (["check", "ppo", "run.yaml", "--num-ppo-epochs=2"], "write options of a run as key=value: ppo.epochs=2"),
        (["rm", "train", "run.yaml", "--per_device_train_batch_size"], "training.token_budget=..."),
        (["sft", "run.yaml", "--zero_stage", "3"], "no counterpart: a run is one process on one machine"),
        (["ppo", "run.yaml", "--zzzqqq"], "see tightrope --help"),
    ],
)
def test_an_option_typed_as_a_flag_is_told_how_to_write_it(capsys, words, says):
    code, _, err = call(capsys, *words)
    assert code == 2 and says in err and err.count("\n") == 1


# The schema, read by the few rules of JSON Schema that it uses.

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
BOUNDS = {
    "minimum": lambda value, bound: value >= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "enum": lambda value, allowed: value in allowed,
    "const": lambda value, only: value == only,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    "minItems": lambda value, least: len(value) >= least,
    "maxItems": lambda value, most: len(value) <= most,
    "required": lambda value, keys: set(keys) <= set(value),
}
WITHOUT_RULE = {"$defs", "$schema", "title", "description", "default", "format"}
BELOW = {"type", "anyOf", "oneOf", "$ref", "properties", "additionalProperties", "prefixItems", "items"}


def fits(value, node, definitions) -> bool:
    assert set(node) <= {*BOUNDS, *WITHOUT_RULE, *BELOW, "discriminator"}, set(node)
    if "$ref" in node and not fits(value, definitions[node["$ref"].rsplit("/", 1)[-1]], definitions):
        return False
    for several in ("anyOf", "oneOf"):
        if several in node and not any(fits(value, kind, definitions) for kind in node[several]):
            return False
    if "type" in node and not has_type(value, node["type"]):
        return False
    if not all(rule(value, node[name]) for name, rule in BOUNDS.items() if name in node):
        return False
    if "properties" in node:
        known = node["properties"]
        closed = node.get("additionalProperties", True) is False
        return all(fits(below, known[key], definitions) if key in known else not closed for key, below in value.items())
    if isinstance(value, list):
        kinds = node.get("prefixItems") or [node.get("items", {})] * len(value)
        return all(fits(item, kind, definitions) for item, kind in zip(value, kinds, strict=False))
    return True


def has_type(value, name) -> bool:
    if name in ("number", "integer"):
        kinds = int if name == "integer" else int | float
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def plain(path: Path):
    return json.loads(json.dumps(YAML(typ="safe").load(path.read_text()), default=str))


def schema_of(capsys, *stage):
    code, out, _ = call(capsys, "config", "schema", *stage)
    assert code == 0
    return json.loads(out)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_takes_every_example_and_no_typo(capsys, example):
    for schema in (schema_of(capsys, stage_of(example)), schema_of(capsys)):
        tree = plain(example)
        assert fits(tree, schema, schema["$defs"])
        assert fits(tree | {"stage": stage_of(example)}, schema, schema["$defs"])
        for wrong in (
            {"trainig": {"steps": 1}},
            {"training": {"stps": 1}},
            {"training": {"steps": "many"}},
            {"seed": -1},
        ):
            assert not fits(tree | wrong, schema, schema["$defs"])
        assert not fits({key: tree[key] for key in tree if key != "output"}, schema, schema["$defs"])


@pytest.mark.parametrize("stage", CONFIGS)
def test_the_schema_has_every_option_with_description_and_default(capsys, stage):
    schema = schema_of(capsys, stage)
    for option in options_of(CONFIGS[stage]):
        node = schema
        for name in option.key.split("."):
            node = node.get("items", node)
            reference = node.get("$ref") or next(
                (kind["$ref"] for kind in node.get("anyOf", []) if "$ref" in kind), None
            )
            below = schema["$defs"][reference.rsplit("/", 1)[-1]] if reference else node
            node = below["properties"][name]
        assert node["description"]
        assert option.is_section or not option.default or json.dumps(node["default"]) == option.default


def test_the_schema_takes_every_preset(capsys):
    schema = schema_of(capsys, "ppo")
    for path in FOLDER.iterdir():
        values = {key: value for key, value in plain(path).items() if key not in ("stages", "rloo")}
        needed = {"output": "x", "model": {"name": "m"}, "data": {"train": "t"}, "reward": {}}
        assert fits(needed | values | {"preset": path.stem}, schema, schema["$defs"])
