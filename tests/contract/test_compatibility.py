"""Entries 88 to 103: compatibility information, written and judged before anything of a
payload is touched.
"""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from support.engine_eps import Alpha, Beta
from support.routes import with_qnn
from support.small_models import example, saved
from support.validating_eps import (
    compiled,
    options_with,
    registry_with,
    session,
    validating,
)

import epctx_core as epctx
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplementedByProvider,
    PluginError,
)
from epctx_core.plugin import Availability, Compatibility, Purpose

NOT_APPLICABLE, OPTIMAL, RECOMPILE, NO = Compatibility
PREFIX = "ep_compatibility_info."
INFO = "validating;version=0.1.0"
SUBOPTIMAL_IS_AN_ERROR = {"session__fail_on_suboptimal_compiled_model": 1}


def infos(path):
    entries = onnx.load(path, load_external_data=False).metadata_props
    return {
        e.key.removeprefix(PREFIX): e.value for e in entries if e.key.startswith(PREFIX)
    }


def runs(model, *eps, **entries):
    with session(model, *eps, **entries) as opened:
        return opened.run(None, {"x": example()})[0]


# --- written --------------------------------------------------------------------------


@pytest.mark.entry(88, 100)
def test_each_ep_of_the_session_writes_what_it_says_under_its_type(source):
    first = validating()
    second = validating(
        info="of the second", name="SecondExecutionProvider", binary_suffix="second"
    )

    model = compiled(source, first, second)

    assert infos(model) == {
        "ValidatingExecutionProvider": INFO,
        # It took nothing: the first was asked before it.
        "SecondExecutionProvider": "of the second",
    }


@pytest.mark.entry(89)
def test_an_empty_text_is_not_written(source):
    model = compiled(source, validating(info=""), Beta)

    assert infos(model) == {}


@pytest.mark.entry(88)
@pytest.mark.parametrize("info", [None, b"bytes", 7])
def test_what_is_no_text_breaks_the_contract_and_nothing_is_written(source, info):
    with pytest.raises(PluginError, match="instead of a str") as caught:
        compiled(source, validating(info=info))

    assert caught.value.hook == "get_compatibility_info"
    assert [path.name for path in source.parent.iterdir()] == ["m.onnx"]


@pytest.mark.entry(88)
def test_the_session_route_writes_it_too(source):
    output = source.with_name("other_ctx.onnx")

    runs(source, validating(), ep__context_enable=1, ep__context_file_path=output)

    assert infos(output) == {"ValidatingExecutionProvider": INFO}


@pytest.mark.entry(100)
def test_the_simulated_qnn_writes_what_its_rules_validate(source):
    output = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(with_qnn({"htp_arch": "75"}), source).compile_to_file(output)

    assert infos(output) == {
        "QNNExecutionProvider": "epctx-sim;api=1;backend=htp;blob=1;driver=sim-1.8.0;"
        "htp_arch=75;sdk=sim-2.51.0;vendor=QNN"
    }


# --- judged ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verdict",
    [pytest.param(OPTIMAL, marks=pytest.mark.entry(90, 101)), pytest.param(NOT_APPLICABLE, marks=pytest.mark.entry(94))],
)  # fmt: skip
@pytest.mark.parametrize("entries", [{}, SUBOPTIMAL_IS_AN_ERROR])
def test_a_model_that_is_supported_or_not_validated_runs(
    source, verdict, entries, caplog
):
    ep = validating(verdict)
    model = compiled(source, ep)

    with caplog.at_level(logging.WARNING, "epctx"):
        result = runs(model, ep, **entries)

    assert np.array_equal(result, runs(source, Alpha))
    assert f"validate {INFO} driver=1" in ep.asked
    assert caplog.messages == []


@pytest.mark.entry(91)
def test_a_model_that_had_better_be_compiled_again_runs_with_a_warning(source, caplog):
    ep = validating(RECOMPILE)
    model = compiled(source, ep)

    with caplog.at_level(logging.WARNING, "epctx"):
        result = runs(model, ep)

    assert np.array_equal(result, runs(source, Alpha))
    assert caplog.messages == [
        (
            "ValidatingExecutionProvider runs this compiled model less well than a new "
            f"one: the model was compiled for {INFO!r}."
        )
    ]


