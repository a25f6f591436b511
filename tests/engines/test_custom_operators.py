"""Custom operators of a library that the host registers: onnxruntime-extensions'
tokenizers beside EPs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_kernels import KernelDef, OperatorTypes
from onnx import TensorProto, helper
from support.acme import KernelProvider
from support.engine_eps import Eager
from support.extensions_library import LIBRARY
from support.graph_models import FLOAT, INT64, model, node, tensor, value

import epctx_core as epctx

NAME = Path(LIBRARY).name
DOMAIN = "ai.onnx.contrib"
OPSETS = (("", 17), (DOMAIN, 1))
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "the"]
TEXT = {"text": np.array(["Hello worlds", "the unknown world"], dtype=object)}
X = {"x": np.array([1, -2, 3, -4], np.float32)}

pytestmark = pytest.mark.not_for_onnxruntime("the tests themselves give it the library")


def tokenizer(prefix=""):
    outputs = [f"{prefix}{name}" for name in ("ids", "kinds", "mask")]
    vocabulary = "\n".join(WORDS).encode()
    return node(
        "BertTokenizer",
        ["text"],
        outputs,
        f"{prefix}tok",
        domain=DOMAIN,
        vocab_file=vocabulary,
    )


def classifier():
    """A tokenizer, whose outputs have no declared types, and the network behind it."""
    drawn = np.random.default_rng(0).standard_normal
    nodes = [
        tokenizer(),
        node("Gather", ["table", "ids"], ["rows"], "gather"),
        node("MatMul", ["rows", "w"], ["product"], "matmul"),
        node("Relu", ["product"], ["y"], "relu"),
    ]
    weights = [tensor("table", drawn((len(WORDS), 64))), tensor("w", drawn((64, 8)))]
    ends = (
        [value("text", TensorProto.STRING, ["texts"])],
        [value("y", FLOAT, ["tokens", 8])],
    )
    return model(nodes, *ends, weights, opsets=OPSETS, ir_version=8)


def conditional_tokenizer():
    """A tokenizer in a branch of an If, before nodes that an EP takes."""
    branch = [
        tokenizer("inner_"),
        node("Cast", ["inner_ids"], ["float"], "cast", to=FLOAT),
    ]
    branch.append(node("Relu", ["float"], ["then"], "relu_inside"))
    graphs = {
        "then_branch": helper.make_graph(
            branch, "then", [], [value("then", FLOAT, None)]
        ),
        "else_branch": helper.make_graph(
            [node("Neg", ["z"], ["else"], "neg")],
            "else",
            [],
            [value("else", FLOAT, None)],
        ),
    }
    choice = node("If", ["condition"], ["chosen"], "if", **graphs)
    inputs = [
        value("text", TensorProto.STRING, ["texts"]),
        value("condition", TensorProto.BOOL, []),
        value("z", FLOAT, ["n"]),
    ]
    nodes = [choice, node("Sqrt", ["chosen"], ["y"], "sqrt")]
    return model(nodes, inputs, [value("y", FLOAT, ["k"])], opsets=OPSETS, ir_version=8)


def parts_of_a_number():
    """A custom operator of float values alone, which EPs can take."""
    nodes = [
        node("NegPos", ["x"], ["neg", "pos"], "split", domain=DOMAIN),
        node("Relu", ["pos"], ["y"], "relu"),
    ]
    return model(
        nodes,
        [value("x", FLOAT, [4])],
        [value("neg", FLOAT, [4]), value("y", FLOAT, [4])],
        opsets=OPSETS,
    )


def by_onnxruntime(made, feeds):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(LIBRARY)
    return onnxruntime.InferenceSession(made.SerializeToString(), options).run(
        None, feeds
    )


def options_with(*eps, library=LIBRARY, **entries):
    options = epctx.SessionOptions()
    if library is not None:
        options.register_custom_ops_library(library)
    for ep in eps:
        options.add_provider(ep)
    for key, text in entries.items():
        options.add_session_config_entry(key.replace("__", "."), text)
    return options


def run(source, options, feeds, **arguments):
    with epctx.InferenceSession(source, options, **arguments) as session:
        return session.run(None, feeds)


def assert_equal(found, expected):
    assert [x.tolist() for x in found] == [x.tolist() for x in expected]
    assert [x.dtype for x in found] == [x.dtype for x in expected]


def compiled(made, folder, *, embed=False, options=None):
    source = folder / "m.onnx"
    onnx.save(made, source)
    compiler = epctx.ModelCompiler(options or options_with("OpenVINO"), source, embed)
    return compiler.compile_to_file(folder / "m_ctx.onnx").output


def read_manifest(path):
    return json.loads(
        {p.key: p.value for p in onnx.load(path).metadata_props}["epctx.manifest"]
    )


@pytest.fixture(scope="module")
def context_model(tmp_path_factory):
    return compiled(classifier(), tmp_path_factory.mktemp("classifier"))


@pytest.mark.parametrize(
    "level",
    ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"],
)
@pytest.mark.parametrize("eps", [(), ("OpenVINO",)], ids=["CPU", "with an EP"])
def test_a_tokenizer_runs_as_in_onnxruntime_at_every_level(eps, level):
    made, options = classifier(), options_with(*eps)
    options.graph_optimization_level = epctx.GraphOptimizationLevel[level]

    assert_equal(
        run(made.SerializeToString(), options, TEXT), by_onnxruntime(made, TEXT)
    )


def test_the_engine_knows_the_types_of_what_the_model_does_not_declare():
    explanation = epctx.explain_model(
        classifier().SerializeToString(), options_with("OpenVINO")
    )

    assert [n.name for n in explanation.left] == ["tok"]


@pytest.mark.parametrize(
    ("route", "isolate"), [("file", ""), ("embed", ""), ("file", "all")]
)
def test_a_tokenizer_is_left_over_in_a_context_model_and_gives_the_same_bits(
    tmp_path, route, isolate
):
    path = compiled(
        classifier(),
        tmp_path,
        embed=route == "embed",
        options=options_with("OpenVINO", ep__isolate=isolate),
    )

    assert [n.op_type for n in onnx.load(path).graph.node] == [
        "BertTokenizer",
        "EPContext",
    ]
    assert_equal(
        run(path, options_with(ep__isolate=isolate), TEXT),
        by_onnxruntime(classifier(), TEXT),
    )


def test_a_context_model_in_bytes_runs_too(context_model):
    options = options_with(ep__context_file_path=str(context_model))

    assert_equal(
        run(context_model.read_bytes(), options, TEXT),
        by_onnxruntime(classifier(), TEXT),
    )


def test_onnxruntime_understands_the_context_model_up_to_its_ep(context_model):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(LIBRARY)

    with pytest.raises(
        Exception, match="is not compatible with any execution provider"
    ):
        onnxruntime.InferenceSession(context_model, options)


def test_a_session_that_exports_leaves_the_tokenizer_over_too(tmp_path):
    source = tmp_path / "m.onnx"
    onnx.save(classifier(), source)

    found = run(source, options_with("OpenVINO", ep__context_enable="1"), TEXT)

    assert_equal(found, by_onnxruntime(classifier(), TEXT))
    assert read_manifest(tmp_path / "m_ctx.onnx")["custom_domains"] == {DOMAIN: NAME}


def test_a_context_model_names_domain_and_library_and_no_path(context_model):
    content = context_model.read_bytes()

    assert read_manifest(context_model)["custom_domains"] == {DOMAIN: NAME}
    assert str(Path(LIBRARY).parent).encode() not in content
    assert epctx.inspect_model(context_model).custom_domains == {DOMAIN: NAME}
    assert epctx.inspect_model(context_model).as_dict()["custom_domains"] == {
        DOMAIN: NAME
    }


def test_a_context_model_without_custom_operators_names_none(tmp_path):
    gelu = node("Gelu", ["x"], ["g"], "gelu", domain="com.microsoft")
    nodes = [gelu, node("Relu", ["g"], ["r"], "relu"), node("Neg", ["r"], ["y"], "neg")]
    opsets = (("", 17), ("com.microsoft", 1))
    made = model(
        nodes, [value("x", FLOAT, [4])], [value("y", FLOAT, [4])], opsets=opsets
    )

    with_library = compiled(made, tmp_path).read_bytes()

    assert "custom_domains" not in read_manifest(tmp_path / "m_ctx.onnx")
    assert (
        compiled(
            made, tmp_path, options=options_with("OpenVINO", library=None)
        ).read_bytes()
        == with_library
    )


def test_a_load_without_the_library_names_node_operator_and_library(context_model):
    with pytest.raises(epctx.NotImplementedByProvider) as caught:
        epctx.InferenceSession(context_model)

    assert caught.value.node == "tok"
    assert f"node 'tok' ({DOMAIN}::BertTokenizer)" in str(caught.value)
    assert (
        f"register its library {NAME!r}: "
        "SessionOptions.register_custom_ops_library(path)" in str(caught.value)
    )


def test_a_long_name_in_a_manifest_makes_no_long_message(context_model, tmp_path):
    made = onnx.load(context_model)
    entry = next(p for p in made.metadata_props if p.key == "epctx.manifest")
    entry.value = json.dumps(
        {**json.loads(entry.value), "custom_domains": {DOMAIN: "a" * 100_000}}
    )
    source = (
        shutil.copytree(context_model.parent, tmp_path / "copy") / context_model.name
    )
    source.write_bytes(made.SerializeToString())

    with pytest.raises(
        epctx.NotImplementedByProvider, match="register its library 'aaa"
    ) as caught:
        epctx.InferenceSession(source)

    assert len(str(caught.value)) < 2_000


def test_a_model_of_an_unknown_library_asks_for_one_without_a_name():
    with pytest.raises(
        epctx.NotImplementedByProvider,
        match=r"register its library: SessionOptions\.register_cust",
    ):
        epctx.InferenceSession(classifier().SerializeToString())


def test_a_domain_that_was_unknown_when_a_model_was_compiled_is_named_all_the_same(
    tmp_path,
):
    made = classifier()
    made.graph.value_info.extend(
        value(name, INT64, ["tokens"]) for name in ("ids", "kinds", "mask")
    )

    path = compiled(made, tmp_path, options=options_with("OpenVINO", library=None))

    assert epctx.inspect_model(path).custom_domains == {DOMAIN: ""}
    assert_equal(run(path, options_with(), TEXT), by_onnxruntime(made, TEXT))


def test_compiling_a_context_model_again_without_the_library_keeps_its_name(
    context_model, tmp_path
):
    source = (
        shutil.copytree(context_model.parent, tmp_path / "copy") / context_model.name
    )

    epctx.ModelCompiler(options_with("OpenVINO", library=None), source).compile_to_file(
        tmp_path / "again.onnx"
    )

    assert epctx.inspect_model(tmp_path / "again.onnx").custom_domains == {DOMAIN: NAME}


def test_verifying_without_the_library_warns_and_with_it_finds_nothing(context_model):
    without, with_it = (
        epctx.verify_model(context_model),
        epctx.verify_model(context_model, options_with()),
    )

    assert [f.code for f in without.findings] == ["kernel-missing"]
    assert NAME in without.findings[0].hint
    assert with_it.findings == ()


@pytest.mark.parametrize("condition", [True, False])
def test_a_tokenizer_in_a_subgraph_runs_beside_an_ep_and_is_named_when_it_cannot(
    tmp_path, condition
):
    feeds = {
        **TEXT,
        "condition": np.array(condition),
        "z": np.array([-4, -9], np.float32),
    }
    made = conditional_tokenizer()

    path = compiled(made, tmp_path)

    expected = by_onnxruntime(made, feeds)
    assert_equal(
        run(made.SerializeToString(), options_with("OpenVINO"), feeds), expected
    )
    assert_equal(run(path, options_with(), feeds), expected)
    assert epctx.inspect_model(path).custom_domains == {DOMAIN: NAME}
    with pytest.raises(
        epctx.NotImplementedByProvider,
        match=rf"node 'inner_tok' \({DOMAIN}::BertTokenizer\)",
    ):
        epctx.InferenceSession(path)


def negative_and_positive(_node):
    return lambda inputs: [np.minimum(inputs[0], 0), np.maximum(inputs[0], 0)]


class Kernel(KernelProvider):
    """Has a kernel of the custom operator."""

    name = "KernelExecutionProvider"
    kernels = (
        KernelDef(
            domain=DOMAIN,
            op_type="NegPos",
            since_version=1,
            create=negative_and_positive,
            type_constraints={"T": {FLOAT}},
        ),
    )
    described = (
        OperatorTypes(
            domain=DOMAIN, op_type="NegPos", inputs=("T",), outputs=("T", "T")
        ),
    )


@pytest.mark.parametrize("isolate", ["", "all"])
def test_an_ep_that_claims_a_custom_operator_gets_it_and_the_engine_runs_it_for_the_ep(
    isolate,
):
    registry = epctx.Registry(entry_points=False)
    registry.register(Eager)
    made = parts_of_a_number()
    options = options_with(
        Eager.name, ep__isolate=isolate, session__disable_cpu_ep_fallback="1"
    )

    assert_equal(
        run(made.SerializeToString(), options, X, registry=registry),
        by_onnxruntime(made, X),
    )


def test_a_custom_operator_that_an_ep_compiled_is_the_eps_business(tmp_path):
    registry = epctx.Registry(entry_points=False)
    registry.register(Eager)
    source, path = tmp_path / "m.onnx", tmp_path / "m_ctx.onnx"
    onnx.save(parts_of_a_number(), source)

    epctx.ModelCompiler(
        options_with(Eager.name), source, registry=registry
    ).compile_to_file(path)

    assert epctx.inspect_model(path, registry=registry).custom_domains == {}
    assert_equal(
        run(path, options_with(), X, registry=registry),
        by_onnxruntime(parts_of_a_number(), X),
    )
    with pytest.raises(
        epctx.NotImplementedByProvider, match=r"register its library: SessionOptions"
    ):
        epctx.InferenceSession(path, registry=registry)


@pytest.mark.parametrize("library", [LIBRARY, None], ids=["library", "no library"])
def test_a_kernel_of_an_ep_goes_before_the_librarys(library):
    registry = epctx.Registry(entry_points=False)
    registry.register(Kernel)
    made = parts_of_a_number()
    made.graph.value_info.append(value("pos", FLOAT, [4]))
    options = options_with(
        Kernel.name, library=library, session__record_ep_graph_assignment_info="1"
    )

    with epctx.InferenceSession(
        made.SerializeToString(), options, registry=registry
    ) as session:
        assigned = {
            n.op_type: part.ep_name
            for part in session.get_provider_graph_assignment_info()
            for n in part.get_nodes()
        }

        assert_equal(session.run(None, X), by_onnxruntime(made, X))
        assert assigned["NegPos"] == Kernel.name


def test_what_a_kernel_of_an_ep_runs_needs_no_library(tmp_path):
    registry = epctx.Registry()
    registry.register(Kernel)
    source = tmp_path / "m.onnx"
    onnx.save(parts_of_a_number(), source)

    epctx.ModelCompiler(
        options_with("OpenVINO", Kernel.name), source, registry=registry
    ).compile_to_file()

    assert epctx.inspect_model(tmp_path / "m_ctx.onnx").custom_domains == {}
    assert_equal(
        run(tmp_path / "m_ctx.onnx", None, X, registry=registry),
        by_onnxruntime(parts_of_a_number(), X),
    )


@pytest.mark.parametrize("path", ["missing.so", "folder"])
def test_a_missing_library_is_an_error_when_it_is_registered(tmp_path, path):
    (tmp_path / "folder").mkdir()

    with pytest.raises(
        epctx.Fail, match=r"there is no such library of custom operators"
    ) as caught:
        epctx.SessionOptions().register_custom_ops_library(tmp_path / path)

    assert caught.value.path == str(tmp_path / path)


def test_the_path_of_a_library_is_a_path():
    with pytest.raises(epctx.InvalidArgument, match="takes a path, not 5"):
        epctx.SessionOptions().register_custom_ops_library(5)


@pytest.mark.parametrize("ending", ["text", "library"])
def test_a_file_that_is_no_library_of_operators_is_named(tmp_path, ending):
    wrong = tmp_path / "wrong.so"
    if ending == "text":
        wrong.write_text("not a library")
    else:
        shutil.copy(next(Path(onnx.__file__).parent.glob("*.so")), wrong)

    # Also of a model without custom operators, as in onnxruntime.
    with pytest.raises(
        epctx.Fail, match=r"cannot register the library of custom operators .*wrong\.so"
    ):
        epctx.InferenceSession(
            model([node("Relu", ["x"], ["y"])], ["x"], ["y"]).SerializeToString(),
            options_with(library=wrong),
        )


def test_two_libraries_with_one_domain_are_named(tmp_path):
    copy = shutil.copy(LIBRARY, tmp_path / "copy.so")
    options = options_with()
    options.register_custom_ops_library(copy)

    with pytest.raises(epctx.Fail, match=rf"{NAME}.*copy\.so' together"):
        epctx.InferenceSession(classifier().SerializeToString(), options)


def test_registering_a_library_twice_changes_nothing_and_a_copy_of_the_options_has_it():
    options = options_with()
    options.register_custom_ops_library(LIBRARY)

    assert_equal(
        run(classifier().SerializeToString(), options.copy(), TEXT),
        by_onnxruntime(classifier(), TEXT),
    )


def test_a_library_that_is_registered_for_a_copy_is_not_the_originals():
    options = options_with(library=None)
    options.copy().register_custom_ops_library(LIBRARY)

    with pytest.raises(epctx.NotImplementedByProvider, match="BertTokenizer"):
        epctx.InferenceSession(classifier().SerializeToString(), options)


def test_the_built_in_engine_runs_no_custom_operators():
    with pytest.raises(
        epctx.InvalidArgument,
        match=r"need the engine on onnxruntime, and the engine here is onnx\.ref",
    ):
        epctx.InferenceSession(
            classifier().SerializeToString(),
            options_with(session__engine="onnx.reference"),
        )


def test_the_cache_compiles_again_for_another_library_and_loads_with_it(tmp_path):
    other = shutil.copy(LIBRARY, tmp_path / "other.so")
    Path(other).write_bytes(Path(LIBRARY).read_bytes() + b"\0")
    source = tmp_path / "m.onnx"
    onnx.save(classifier(), source)

    def path_with(library):
        return epctx.compile_cached(
            source,
            options_with("OpenVINO", library=library),
            cache_dir=tmp_path / "cache",
        )

    with epctx.load_or_compile(
        source, options_with("OpenVINO"), cache_dir=tmp_path / "cache"
    ) as session:
        assert_equal(session.run(None, TEXT), by_onnxruntime(classifier(), TEXT))
    first = path_with(LIBRARY)
    assert path_with(LIBRARY) == first
    assert len({first, path_with(other), path_with(None)}) == 3


def test_a_library_that_was_removed_since_is_no_fault_of_the_cache(tmp_path):
    library = Path(shutil.copy(LIBRARY, tmp_path / "gone.so"))
    options, source = options_with("OpenVINO", library=library), tmp_path / "m.onnx"
    onnx.save(classifier(), source)
    library.unlink()

    with pytest.raises(
        epctx.Fail, match="there is no such library of custom operators"
    ):
        epctx.compile_cached(source, options, cache_dir=tmp_path / "cache")
