"""Whatever metadata, attributes and payloads say: inspect, verify and load give a
result or a typed error.

Where the mutations of `cases` change what is there, Hypothesis makes values from rules,
and a failure small.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter

import onnx
import pytest
from fuzz.any_values import (
    ATTRIBUTE,
    archive_near,
    container_near,
    json_near,
    payload_near,
)
from fuzz.cases import read_seeds
from fuzz.isolated import Worker
from fuzz.seeds import write_seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sim_eps import OPENVINO, QNN, VITISAI

MANIFEST, KERNEL_TYPES, INITIALIZERS = (
    "epctx.manifest",
    "epctx.kernel_type_constraints",
    "epctx.initializers",
)
COMPATIBILITY_PREFIX, EARLIER_PREFIX = (
    "ep_compatibility_info.",
    "epctx.earlier_compatibility_info.",
)
ENTRIES = (
    ("mixed_file", MANIFEST),
    ("weightless", MANIFEST),
    ("kernels", KERNEL_TYPES),
    ("initializers", INITIALIZERS),
    ("qnn_embedded", EARLIER_PREFIX + QNN),
)
COMPATIBILITY = {
    "qnn_embedded": QNN,
    "openvino_embedded": OPENVINO,
    "vitisai_embedded": VITISAI,
}
FORMATS = {
    "qnn_embedded": container_near,
    "openvino_embedded": container_near,
    "vitisai_embedded": archive_near,
}
EXAMPLES = (50, pytest.param(1500, marks=pytest.mark.stress))

pytestmark = [
    pytest.mark.not_for_onnxruntime("one of the seeds has operators of acme"),
    pytest.mark.parametrize("examples", EXAMPLES),
]


class Host:
    """Host that uses a folder, in a process that may die of it.

    Attributes:
        seeds: by name, see `fuzz.seeds`.
    """

    def __init__(self, folder, worker):
        self.seeds = {seed.name: seed for seed in read_seeds(folder / "seeds")}
        self._folder = folder / "example"
        self._worker = worker

    def outcomes(self, strategy, list_source_files, examples):
        """Let files be made from values, as many as said; return how often each action
        ended how.

        Args:
            strategy: of values.
            list_source_files: gives the files for a value, by name.
        """
        found = Counter()

        @settings(
            max_examples=examples,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.large_base_example,
            ],
        )
        @given(strategy)
        def ends_well(value):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            for name, content in list_source_files(value).items():
                (self._folder / name).write_bytes(content)
            results = self._worker.run([self._folder])
            found.update(results.outcomes.keys())
            assert not results.faults, results.faults[0]

        ends_well()
        return found


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A host with the fuzzer's seeds."""
    folder = tmp_path_factory.mktemp("any_value")
    (folder / "seeds").mkdir()
    write_seeds(folder / "seeds")
    with Worker(folder / "seeds", folder / "case") as worker:
        yield Host(folder, worker)


def model_of(seed):
    """Return a copy of a seed's model, and its value of each metadata entry."""
    model = onnx.ModelProto.FromString(seed.files[seed.model])
    return model, {entry.key: entry.value for entry in model.metadata_props}


def with_metadata(seed, key, text):
    """Return a seed's files with a text for an entry of the model's metadata."""
    model, said = model_of(seed)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {**said, key: text})
    return {**seed.files, seed.model: model.SerializeToString()}


def context_nodes(model):
    return [node for node in model.graph.node if node.op_type == "EPContext"]


def without(model, key):
    """Take an entry out of a model's metadata."""
    kept = [entry for entry in model.metadata_props if entry.key != key]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)


