"""Entries 29 to 38: where the initializers of a context model go."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.compiling import compiler, context_nodes, proto_of
from support.engine_eps import Alpha, scripted
from support.onnxruntime_results import onnxruntime_says
from support.routes import refused
from support.small_models import finished, saved, snapshot, tensor
from support.validating_eps import session

import epctx_core as epctx
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph

SIZE = 600
SEAL = "epctx.initializers"
KEY = "ep__context_model_external_initializers_file_name"
FOLDER_KEY = "session__model_external_initializers_file_folder_path"
X = np.linspace(-1, 1, SIZE, dtype=np.float32)


def network():
    """y = -(x + taken) * left ^ scalar, with an If that reads a weight of its own;
    Alpha takes the Add alone.
    """
    branch = {
        name: helper.make_graph(
            [helper.make_node("Mul", ["p", f"{name}_w"], [name], name=f"{name}_mul")],
            name,
            [],
            [tensor(name, shape=[SIZE])],
            [numpy_helper.from_array(np.full(SIZE, value, np.float32), f"{name}_w")],
        )
        for name, value in (("then_branch", 5), ("else_branch", 7))
    }
    nodes = [
        helper.make_node("Add", ["x", "taken"], ["a"], name="add"),
        helper.make_node("Neg", ["a"], ["n"], name="neg"),
        helper.make_node("Mul", ["n", "left"], ["m"], name="mul"),
        helper.make_node("Pow", ["m", "scalar"], ["p"], name="pow"),
        helper.make_node("If", ["c"], ["y"], name="if", **branch),
    ]
    weights = [
        numpy_helper.from_array(np.full(SIZE, 2, np.float32), "taken"),
        numpy_helper.from_array(np.arange(SIZE, dtype=np.float32) / SIZE, "left"),
        numpy_helper.from_array(np.array(2, np.float32), "scalar"),
    ]
    inputs = [tensor("x", shape=[SIZE]), tensor("c", TensorProto.BOOL, [])]
    return finished(nodes, inputs, [tensor("y", shape=[SIZE])], weights)


LEFT = {
    "left": 4 * SIZE,
    "scalar": 4,
    "then_branch_w": 4 * SIZE,
    "else_branch_w": 4 * SIZE,
}
"""The initializers that stay, and their bytes."""
FEEDS = {"x": X, "c": np.array(True)}
EXPECTED = (-(X + 2) * np.arange(SIZE, dtype=np.float32) / SIZE) ** 2 * 5


@pytest.fixture
def source(tmp_path):
    """The network with all weights inside, alone in a folder."""
    return saved(network(), folder_in(tmp_path, "inline") / "m.onnx")


@pytest.fixture
def external(tmp_path):
    """The network with its weights in a file, alone in a folder."""
    model = network()
    path = folder_in(tmp_path, "external") / "m.onnx"
    onnx.save(
        model, path, save_as_external_data=True, location="m.data", size_threshold=0
    )
    return path


def folder_in(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    return folder


def tensors(model):
    """All initializers of a model by name, those of bodies too."""
    found, graphs = {}, [proto_of(model).graph]
    for graph in graphs:
        found |= {t.name: t for t in graph.initializer}
        graphs += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return found


def places(model):
    """Locations of a model's external initializers: name to (file, offset, length)."""
    found = {}
    for name, stored in tensors(model).items():
        entries = {e.key: e.value for e in stored.external_data}
        if entries:
            found[name] = (
                entries["location"],
                int(entries["offset"]),
                int(entries["length"]),
            )
    return found


def result(model, **entries):
    with session(model, Alpha, **entries) as loaded:
        return loaded.run(None, FEEDS)[0]


def assert_right(model, **entries):
    np.testing.assert_allclose(result(model, **entries), EXPECTED, rtol=1e-5)


# --- the session option ---------------------------------------------------------------


