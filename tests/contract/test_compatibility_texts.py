"""EPs that learn the text of a model's compatibility from their compiler, and give it
with their nodes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contract.test_graph_names import ByContent, compile_to, run
from support.isolation import options_for, registry_of
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.plugin import Compatibility, hookimpl

OPERATORS = ("Relu", "Sigmoid", "Add")


class Taught(ByContent):
    """Its compiler says what a payload needs; its class knows only what it says without
    a compile.
    """

    name = "TaughtExecutionProvider"

    @classmethod
    def get_compatibility_info(cls, partitions, options):
        return f"of the class, for {len(partitions)} partitions"

    @classmethod
    def validate_compatibility(cls, info, options):
        return (
            Compatibility.EP_SUPPORTED_OPTIMAL
            if info.startswith("of the compiler")
            else Compatibility.EP_UNSUPPORTED
        )

    def text(self, number):
        return f"of the compiler, for {self._compiled[0][0].digest[:8]}"

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = super().get_ep_context_nodes(writer)
        return [
            replace(node, compatibility_info=self.text(number))
            for number, node in enumerate(nodes)
        ]


class Silent(Taught):
    """Its compiler says nothing."""

    def text(self, number):
        return None


class Empty(Taught):
    """Its compiler says that nothing is needed."""

    def text(self, number):
        return ""


class Halfway(Taught):
    """Its second node has no text."""

    def text(self, number):
        return None if number else "of the compiler"


class TwoTexts(Taught):
    """Its compiler says of each node something else."""

    def text(self, number):
        return f"of the compiler, {number}"


class NotEncodable(Taught):
    """The text is no text that a file can hold."""

    def text(self, number):
        return "\ud800"


@pytest.fixture
def model(tmp_path):
    return saved(chain(OPERATORS), tmp_path / "m.onnx")


@pytest.fixture
def context(tmp_path):
    return tmp_path / "m_ctx.onnx"


def text_of(path, ep=Taught):
    return epctx.get_compatibility_info_from_model(path, ep.name)


@pytest.mark.parametrize("isolate", ["", "compile"])
def test_the_text_of_the_nodes_is_the_models_and_a_load_asks_about_it(
    model, context, isolate
):
    compile_to(context, model, Taught, isolate=isolate)

    assert text_of(context).startswith("of the compiler, for ")
    np.testing.assert_allclose(run(context, Taught), run(model), rtol=1e-6)


def test_the_class_is_asked_where_no_node_has_a_text(model, context):
    compile_to(context, model, Silent)

    assert text_of(context) == "of the class, for 2 partitions"


def test_an_empty_text_is_none_and_the_class_is_not_asked(model, context):
    compile_to(context, model, Empty)

    assert text_of(context) is None


@pytest.mark.parametrize("isolate", ["", "compile"])
@pytest.mark.parametrize(
    ("ep", "shown"),
    [
        (TwoTexts, "'of the compiler, 0' and 'of the compiler, 1'"),
        (Halfway, "'of the compiler' and None"),
        (NotEncodable, "which UTF-8 cannot represent"),
    ],
)
def test_texts_that_differ_or_cannot_be_written_break_the_contract(
    model, context, ep, shown, isolate
):
    with pytest.raises(epctx.PluginError, match="compatibility_info") as caught:
        compile_to(context, model, ep, isolate=isolate)

    assert shown in caught.value.message
    assert caught.value.hook == "get_ep_context_nodes"
    assert not context.exists()


def test_each_model_of_a_share_group_has_its_own_text(tmp_path):
    with epctx.ShareGroup(output_dir=tmp_path, registry=registry_of(Taught)) as group:
        for name, operators in (("a", OPERATORS), ("b", ("Add", "Sigmoid", "Relu"))):
            source = saved(chain(operators), tmp_path / f"{name}.onnx")
            group.compile(source, options_for(Taught, isolate=""))

    first, second = (text_of(tmp_path / f"{name}_ctx.onnx") for name in "ab")
    assert first != second
    assert {first[:15], second[:15]} == {"of the compiler"}
    assert epctx.verify_model(tmp_path / "b_ctx.onnx", registry=registry_of(Taught)).ok