@pytest.mark.parametrize(("name", "key"), ENTRIES)
def test_any_json_in_an_entry_of_the_metadata_ends_well(host, name, key, examples):
    seed = host.seeds[name]
    written = model_of(seed)[1].get(
        key, json.dumps(["epctx-sim;api=1", "epctx-sim;api=1;sdk=sim-2.51.0"])
    )

    outcomes = host.outcomes(
        json_near(written), lambda text: with_metadata(seed, key, text), examples
    )

    # What only ever is refused at the door tests the door.
    assert {"load ok", "load InvalidGraph"} <= outcomes.keys()


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_any_json_in_a_seal_ends_well(host, beside, examples):
    seed = host.seeds["qnn_file"]
    model, said = model_of(seed)
    without(model, MANIFEST)
    plain = model.SerializeToString()
    origin = {
        "by": "a tool",
        "bytes": len(plain),
        "sha256": hashlib.sha256(plain).hexdigest(),
    }
    written = json.dumps(
        {**json.loads(said[MANIFEST]), "providers": {}, "sealed": origin}
    )

    def list_source_files(text):
        if beside:
            return {
                **seed.files,
                seed.model: plain,
                f"{seed.model}.epctx.json": text.encode(),
            }
        entry = onnx.ModelProto(metadata_props=[{"key": "epctx.sealed", "value": text}])
        return {**seed.files, seed.model: plain + entry.SerializeToString()}

    outcomes = host.outcomes(json_near(written), list_source_files, examples)

    assert {"load ok", "load InvalidGraph"} <= outcomes.keys()


@pytest.mark.parametrize(("name", "ep"), COMPATIBILITY.items())
def test_any_compatibility_text_ends_well(host, name, ep, examples):
    seed = host.seeds[name]
    said = model_of(seed)[1][COMPATIBILITY_PREFIX + ep].split(";")
    facts = st.lists(
        st.sampled_from(said) | st.text(max_size=10), max_size=len(said) + 1
    )
    texts = (
        st.permutations(said)
        | facts
        | st.lists(st.integers(0, 4000).map("api=1{:0>4400}".format), max_size=2)
    )

    outcomes = host.outcomes(
        texts.map(";".join),
        lambda text: with_metadata(seed, COMPATIBILITY_PREFIX + ep, text),
        examples,
    )

    assert {"load ok", "load InvalidGraph"} <= outcomes.keys()


@pytest.mark.parametrize(
    "name", ["qnn_file", "openvino_file", "vitisai_file", "mixed_file"]
)
def test_any_attributes_of_a_context_node_end_well(host, name, examples):
    seed = host.seeds[name]
    count = len(context_nodes(model_of(seed)[0]))

    def list_source_files(value):
        place, attributes, replaces, keeps_manifest = value
        model, _ = model_of(seed)
        node = context_nodes(model)[place]
        names = {attribute.name for attribute in attributes}
        kept = [a for a in node.attribute if not replaces or a.name not in names]
        del node.attribute[:]
        node.attribute.extend([*kept, *attributes])
        if not keeps_manifest:
            without(model, MANIFEST)
        return {**seed.files, seed.model: model.SerializeToString()}

    attributes = st.lists(ATTRIBUTE, min_size=1, max_size=3)
    values = st.tuples(
        st.integers(0, count - 1),
        attributes,
        st.booleans() | st.just(True),
        st.booleans(),
    )
    outcomes = host.outcomes(values, list_source_files, examples)

    assert {"load ok", "load InvalidGraph"} <= outcomes.keys()


@pytest.mark.parametrize(("name", "near"), FORMATS.items(), ids=FORMATS)
def test_any_payload_ends_well(host, name, near, examples):
    seed = host.seeds[name]

    def payload_in(model):
        (found,) = (
            a
            for n in context_nodes(model)
            for a in n.attribute
            if a.name == "ep_cache_context"
        )
        return found

    def list_source_files(payload):
        model, _ = model_of(seed)
        payload_in(model).s = payload
        without(model, MANIFEST)
        return {seed.model: model.SerializeToString()}

    outcomes = host.outcomes(
        payload_near(payload_in(model_of(seed)[0]).s, near), list_source_files, examples
    )

    assert {"load ok", "load InvalidGraph"} <= outcomes.keys()
