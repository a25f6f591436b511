"""Refusals to compile a context model again, and the provenance that both compiles
write.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from contract.again import compiled, metadata, nodes_of, written
from onnx import helper
from support.engine_eps import Alpha, Beta, scripted
from support.routes import refused
from support.small_models import finished, saved, snapshot, tensor
from support.validating_eps import options_with, registry_with, validating

import epctx_core as epctx
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    ModelRequiresCompilation,
)
from epctx_core.plugin import Compatibility

# --- what is refused ------------------------------------------------------------------


@pytest.fixture
def source(tmp_path):
    return written(tmp_path)


@pytest.fixture
def first(source):
    """A context model of Alpha's two nodes, with its binary."""
    return compiled(source, Alpha, output=source.with_name("m_ctx.onnx")).output


@pytest.mark.parametrize("embed", [False, True])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "changed"])
def test_a_payload_that_is_missing_or_altered_does_not_pass_through(
    tmp_path, other_folder, embed, damage
):
    # Enough weights, so that a look at the head alone would not see the changed byte.
    source = saved(wide_chain(), tmp_path / "m.onnx")
    first = compiled(source, Alpha, output=tmp_path / "m_ctx.onnx").output
    binary = first.with_name("m_alpha.bin")
    content = bytearray(binary.read_bytes())
    if damage == "changed":
        content[len(content) // 2] ^= 1
    binary.write_bytes({"empty": b"", "cut": content[:-1]}.get(damage, content))
    if damage == "gone":
        binary.unlink()

    with refused(InvalidGraph, "m_alpha.bin", folder=other_folder):
        compiled(first, output=other_folder / "n_ctx.onnx", embed=embed)


def wide_chain():
    weight = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    return finished(
        nodes, [tensor("x", shape=[2048])], [tensor("y", shape=[2048, 2048])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip


@pytest.mark.parametrize("by", ["compiler", "compiler with Beta", "session"])
def test_nodes_with_outputs_of_undeclared_types_do_not_pass_through(
    first, other_folder, by
):
    model = onnx.load(first)
    del model.graph.value_info[:], model.metadata_props[:]
    onnx.save(model, first)
    eps = [Beta] if by == "compiler with Beta" else []
    registry = registry_with(Alpha, *eps)
    (undeclared,) = [
        finding
        for finding in epctx.verify_model(first, registry=registry).findings
        if finding.code == "type-undeclared"
    ]

    with refused(
        InvalidGraph, "whose type the model does not declare", folder=other_folder
    ):
        if by != "session":
            compiled(first, *eps, output=other_folder / "n_ctx.onnx")
        else:
            options = epctx.SessionOptions()
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry(
                "ep.context_file_path", str(other_folder / "n_ctx.onnx")
            )
            epctx.InferenceSession(first, options, registry=registry)

    assert undeclared.node == nodes_of(first)[0].name


@pytest.mark.parametrize("embed", [False, True])
def test_what_is_compiled_again_with_types_of_its_outputs_alone_verifies(
    first, other_folder, embed
):
    model = onnx.load(first)
    made = {name for node in nodes_of(first) for name in node.output}
    kept = [value for value in model.graph.value_info if value.name in made]
    del model.graph.value_info[:], model.metadata_props[:]
    model.graph.value_info.extend(kept)
    onnx.save(model, first)

    again = compiled(first, Beta, output=other_folder / "n_ctx.onnx", embed=embed)

    report = epctx.verify_model(again.output, registry=registry_with(Alpha, Beta))
    assert report.ok, report.findings


def test_a_binary_that_is_replaced_meanwhile_is_noticed(source, first):
    def swap(honest):
        new = first.with_name("new")
        new.write_bytes(b"another")
        new.replace(first.with_name("m_alpha.bin"))
        return honest()

    class Late(scripted(compile=swap)):
        operators = frozenset({"Neg"})

    with pytest.raises(
        Fail, match=r"'m_alpha\.bin' was replaced while m_ctx\.onnx was compiled"
    ):
        compiled(first, Late, output=first.with_name("n_ctx.onnx"))

    assert sorted(snapshot(first.parent)) == ["m.onnx", "m_alpha.bin", "m_ctx.onnx"]


def test_the_model_itself_is_never_written_over(first):
    with refused(
        InvalidArgument, "would be written, but .* reads it", folder=first.parent
    ):
        compiled(first, Alpha, output=first)
    with refused(InvalidArgument, "reads it", folder=first.parent):
        compiled(first, Alpha, output=first.with_name("m_alpha.bin"))


def test_a_model_with_nodes_is_not_optimised(first):
    level = epctx.GraphOptimizationLevel.ORT_ENABLE_BASIC
    compiler = epctx.ModelCompiler(
        options_with(), first, graph_optimization_level=level
    )

    with refused(
        InvalidArgument,
        "EPContext nodes already.*ORT_ENABLE_BASIC",
        folder=first.parent,
    ):
        compiler.compile_to_file(first.with_name("n_ctx.onnx"))


def test_the_flags_speak_of_this_compile(first):
    flags = epctx.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED

    with refused(Fail, "could be compiled", folder=first.parent):
        epctx.ModelCompiler(options_with(), first, flags=flags).compile_to_file(
            first.with_name("n_ctx.onnx")
        )


def test_a_host_that_forbids_compiling_in_sessions_may_still_have_nodes_pass_through(
    first, other_folder
):
    def session(model, *eps):
        options = options_with(
            *eps, ep__context_enable=1,
            ep__context_file_path=other_folder / "n_ctx.onnx",
            session__disable_model_compile=1,
        )  # fmt: skip
        epctx.InferenceSession(model, options, registry=registry_with(*eps)).close()

    with refused(ModelRequiresCompilation, Beta.name, folder=other_folder):
        session(first, Alpha, Beta)
    session(first, Alpha)

    assert (other_folder / "n_ctx.onnx").exists()


# --- who made what --------------------------------------------------------------------


def one_of(source, **attributes):
    """Compile one partition of a validating EP; return it with the EP."""
    ep = validating(**attributes)
    return compiled(
        source, ep, output=source.with_name("m_ctx.onnx"), ep__partition_max_count=1
    ).output, ep


def test_an_ep_that_adds_nothing_leaves_what_it_said_about_its_nodes(source):
    first, _ = one_of(source, info="made by version 1")
    newer = validating(info="version 2", operators=frozenset({"Tanh"}))

    second = compiled(first, newer, output=first.with_name("n_ctx.onnx")).output

    assert (
        metadata(second)[f"ep_compatibility_info.{newer.name}"] == "made by version 1"
    )


def test_an_ep_that_adds_nothing_and_never_said_a_word_is_not_asked_now(source, first):
    ep = validating(operators=frozenset({"Tanh"}))

    second = compiled(first, ep, output=first.with_name("n_ctx.onnx")).output

    assert metadata(second).keys() == metadata(first).keys()


def test_of_what_an_ep_says_at_two_times_the_worst_verdict_counts(source):
    first, _ = one_of(source, info="1")
    second = compiled(
        first, validating(info="2"), output=first.with_name("n_ctx.onnx")
    ).output
    third = compiled(
        second,
        validating(info="3", operators=frozenset({"Neg"})),
        output=first.with_name("o_ctx.onnx"),
    )
    asked = {}

    def verdict(info):
        return asked.get(info, Compatibility.EP_SUPPORTED_OPTIMAL)

    ep = type(
        "Validate", (validating(),), {"verdict": staticmethod(verdict), "asked": []}
    )
    registry = registry_with(ep)
    assert metadata(second)[f"ep_compatibility_info.{ep.name}"] == "2"

    epctx.InferenceSession(third.output, registry=registry).close()
    assert [text for text in ep.asked if text.startswith("validate")] == [
        f"validate {info} driver=1" for info in "321"
    ]
    assert epctx.get_model_compatibility(
        third.output, ep.name, registry=registry
    ) is Compatibility(1)
    asked["1"] = Compatibility.EP_UNSUPPORTED
    assert epctx.get_model_compatibility(
        third.output, ep.name, registry=registry
    ) is Compatibility(3)
    with refused(InvalidGraph, "does not support this compiled model.*'1'"):
        epctx.InferenceSession(third.output, registry=registry)
    epctx.InferenceSession(
        second.parent / "m.onnx", providers=["CPUExecutionProvider"]
    ).close()


def test_an_ep_does_not_add_to_nodes_that_it_does_not_support_any_more(source):
    first, _ = one_of(source, info="1")
    ep = validating(Compatibility.EP_UNSUPPORTED, info="2")

    with refused(
        InvalidGraph,
        "it does not support what was compiled for.*'1'",
        folder=first.parent,
        ep=ep.name,
    ):
        compiled(first, ep, output=first.with_name("n_ctx.onnx"))

    assert compiled(first, output=first.with_name("n_ctx.onnx")).output.exists()


def test_damaged_earlier_information_is_refused(source):
    first, ep = one_of(source)
    model = onnx.load(first)
    model.metadata_props.add(
        key=f"epctx.earlier_compatibility_info.{ep.name}", value="[1]"
    )
    saved(model, first)

    for use in (
        lambda: epctx.InferenceSession(first, registry=registry_with(ep)),
        lambda: epctx.get_model_compatibility(
            first, ep.name, registry=registry_with(ep)
        ),
    ):
        with refused(InvalidGraph, "wrote about compatibility is damaged"):
            use()


def test_what_another_distribution_of_an_ep_made_is_not_added_to(source, first):
    model = onnx.load(first)
    (entry,) = [e for e in model.metadata_props if e.key == "epctx.manifest"]
    said = json.loads(entry.value)
    said["providers"][Alpha.name]["distribution"] = "epctx-other-alpha"
    entry.value = json.dumps(said)
    saved(model, first)
    more = type("More", (Alpha,), {"operators": frozenset({"Neg"})})

    with refused(
        InvalidGraph,
        "AlphaExecutionProvider of epctx-other-alpha made them",
        folder=first.parent,
    ):
        compiled(first, more, output=first.with_name("n_ctx.onnx"))