@pytest.mark.entry(92)
def test_a_model_that_had_better_be_compiled_again_is_refused_if_the_host_says_so(
    source,
):
    ep = validating(RECOMPILE)
    model = compiled(source, ep)

    with pytest.raises(Fail, match="less well than a new one") as caught:
        runs(model, ep, **SUBOPTIMAL_IS_AN_ERROR)

    assert caught.value.ep == "ValidatingExecutionProvider"


@pytest.mark.entry(93)
@pytest.mark.parametrize("entries", [{}, SUBOPTIMAL_IS_AN_ERROR])
def test_a_model_that_is_not_supported_is_an_invalid_graph_whatever_the_option_says(
    source, entries
):
    ep = validating(NO)
    model = compiled(source, ep)

    with pytest.raises(
        InvalidGraph, match=r"does not support this compiled model.*validating;version"
    ) as caught:
        runs(model, ep, **entries)

    assert (caught.value.ep, bool(caught.value.hint)) == (
        "ValidatingExecutionProvider",
        True,
    )


BECAUSE = "installed is driver 2"


def test_the_reason_of_a_verdict_is_in_the_error_of_a_load_and_in_a_verification(
    source,
):
    ep = validating(NO.because(BECAUSE))
    model = compiled(source, ep)

    with pytest.raises(InvalidGraph, match=rf"for '{INFO}'; {BECAUSE}\.") as caught:
        runs(model, ep)
    report = epctx.verify_model(model, options_with(ep), registry=registry_with(ep))

    finding = report.findings[0]
    assert (finding.code, finding.message) == (
        "compatibility-unsupported",
        caught.value.message,
    )
    found = epctx.get_model_compatibility(model, ep.name, registry=registry_with(ep))
    assert found is NO


def test_the_reason_of_a_verdict_is_in_the_warning(source, caplog):
    ep = validating(RECOMPILE.because(BECAUSE))
    model = compiled(source, ep)

    with caplog.at_level(logging.WARNING, "epctx"):
        runs(model, ep)
    report = epctx.verify_model(model, options_with(ep), registry=registry_with(ep))

    assert caplog.messages[0].endswith(f"for {INFO!r}; {BECAUSE}.")
    finding = report.findings[0]
    assert (finding.code, finding.message) == (
        "compatibility-outdated",
        caplog.messages[0],
    )


def test_a_verdict_with_a_reason_is_equal_to_the_verdict():
    assert NO.because(BECAUSE) == NO
    assert (NO.because(BECAUSE).reason, NO.reason) == (BECAUSE, "")
    assert isinstance(NO.because(BECAUSE), Compatibility)


@pytest.mark.parametrize("verdict", [NO, OSError("no handle")])
def test_an_absent_driver_is_said_as_declared_and_is_no_fault_of_the_model(
    source, verdict
):
    def availability(purpose):
        return Availability(
            purpose is not Purpose.LOAD,
            reason="no Acme driver found",
            hint="Install driver 3.",
        )

    ep = validating(verdict, availability=staticmethod(availability))
    model = compiled(source, ep)

    with pytest.raises(
        NotImplementedByProvider, match=r"cannot load .*: no Acme driver found"
    ) as caught:
        runs(model, ep)
    report = epctx.verify_model(model, options_with(ep), registry=registry_with(ep))

    assert caught.value.hint == "Install driver 3."
    assert report.ok
    finding = report.findings[0]
    assert (finding.code, finding.message, finding.hint) == (
        "plugin-missing",
        caught.value.message,
        "Install driver 3.",
    )


@pytest.mark.entry(95)
def test_a_model_without_information_is_not_validated_and_runs(source):
    writer, reader = validating(info=""), validating(NO)
    model = compiled(source, writer)

    result = runs(model, reader)

    assert np.array_equal(result, runs(source, Alpha))
    assert not any(asked.startswith("validate") for asked in reader.asked)


@pytest.mark.entry(96)
def test_a_validator_that_raises_is_a_plugin_error_with_its_words(source):
    model = compiled(source, validating())

    with pytest.raises(
        PluginError, match="failed in validate_compatibility: OSError: no driver"
    ) as caught:
        runs(model, validating(OSError("no driver")))

    assert caught.value.hook == "validate_compatibility"
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.entry(96)
@pytest.mark.parametrize("verdict", [1, None, "optimal", True])
def test_a_verdict_that_is_none_of_the_four_breaks_the_contract(source, verdict):
    model = compiled(source, validating())

    with pytest.raises(PluginError, match="instead of a Compatibility"):
        runs(model, validating(verdict))