@pytest.mark.entry(29, 37)
@pytest.mark.parametrize("route", ["compiler", "session"])
def test_the_option_puts_every_initializer_that_stays_into_one_new_file(
    external, tmp_path, route
):
    output = folder_in(tmp_path, "out") / "m_ctx.onnx"

    if route == "compiler":
        report = compiler(external, Alpha, entries={KEY: "m_ctx.data"}).compile_to_file(
            output
        )
        assert set(report.required_files) == {"m_ctx.data", "m_alpha.bin", "m_ctx.onnx"}
        assert {f.path: f.bytes for f in report.outputs} == {
            p.name: p.stat().st_size for p in output.parent.iterdir()
        }
    else:
        session(
            external,
            Alpha,
            ep__context_enable=1,
            ep__context_file_path=output,
            **{KEY: "m_ctx.data"},
        ).close()
    for path in list(external.parent.iterdir()):
        path.unlink()

    assert {name: (at[0], at[2]) for name, at in places(output).items()} == {
        name: ("m_ctx.data", size) for name, size in LEFT.items()
    }
    assert set(tensors(output)) == set(LEFT)
    assert_right(output)
    assert "EPContext" in onnxruntime_says(output)


@pytest.mark.entry(30)
def test_without_it_everything_that_stays_is_in_the_model(external, tmp_path):
    output = folder_in(tmp_path, "out") / "m_ctx.onnx"

    report = compiler(external, Alpha).compile_to_file(output)
    for path in list(external.parent.iterdir()):
        path.unlink()

    assert places(output) == {}
    assert set(tensors(output)) == set(LEFT)
    assert report.required_files == ("m_alpha.bin", "m_ctx.onnx")
    assert_right(output)


@pytest.mark.entry(31)
@pytest.mark.parametrize("name", [None, "sub/w.data"])
def test_a_model_from_bytes_finds_its_weights_by_the_option_and_then_needs_them_no_more(
    external, tmp_path, name
):
    output = folder_in(tmp_path, "out") / "m_ctx.onnx"
    entries = {FOLDER_KEY: external.parent, **({KEY: name} if name else {})}

    compiler(external.read_bytes(), Alpha, entries=entries).compile_to_file(output)
    for path in list(external.parent.iterdir()):
        path.unlink()

    assert {file for file, _, _ in places(output).values()} == (
        {name} if name else set()
    )
    assert_right(output)
    from_bytes = {"ep__context_file_path": output, FOLDER_KEY: output.parent}
    assert_right(output.read_bytes(), **from_bytes)


# --- the compiler's arguments ---------------------------------------------------------


@pytest.mark.entry(37)
@pytest.mark.parametrize(
    ("threshold", "outside"),
    [({}, set(LEFT) - {"scalar"}), ({"external_initializers_size_threshold": 4 * SIZE + 1}, set()),
     ({"external_initializers_size_threshold": 4 * SIZE}, set(LEFT) - {"scalar"}),
     ({"external_initializers_size_threshold": 0}, set(LEFT))],
    ids=["default", "above all", "of the large ones", "0"],
)  # fmt: skip
@pytest.mark.parametrize(
    "option", [{}, {KEY: "other.data"}], ids=["alone", "over the option"]
)
def test_the_compilers_threshold_says_which_initializers_leave_the_model(
    source, threshold, outside, option
):
    made = compiler(
        source,
        Alpha,
        entries=option,
        external_initializers_file_path="m.data",
        **threshold,
    )

    report = made.compile_to_file()

    assert set(places(report.output)) == outside
    assert source.with_name("m.data").exists() is bool(outside)
    assert ("m.data" in report.required_files) is bool(outside)
    assert not source.with_name("other.data").exists()
    assert_right(report.output)


@pytest.mark.parametrize("threshold", [-1, True, 1.5, "1024"])
def test_a_threshold_is_a_number_of_bytes(source, threshold):
    with refused_simply(f"must be a number of bytes from 0 on, not {threshold!r}"):
        compiler(source, Alpha, external_initializers_size_threshold=threshold)


def refused_simply(match):
    return pytest.raises(InvalidArgument, match=match)


