"""Loading: which payload and graph a node gets, and what is refused with which
words.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from epctx_sim_qnn import QnnProvider
from epctx_sim_qnn.rules import RULES
from epctx_sim_sdk.versions import Relation
from onnx import TensorProto
from support.folders import REAL

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import Compatibility, Purpose, TensorType, ValueInfo

pytestmark = pytest.mark.internal

X = np.random.default_rng(1).standard_normal((2, 40)).astype(np.float32)

OPTIMAL = Compatibility.EP_SUPPORTED_OPTIMAL
RECOMPILE = Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION
NO = Compatibility.EP_UNSUPPORTED

VERSIONS = [
    ({}, {}, OPTIMAL, ""),
    ({"runtime_sdk_version": "sim-2.9.0"}, {}, OPTIMAL, ""),
    ({"runtime_sdk_version": "sim-1.99.0"}, {}, NO, "sdk sim-1.99.0"),
    ({"runtime_sdk_version": "sim-2.52.0"}, {}, NO, "sdk sim-2.52.0"),
    ({"runtime_sdk_version": "sim-3.0.0"}, {}, NO, "sdk sim-3.0.0"),
    ({}, {"runtime_sdk_version": "sim-3.0.0"}, NO, "needs sim-3.0.0"),
    ({}, {"runtime_sdk_version": "sim-2.99.0"}, OPTIMAL, ""),
    ({"runtime_driver_version": "sim-1.7.0"}, {}, OPTIMAL, ""),
    ({"runtime_driver_version": "sim-1.9.0"}, {}, NO, "driver sim-1.9.0"),
    ({"runtime_driver_version": "sim-0.9.0"}, {}, NO, "driver sim-0.9.0"),
    ({"htp_arch": "68"}, {}, RECOMPILE, ""),
    ({"htp_arch": "75"}, {}, NO, "htp_arch 75"),
    ({}, {"htp_arch": "69"}, NO, "htp_arch 73"),
    ({}, {"runtime_htp_arch": "75"}, RECOMPILE, ""),
    ({"htp_arch": "75"}, {"runtime_htp_arch": "75"}, OPTIMAL, ""),
    ({"runtime_driver_version": "sim-2.0.0"}, {}, NO, "driver sim-2.0.0"),
    ({}, {"runtime_driver_version": "none"}, NO, "needs none"),
    ({"runtime_driver_version": "none"}, {}, OPTIMAL, ""),
    (
        {"runtime_driver_version": "none"},
        {"runtime_driver_version": "none"},
        OPTIMAL,
        "",
    ),
    ({"runtime_backend": "gpu"}, {}, NO, "backend gpu"),
    ({}, {"runtime_backend": "cpu"}, NO, "needs cpu"),
    ({"runtime_backend": "gpu"}, {"runtime_backend": "gpu"}, OPTIMAL, ""),
    ({"runtime_api_version": "2"}, {}, NO, "api 2"),
    ({}, {"runtime_api_version": "2"}, OPTIMAL, ""),
    ({"runtime_blob_version": "99"}, {}, NO, "blob 99"),
    ({}, {"runtime_blob_version": "99"}, OPTIMAL, ""),
    ({"soc_model": "60"}, {}, OPTIMAL, ""),
    ({}, {"soc_model": "60"}, OPTIMAL, ""),
    ({"soc_model": "60"}, {"soc_model": "43"}, RECOMPILE, ""),
    ({"soc_model": "60"}, {"soc_model": "60"}, OPTIMAL, ""),
]
IDS = [f"{made}-{run}" for made, run, _, _ in VERSIONS]


@pytest.mark.parametrize(("made", "run", "verdict", "words"), VERSIONS, ids=IDS)
def test_a_payload_loads_unless_the_table_says_unsupported(
    scene, made, run, verdict, words
):
    described, content = scene.export(scene.two_partitions(), **made)

    if verdict is NO:
        with pytest.raises(InvalidGraph, match=words) as caught:
            scene.load(described, content, **run)
        assert caught.value.node == described[0].partition.name
        assert "simulated runtime needs" in caught.value.message
    else:
        assert scene.load(described, content, **run)[0].run([X], None)[0].shape == (
            2,
            40,
        )


@pytest.mark.parametrize(("made", "run", "verdict", "words"), VERSIONS, ids=IDS)
def test_the_compatibility_text_is_judged_like_the_payload(
    scene, made, run, verdict, words
):
    info = QnnProvider.get_compatibility_info(
        scene.partitions(scene.two_partitions()), scene.options(**made)
    )

    assert QnnProvider.validate_compatibility(info, scene.options(**run)) is verdict


def test_no_partition_gives_no_compatibility_text(scene):
    assert QnnProvider.get_compatibility_info([], scene.options()) == ""


@pytest.mark.parametrize("info", ["", "v2:6:2.51.0:5.51.0:0:60:0:0", "junk;sdk=1"])
def test_a_compatibility_text_that_is_not_ours_is_not_judged(scene, info):
    assert (
        QnnProvider.validate_compatibility(info, scene.options())
        is Compatibility.EP_NOT_APPLICABLE
    )


@pytest.mark.parametrize(
    "field", ["vendor", "backend", "api", "blob", "sdk", "htp_arch"]
)
def test_a_compatibility_text_of_ours_without_a_field_is_unsupported(scene, field):
    info = QnnProvider.get_compatibility_info(
        scene.partitions(scene.two_partitions()), scene.options()
    )
    without = ";".join(
        part for part in info.split(";") if not part.startswith(f"{field}=")
    )

    assert QnnProvider.validate_compatibility(without, scene.options()) is NO


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vendor", "OpenVINO"),
        ("backend", "gpu"),
        ("api", "two"),
        ("blob", "two"),
        ("sdk", "2.51.0"),
        ("driver", "1.8.0"),
        ("htp_arch", "sm_90"),
    ],
)
def test_a_fact_that_cannot_be_compared_is_unsupported(scene, field, value):
    info = QnnProvider.get_compatibility_info(
        scene.partitions(scene.two_partitions()), scene.options()
    )
    parts = [
        f"{field}={value}" if part.startswith(f"{field}=") else part
        for part in info.split(";")
    ]

    assert QnnProvider.validate_compatibility(";".join(parts), scene.options()) is NO


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"ep_sdk_version": "sim-9.0.0"}, "the node has sdk sim-9.0.0"),
        ({"ep_sdk_version": "v2.51.0.260929181845"}, "the node has sdk v2.51.0"),
        ({"hardware_architecture": "htp-v81 (simulated)"}, "the node has htp_arch 81"),
        ({"hardware_architecture": "sm_90"}, "the node has htp_arch sm_90"),
    ],
)
def test_what_the_node_says_is_checked_too(scene, attributes, words):
    described, content = scene.export(scene.two_partitions())
    first = replace(described[0], attributes={**described[0].attributes, **attributes})

    with pytest.raises(InvalidGraph, match=words):
        scene.load([first, *described[1:]], content)


def test_a_node_without_attributes_loads(scene):
    described, content = scene.export(scene.two_partitions())

    assert (
        len(scene.load([replace(node, attributes={}) for node in described], content))
        == 2
    )


def test_a_real_qnn_payload_is_refused_by_name(scene):
    described, _ = scene.export(scene.two_partitions())

    with pytest.raises(
        InvalidGraph, match=r"real QNN SDK \(Qualcomm\).*simulated"
    ) as caught:
        scene.load(described, (REAL / "qnn_ctx0_qnn.bin").read_bytes())

    assert caught.value.ep == "QNNExecutionProvider"
    assert caught.value.node == described[0].partition.name


def test_each_primarys_payload_is_opened_once_for_all_its_nodes(scene):
    described, content = scene.export(scene.two_partitions())
    nodes = scene.context_nodes(described)
    reader = scene.reader(**{nodes[0].name: content})

    scene.provider(Purpose.LOAD).load_context(nodes, reader)

    assert reader.asked == [nodes[0].name]


def test_references_may_come_in_a_later_call(scene):
    described, content = scene.export(scene.two_partitions())
    first, second = scene.context_nodes(described)
    provider, reader = (
        scene.provider(Purpose.LOAD),
        scene.reader(**{first.name: content}),
    )

    provider.load_context([first], reader)
    (late,) = provider.load_context([second], reader)

    assert late.run([X], None)[0].shape == (2, 40)


def glued(scene):
    """Two models of two partitions each in one: two primaries, two references that name
    no primary.
    """
    one, other = (scene.export(scene.two_partitions(seed=seed)) for seed in (1, 2))
    nodes = [*scene.context_nodes(one[0]), *scene.context_nodes(other[0])]
    primaries = [node for node in nodes if node.main_context]
    references = [
        replace(node, primary=None) for node in nodes if not node.main_context
    ]
    return (
        primaries,
        references,
        {
            node.name: part[1]
            for node, part in zip(primaries, (one, other), strict=True)
        },
    )


def test_references_find_their_graphs_in_one_of_several_payloads(scene):
    primaries, references, payloads = glued(scene)

    loaded = scene.provider(Purpose.LOAD).load_context(
        [*primaries, *references], scene.reader(**payloads)
    )

    for seed, runnable in zip((1, 2), loaded[2:], strict=True):
        compiled = scene.provider(Purpose.RUN).compile(
            scene.partitions(scene.two_partitions(seed=seed))
        )
        assert np.array_equal(runnable.run([X], None)[0], compiled[1].run([X], None)[0])


def test_a_reference_whose_graph_several_payloads_hold_is_refused(scene):
    primaries, references, payloads = glued(scene)
    twin = replace(primaries[0], name="twin")
    object.__setattr__(twin, "primary", twin)
    payloads["twin"] = payloads[primaries[0].name]

    with pytest.raises(InvalidGraph, match="2 of its 3 payloads hold a graph"):
        scene.provider(Purpose.LOAD).load_context(
            [*primaries, twin, references[0]], scene.reader(**payloads)
        )


def test_a_missing_graph_is_refused_naming_node_and_graphs_found(scene):
    described, content = scene.export(scene.two_partitions())
    nodes = scene.context_nodes(described)
    lost = replace(nodes[1], name="lost", partition_name="nowhere")

    with pytest.raises(
        InvalidGraph, match=r"'lost'.*'nowhere'.*graphs found"
    ) as caught:
        scene.provider(Purpose.LOAD).load_context(
            [nodes[0], lost], scene.reader(**{nodes[0].name: content})
        )

    assert nodes[0].partition_name in caught.value.message
    assert caught.value.node == "lost"


def test_a_reference_without_any_primary_is_refused(scene):
    described, _ = scene.export(scene.two_partitions())
    reference = replace(scene.context_nodes(described)[1], primary=None)

    with pytest.raises(InvalidGraph, match="graphs found: none"):
        scene.provider(Purpose.LOAD).load_context([reference], scene.reader())


def one_graph(scene):
    model = scene.two_partitions()
    del model.graph.node[2:]
    model.graph.node[1].output[0] = "y"
    described, content = scene.export(model)
    (node,) = scene.context_nodes(described)
    return node, content


def loaded(scene, node, content):
    object.__setattr__(node, "primary", node)
    return scene.provider(Purpose.LOAD).load_context(
        [node], scene.reader(**{node.name: content})
    )


def test_the_only_graph_of_a_payload_may_have_another_name_than_the_node(scene):
    node, content = one_graph(scene)

    (compiled,) = loaded(
        scene, replace(node, name="old", partition_name="old"), content
    )

    assert compiled.run([X], None)[0].shape == (2, 40)


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [ValueInfo("x", TensorType(TensorProto.FLOAT, (2, 41)))],
        [ValueInfo("x", TensorType(TensorProto.FLOAT, (2,)))],
        [ValueInfo("x", TensorType(TensorProto.INT32, (2, 40)))],
    ],
    ids=str,
)
def test_a_graph_that_does_not_fit_the_nodes_boundary_is_refused(scene, inputs):
    node, content = one_graph(scene)

    with pytest.raises(InvalidGraph, match="its inputs are"):
        loaded(scene, replace(node, inputs=tuple(inputs)), content)


@pytest.mark.parametrize(
    "kind",
    [
        TensorType(None, None),
        TensorType(TensorProto.FLOAT, None),
        TensorType(TensorProto.FLOAT, ("n", None)),
    ],
    ids=str,
)
def test_what_a_node_does_not_say_about_its_boundary_fits(scene, kind):
    node, content = one_graph(scene)

    assert (
        len(loaded(scene, replace(node, inputs=(ValueInfo("renamed", kind),)), content))
        == 1
    )


def test_every_truncation_of_a_payload_is_refused(scene):
    node, content = one_graph(scene)

    for length in range(0, len(content), 97):
        with pytest.raises(InvalidGraph):
            loaded(scene, node, content[:length])


def test_the_table_says_something_about_each_way_in_which_each_fact_can_differ():
    versions = {
        Relation.OLDER, Relation.OLDER_MAJOR, Relation.NEWER, Relation.NEWER_MAJOR,
        Relation.OTHER, Relation.MISSING,
    }  # fmt: skip
    numbers = {Relation.OLDER, Relation.NEWER, Relation.OTHER, Relation.MISSING}
    words = {Relation.OTHER, Relation.MISSING}

    said = {
        field: {relation for known, relation in RULES if known == field}
        for field, _ in RULES
    }

    assert said == {
        "vendor": words, "backend": words, "api": numbers, "blob": numbers,
        "sdk": versions, "driver": versions, "htp_arch": numbers, "soc_model": numbers,
    }  # fmt: skip
