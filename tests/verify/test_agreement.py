"""A verification and a load read a model in one way: what verifies as ok, no load
refuses for the file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.context_pairs import Alpha, attribute, by_hand, context_node, knowing
from support.growing import REGISTRY, Growable
from support.mutations import fields_of_a_model, json_text
from support.small_models import finished, saved, tensor

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, Purpose, hookimpl

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


@pytest.mark.parametrize(
    "order", [["a#2", "a", "a"], ["a", "a", "a#1"], ["a", "a#1", "a"]]
)
@pytest.mark.parametrize("hostile", range(3))
def test_no_name_hides_a_node_from_the_verification(tmp_path, order, hostile):
    harness = by_hand(tmp_path / "m")

    def edit(proto):
        files = [
            b"../../../etc/passwd" if i == hostile else b"h_alpha.bin" for i in range(3)
        ]
        values = ["x", "u", "v", "y"]
        nodes = [
            context_node(
                name,
                [values[i]],
                [values[i + 1]],
                main_context=1,
                ep_cache_context=files[i],
            )
            for i, name in enumerate(order)
        ]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        proto.graph.value_info.append(tensor("u"))

    harness.edit(edit)
    report = harness.verify()

    assert report.nodes == 3
    assert [f.code for f in report.findings if f.severity.value == "error"] == [
        "payload-refused"
    ]
    with pytest.raises(epctx.InvalidGraph, match="leave"):
        epctx.InferenceSession(harness.path, registry=REGISTRY)


def in_one_file(folder, count):
    """A model of many weights in one file, one of them in the attribute of a node."""
    weights, value = [], "x"
    nodes = []
    for i in range(count):
        weight = TensorProto(
            name=f"w{i}",
            data_type=TensorProto.FLOAT,
            dims=[2, 3],
            data_location=TensorProto.EXTERNAL,
        )
        for key, text in (
            ("location", "w.bin"),
            ("offset", str(24 * i)),
            ("length", "24"),
        ):
            weight.external_data.add(key=key, value=text)
        if i % 2:
            nodes.append(helper.make_node("Constant", [], [weight.name], value=weight))
        else:
            weights.append(weight)
        nodes.append(helper.make_node("Add", [value, weight.name], [f"v{i}"]))
        value = f"v{i}"
    (folder / "w.bin").write_bytes(np.ones((count, 2, 3), np.float32).tobytes())
    return saved(
        finished(nodes, [tensor("x")], [tensor(value)], weights), folder / "m.onnx"
    )


@pytest.mark.parametrize("action", ["verify", "load"])
def test_a_file_of_many_weights_is_opened_once(tmp_path, action):
    path = in_one_file(tmp_path, 20)

    done = subprocess.run(
        [sys.executable, "-c", COUNTING, action, path],
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout)["w.bin"] == 1


def test_a_weight_that_cannot_be_had_is_found_with_what_a_load_says(tmp_path):
    path = in_one_file(tmp_path, 4)
    (tmp_path / "w.bin").unlink()

    (finding,) = [
        f for f in epctx.verify_model(path).findings if f.severity.value == "error"
    ]

    assert finding.code == "model-invalid"
    assert "which is missing" in finding.message
    with pytest.raises(epctx.InvalidGraph, match="which is missing"):
        epctx.InferenceSession(path)


def test_weights_that_the_host_gives_are_sought_by_neither(tmp_path):
    path = in_one_file(tmp_path, 1)
    (tmp_path / "w.bin").unlink()
    options = epctx.SessionOptions()
    options.add_initializer("w0", np.ones((2, 3), np.float32))

    report = epctx.verify_model(path, options)

    assert report.ok
    epctx.InferenceSession(path, options).close()


def test_a_node_may_name_its_ep_by_another_key_than_the_primary_does(compiled):
    compiled.edit_node(1, lambda node: setattr(attribute(node, "source"), "s", b"QNN"))

    assert compiled.codes() == []
    epctx.InferenceSession(compiled.path).close()


def test_a_file_larger_than_any_model_is_a_finding(tmp_path):
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)

    (finding,) = epctx.verify_model(path).findings

    assert finding.code == "model-unreadable"
    with pytest.raises(epctx.InvalidProtobuf, match="less than 2 GiB"):
        epctx.InferenceSession(path)


def test_an_ep_that_is_stopped_while_it_looks_is_not_to_blame(handmade):
    def look(cls, context, nodes, reader):
        context.cancel.raise_if_requested()

    handmade.registry = knowing(
        type("Looking", (Alpha,), {"verify_payloads": classmethod(look)})
    )
    handmade.options.set_load_cancellation_flag(True)

    with pytest.raises(epctx.ModelLoadCanceled):
        handmade.verify()


def test_of_very_many_findings_of_one_code_the_first_are_listed_and_the_others_counted(
    handmade,
):
    wrong = [context_node(f"wrong{i}", ["x"], [f"w{i}"], notes=7) for i in range(1500)]
    handmade.edit(lambda proto: proto.graph.node.extend(wrong))

    messages = [
        f.message for f in handmade.verify().findings if f.code == "node-refused"
    ]

    assert len(messages) == 1001
    assert messages[-1] == "500 more findings of the code node-refused are not listed."


def of_other_lengths(graph):
    for name, length in (("two", 2), ("three", 3)):
        graph.initializer.append(
            numpy_helper.from_array(np.ones(length, np.float32), name)
        )
    graph.node.append(helper.make_node("Add", ["two", "three"], ["z"], "sum"))


def of_no_element_type(graph):
    graph.value_info.add(name="z").type.tensor_type.elem_type = 2147483647


def of_a_sequence_of_no_element_type(graph):
    graph.value_info.add(
        name="z"
    ).type.sequence_type.elem_type.tensor_type.elem_type = 99


def of_a_sequence_of_nothing(graph):
    graph.input.add(name="z").type.sequence_type.SetInParent()


def of_sparse_values_at_one_place(graph):
    sparse = graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array(2), "s_indices"))


def of_bodies_of_other_outputs(graph):
    def body(name, outputs):
        nodes = [
            context_node(
                f"{name}{i}",
                ["x"],
                [f"{name}{i}"],
                main_context=1,
                ep_cache_context=b"h_alpha.bin",
            )
            for i in range(outputs)
        ]
        return helper.make_graph(
            nodes, name, [], [tensor(f"{name}{i}") for i in range(outputs)]
        )

    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    branches = {"then_branch": body("t", 1), "else_branch": body("e", 2)}
    graph.node.append(helper.make_node("If", ["c"], ["z"], "choice", **branches))


@pytest.mark.parametrize(
    "wrong",
    [
        of_other_lengths,
        of_no_element_type,
        of_a_sequence_of_no_element_type,
        of_a_sequence_of_nothing,
        of_sparse_values_at_one_place,
        of_bodies_of_other_outputs,
    ],
)
def test_what_a_load_refuses_a_verification_has_found(tmp_path, wrong):
    harness = by_hand(tmp_path / "m")
    harness.edit(lambda proto: wrong(proto.graph))
    harness.registry = knowing(Reader)

    report = harness.verify()

    assert [f.code for f in report.findings if f.severity.value == "error"] == [
        "model-invalid"
    ]
    with pytest.raises(epctx.InvalidGraph):
        epctx.InferenceSession(harness.path, registry=harness.registry)


def test_an_ep_that_the_host_named_refuses_a_model_without_nodes_of_its_own(handmade):
    beta = type("Beta", (Alpha,), {"name": "BetaExecutionProvider"})
    handmade.registry = knowing(Alpha, beta)
    handmade.options.add_provider("Alpha")
    handmade.options.add_provider("Beta")
    handmade.edit_metadata(
        "ep_compatibility_info.BetaExecutionProvider", "EP_UNSUPPORTED"
    )

    codes = handmade.codes()

    assert codes == ["compatibility-unsupported", "manifest-missing"]
    with pytest.raises(epctx.InvalidGraph, match=r"Beta.* does not support"):
        epctx.InferenceSession(
            handmade.path, handmade.options, registry=handmade.registry
        )


class Reader(Alpha):
    """Loads its nodes without a device; looks into no payload by its class."""

    loads_without_device = True
    error = None

    @classmethod
    def verify_payloads(cls, context, nodes, reader):
        """Look into nothing."""
        return

    @hookimpl
    def load_context(self, nodes, reader):
        """Load them, or raise what the class says."""
        if self.error is not None:
            raise self.error
        run = (
            None
            if self.context.purpose is Purpose.EXPORT
            else lambda inputs, _outputs: list(inputs)
        )
        return [
            CompiledPartition(run) for _ in nodes if len(reader.payload(nodes[0]).view)
        ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (epctx.InvalidGraph("its magic is wrong."), "container-refused"),
        (epctx.NotImplementedByProvider("nobody runs Erf."), "kernel-missing"),
        (ZeroDivisionError("oh"), "plugin-broken"),
        (None, None),
    ],
    ids=str,
)
def test_an_ep_that_needs_no_device_loads_its_nodes_for_a_verification(
    tmp_path, error, code
):
    harness = by_hand(tmp_path / "m")
    harness.registry = knowing(type("Raising", (Reader,), {"error": error}))

    report = harness.verify()

    assert report.ok is (code in {None, "kernel-missing"})
    told = {
        "manifest-missing",
        code,
        "not-checked" if code == "kernel-missing" else None,
    }
    assert {f.code for f in report.findings} == told - {None}
    assert (report.payloads[0].looked_into_by is None) is (code is not None)


CASES = 150


def changed(random, data):
    """A model of which one to three fields, or values of the manifest, are others."""
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.3:
            model = onnx.ModelProto.FromString(data)
            entry = model.metadata_props[random.randrange(len(model.metadata_props))]
            text = (
                entry.value if isinstance(entry.value, bytes) else entry.value.encode()
            )
            entry.value = json_text(random, text).decode("utf-8", "replace")
            data = model.SerializeToString()
        else:
            data = fields_of_a_model(random, data)
    return data


def disagreement(path):
    """Return the reason for a load's refusal after a good verification, or for a
    verification's end; None if there is neither.
    """
    told: set[str] = set()
    try:
        report = epctx.verify_model(path, registry=REGISTRY)
        if not report.ok:
            return None
        told = {finding.code for finding in report.findings}
        epctx.InferenceSession(path, registry=REGISTRY).close()
    except epctx.EpctxError as error:
        if isinstance(error, epctx.NotImplementedByProvider) and told & {
            "plugin-missing",
            "kernel-missing",
        }:
            return None  # this machine has no EP or no kernel for it
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