def test_equal_initializers_are_stored_once_and_large_ones_begin_on_pages(tmp_path):
    array = np.random.default_rng(0).standard_normal(3000, dtype=np.float32)
    names = ["one", "other"]
    nodes = [
        helper.make_node(
            "Mul", ["x" if i == 0 else "v", n], ["v" if i == 0 else "y"], name=n
        )
        for i, n in enumerate(names)
    ]
    weights = [numpy_helper.from_array(array, name) for name in names]
    source = saved(
        finished(
            nodes, [tensor("x", shape=[3000])], [tensor("y", shape=[3000])], weights
        ),
        tmp_path / "m.onnx",
    )

    report = compiler(
        source, Alpha, external_initializers_file_path="w.data"
    ).compile_to_file()

    at = places(report.output)
    assert at["one"] == at["other"] == ("w.data", 0, 12_000)
    content, seal = (
        source.with_name("w.data").read_bytes().split(b"epctx initializers ")
    )
    assert content == array.tobytes()
    assert len(seal) == len(f"{'0' * 64}\n")


def test_another_compiles_file_of_the_same_size_is_told_by_its_end(source, tmp_path):
    reports = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        model = onnx.load(source)
        left = next(
            tensor for tensor in model.graph.initializer if tensor.name == "left"
        )
        left.CopyFrom(
            numpy_helper.from_array(
                numpy_helper.to_array(left) + np.float32(number), "left"
            )
        )
        saved(model, folder / "m.onnx")
        reports.append(
            compiler(
                folder / "m.onnx", Alpha, entries={KEY: "m.data"}
            ).compile_to_file()
        )
    one, other = (tmp_path / name / "m.data" for name in "01")
    assert one.stat().st_size == other.stat().st_size

    one.write_bytes(other.read_bytes())

    with refused(
        InvalidGraph, "'m.data' is not the one that the model was written with"
    ):
        result(reports[0].output)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"name": "m.data", "bytes": 9, "digest": "00"}']
)
def test_a_damaged_seal_in_the_model_is_refused(source, text):
    report = compiler(source, Alpha, entries={KEY: "m.data"}).compile_to_file()
    model = onnx.load(report.output, load_external_data=False)
    next(p for p in model.metadata_props if p.key == "epctx.initializers").value = text
    saved(model, report.output)

    with refused(InvalidGraph, "metadata is damaged"):
        result(report.output)