@pytest.mark.entry(97)
def test_an_unsupported_model_is_refused_before_the_ep_is_made_or_its_binary_is_looked_for(
    source,
):
    ep = validating(NO)
    model = compiled(source, ep)
    ep.asked.clear()
    (source.parent / "m_validating.bin").unlink()

    with pytest.raises(InvalidGraph, match="does not support"):
        runs(model, ep)

    assert ep.asked == [f"validate {INFO} driver=1"]


@pytest.mark.entry(97)
def test_a_supported_model_goes_on_to_the_other_hooks(source):
    ep = validating()
    model = compiled(source, ep)
    ep.asked.clear()

    runs(model, ep)

    assert ep.asked == [f"validate {INFO} driver=1", "__init__", "load_context"]


@pytest.mark.entry(97)
def test_an_ep_that_took_nothing_validates_what_it_wrote_before_it_is_asked_for_its_capability(
    source,
):
    other = validating(
        NO, info="of the other", name="OtherExecutionProvider", binary_suffix="other"
    )
    model = compiled(source, validating(), other)
    other.asked.clear()

    with pytest.raises(InvalidGraph, match="OtherExecutionProvider does not support"):
        runs(model, validating(), other)

    assert other.asked == ["validate of the other driver=1"]
    assert runs(model, validating()).shape == (2, 3)


@pytest.mark.entry(97)
def test_the_ep_validates_by_the_options_of_the_session(source):
    ep = validating()
    model = compiled(source, ep)
    options = epctx.SessionOptions()
    options.add_provider(ep.name, {"driver": 7})

    epctx.InferenceSession(model, options, registry=registry_with(ep)).close()

    assert f"validate {INFO} driver=7" in ep.asked


# --- without a session ----------------------------------------------------------------


@pytest.mark.entry(98)
@pytest.mark.parametrize("verdict", list(Compatibility))
def test_the_verdict_can_be_had_without_a_session(source, verdict):
    ep = validating(verdict)
    model = compiled(source, ep)
    ep.asked.clear()

    for given in (model, str(model), model.read_bytes()):
        found = epctx.get_model_compatibility(
            given, "validating", {"driver": 3}, registry=registry_with(ep)
        )
        assert found is verdict

    assert ep.asked == [f"validate {INFO} driver=3"] * 3
    assert issubclass(epctx.CompiledModelCompatibility, Compatibility)


@pytest.mark.entry(98)
def test_the_cpu_ep_and_an_ep_without_validator_and_a_model_without_information_are_not_applicable(
    source,
):
    model = compiled(source, validating())
    registry = registry_with(Alpha, validating())

    for given, ep in (
        (model, "CPUExecutionProvider"),
        (model, "cpu"),
        (model, "Alpha"),
        (source, "Validating"),
    ):
        assert (
            epctx.get_model_compatibility(given, ep, registry=registry)
            is NOT_APPLICABLE
        )


@pytest.mark.entry(98)
@pytest.mark.parametrize("ep", ["", None, 7, b"QNN"])
def test_an_ep_that_is_no_text_is_an_invalid_argument(source, ep):
    for ask in (epctx.get_model_compatibility, epctx.get_compatibility_info_from_model):
        with pytest.raises(InvalidArgument, match="an EP is named by a text"):
            ask(source, ep)


@pytest.mark.entry(98)
def test_an_ep_that_is_not_installed_or_gets_a_wrong_option_is_an_invalid_argument(
    source,
):
    registry = registry_with(validating())

    with pytest.raises(InvalidArgument, match="no installed plugin provides"):
        epctx.get_model_compatibility(source, "Nothing", registry=registry)
    with pytest.raises(InvalidArgument, match="needs a whole number"):
        epctx.get_model_compatibility(
            source, "Validating", {"driver": "new"}, registry=registry
        )


@pytest.mark.entry(99)
def test_the_text_of_a_model_is_found_by_the_eps_type_or_its_short_name(source):
    model = compiled(source, validating())

    for given in (model, str(model), model.read_bytes()):
        for ep in ("ValidatingExecutionProvider", "Validating", "validating"):
            assert epctx.get_compatibility_info_from_model(given, ep) == INFO


@pytest.mark.entry(99)
def test_a_model_without_such_a_text_has_none(source):
    model = compiled(source, validating())

    assert epctx.get_compatibility_info_from_model(model, "QNN") is None
    assert epctx.get_compatibility_info_from_model(source, "Validating") is None


