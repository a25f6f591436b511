"""Several SoCs in one context model of Qualcomm's EP, as far as no code of Qualcomm is
needed: options, verdicts, lists of entries.
"""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile
from types import SimpleNamespace

import onnx
import pytest
from epctx_onnxruntime.providers.qnn import QNNExecutionProvider
from support.onnxruntime_cpu_ep import OrtCpuExecutionProvider as CpuProvider

import epctx_core as epctx
from epctx_core.plugin import Compatibility, Purpose, Severity

pytestmark = pytest.mark.internal

OPTIMAL, RECOMPILE, UNKNOWN, UNSUPPORTED = (
    Compatibility.EP_SUPPORTED_OPTIMAL,
    Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION,
    Compatibility.EP_NOT_APPLICABLE,
    Compatibility.EP_UNSUPPORTED,
)
TWO = "v2:6:2.51.0:5.51.0:73,79:60,69:0,0:0"
"""Text of onnxruntime-qnn 2.7 for two SoCs; those of each follow."""
FIRST, SECOND = "v2:6:2.51.0:5.51.0:73:60:0:0", "v2:6:2.51.0:5.51.0:79:69:0:0"


class Qnn(QNNExecutionProvider):
    """The EP where onnxruntime-qnn is not installed: its library is onnxruntime's
    own.
    """

    library = CpuProvider.library


class OnDevice(Qnn):
    """The EP on a device with an NPU."""

    library = SimpleNamespace(
        list_devices=lambda: [
            SimpleNamespace(device=SimpleNamespace(type=SimpleNamespace(name="NPU")))
        ]
    )


def registry_of(cls):
    registry = epctx.Registry(entry_points=False)
    registry.register(cls)
    return registry


def save_model(path):
    text = """<ir_version: 9, opset_import: ["": 17]>
        g (float[2,8] x) => (float[2,8] y) { y = Softmax(x) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def options_for(cls, given):
    options = epctx.SessionOptions()
    options.add_provider(cls.name, given)
    return options


# -- options
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"htp_arch": "seventy"}, "'htp_arch' needs whole numbers, .* not 'seventy'"),
        ({"htp_arch": "73,"}, "'htp_arch' needs whole numbers, separated by commas"),
        ({"htp_arch": "73.5"}, "such as 73 or 73,79, not '73.5'"),
        ({"htp_arch": ""}, "'htp_arch' needs"),
        ({"soc_model": "60, 69"}, "'soc_model' needs numbers or chip names"),
        ({"soc_model": "60,xx"}, "such as 60 or 60,SM8750, not '60,xx'"),
        ({"soc_model": "\u0666\u0660"}, "'soc_model' needs"),
        ({"vtcm_mb": "8,-4"}, "'vtcm_mb' needs whole numbers"),
        (
            {"soc_model": "60,69", "htp_arch": "73"},
            r"'60,69' \('soc_model'\) and '73' \('htp_arch'\) list values of diff",
        ),
        ({"htp_arch": "73", "vtcm_mb": "8,4"}, r"'73' \('htp_arch'\) and '8,4'"),
    ],
)
def test_targets_that_the_library_would_misread_are_refused(tmp_path, given, expected):
    """onnxruntime-qnn takes " 69" and "xx" for an unknown SoC and compiles."""
    model = save_model(tmp_path / "m.onnx")

    with pytest.raises(epctx.InvalidArgument, match=expected) as refused:
        epctx.ModelCompiler(
            options_for(Qnn, given), model, registry=registry_of(Qnn)
        ).compile_to_file(tmp_path / "m_ctx.onnx")

    assert refused.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"soc_model": "60"},
        {"soc_model": "SM8750,60"},
        {"soc_model": "60,69", "htp_arch": "73,79"},
        {"soc_model": "60,69", "htp_arch": "73,79", "vtcm_mb": "8"},
        {"soc_model": "60,69", "vtcm_mb": "8,4"},
    ],
)
def test_targets_that_the_library_reads_are_taken(given):
    Qnn(SimpleNamespace(options=given))


GIVEN = {
    "backend_type": "htp",
    "soc_model": "60,69",
    "htp_arch": "73,79",
    "vtcm_mb": "8",
}


def test_a_compile_gets_all_targets():
    assert Qnn.vendor_options(GIVEN) == GIVEN


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Qnn, {"soc_model": "60", "htp_arch": "73"}),
        (OnDevice, {}),
    ],
    ids=["simulator", "device"],
)
def test_a_session_gets_no_list_which_the_library_takes_in_compiles_alone(
    cls, expected
):
    """The first for the simulator; a device knows what it is."""
    assert cls.run_options(GIVEN) == {"backend_type": "htp", "vtcm_mb": "8", **expected}


def test_a_session_gets_one_target_as_it_was_given():
    given = {"backend_type": "htp", "soc_model": "60"}

    assert OnDevice.run_options(given) == given


class Keyed(CpuProvider):
    """An EP that works here and has Qualcomm's options."""

    options = QNNExecutionProvider.options

    @classmethod
    def vendor_options(cls, options):
        return {}