def test_a_model_without_the_seal_in_its_metadata_loads_as_before(source):
    report = compiler(source, Alpha, entries={KEY: "m.data"}).compile_to_file()
    model = onnx.load(report.output, load_external_data=False)
    kept = [p for p in model.metadata_props if p.key != "epctx.initializers"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    expected = result(report.output)

    saved(model, report.output)

    assert np.array_equal(result(report.output), expected)


def test_a_model_that_is_compiled_again_without_a_file_says_nothing_of_the_old_one(
    source, tmp_path
):
    report = compiler(source, Alpha, entries={KEY: "m.data"}).compile_to_file()

    again = compiler(report.output, Alpha).compile_to_file(tmp_path / "again_ctx.onnx")

    assert "epctx.initializers" not in {
        p.key for p in onnx.load(again.output).metadata_props
    }
    assert np.array_equal(result(again.output), result(report.output))


def test_what_a_context_model_reads_is_checked_like_any_weights_file(source):
    report = compiler(source, Alpha, entries={KEY: "m.data"}).compile_to_file()
    data = source.with_name("m.data")
    data.write_bytes(data.read_bytes()[:-1])

    with refused(InvalidGraph, "the model was written with: it has"):
        result(report.output)


@pytest.mark.entry(36)
@pytest.mark.parametrize(
    "name", ["/abs/w.data", "../w.data", "C:/w.data", "sub/", "", "a\\b", "w\0"]
)
def test_a_file_outside_of_the_models_folder_is_refused_before_compiling(source, name):
    ep = scripted()

    with refused_simply("can be published|no file system|is a folder|absolute"):
        compiler(source, ep, external_initializers_file_path=name).compile_to_file()

    assert ep.calls == []
    assert sorted(snapshot(source.parent)) == ["m.onnx"]


@pytest.mark.parametrize(
    ("name", "match"),
    [("m_ctx.onnx", "would both write"), ("M_ctx.onnx", "would both write"), ("m_scripted.bin", "would both write"),
     ("m.onnx", "reads it"), ("m.onnx/w", "link or no folder"), (".epctx-1/w", "reserved")],
)  # fmt: skip
def test_a_name_that_something_else_has_is_refused_before_compiling(
    source, name, match
):
    ep = scripted()

    with refused(InvalidArgument, match, folder=source.parent):
        compiler(source, ep, external_initializers_file_path=name).compile_to_file()

    assert "compile" not in ep.calls


def test_the_weights_of_another_model_are_never_written_over(source, external):
    before = snapshot(external.parent)
    source = source.rename(external.parent / "new.onnx")

    with refused(Fail, "belongs to 'm.onnx'"):
        compiler(source, Alpha, entries={KEY: "m.data"}).compile_to_file()
    with refused(InvalidArgument, "which is being compiled, reads it"):
        compiler(external, Alpha, entries={KEY: "m.data"}).compile_to_file()

    source.unlink()
    assert snapshot(external.parent) == before


def test_a_file_of_initializers_is_replaced_with_the_model_that_names_it(source):
    for _ in range(2):
        report = compiler(source, Alpha, entries={KEY: "w.data"}).compile_to_file()
        assert_right(report.output)
    with refused(Fail, "belongs to 'm_ctx.onnx'", folder=source.parent):
        compiler(source, Alpha, entries={KEY: "w.data"}).compile_to_file(
            source.with_name("n_ctx.onnx")
        )


# --- get_initializer_location_func ----------------------------------------------------


class Host:
    """Puts large initializers into a file of its own, and remembers what it was
    shown.
    """

    def __init__(self, path, smallest=64):
        self.path, self.smallest = path, smallest
        self.shown = {}
        path.touch()

    def __call__(self, name, value, info):
        self.shown[name] = (value.numpy().copy(), value.tensor_size_in_bytes(), info)
        assert value.is_tensor()
        assert value.has_value()
        assert (value.data_type(), value.element_type(), value.device_name()) == (
            "tensor(float)",
            1,
            "cpu",
        )
        assert value.shape() == list(value.numpy().shape)
        assert b"".join(value.chunks()) == value.numpy().tobytes()
        if value.tensor_size_in_bytes() < self.smallest:
            return None
        with self.path.open("ab") as file:
            offset = file.tell()
            file.write(value.numpy().tobytes())
        return epctx.OrtExternalInitializerInfo(
            str(self.path), offset, value.tensor_size_in_bytes()
        )


@pytest.mark.entry(32, 34)
def test_the_hosts_function_says_for_each_initializer_where_it_is(source):
    host = Host(source.with_name("mine.data"))

    report = compiler(
        source, Alpha, get_initializer_location_func=host
    ).compile_to_file()

    assert {name: size for name, (_, size, _) in host.shown.items()} == LEFT
    assert {name: at[0] for name, at in places(report.output).items()} == dict.fromkeys(
        set(LEFT) - {"scalar"}, "mine.data"
    )
    assert all(info is None for _, _, info in host.shown.values())
    assert report.required_files == ("m_alpha.bin", "m_ctx.onnx", "mine.data")
    assert "mine.data" not in {f.path for f in report.outputs}
    assert_right(report.output)
    assert "EPContext" in onnxruntime_says(report.output)


@pytest.mark.entry(33)
def test_what_lies_in_a_file_already_may_stay_there(external):
    asked = {}

    def stay(name, _value, info):
        asked[name] = info
        return info

    report = compiler(
        external, Alpha, get_initializer_location_func=stay
    ).compile_to_file()

    before = places(external)
    # What bodies read from files is brought into memory when a model is read.
    assert places(report.output) == {n: before[n] for n in ("left", "scalar")}
    assert (asked["left"].file_offset, asked["left"].byte_size) == before["left"][1:]
    assert "m.data" in report.required_files
    assert_right(report.output)


@pytest.mark.entry(32, 33)
def test_files_elsewhere_are_refused_for_the_model_could_not_be_loaded(
    external, tmp_path
):
    output = folder_in(tmp_path, "out") / "m_ctx.onnx"

    with refused(
        InvalidArgument,
        "not a file in the context model's folder",
        folder=output.parent,
    ):
        compiler(
            external, Alpha, get_initializer_location_func=lambda _n, _v, info: info
        ).compile_to_file(output)


def info(path="w.data", offset=0, size=4 * SIZE):
    return epctx.OrtExternalInitializerInfo(path, offset, size)


@pytest.mark.parametrize(
    ("answer", "match"),
    [("w.data", "not an OrtExternalInitializerInfo"), (info(size=1), "byte_size 1"), (info(offset=-1), "offset -1"),
     (info(""), "not a file"), (info("../w"), "not a file"), (info("/elsewhere/w"), "not a file"),
     (info("m_ctx.onnx"), "writes itself"), (info("m_alpha.bin"), "writes itself"), (info(3), "not an OrtExternal"),
     (info(offset="0"), "not an OrtExternal"), (info(offset=0.0), "not an OrtExternal"), (info(offset=1 << 63), "offset 9,"),
     (info(size="4"), "not an OrtExternal"), (info("w\0"), "not a file"),
     (info("w\ud800"), "not a file"), (info(b"\xff"), "not a file")],
)  # fmt: skip
def test_a_place_that_the_model_could_not_name_is_refused_and_nothing_is_written(
    source, answer, match
):
    def locate(name, _value, _info):
        return answer if name == "left" else None

    with refused(InvalidArgument, match, folder=source.parent):
        compiler(source, Alpha, get_initializer_location_func=locate).compile_to_file()


def test_what_the_function_raises_is_carried_over_and_nothing_is_written(source):
    def locate(_name, _value, _info):
        raise KeyError("no such shelf")

    with refused(Fail, "KeyError.*no such shelf", folder=source.parent) as caught:
        compiler(source, Alpha, get_initializer_location_func=locate).compile_to_file()

    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.entry(35)
def test_a_file_and_a_function_together_are_refused(source):
    with refused(InvalidArgument, "both given"):
        compiler(
            source,
            Alpha,
            external_initializers_file_path="w",
            get_initializer_location_func=lambda *_: None,
        )


def test_a_function_wins_over_the_option(source):
    made = compiler(
        source,
        Alpha,
        entries={KEY: "w.data"},
        get_initializer_location_func=lambda *_: None,
    )

    report = made.compile_to_file()

    assert places(report.output) == {}
    assert not source.with_name("w.data").exists()


@pytest.mark.not_for_onnxruntime("it looks for the file, which is in memory")
@pytest.mark.entry(38)
def test_initializers_can_be_kept_in_memory_under_a_name_by_the_function(source):
    memory = bytearray()

    def locate(_name, value, _info):
        if value.tensor_size_in_bytes() < 64:
            return None
        memory.extend(bytes(-len(memory) % 4096))
        offset = len(memory)
        for chunk in value.chunks():
            memory.extend(chunk)
        return epctx.OrtExternalInitializerInfo(
            "logical.data", offset, value.tensor_size_in_bytes()
        )

    made = compiler(
        source,
        Alpha,
        embed_compiled_data_into_model=True,
        get_initializer_location_func=locate,
    )
    data = made.compile_to_bytes()

    assert sorted(snapshot(source.parent)) == ["m.onnx"]
    assert made.report.required_files == ("logical.data",)
    assert {at[1] % 4096 for at in places(data).values()} == {0}
    assert len(context_nodes(data)) == 1
    source.with_name("logical.data").write_bytes(memory)
    assert_right(data, **{FOLDER_KEY: source.parent})
