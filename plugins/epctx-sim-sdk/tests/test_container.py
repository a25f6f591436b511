"""The container: layout, sharing, determinism, and refusal of everything that is not
one.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from epctx_sim_sdk import container as format_
from epctx_sim_sdk.container import FOOT_SIZE, HEAD_SIZE, PAGE, open_container
from epctx_sim_sdk.writing import write_container
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epctx_core.errors import EPFail, InvalidGraph

pytestmark = pytest.mark.internal

QUICK = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def foot_of(content):
    return format_.Foot.unpack(memoryview(content)[-FOOT_SIZE:])


def rewritten(content, change):
    """A container whose tables were changed by someone who also fixed sizes and
    digest.
    """
    foot = foot_of(content)
    structures = content[foot.structures_start :][: foot.structures]
    found = json.loads(content[foot.structures_start + foot.structures : -FOOT_SIZE])
    new = json.dumps(change(found) or found).encode()
    return sealed(new, structures, content[HEAD_SIZE : foot.structures_start])


def sealed(tables, structures, weights):
    start = HEAD_SIZE + len(weights)
    body = structures + tables
    foot = format_.Foot(
        structures_start=start,
        structures=len(structures),
        tables=len(tables),
        total=start + len(body) + FOOT_SIZE,
    )
    return format_.head() + weights + body + foot.pack(body)


@QUICK
@given(
    weights=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 300)), min_size=1, max_size=5
    ),
    fp16=st.booleans(),
)
def test_what_is_written_is_read_back_bit_by_bit(scene, weights, fp16):
    arrays = [
        np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
        for seed, n in weights
    ]
    graphs = [
        scene.graph(scene.dense(weight=a), fp16=fp16, number=i)
        for i, a in enumerate(arrays)
    ]

    container = scene.open(scene.write(*graphs))

    assert list(container.tables.graphs) == [graph.name for graph in graphs]
    for graph in graphs:
        entry = container.tables.graphs[graph.name]
        assert container.structure(entry) == graph.structure
        assert (entry.inputs, entry.outputs) == (graph.inputs, graph.outputs)
        found = container.arrays(entry)
        assert found.keys() == graph.weights.keys()
        for name, view in graph.weights.items():
            assert np.array_equal(found[name], view.array())
            assert found[name].dtype == view.dtype


def test_same_graphs_give_the_same_bytes(scene):
    once = scene.write(
        scene.graph(scene.dense()), scene.graph(scene.dense(scale=2.0), number=1)
    )
    again = scene.write(
        scene.graph(scene.dense()), scene.graph(scene.dense(scale=2.0), number=1)
    )

    assert once == again


def test_equal_weights_are_stored_once_whatever_their_names(scene):
    one = scene.graph(scene.dense(names="abc"))
    other = scene.graph(scene.dense(names="xyz", scale=5.0), number=1)

    content = scene.write(one, other)

    assert len(scene.open(content).tables.weights) == 1
    assert content.count(one.weights["w0"].array().tobytes()) == 1


def test_graphs_of_equal_structure_share_their_bytes(scene):
    one, other = (
        scene.graph(scene.dense(names="abc")),
        scene.graph(scene.dense(names="xyz"), number=1),
    )

    tables = scene.open(scene.write(one, other)).tables

    assert len(tables.structures) == 1
    assert [graph.structure for graph in tables.graphs.values()] == [0, 0]


def test_small_weights_lie_on_a_line_and_large_ones_on_a_page_of_their_own(scene):
    sizes = (400, 20_000, 300, 30_000)
    graphs = [
        scene.graph(scene.dense(weight=np.full((n, 4), n, np.float32)), number=i)
        for i, n in enumerate(sizes)
    ]

    content = scene.write(*graphs)

    offsets = {w.shape[0]: w.offset for w in scene.open(content).tables.weights}
    assert offsets[20_000] % PAGE == offsets[30_000] % PAGE == 0
    assert all(offset % 64 == 0 for offset in offsets.values())


def test_weights_are_views_over_the_payload_and_read_only(scene):
    content = scene.write(scene.graph(scene.dense()))
    container = scene.open(content)

    (array,) = container.arrays(next(iter(container.tables.graphs.values()))).values()

    memory = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    assert 0 <= array.__array_interface__["data"][0] - memory < len(content)
    assert not array.flags.writeable


def test_nothing_of_the_networks_names_and_notes_is_in_the_payload(scene):
    content = scene.write(
        scene.graph(scene.dense(names=("pixels", "kernel", "logits")))
    )

    assert b"secret" not in content
    assert b"kernel" not in content
    assert b"graph of" not in content


def test_every_changed_byte_outside_of_the_weights_is_noticed(scene):
    content = bytearray(scene.write(scene.graph(scene.dense())))
    start = foot_of(content).structures_start

    for place in (*range(HEAD_SIZE), *range(start, len(content))):
        content[place] ^= 0x41
        with pytest.raises(InvalidGraph):
            scene.open(bytes(content))
        content[place] ^= 0x41

    assert scene.open(bytes(content)).damaged_weights() == []


def test_a_payload_that_the_core_has_digested_is_not_digested_again(scene):
    content = bytearray(scene.write(scene.graph(scene.dense())))
    content[-FOOT_SIZE + 32] ^= 1  # a digit of the digest in the foot
    view = memoryview(bytes(content))

    opened = open_container(view, ep="E", node="n", name="p", verified=True)

    assert len(opened.tables.graphs) == 1
    with pytest.raises(
        InvalidGraph, match="do not have the digest that is written in it"
    ):
        open_container(view, ep="E", node="n", name="p")


def test_every_truncation_is_noticed(scene):
    content = scene.write(scene.graph(scene.dense()))

    for length in range(len(content)):
        with pytest.raises(InvalidGraph, match=r"truncated|empty"):
            scene.open(content[:length])


def test_bytes_after_the_end_are_noticed(scene):
    with pytest.raises(InvalidGraph, match="longer than it should be"):
        scene.open(scene.write(scene.graph(scene.dense())) + b"\0")


def test_a_changed_weight_is_found_when_weights_are_read(scene):
    content = bytearray(scene.write(scene.graph(scene.dense())))
    content[foot_of(content).structures_start - 1] ^= 1

    assert scene.open(bytes(content)).damaged_weights() == [0]


@QUICK
@given(junk=st.binary(min_size=1, max_size=400))
def test_junk_is_refused(scene, junk):
    with pytest.raises(InvalidGraph):
        scene.open(junk)


@QUICK
@given(junk=st.binary(max_size=400), tail=st.binary(max_size=50))
def test_junk_with_a_right_digest_is_refused(scene, junk, tail):
    with pytest.raises(InvalidGraph):
        scene.open(sealed(junk, tail, tail))


def replace(*path, value):
    def change(tables):
        place = tables
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


NUMBERS = (
    ("weights", 0, "offset"),
    ("weights", 0, "length"),
    ("weights", 0, "elem_type"),
    ("weights", 0, "shape", 0),
    ("structures", 0, "offset"),
    ("structures", 0, "length"),
    ("structures", 0, "activation_bytes"),
    ("graphs", 0, "structure"),
    ("graphs", 0, "weights", 0, 1),
    ("graphs", 0, "inputs", 0, 1),
    ("graphs", 0, "inputs", 0, 2, 0),
)
OTHERS = (
    ("weights", 0, "shape"),
    ("weights", 0, "digest"),
    ("weights", 0),
    ("weights",),
    ("structures",),
    ("graphs", 0, "name"),
    ("graphs", 0, "weights"),
    ("graphs", 0, "weights", 0),
    ("graphs", 0, "weights", 0, 0),
    ("graphs", 0, "inputs"),
    ("graphs", 0, "inputs", 0),
    ("graphs", 0, "inputs", 0, 0),
    ("graphs", 0, "inputs", 0, 2),
    ("graphs", 0, "outputs"),
    ("graphs", 0),
    ("graphs",),
    ("made_by", "sdk"),
    ("made_by",),
)


def shown(value):
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)[:6]


def use(container):
    for name in container.tables.graphs:
        container.arrays(container.graph(name))


@pytest.mark.parametrize("value", [-1, 1 << 70, 10**400, 1.5, True, [], {}], ids=shown)
@pytest.mark.parametrize("path", NUMBERS, ids=shown)
def test_a_wrong_number_with_a_right_digest_is_refused(scene, path, value):
    graph = scene.graph(scene.dense())
    content = rewritten(scene.write(graph), replace(*path, value=value))

    with pytest.raises(InvalidGraph, match="is damaged"):
        use(scene.open(content))


@pytest.mark.parametrize("value", [-1, None, True, 1.5, [[]], {"a": 1}], ids=shown)
@pytest.mark.parametrize("path", OTHERS, ids=shown)
def test_a_wrong_type_with_a_right_digest_is_refused_unless_it_is_allowed_there(
    scene, path, value
):
    graph = scene.graph(scene.dense())
    content = rewritten(scene.write(graph), replace(*path, value=value))
    if value is None and path[-2:] == (0, 2):
        use(scene.open(content))  # a shape of unknown rank
        return

    with pytest.raises(InvalidGraph, match="is damaged"):
        use(scene.open(content))


def test_deeply_nested_tables_are_refused(scene):
    with pytest.raises(InvalidGraph, match="not JSON"):
        scene.open(sealed(b"[" * 100_000, b"", b""))


def test_a_type_nested_more_deeply_than_the_stack_that_is_left_is_refused(scene):
    nested = []
    for _ in range(700):
        nested = [nested]
    change = replace("graphs", 0, "inputs", 0, 2, value=nested)
    container = scene.open(rewritten(scene.write(scene.graph(scene.dense())), change))

    def use_below(frames):
        use(container) if not frames else use_below(frames - 1)

    with pytest.raises(InvalidGraph, match="is damaged"):
        use_below(450)


def test_tables_that_would_fill_the_memory_are_refused_before_they_are_decoded(scene):
    with pytest.raises(InvalidGraph, match="more than 8,388,608 entries"):
        scene.open(sealed(b"[" + b"[]," * (5 << 20) + b"0]", b"", b""))


def test_a_weight_without_elements_whose_other_dimensions_no_memory_holds_is_refused(
    scene,
):
    def change(tables):
        tables["weights"][0].update(shape=[0, *[1 << 28] * 3], length=0)

    with pytest.raises(InvalidGraph, match="do not fit"):
        use(scene.open(rewritten(scene.write(scene.graph(scene.dense())), change)))


def test_an_element_type_that_onnx_does_not_have_is_refused(scene):
    change = replace("graphs", 0, "inputs", 0, 1, value=127)

    with pytest.raises(InvalidGraph, match="element type 127"):
        use(scene.open(rewritten(scene.write(scene.graph(scene.dense())), change)))


def test_of_a_graph_that_nobody_asks_for_the_name_alone_is_read(scene):
    graphs = (
        scene.graph(scene.dense()),
        scene.graph(scene.dense(elements=500), number=1),
    )
    container = scene.open(
        rewritten(scene.write(*graphs), replace("graphs", 1, "structure", value=2))
    )

    good, bad = container.tables.graphs
    assert container.graph(good).structure == 0
    with pytest.raises(
        InvalidGraph, match=f"is damaged: graph '{bad}': a structure's number is 2"
    ):
        container.graph(bad)


def test_two_graphs_of_one_name_are_refused_when_read(scene):
    content = rewritten(
        scene.write(scene.graph(scene.dense())),
        lambda t: t["graphs"].append(t["graphs"][0]),
    )

    with pytest.raises(InvalidGraph, match="two graphs are called"):
        scene.open(content)


def test_two_graphs_of_one_name_are_refused_when_written(scene):
    graph = scene.graph(scene.dense())

    with pytest.raises(EPFail, match="two graphs"):
        scene.write(graph, graph)


def test_a_later_format_is_refused_by_its_number(scene):
    content = bytearray(scene.write(scene.graph(scene.dense())))
    content[8] = 9

    with pytest.raises(InvalidGraph, match="has format 9"):
        scene.open(bytes(content))


def test_a_container_is_written_to_the_start_of_a_payload_only(scene):
    payload = scene.payload()
    payload.write(b"someone was here")

    with pytest.raises(EPFail, match="holds 16 bytes already"):
        write_container(payload, [scene.graph(scene.dense())], scene.facts)
