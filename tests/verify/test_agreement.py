"""A verification and a load read a model in one way: what verifies as ok, no load refuses for the file."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import numpy as np
import onnx
import pytest
from end_to_end.small_models import finished, saved, tensor
from fuzz.growing import REGISTRY, Growable
from fuzz.mutations import fields_of_a_model, json_text
from onnx import TensorProto, helper, numpy_helper
from verify.scenes import by_hand, context_node

import epctx_core as epctx

COUNTING = """
import collections, json, os, sys
import epctx_core as epctx
opened = collections.Counter()
sys.addaudithook(lambda event, given: event == "open" and opened.update([os.path.basename(os.fsdecode(given[0]))])
    if event == "open" and isinstance(given[0], (str, bytes)) else None)
if sys.argv[1] == "verify":
    assert epctx.verify_model(sys.argv[2]).ok
else:
    epctx.InferenceSession(sys.argv[2]).close()
print(json.dumps(opened))
"""


@pytest.mark.parametrize("order", [["a#2", "a", "a"], ["a", "a", "a#1"], ["a", "a#1", "a"]])
@pytest.mark.parametrize("hostile", range(3))
def test_no_name_hides_a_node_from_the_verification(tmp_path, order, hostile):
    scene = by_hand(tmp_path / "m")

    def edit(proto):
        files = [b"../../../etc/passwd" if i == hostile else b"h_alpha.bin" for i in range(3)]
        values = ["x", "u", "v", "y"]
        nodes = [
            context_node(name, [values[i]], [values[i + 1]], main_context=1, ep_cache_context=files[i])
            for i, name in enumerate(order)
        ]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        proto.graph.value_info.append(tensor("u"))

    scene.edit(edit)
    report = scene.verify()

    assert report.nodes == 3
    assert [f.code for f in report.findings if f.severity.value == "error"] == ["name-unsafe"]
    with pytest.raises(epctx.InvalidGraph, match="leave"):
        epctx.InferenceSession(scene.path, registry=REGISTRY)


def in_one_file(folder, count):
    """A model of many weights in one file, one of them in the attribute of a node."""
    weights, value = [], "x"
    nodes = []
    for i in range(count):
        weight = TensorProto(
            name=f"w{i}", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL
        )
        for key, text in (("location", "w.bin"), ("offset", str(24 * i)), ("length", "24")):
            weight.external_data.add(key=key, value=text)
        if i % 2:
            nodes.append(helper.make_node("Constant", [], [weight.name], value=weight))
        else:
            weights.append(weight)
        nodes.append(helper.make_node("Add", [value, weight.name], [f"v{i}"]))
        value = f"v{i}"
    (folder / "w.bin").write_bytes(np.ones((count, 2, 3), np.float32).tobytes())
    return saved(finished(nodes, [tensor("x")], [tensor(value)], weights), folder / "m.onnx")


@pytest.mark.parametrize("action", ["verify", "load"])
def test_a_file_of_many_weights_is_opened_once(tmp_path, action):
    path = in_one_file(tmp_path, 20)

    done = subprocess.run(
        [sys.executable, "-c", COUNTING, action, path], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout)["w.bin"] == 1


def test_every_weight_that_cannot_be_had_is_told(tmp_path):
    path = in_one_file(tmp_path, 4)
    proto = onnx.load(path, load_external_data=False)
    for weight in proto.graph.initializer:
        weight.external_data[0].value = f"missing-{weight.name}.bin"
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "good"))
    path.write_bytes(proto.SerializeToString())

    findings = epctx.verify_model(path).findings

    assert [f.code for f in findings if f.code == "weights-refused"] == ["weights-refused"] * 2


CASES = 150


def changed(random, data):
    """A model of which one to three fields, or values of the manifest, are others."""
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.3:
            model = onnx.ModelProto.FromString(data)
            entry = model.metadata_props[random.randrange(len(model.metadata_props))]
            text = entry.value if isinstance(entry.value, bytes) else entry.value.encode()
            entry.value = json_text(random, text).decode("utf-8", "replace")
            data = model.SerializeToString()
        else:
            data = fields_of_a_model(random, data)
    return data


def disagreement(path):
    """Why a load refuses what a verification calls ok; nothing if it does not, or not for the file."""
    if not epctx.verify_model(path, registry=REGISTRY).ok:
        return None
    try:
        epctx.InferenceSession(path, registry=REGISTRY).close()
    except epctx.NotImplementedByProvider:
        # This machine has no EP or no kernel for it.
        return None
    except epctx.EpctxError as error:
        # Only an engine, which a verification does not ask, finds that operators left over do not fit each other.
        if "a piece of the model is wrong" in error.message:
            return None
        return f"{type(error).__name__}: {error}"
    return None


def disagreements(folder, numbers):
    """The cases in which the two disagree, with the reasons."""
    model = Growable(folder, loadable=True)
    seed = model.write(0).read_bytes()
    found = {}
    for number in numbers:
        model.path.write_bytes(changed(Random(number), seed))  # noqa: S311 - the same every time
        reason = disagreement(model.path)
        if reason is not None:
            found[number] = reason
    return found


def test_what_verifies_as_ok_is_refused_by_no_load_for_the_file(tmp_path):
    assert not disagreements(tmp_path, range(CASES))


@pytest.mark.stress
@pytest.mark.timeout(0)
def test_what_verifies_as_ok_is_refused_by_no_load_in_many_cases(tmp_path):
    assert not disagreements(tmp_path, range(CASES, 50 * CASES))
