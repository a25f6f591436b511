"""Entries 133 to 137: EPs that a host registers, names and options that are wrong,
backends that are missing.
"""

from __future__ import annotations

import onnx
import pytest
from support.engine_eps import Alpha, scripted
from support.routes import refused, with_qnn
from support.small_models import example
from support.validating_eps import options_with, registry_with

import epctx_core as epctx
from epctx_core.errors import (
    InvalidArgument,
    InvalidGraph,
    NotFound,
    NotImplementedByProvider,
    PluginError,
)
from epctx_core.plugin import Availability, Purpose


@pytest.mark.entry(133)
def test_a_class_is_registered_once_until_it_is_taken_back():
    registry = registry_with(Alpha)

    with pytest.raises(
        InvalidArgument, match="the EP name AlphaExecutionProvider is taken"
    ) as caught:
        registry.register(Alpha)

    assert "unregister('AlphaExecutionProvider') first" in caught.value.hint
    registry.unregister(Alpha.name)
    registry.register(Alpha)
    assert registry.available() == ["AlphaExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.entry(133)
@pytest.mark.parametrize("thing", ["libep.so", int, Alpha.name, None], ids=repr)
def test_what_is_no_ep_class_is_not_registered(thing):
    registry = registry_with()

    with pytest.raises(
        PluginError, match="not a valid Execution Provider: it is not a subclass"
    ):
        registry.register(thing)

    assert registry.available() == ["CPUExecutionProvider"]


@pytest.mark.entry(133)
def test_taking_back_what_nobody_registered_is_not_found():
    registry = registry_with(Alpha)

    with pytest.raises(
        NotFound, match="no class of the EP name 'AlphaExecutionProvidr' was registered"
    ) as caught:
        registry.unregister("AlphaExecutionProvidr")

    assert "Did you mean 'AlphaExecutionProvider'?" in caught.value.message


@pytest.mark.entry(134)
def test_an_unknown_provider_name_is_an_invalid_argument_naming_what_is_installed(
    source,
):
    options = epctx.SessionOptions()
    options.add_provider("Alfa")
    registry = registry_with(Alpha)

    with refused(
        InvalidArgument,
        "no installed plugin provides .*'Alfa'.* Did you mean 'Alpha'",
        folder=source.parent,
    ):
        epctx.ModelCompiler(options, source, registry=registry).compile_to_file()
    with refused(InvalidArgument, "Installed: AlphaExecutionProvider"):
        epctx.InferenceSession(source, options, registry=registry)


@pytest.mark.entry(134)
def test_an_ep_is_asked_for_once(source):
    options = options_with(Alpha, Alpha)

    with pytest.raises(
        InvalidArgument, match="AlphaExecutionProvider was asked for twice"
    ):
        epctx.InferenceSession(source, options, registry=registry_with(Alpha))


def test_options_under_the_short_name_of_an_ep_are_refused_rather_than_ignored(source):
    options = options_with(Alpha)
    options.add_session_config_entry("ep.alpha.level", "2")

    with pytest.raises(InvalidArgument, match=r"unknown session option 'ep.alpha"):
        epctx.InferenceSession(source, options, registry=registry_with(Alpha))


def test_options_of_an_optional_ep_may_be_there_without_the_ep(source):
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.optional_providers", "Gamma")
    options.add_session_config_entry("ep.gamma.level", "2")

    with epctx.InferenceSession(
        source, options, registry=registry_with(Alpha)
    ) as session:
        assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.entry(134)
def test_an_empty_list_of_providers_is_the_cpu_ep_alone(source):
    with epctx.InferenceSession(
        source, providers=[], registry=registry_with(Alpha)
    ) as session:
        assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.entry(135)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"soc_modl": "60"}, "has no option 'soc_modl'. Did you mean 'soc_model'?"),
        ({"soc_model": "abc"}, "option 'soc_model' needs a whole number, not 'abc'"),
        ({"htp_arch": "74"}, "option 'htp_arch' is '74'; allowed: 68, 69, 73"),
        ({"enable_htp_weight_sharing": "yes"}, "needs 0 or 1, not 'yes'"),
    ],
    ids=str,
)
def test_a_provider_option_that_is_unknown_or_malformed_is_an_invalid_argument(
    source, options, words
):
    with refused(
        InvalidArgument, words, folder=source.parent, ep="QNNExecutionProvider"
    ):
        epctx.ModelCompiler(with_qnn(options), source).compile_to_file()
    with refused(InvalidArgument, words, folder=source.parent):
        epctx.InferenceSession(source, with_qnn(options))