@pytest.mark.entry(99)
def test_a_model_that_is_missing_or_none_is_said_so(source, tmp_path):
    for ask in (epctx.get_compatibility_info_from_model, epctx.get_model_compatibility):
        for ep in ("QNN", "CPU"):
            if ep == "CPU" and ask is epctx.get_compatibility_info_from_model:
                continue
            with pytest.raises(NoSuchFile, match="there is no model file"):
                ask(tmp_path / "no.onnx", ep)
            with pytest.raises(InvalidArgument, match="is a folder"):
                ask(tmp_path, ep)
            for junk in (b"", b"junk", b"\x08", source.read_bytes()[:-1]):
                with pytest.raises(InvalidProtobuf):
                    ask(junk, ep)
            with pytest.raises(InvalidGraph, match="has no graph"):
                ask(b"\x08\x08", ep)
            for wrong in (None, 7, ""):
                with pytest.raises(InvalidArgument, match="a model is a path or bytes"):
                    ask(wrong, ep)


# --- the simulated QNN ----------------------------------------------------------------

QNN_VERDICTS = [
    ({"runtime_backend": "gpu"}, {}, NO),
    ({"runtime_api_version": "2"}, {}, NO),
    ({"runtime_blob_version": "99"}, {}, NO),
    ({"runtime_sdk_version": "sim-2.52.0"}, {}, NO),
    ({"runtime_sdk_version": "sim-1.99.0"}, {}, NO),
    ({"runtime_sdk_version": "sim-2.50.0"}, {}, OPTIMAL),
    ({"htp_arch": "75"}, {"htp_arch": "73"}, NO),
    ({"htp_arch": "69"}, {"htp_arch": "73"}, RECOMPILE),
    ({}, {}, OPTIMAL),
    ({}, {"runtime_driver_version": "none"}, NO),
    ({"runtime_driver_version": "sim-1.9.0"}, {}, NO),
]


@pytest.mark.entry(102)
@pytest.mark.parametrize(("made", "runtime", "verdict"), QNN_VERDICTS, ids=str)
def test_a_difference_gives_the_same_verdict_with_and_without_a_session(
    source, made, runtime, verdict
):
    model = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(with_qnn(made), source).compile_to_file(model)

    assert epctx.get_model_compatibility(model, "QNN", runtime) is verdict
    if verdict is NO:
        with pytest.raises(InvalidGraph, match="does not support this compiled model"):
            epctx.InferenceSession(model, with_qnn(runtime))
    elif verdict is RECOMPILE:
        with pytest.raises(Fail, match="less well"):
            epctx.InferenceSession(model, with_qnn(runtime, **SUBOPTIMAL_IS_AN_ERROR))
    else:
        epctx.InferenceSession(
            model, with_qnn(runtime, **SUBOPTIMAL_IS_AN_ERROR)
        ).close()


@pytest.mark.entry(103)
@pytest.mark.parametrize("info", ["garbage", "v2:6:2.51.0:5.51.0:0:60:0:0", None])
@pytest.mark.parametrize(
    "runtime",
    [
        {"runtime_sdk_version": "sim-3.0.0"},
        {"runtime_driver_version": "none"},
        {"htp_arch": "69"},
    ],
    ids=str,
)
def test_a_text_that_cannot_be_validated_does_not_let_an_unfit_payload_through(
    source, info, runtime
):
    path = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(with_qnn(), source).compile_to_file(path)
    model = onnx.load(path)
    (entry,) = [e for e in model.metadata_props if e.key.startswith(PREFIX)]
    if info is None:
        model.metadata_props.remove(entry)
    else:
        entry.value = info
    saved(model, path)

    assert epctx.get_model_compatibility(path, "QNN", runtime) is NOT_APPLICABLE
    with pytest.raises(
        InvalidGraph, match=r"cannot load node .* but this simulated runtime needs"
    ):
        epctx.InferenceSession(path, with_qnn(runtime))


@pytest.mark.entry(99)
def test_options_of_a_session_are_those_of_the_question(source):
    ep = validating()
    model = compiled(source, ep)

    with epctx.InferenceSession(
        model, options_with(ep), registry=registry_with(ep)
    ) as opened:
        given = opened.get_provider_options()[ep.name]

    assert (
        epctx.get_model_compatibility(model, ep.name, given, registry=registry_with(ep))
        is OPTIMAL
    )