def test_other_targets_are_another_key_of_the_cache(tmp_path):
    model = save_model(tmp_path / "m.onnx")

    def key(**given):
        return epctx.compile_cached(
            model,
            options_for(Keyed, given),
            tmp_path / "cache",
            registry=registry_of(Keyed),
        ).parent.name

    lists = ("60", "69", "60,69", "69,60", "60,69,57")
    keys = [key(soc_model=text) for text in lists]

    assert len(set(keys)) == len(lists)
    assert key(soc_model="60,69") == keys[2]


# -- verdicts
# --------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Texts that the library was asked about, by its verdicts."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    verdicts = {}
    texts = []

    def judge(_devices, text):
        texts.append(text)
        return int(verdicts.get(text, UNSUPPORTED))

    monkeypatch.setattr(native, "get_model_compatibility_for_ep_devices", judge)
    return SimpleNamespace(verdicts=verdicts, texts=texts)


@pytest.mark.parametrize(
    ("first", "second", "best"),
    [
        (UNSUPPORTED, OPTIMAL, OPTIMAL),
        (RECOMPILE, UNSUPPORTED, RECOMPILE),
        (UNSUPPORTED, UNKNOWN, UNKNOWN),
        (UNKNOWN, RECOMPILE, RECOMPILE),
        (UNSUPPORTED, UNSUPPORTED, UNSUPPORTED),
    ],
)
def test_the_verdict_on_several_socs_is_the_best_one(asked, first, second, best):
    asked.verdicts.update({FIRST: first, SECOND: second})

    assert OnDevice.validate_compatibility(TWO, {}) is best
    assert asked.texts == [FIRST, SECOND]


def test_nothing_better_is_sought_than_the_optimal_verdict(asked):
    asked.verdicts[FIRST] = OPTIMAL

    assert OnDevice.validate_compatibility(TWO, {}) is OPTIMAL
    assert asked.texts == [FIRST]


@pytest.mark.parametrize(
    "text",
    [
        FIRST,
        "",
        ":",
        "v1:73,79:60,69",
        "v2:6:2.51.0:5.51.0:73,79:60,69,57:0,0:0",
        "v2:" + ",".join(map(str, range(65))),
    ],
    ids=["one SoC", "empty", "colon", "version", "unequal", "too many"],
)
def test_any_other_text_is_judged_as_it_is(asked, text):
    assert OnDevice.validate_compatibility(text, {}) is UNSUPPORTED
    assert asked.texts == [text]


def test_equal_socs_are_asked_about_once(asked):
    OnDevice.validate_compatibility("v2:6:2.51.0:5.51.0:73,73:60,60:0,0:0", {})

    assert asked.texts == [FIRST]


def test_without_an_npu_the_library_is_not_asked(asked):
    assert Qnn.validate_compatibility(TWO, {}) is UNKNOWN
    assert not asked.texts


# -- payloads
# --------------------------------------------------------------------------------------