@pytest.mark.entry(135)
def test_a_provider_option_among_the_session_options_is_held_against_the_same_list(
    source,
):
    options = with_qnn()
    options.add_session_config_entry("ep.qnnexecutionprovider.soc_model", "abc")

    with refused(
        InvalidArgument, "option 'soc_model' needs a whole number", folder=source.parent
    ):
        epctx.ModelCompiler(options, source).compile_to_file()


def without_backend(purpose):
    """Alpha on a machine that lacks what a purpose needs."""

    def availability(asked):
        return Availability(
            asked is not purpose,
            reason="libalpha.so is missing",
            hint="Install the driver.",
        )

    return type("Lame", (Alpha,), {"availability": staticmethod(availability)})


@pytest.mark.entry(136)
def test_a_compile_without_the_backend_fails_and_writes_nothing(source):
    lame = without_backend(Purpose.EXPORT)

    with refused(
        NotImplementedByProvider,
        "libalpha.so is missing",
        folder=source.parent,
        ep=lame.name,
    ) as caught:
        epctx.ModelCompiler(
            options_with(lame), source, registry=registry_with(lame)
        ).compile_to_file()

    assert caught.value.hint == "Install the driver."


@pytest.mark.entry(136)
def test_a_load_without_the_backend_says_so_instead_of_blaming_the_providers(source):
    output = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(
        options_with(Alpha), source, registry=registry_with(Alpha)
    ).compile_to_file(output)
    lame = without_backend(Purpose.LOAD)

    with refused(
        NotImplementedByProvider, "cannot load on this machine: libalpha.so is missing"
    ):
        epctx.InferenceSession(output, options_with(lame), registry=registry_with(lame))


@pytest.mark.parametrize("stop", ["", "."])
def test_a_reason_is_told_as_a_sentence_whether_or_not_it_is_one(source, stop):
    class Lame(Alpha):
        @classmethod
        def availability(cls, purpose):
            return Availability(False, reason=f"libalpha.so is missing{stop}")

    with pytest.raises(
        NotImplementedByProvider, match=r"libalpha\.so is missing\.(?!\.)"
    ):
        epctx.InferenceSession(source, options_with(Lame), registry=registry_with(Lame))


@pytest.mark.entry(136)
def test_a_backend_that_breaks_while_it_is_asked_what_it_takes_is_an_error_and_not_an_uncompiled_model(
    source,
):
    def no_library(_honest, _graph):
        raise OSError("libalpha.so: cannot open shared object file")

    ep = scripted(get_capability=no_library)

    with refused(
        PluginError,
        "failed in get_capability: OSError: libalpha.so",
        folder=source.parent,
    ):
        epctx.ModelCompiler(
            options_with(ep), source, registry=registry_with(ep)
        ).compile_to_file()


@pytest.mark.entry(137)
@pytest.mark.parametrize("asked", ["Alpha", "ALPHA", "AlphaExecutionProvider"])
def test_the_source_is_the_eps_type_whatever_name_the_host_used(source, asked):
    output = source.with_name("m_ctx.onnx")
    options = epctx.SessionOptions()
    options.add_provider(asked)

    epctx.ModelCompiler(options, source, registry=registry_with(Alpha)).compile_to_file(
        output
    )

    nodes = [n for n in onnx.load(output).graph.node if n.op_type == "EPContext"]
    assert {a.s for n in nodes for a in n.attribute if a.name == "source"} == {
        b"AlphaExecutionProvider"
    }
    with epctx.InferenceSession(output, registry=registry_with(Alpha)) as session:
        assert session.run(None, {"x": example()})[0].shape == (2, 3)


@pytest.mark.entry(137)
def test_a_model_loads_where_its_ep_is_registered_from_another_place(source):
    output = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(
        options_with(Alpha), source, registry=registry_with(Alpha)
    ).compile_to_file(output)
    other_ep = type("TheirOwnName", (Alpha,), {"__module__": "somewhere.else"})

    with epctx.InferenceSession(output, registry=registry_with(other_ep)) as session:
        assert session.get_providers()[0] == "AlphaExecutionProvider"


@pytest.mark.entry(137)
def test_an_ep_of_another_type_does_not_take_the_nodes(source):
    output = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(
        options_with(Alpha), source, registry=registry_with(Alpha)
    ).compile_to_file(output)
    second = type("Alpha2", (Alpha,), {"name": "Alpha2ExecutionProvider"})

    with pytest.raises(
        (NotImplementedByProvider, InvalidGraph), match="'AlphaExecutionProvider'"
    ):
        epctx.InferenceSession(
            output, options_with(second), registry=registry_with(second)
        )
