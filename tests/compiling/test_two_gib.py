"""Entries 39 to 53, continued: a context model that no protobuf could hold, with a
limit that small models reach.
"""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from support.compiling import compiler
from support.engine_eps import Alpha, scripted
from support.routes import refused, with_qnn
from support.small_models import finished, saved, tensor
from support.validating_eps import session

import epctx_core as epctx
from epctx_core.errors import Fail

pytestmark = pytest.mark.internal


@pytest.fixture
def limit(monkeypatch):
    """A protobuf that holds 10,000 bytes."""
    monkeypatch.setattr("epctx_core.compiling.initializers.MOST_BYTES", 10_000)


def heavy(left, taken, path):
    """Return a model with so many bytes of weights that stay, and that Alpha takes."""
    generator = np.random.default_rng(0)
    shape = [1, 1]
    weights = [
        numpy_helper.from_array(
            generator.standard_normal((size // 4, 1), dtype=np.float32), name
        )
        for name, size in (("left", left), ("taken", taken))
    ]
    nodes = [
        helper.make_node("Add", ["x", "taken"], ["a"], name="add"),
        helper.make_node("Transpose", ["a"], ["t"], name="t"),
        helper.make_node("Mul", ["t", "left"], ["y"], name="mul"),
    ]
    return saved(
        finished(
            nodes, [tensor("x", shape=shape)], [tensor("y", shape=["a", "b"])], weights
        ),
        path,
    )


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("route", ["file", "bytes", "session"])
def test_weights_that_cannot_be_embedded_are_refused_before_compiling(tmp_path, route):
    source, ep = heavy(4_000, 8_000, tmp_path / "m.onnx"), scripted()

    with refused(
        Fail, "at least 12,000 bytes.*holds at most 10,000", folder=tmp_path
    ) as caught:
        if route == "session":
            session(source, ep, ep__context_enable=1, ep__context_embed_mode=1)
        else:
            made = compiler(source, ep, embed_compiled_data_into_model=True)
            made.compile_to_file() if route == "file" else made.compile_to_bytes()

    assert "ep.context_embed_mode=0" in caught.value.hint
    assert "get_capability" in ep.calls
    assert "compile" not in ep.calls


@pytest.mark.usefixtures("limit")
def test_weights_that_an_ep_would_shrink_count_by_their_size_in_the_source(tmp_path):
    source = heavy(400, 12_000, tmp_path / "m.onnx")
    halved = with_qnn({"enable_htp_fp16_precision": "1"})

    with refused(Fail, "at least 12,... bytes", folder=tmp_path) as caught:
        epctx.ModelCompiler(
            halved, source, embed_compiled_data_into_model=True
        ).compile_to_file()

    assert "ep.context_embed_mode=0" in caught.value.hint
    assert epctx.ModelCompiler(halved, source).compile_to_file().output.exists()


@pytest.mark.usefixtures("limit")
def test_weights_that_stay_and_do_not_fit_may_go_into_a_file(tmp_path):
    source = heavy(12_000, 4_000, tmp_path / "m.onnx")

    with refused(Fail, "at least 12,000 bytes", folder=tmp_path) as caught:
        compiler(source, Alpha).compile_to_file()

    assert "ep.context_model_external_initializers_file_name" in caught.value.hint
    report = compiler(
        source, Alpha, external_initializers_file_path="w.data"
    ).compile_to_file()
    assert "w.data" in report.required_files


@pytest.mark.usefixtures("limit")
def test_what_was_not_known_before_is_refused_by_the_writer_and_nothing_is_written(
    tmp_path,
):
    source = heavy(400, 400, tmp_path / "m.onnx")
    grows = scripted(get_ep_context_nodes=grown)

    with refused(Fail, "would have at least 1.,... bytes", folder=tmp_path) as caught:
        compiler(source, grows, embed_compiled_data_into_model=True).compile_to_file()
    assert "ep.context_embed_mode=0" in caught.value.hint

    assert compiler(source, grows).compile_to_file().output.exists()


def grown(honest, writer):
    nodes = honest()
    nodes[0].payload.write(bytes(12_000))
    return nodes


@pytest.mark.usefixtures("limit")
def test_equal_weights_count_once(tmp_path):
    source = heavy(400, 6_000, tmp_path / "m.onnx")
    model = onnx.load(source)
    twin = onnx.TensorProto()
    twin.CopyFrom(model.graph.initializer[1])
    twin.name = "twin"
    model.graph.initializer.append(twin)
    model.graph.node.insert(
        1, onnx.helper.make_node("Add", ["a", "twin"], ["b"], name="twice")
    )
    model.graph.node[2].input[0] = "b"
    saved(model, source)
    ep = scripted()

    # An EP may store them once, so that it is asked; this one does not.
    with refused(Fail, "model would have at least 1", folder=tmp_path):
        compiler(source, ep, embed_compiled_data_into_model=True).compile_to_file()

    assert "compile" in ep.calls


@pytest.fixture
def hashed(monkeypatch):
    """Lengths of the bytes that anything in this process computed SHA-256 of."""
    lengths = []
    real = hashlib.sha256

    class Counting:
        def __init__(self, data=b"", **given):
            self._sha = real(**given)
            self.update(data)

        def update(self, data):
            lengths.append(memoryview(data).nbytes)
            self._sha.update(data)

        def __getattr__(self, name):
            return getattr(self._sha, name)

    monkeypatch.setattr(hashlib, "sha256", Counting)
    return lengths


def of_sparse_weights(folder, side, *, differ):
    """Return a model of three weights of one size in a file without blocks, but for
    their first bytes where they differ.
    """
    size = 4 * side * side
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[1,{side}] x, float[{side},{side}] w0, float[{side},{side}] w1,
           float[{side},{side}] w2) => (float[1,{side}] y) {{
            a = MatMul(x, w0)
            b = MatMul(a, w1)
            y = MatMul(b, w2)
        }}"""
    )
    del model.graph.input[1:]
    with (folder / "w.data").open("wb") as file:
        file.truncate(3 * size)
        for number in range(3):
            weight = model.graph.initializer.add(
                name=f"w{number}",
                data_type=onnx.TensorProto.FLOAT,
                dims=[side, side],
                data_location=onnx.TensorProto.EXTERNAL,
            )
            for key, value in (
                ("location", "w.data"), ("offset", number * size), ("length", size)
            ):  # fmt: skip
                weight.external_data.add(key=key, value=str(value))
            file.seek(number * size)
            file.write(bytes([number * differ]))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def test_an_embed_beyond_2_gib_is_refused_before_weights_are_read(tmp_path, hashed):
    source = of_sparse_weights(tmp_path, 16_384, differ=True)

    with refused(Fail, "at least 3,221,225,472 bytes", folder=None) as caught:
        epctx.ModelCompiler(
            with_qnn(), source, embed_compiled_data_into_model=True
        ).compile_to_file()

    assert "ep.context_embed_mode=0" in caught.value.hint
    assert sum(hashed) < 1 << 20
    assert not (tmp_path / "m_ctx.onnx").exists()


@pytest.mark.usefixtures("limit")
def test_weights_that_begin_alike_are_read_and_count_once_if_they_are_equal(
    tmp_path, hashed
):
    source = of_sparse_weights(tmp_path, 32, differ=False)

    epctx.ModelCompiler(
        with_qnn(), source, embed_compiled_data_into_model=True
    ).compile_to_file()

    assert sum(hashed) > 3 * 4 * 32 * 32
