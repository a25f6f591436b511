"""An exception that nobody foresaw leaves every public function as one typed error;
what is the host's own passes.
"""

from __future__ import annotations

import pytest
from onnx import helper
from support.small_models import finished, tensor

import epctx_core as epctx


class BrokenRegistry(epctx.Registry):
    """A registry in which whatever is asked for raises: a mistake in the middle of
    everything.
    """

    def __init__(self, error):
        super().__init__(entry_points=False)
        self._error = error

    def records(self):
        raise self._error

    def resolve(self, name):
        raise self._error


def plain():
    return finished(
        [helper.make_node("Relu", ["x"], ["y"])], [tensor("x")], [tensor("y")]
    )


def with_context_node():
    model = finished(
        [
            helper.make_node(
                "EPContext",
                ["x"],
                ["y"],
                domain="com.microsoft",
                source="S",
                ep_cache_context="p",
            )
        ],
        [tensor("x")],
        [tensor("y")],
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    return model.SerializeToString()


def options():
    made = epctx.SessionOptions()
    made.add_provider("Acme")
    return made


def share(registry, folder):
    with epctx.ShareGroup(folder, registry=registry) as group:
        group.compile(plain().SerializeToString(), options(), name="m")


PLAIN = plain().SerializeToString()
BORDER = {
    "inspect": lambda registry, _: epctx.inspect_model(
        with_context_node(), registry=registry
    ),
    "verify": lambda registry, _: epctx.verify_model(
        with_context_node(), registry=registry
    ),
    "load": lambda registry, _: epctx.InferenceSession(
        PLAIN, options(), registry=registry
    ),
    "compile": lambda registry, _: epctx.ModelCompiler(
        options(), PLAIN, registry=registry
    ).compile_to_bytes(),
    "share": share,
    "load_or_compile": lambda registry, folder: epctx.load_or_compile(
        PLAIN, options(), folder, registry=registry
    ),
    "compile_cached": lambda registry, folder: epctx.compile_cached(
        PLAIN, options(), folder, registry=registry
    ),
    "compatibility": lambda registry, _: epctx.get_model_compatibility(
        PLAIN, "Acme", registry=registry
    ),
}
EACH = pytest.mark.parametrize("function", BORDER.values(), ids=BORDER)


@EACH
def test_an_exception_that_nobody_foresaw_is_one_error_that_asks_for_a_report(
    function, tmp_path
):
    error = LookupError("a mistake of ours")

    with pytest.raises(
        epctx.InternalError, match="within epctx itself: LookupError: a mistake of ours"
    ) as caught:
        function(BrokenRegistry(error), tmp_path)

    assert caught.value.__cause__ is error
    assert isinstance(caught.value, epctx.Fail)
    assert "report it" in caught.value.hint


@EACH
@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        MemoryError(),
        UserWarning("as an error"),
    ],
    ids=repr,
)
def test_what_is_the_hosts_own_passes_as_it_is(function, error, tmp_path):
    with pytest.raises(type(error)) as caught:
        function(BrokenRegistry(error), tmp_path)

    assert caught.value is error


def fail(*_arguments):
    raise LookupError("the host's own")


@pytest.mark.parametrize(
    "compiler",
    [
        lambda: epctx.ModelCompiler(options(), PLAIN, progress=fail).compile_to_bytes(),
        lambda: epctx.ModelCompiler(epctx.SessionOptions(), PLAIN).compile_to_stream(
            fail
        ),
    ],
    ids=["progress", "stream"],
)
def test_an_error_of_a_callback_is_no_internal_one(compiler):
    with pytest.raises(epctx.EpctxError) as caught:
        compiler()

    assert not isinstance(caught.value, epctx.InternalError)


def with_opaque_type(where):
    model = plain()
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    model.graph.input[0].type.tensor_type.ClearField("shape")
    value = getattr(model.graph, where).add(name="o")
    value.type.opaque_type.domain, value.type.opaque_type.name = "acme", "Thing"
    return model.SerializeToString()


@pytest.mark.parametrize("where", ["input", "value_info"])
def test_a_value_of_an_opaque_type_is_read_like_any_other(where):
    data = with_opaque_type(where)

    assert epctx.inspect_model(data).other_nodes == 1
    assert {finding.code for finding in epctx.verify_model(data).findings} == {
        "no-context-nodes"
    }
    with epctx.InferenceSession(data) as session:
        assert "x" in [value.name for value in session.get_inputs()]


def test_functions_in_a_circle_are_a_finding_of_verify():
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("acme", 1)]
    attributes = {
        "domain": "com.microsoft",
        "source": "QNN",
        "ep_cache_context": b"p",
        "main_context": 1,
    }
    nodes = [
        helper.make_node(
            "F", ["x"], ["h"], domain="acme"
        ),  # of a type that only inference could know
        helper.make_node("EPContext", ["h"], ["y"], **attributes),
    ]
    model = finished(nodes, [tensor("x")], [tensor("y")])
    model.opset_import.add(domain="com.microsoft", version=1)
    model.opset_import.add(domain="acme", version=1)
    calls = [helper.make_node("F", ["a"], ["b"], domain="acme")]
    model.functions.append(
        helper.make_function("acme", "F", ["a"], ["b"], calls, imports)
    )

    report = epctx.verify_model(model.SerializeToString())

    assert "model-invalid" in {finding.code for finding in report.findings}
