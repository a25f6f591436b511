"""Context models of Qualcomm's EP for several SoCs, which its simulator compiles and
does not load.
"""

from __future__ import annotations

import logging
import re
import zipfile
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
from epctx_onnxruntime.providers.library import PluginLibrary
from epctx_onnxruntime.providers.qnn import QNNExecutionProvider
from support.vendors_onnxruntime import QNN, PluginEP, devices, qnn_options
from vendors.vendor_networks import network

import epctx_core as epctx
from epctx_core.plugin import Severity

TWO = {"soc_model": "60,69", "htp_arch": "73,79"}
INFO = f"ep_compatibility_info.{QNN}"


def options_for(**given):
    options = epctx.SessionOptions()
    options.add_provider("epctx-onnxruntime:QNN", {**qnn_options(), **given})
    return options


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(network("two_parts").model)
    return path


def compile_for(source, *, embedded=False, **given):
    """Compile a model; return the path of the context model."""
    context = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(options_for(**given), source, embedded).compile_to_file(context)
    return context


def target_of(context):
    """Return what the manifest says that a context model is for."""
    return epctx.inspect_model(context).manifest.providers[QNN]["target"]


def compatibility_info(context):
    model = onnx.load(context, load_external_data=False)
    return {entry.key: entry.value for entry in model.metadata_props}[INFO]


def qnn(**given):
    import onnxruntime_qnn

    return PluginEP(
        ep=QNN,
        devices=devices(QNN, onnxruntime_qnn)[:1],
        options={**qnn_options(), **given},
    )


@pytest.mark.parametrize("embedded", [False, True])
def test_the_socs_of_a_context_model_are_named_without_a_device(source, embedded):
    context = compile_for(source, embedded=embedded, **TWO)

    nodes = epctx.inspect_model(context).ep_contexts
    report = epctx.verify_model(context, options_for(**TWO))

    assert [node.attributes["epctx_targets"] for node in nodes] == [
        "sc8380xp, sm8750"
    ] * 2
    (finding,) = report.findings
    assert (report.ok, finding.code) == (True, "container-not-checked")
    assert "is for the SoCs sc8380xp, sm8750" in finding.message


def test_what_is_compiled_for_several_socs_is_as_onnxruntime_compiles_it(
    source, tmp_path
):
    own = compile_for(source, **TWO)
    (tmp_path / "theirs").mkdir()
    theirs = qnn(**TWO).compile_to_file(
        source.read_bytes(), tmp_path / "theirs" / "m_ctx.onnx", embedded=False
    )

    assert compatibility_info(own) == compatibility_info(theirs)
    caches = [
        [
            (entry.filename, entry.file_size)
            for entry in zipfile.ZipFile(binary).infolist()
            if entry.filename.startswith("htp.cache.")
        ]
        for binary in (own.with_name("m_qnn.bin"), theirs.with_name("m_ctx_qnn.bin"))
    ]
    assert len(caches[0]) == 2
    assert caches[0] == caches[1]


def test_the_text_of_each_soc_is_that_of_a_compile_for_it_alone(source):
    """By which the EP is asked about each."""
    *alone, both = [
        compatibility_info(compile_for(source, soc_model=soc, htp_arch=architecture))
        for soc, architecture in (("60", "73"), ("69", "79"), ("60,69", "73,79"))
    ]

    fields = [field.split(",") for field in both.split(":")]
    for number, text in enumerate(alone):
        assert ":".join(values[number % len(values)] for values in fields) == text


def test_a_context_model_of_onnxruntime_for_several_socs_is_named_once_it_is_sealed(
    source, tmp_path
):
    (tmp_path / "theirs").mkdir()
    context = qnn(**TWO).compile_to_file(
        source.read_bytes(), tmp_path / "theirs" / "m_ctx.onnx", embedded=False
    )
    epctx.seal_model(context)

    (finding,) = epctx.verify_model(context, options_for()).findings

    assert "'m_ctx_qnn.bin' is for the SoCs sc8380xp, sm8750" in finding.message


def test_a_truncated_payload_of_several_socs_is_refused_by_its_list(source):
    context = compile_for(source, **TWO)
    binary = context.with_name("m_qnn.bin")
    binary.write_bytes(binary.read_bytes()[:-40])
    # Without the digests, which would tell it first.
    model = onnx.load(context, load_external_data=False)
    kept = [p for p in model.metadata_props if not p.key.startswith("epctx.")]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, context)
    options = options_for(**TWO)
    options.add_session_config_entry("ep.context_trust_unverified", "1")

    errors = [
        finding
        for finding in epctx.verify_model(context, options).findings
        if finding.severity is Severity.ERROR
    ]

    assert [finding.code for finding in errors] == ["container-refused"]
    assert "but its list of entries cannot be read" in errors[0].message


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("given", [TWO, {}], ids=["all", "one"])
def test_the_simulator_loads_none_and_the_error_says_so(source, embedded, given):
    context = compile_for(source, embedded=embedded, **TWO)

    with pytest.raises(epctx.InvalidGraph, match="INVALID_GRAPH") as refused:
        epctx.InferenceSession(context, options_for(**given))

    assert refused.value.hint == (
        "Its payload is for the SoCs sc8380xp, sm8750, and Qualcomm's simulator, "
        "which runs here, loads none of several SoCs: load it on a device with one of "
        "them, or compile the model for one SoC."
    )


def test_a_session_that_compiles_for_several_socs_says_it_too(source):
    with pytest.raises(epctx.EpctxError) as refused:
        epctx.InferenceSession(source, options_for(**TWO))

    assert "loads none of several SoCs" in str(refused.value)