def payload_of(*names):
    """Return a payload as onnxruntime-qnn writes it: its checksums are 0."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, bytes(range(256)))
    whole = bytearray(file.getvalue())
    at = -1
    while (at := whole.find(b"PK\x01\x02", at + 1)) >= 0:
        whole[at + 16 : at + 20] = bytes(4)
    return bytes(whole)


PAYLOAD = payload_of(
    "dlc.metadata2.3.0",
    "htp.cache.sc8380xp.0",
    "htp.cache.sm8750.0",
    "htp.cache.sm8750.1",
    "htp.shared.weights.<evMAJVjdKZgFSNwd>",
)


def look_into(payload, *, multi=1, purpose=Purpose.LOAD):
    node = SimpleNamespace(
        name="n", main_context=1, attributes={"is_multi_soc_ep_context": multi}
    )
    read = SimpleNamespace(view=memoryview(payload).toreadonly(), name="m_qnn.bin")
    reader = SimpleNamespace(payload=lambda _node: read)
    return Qnn.verify_payloads(SimpleNamespace(purpose=purpose), [node], reader)


def test_a_verification_names_the_socs_of_a_payload_without_a_device():
    (finding,) = look_into(PAYLOAD)

    assert (finding.severity, finding.code) == (Severity.INFO, "container-not-checked")
    assert "'m_qnn.bin' is for the SoCs sc8380xp, sm8750;" in finding.message
    assert "simulator" in finding.hint


def test_a_payload_of_one_soc_is_read_by_qualcomms_library_alone():
    (finding,) = look_into(b"\0\0\0\2", multi=0)

    # Where the library is there, it refuses four bytes.
    assert finding.code.startswith("container-")
    assert "libQnnSystem" in finding.message


def test_a_payload_that_was_just_compiled_is_not_refused_for_its_format():
    assert look_into(b"another format", purpose=Purpose.EXPORT) is None


def with_list_size(size):
    """Return a payload whose list of entries has another length, as it says."""
    end = PAYLOAD.rfind(b"PK\x05\x06")
    return PAYLOAD[: end + 12] + struct.pack("<I", size) + PAYLOAD[end + 16 :]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "cannot be read"),
        (bytes(5000), "cannot be read"),
        (PAYLOAD[:-30], "cannot be read"),
        (PAYLOAD[1000:], "names some before its beginning"),
        (with_list_size(0xFFFFFFF0), "cannot be read"),
        (with_list_size(3), "names 0 SoCs|cannot be read"),
        (payload_of("htp.shared.weights.<a>"), "names 0 SoCs, not 1 to 64"),
        (payload_of("htp.cache.\x1b[31m.0", "htp.cache.a b.0"), "names 0 SoCs"),
        (payload_of(*(f"htp.cache.sm{i}.0" for i in range(65))), "names 65 SoCs"),
        (
            payload_of(*("x" * 65_000 + f"{i:03}" for i in range(65))),
            "has 4,2.* bytes, of 4,194,304 at most",
        ),
    ],
    ids=[
        "empty", "zeros", "truncated", "beginning lost", "list longer than the file",
        "list too short", "no SoC", "no names of SoCs", "too many SoCs", "long list",
    ],
)  # fmt: skip
def test_a_payload_without_a_right_list_of_entries_is_refused(payload, reason):
    (finding,) = look_into(payload)

    assert (finding.severity, finding.code) == (Severity.ERROR, "container-refused")
    assert "'m_qnn.bin' is for several SoCs, but its list of entries" in finding.message
    assert re.search(reason, finding.message)


def test_no_damaged_list_of_entries_raises():
    chance = random.Random(7)  # noqa: S311 - the same ones each time
    begin = PAYLOAD.find(b"PK\x01\x02")
    for _ in range(2000):
        damaged = bytearray(PAYLOAD)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(begin, len(damaged))] = chance.randrange(256)

        (finding,) = look_into(bytes(damaged))

        assert finding.severity in (Severity.INFO, Severity.ERROR)


# -- loads
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "payload", "hint"),
    [
        (Qnn, PAYLOAD, "sc8380xp, sm8750, and Qualcomm's simulator"),
        (OnDevice, PAYLOAD, "sc8380xp, sm8750: if this device has another"),
        (Qnn, b"damaged", "fetch the context binary again"),
    ],
    ids=["simulator", "device", "damaged"],
)
def test_the_hint_of_a_failed_load_names_the_socs(monkeypatch, cls, payload, hint):
    given = []

    def refuse(_name, attributes, *_more):
        given.append(attributes)
        raise epctx.InvalidGraph("onnxruntime does not load it", hint="Fetch it again.")

    monkeypatch.setattr("epctx_onnxruntime.providers.sessions.open_context", refuse)
    monkeypatch.setattr(cls, "session_options", lambda _self: None)
    ep = cls(SimpleNamespace(options={}, session_config={}))
    attributes = {"is_multi_soc_ep_context": 1, "epctx_targets": "sc8380xp, sm8750"}

    with pytest.raises(epctx.InvalidGraph, match="does not load it") as refused:
        ep.open_context("n", attributes, ([], []), payload)

    assert hint in refused.value.hint
    assert given == [{"is_multi_soc_ep_context": 1}]


def test_the_hint_of_a_payload_of_one_soc_stays(monkeypatch):
    def refuse(*_arguments):
        raise epctx.InvalidGraph("onnxruntime does not load it", hint="Fetch it again.")

    monkeypatch.setattr("epctx_onnxruntime.providers.sessions.open_context", refuse)
    monkeypatch.setattr(Qnn, "session_options", lambda _self: None)
    ep = Qnn(SimpleNamespace(options={}, session_config={}))

    with pytest.raises(epctx.InvalidGraph) as refused:
        ep.open_context("n", {"is_multi_soc_ep_context": 0}, ([], []), PAYLOAD)

    assert refused.value.hint == "Fetch it again."
