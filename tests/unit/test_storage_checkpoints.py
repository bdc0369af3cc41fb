"""Checkpoints: what goes in comes out, exactly; only valid ones are used; only complete ones are dropped."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from tightrope.config.errors import TightropeError
from tightrope.storage.checkpoint_state import StateEncoder, decode
from tightrope.storage.checkpoints import CheckpointMissed, CheckpointStore, Invalid
from tightrope.storage.manifest_file import CheckpointManifest, FileFact, InvalidManifest, differing_facts


@pytest.fixture
def reports():
    return []


@pytest.fixture
def store(tmp_path, reports):
    return CheckpointStore(tmp_path / "checkpoints", keep=2, facts={"dtype": "float32"}, report=reports.append)


def state_of(value):
    return {"policy": {"weight": torch.full((3, 2), float(value))}, "progress": {"step": value}}


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


def test_every_kind_of_tensor_comes_back(store):
    tensors = {
        "f64": torch.tensor([math.pi], dtype=torch.float64),
        "bf16": torch.tensor([1.5, -0.0, math.inf], dtype=torch.bfloat16),
        "f16": torch.tensor([[1.5]], dtype=torch.float16),
        "i64": torch.tensor(2**62),
        "bool": torch.tensor([True, False, True]),
        "u8": torch.get_rng_state(),
        "empty": torch.zeros(0, 4),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "slice": torch.arange(10.0)[::3],
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    store.save(1, {"all": tensors})
    _, state = store.load_latest()
    for name, tensor in tensors.items():
        found = state["all"][name]
        assert found.dtype == tensor.dtype and torch.equal(found, tensor.detach()), name
        assert type(found) is torch.Tensor and not found.requires_grad


def test_nan_bits_are_kept(store):
    bits = torch.tensor([0x7FC00001, -0x3FFFFF], dtype=torch.int32)
    store.save(0, {"x": {"nan": bits.view(torch.float32)}})
    assert torch.equal(store.load_latest()[1]["x"]["nan"].view(torch.int32), bits)


def test_a_shared_tensor_is_stored_once_and_comes_back_shared(store):
    tied = torch.ones(4)
    path = store.save(0, {"model": {"embedding": tied, "head": tied}})
    with safe_open(path / "model.safetensors", "pt") as file:
        assert len(list(file.keys())) == 1
    model = store.load_latest()[1]["model"]
    assert model["embedding"] is model["head"]


def test_views_of_one_storage_that_differ_are_kept_apart(store):
    base = torch.arange(4.0)
    square = base.reshape(2, 2)
    store.save(0, {"x": {"whole": base, "head": base[:2], "square": square, "turned": square.T}})
    found = store.load_latest()[1]["x"]
    assert found["whole"].tolist() == [0, 1, 2, 3] and found["head"].tolist() == [0, 1]
    assert found["square"].tolist() == [[0, 1], [2, 3]] and found["turned"].tolist() == [[0, 2], [1, 3]]


def test_keys_with_slashes_are_not_mixed_up(store):
    store.save(0, {"x": {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}}})
    found = store.load_latest()[1]["x"]
    assert found["a/b"].item() == 0 and found["a"]["b"].item() == 1


def test_plain_values_come_back_with_their_types(store):
    value = {
        "none": None, "yes": True, "one": 1, "big": 2**200, "third": 1 / 3, "minus_zero": -0.0, "inf": math.inf,
        "text": "a\u202e\ud800\n", "list": [1, [2.0, None]], "tuple": (0.9, 0.999), "empty": {}, "nothing": [],
        "by_index": {0: "a", 1: torch.ones(1)}, "$odd": {"$tensor": "not a tensor"},
    }  # fmt: skip
    store.save(0, {"x": value})
    found = store.load_latest()[1]["x"]
    assert repr({k: v for k, v in found.items() if k != "by_index"}) == repr(
        {k: v for k, v in value.items() if k != "by_index"}
    )
    assert found["by_index"][0] == "a" and found["by_index"][1].tolist() == [1.0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(json_values)
def test_any_tree_of_plain_values_round_trips_through_json(value):
    encoded = json.loads(json.dumps(StateEncoder().encode(value)))
    assert repr(decode(encoded, {})) == repr(value)


@pytest.mark.parametrize("value", [np.float64(1.0), np.ones(2), {1, 2}, b"bytes", object(), torch.float32])
def test_what_cannot_come_back_exactly_is_refused_by_name(store, value):
    with pytest.raises(TightropeError, match="optimizer/inner/0"):
        store.save(0, {"optimizer": {"inner": [value]}})
    assert store.load_latest() is None


@pytest.mark.parametrize("tensor", [torch.ones(2, dtype=torch.complex64), torch.eye(2).to_sparse()])
def test_tensors_that_cannot_be_stored_are_refused(store, tensor):
    with pytest.raises(TightropeError, match="x/t"):
        store.save(0, {"x": {"t": tensor}})


@pytest.mark.parametrize("key", ["../up", "", ".hidden", "a/b"])
def test_a_part_whose_name_is_no_file_name_is_refused(store, key):
    with pytest.raises(TightropeError, match="name"):
        store.save(0, {key: {}})


def test_loaded_tensors_do_not_depend_on_the_file(store):
    path = store.save(0, state_of(1))
    weight = store.load_latest()[1]["policy"]["weight"]
    (path / "policy.safetensors").write_bytes(b"\0" * 4096)
    assert weight.tolist() == [[1.0, 1.0]] * 3


def test_the_newest_is_loaded_and_old_ones_are_dropped(store):
    for step in (1, 9, 10, 100):
        store.save(step, state_of(step))
    assert names(store) == ["iter-000010", "iter-000100"]
    step, state = store.load_latest()
    assert step == 100 and state["progress"]["step"] == 100


def test_the_one_just_saved_is_never_dropped(store):
    for step in (10, 20, 5):
        store.save(step, state_of(step))
    assert store.valid_steps() == [20, 5]


def test_nothing_saved_is_nothing_to_load(store):
    assert store.load_latest() is None


def test_manifest_tells_step_parent_and_facts(store):
    store.save(1, state_of(1))
    store.save(2, state_of(2))
    manifest = store.manifest(2)
    assert (manifest.step, manifest.parent, manifest.facts) == (2, 1, {"dtype": "float32"})
    assert set(manifest.files) == {"policy.safetensors", "state.json"}


def test_what_differs_at_resume_is_named():
    assert differing_facts({"threads": 2, "device": "cpu"}, {"threads": 4, "device": "cpu", "dtype": "x"}) == [
        "dtype: None when saved, x now",
        "threads: 2 when saved, 4 now",
    ]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda p: (p / "manifest.json").unlink(), "missing-file"),
        (lambda p: (p / "policy.safetensors").unlink(), "missing-file"),
        (lambda p: (p / "state.json").write_bytes(b"{}"), "size"),
        (lambda p: (p / "manifest.json").write_bytes(b""), "manifest"),
        (lambda p: [f.unlink() for f in p.iterdir()], "missing-file"),
    ],
)
def test_an_invalid_one_is_kept_under_its_reason_and_the_one_before_is_used(store, reports, damage, reason):
    store.save(1, state_of(1))
    damage(store.save(2, state_of(2)))
    step, state = store.load_latest()
    assert step == 1 and state["progress"]["step"] == 1
    assert names(store) == ["iter-000001", f"iter-000002.invalid-{reason}"]
    assert "iter-000002" in reports[0] and len(reports) == 1


def test_a_folder_moved_to_another_step_is_invalid(store):
    store.save(1, state_of(1)).rename(store.folder / "iter-000007")
    with pytest.raises(TightropeError, match="invalid-step"):
        store.load_latest()


def test_no_valid_one_left_is_an_error_and_not_a_fresh_start(store):
    (store.save(1, state_of(1)) / "state.json").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(TightropeError, match="no valid checkpoint"):
            store.load_latest()


def test_leftovers_of_a_killed_process_are_removed(store):
    store.save(1, state_of(1))
    for name in (".tmp-000002-99999", ".trash-iter-000000"):
        (store.folder / name).mkdir()
        (store.folder / name / "part").write_bytes(b"x")
    assert store.load_latest()[0] == 1
    assert names(store) == ["iter-000001"]


def test_saving_a_step_again_replaces_it(store):
    store.save(1, state_of(1))
    store.save(1, state_of(5))
    assert store.load_latest()[1]["progress"]["step"] == 5
    assert store.manifest(1).parent is None
    assert names(store) == ["iter-000001"]


def test_a_kill_between_the_renames_of_a_replacement_loses_nothing(store):
    path = store.save(1, state_of(1))
    path.rename(store.folder / ".replaced-000001")
    assert store.load_latest()[0] == 1
    assert names(store) == ["iter-000001"]


def test_a_replacement_that_fails_puts_the_old_one_back(store, monkeypatch):
    store.save(1, state_of(1))
    real = Path.rename

    def refuse_the_new_one(source, target):
        if source.name.startswith(".tmp"):
            raise OSError(5, "Input/output error")
        return real(source, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new_one)
    with pytest.raises(CheckpointMissed):
        store.save(1, state_of(5))
    assert names(store) == ["iter-000001"] and store.valid_steps() == [1]


def test_nothing_is_dropped_when_the_new_one_does_not_read_back(store, reports, monkeypatch):
    for step in (1, 2):
        store.save(step, state_of(step))
    monkeypatch.setattr("tightrope.storage.checkpoints.verify", lambda place: Invalid("sha256", "bad disk"))
    store.save(3, state_of(3))
    assert names(store) == ["iter-000001", "iter-000002", "iter-000003"] and "bad disk" in reports[0]


def test_too_little_space_is_noticed_before_writing(store, monkeypatch):
    store.save(1, state_of(1))
    monkeypatch.setattr("tightrope.storage.files.free_bytes", lambda path: 100)
    with pytest.raises(CheckpointMissed, match="free"):
        store.save(2, state_of(2))
    assert names(store) == ["iter-000001"]


def test_the_third_miss_in_a_row_stops_and_a_success_forgives(store, monkeypatch):
    def miss():
        with monkeypatch.context() as patch:
            patch.setattr("tightrope.storage.files.free_bytes", lambda path: 0)
            with pytest.raises(TightropeError) as caught:
                store.save(2, state_of(2))
        return caught.value

    assert [miss().misses, miss().misses] == [1, 2]
    store.save(3, state_of(3))
    assert [miss().misses, miss().misses] == [1, 2]
    last = miss()
    assert not isinstance(last, CheckpointMissed) and "3 in a row" in str(last)


def test_a_manifest_of_another_schema_is_refused_and_left_alone(store, monkeypatch):
    monkeypatch.setattr("tightrope.storage.manifest_file.SCHEMA", 2)
    store.save(1, state_of(1))
    monkeypatch.undo()
    with pytest.raises(TightropeError, match="another version"):
        store.load_latest()
    assert names(store) == ["iter-000001"]


@settings(max_examples=200, deadline=None)
@given(st.binary() | st.text().map(str.encode) | json_values.map(lambda v: json.dumps(v, default=str).encode()))
def test_any_bytes_as_manifest_are_a_typed_error(data):
    with pytest.raises(InvalidManifest):
        CheckpointManifest.from_bytes(data)


def test_a_manifest_cannot_name_files_outside_its_folder():
    crafted = CheckpointManifest(0, None, {"../secret": FileFact("ab", 1)}, {}).to_bytes()
    with pytest.raises(InvalidManifest, match="outside"):
        CheckpointManifest.from_bytes(crafted)