def test_targets_of_one_soc_may_be_numbers(source):
    context = compile_for(source, soc_model=60, htp_arch=73)

    assert compatibility_info(context).split(":")[4:6] == ["73", "60"]
    report = epctx.verify_model(context, options_for())
    assert not report.findings
    assert [each.looked_into_by for each in report.payloads] != [None]
    with epctx.InferenceSession(context, options_for()) as session:
        session.run(None, network("two_parts").inputs)


def test_a_model_of_which_nothing_is_taken_is_no_fault_of_the_lists(tmp_path):
    # onnxruntime-qnn refuses lists where it is not to compile a context model.
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[2,8] x) => (float[2,8] y) {
        half = Constant<value: tensor = float {0.5}>()
        y = Mod<fmod = 1>(x, half)
    }"""
    model = onnx.parser.parse_model(text).SerializeToString()

    explanation = epctx.explain_model(model, options_for(**TWO))

    assert len(explanation.left) == len(explanation.nodes)
    reasons = [reason for node in explanation.nodes for _, reason in node.refusals]
    assert not [reason for reason in reasons if "Per-SoC" in reason]


def test_onnxruntime_itself_takes_lists_for_compiles_alone_and_of_one_length(source):
    """Why sessions get one SoC, and lists of two lengths are refused before."""
    with pytest.raises(Exception, match="only supported for EP context enabled"):
        onnxruntime.InferenceSession(
            source, qnn(**TWO).session_options(), enable_fallback=0
        )
    with pytest.raises(Exception, match="having equal number of values"):
        qnn(**{**TWO, "htp_arch": "73"}).compile_to_bytes(source.read_bytes())


def test_other_socs_are_another_key_of_the_cache(source, tmp_path):
    keys = [
        epctx.compile_cached(
            source,
            options_for(soc_model=soc, htp_arch=architecture),
            tmp_path / "cache",
        ).parent.name
        for soc, architecture in (
            ("60", "73"), ("60,69", "73,79"), ("69,60", "79,73"), ("60,69", "73,79")
        )
    ]  # fmt: skip

    assert len(set(keys)) == 3
    assert keys[1] == keys[3]


@pytest.fixture
def listed(monkeypatch):
    """Have onnxruntime list a device of a type, whose maker and number are those of
    another machine than this.
    """

    def list_device(kind):
        hardware = SimpleNamespace(
            type=getattr(onnxruntime.OrtHardwareDeviceType, kind),
            vendor="Elsewhere",
            vendor_id=0x1234,
            device_id=0x5678,
            metadata={"driver_version": "1.2.3"},
        )
        device = SimpleNamespace(ep_name=QNN, device=hardware, ep_metadata={})
        monkeypatch.setattr(PluginLibrary, "list_devices", lambda *_: [device])

    return list_device


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"soc_model": "60", "htp_arch": "73"}, "soc_model 60 (SC8380XP), htp_arch 73"),
        (
            {"soc_model": "60,sm8750", "htp_arch": "73,79"},
            "soc_model 60 (SC8380XP),sm8750, htp_arch 73,79",
        ),
        ({"soc_model": "0", "htp_arch": "73"}, "htp_arch 73"),
        ({"soc_model": "0"}, "none: for whatever loads it"),
        ({}, "none: for whatever loads it"),
        ({"backend_type": "gpu"}, "backend_type gpu"),
    ],
)
@pytest.mark.parametrize("kind", ["CPU", "NPU"])
def test_the_target_is_the_one_asked_for_and_without_one_the_npu(
    listed, kind, given, target
):
    listed(kind)

    info = QNNExecutionProvider.get_build_info(given)

    if kind == "NPU" and target.startswith("none"):
        assert (info.target, info.driver) == ("NPU Elsewhere 0x5678", "1.2.3")
    else:
        assert (info.target, info.driver) == (target, "")


@pytest.mark.parametrize("given", [{}, {"soc_model": "60", "htp_arch": "73"}])
def test_a_machine_with_another_cpu_finds_the_entry_of_this_one(
    source, tmp_path, listed, given
):
    options = epctx.SessionOptions()
    options.add_provider("epctx-onnxruntime:QNN", given)
    entry = epctx.compile_cached(source, options, tmp_path / "cache")

    # No EP could compile for that device.
    listed("CPU")

    assert epctx.compile_cached(source, options, tmp_path / "cache") == entry


def test_a_compile_for_no_target_says_once_which_there_are(source, caplog):
    options = epctx.SessionOptions()
    options.add_provider("epctx-onnxruntime:QNN")
    context = source.with_name("m_ctx.onnx")

    with caplog.at_level(logging.WARNING, "epctx"):
        epctx.ModelCompiler(options, source).compile_to_file(context)

    (record,) = caplog.records
    assert "no target: for whatever loads it" in record.getMessage()
    assert target_of(context) == "none: for whatever loads it"
    # Each of those named exists: Qualcomm's compiler writes the numbers of the chips.
    numbers, chips = zip(
        *re.findall(r"(\d+) \((\w+)\)", record.getMessage()), strict=True
    )
    options = epctx.SessionOptions()
    options.add_provider("epctx-onnxruntime:QNN", {"soc_model": ",".join(chips)})
    epctx.ModelCompiler(options, source).compile_to_file(context)
    assert compatibility_info(context).split(":")[5] == ",".join(numbers)


def test_a_compile_for_a_target_says_nothing_and_its_manifest_names_it(source, caplog):
    with caplog.at_level(logging.WARNING, "epctx"):
        context = compile_for(source, soc_model="60", htp_arch="73")

    assert not caplog.records
    assert target_of(context) == "soc_model 60 (SC8380XP), htp_arch 73"
