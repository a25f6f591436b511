"""Sessions of the drop-in beside their runs: errors, and the optimised model."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import epctx_onnxruntime as onnxruntime
import numpy as np
import onnx.parser
import onnxruntime as real
import pytest
from drop_in.uses import models
from epctx_onnxruntime.capi import onnxruntime_pybind11_state as native
from epctx_onnxruntime.drop_in import sessions
from epctx_onnxruntime.drop_in.errors import adopt
from epctx_onnxruntime.providers import OnnxRuntimeProvider
from epctx_onnxruntime.providers.library import PluginLibrary
from support.cli_fixtures import PROVIDER
from support.installed import install_distribution

import epctx_core
from epctx_core import errors
from epctx_core.errors import EpctxError, ErrorCode, InvalidArgument

pytestmark = pytest.mark.internal

MODEL = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["": 18]> g (float[n, 2] x) => (float[n, 2] y) '
    "<float[2] w = {1, 2}> { a = Add (x, w) b = Identity (a) y = Relu (b) }"
).SerializeToString()
CLASSES = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, EpctxError) and cls is not EpctxError
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_errors_are_pickled_with_all_that_they_are(cls):
    error = cls("it failed.", node="n", ep="QNN", path="/m.onnx", hint="Mend it.")
    adopt(error)

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here

    assert isinstance(copy, cls)
    assert type(copy).__mro__ == type(error).__mro__
    assert (str(copy), copy.node, copy.ep, copy.path) == (
        "it failed.\nMend it.",
        "n",
        "QNN",
        "/m.onnx",
    )
    assert error.code in ErrorCode


def test_the_optimised_model_is_what_onnxruntime_writes(tmp_path):
    written = {}
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([5, 6], np.float32))
    for name, module in (("ours", onnxruntime), ("theirs", real)):
        options = module.SessionOptions()
        options.add_free_dimension_override_by_name("n", 4)
        options.add_initializer("w", value)
        options.optimized_model_filepath = str(tmp_path / f"{name}.onnx")
        module.InferenceSession(MODEL, options)
        written[name] = onnx.load(tmp_path / f"{name}.onnx")

    ours, theirs = written["ours"].graph, written["theirs"].graph
    assert [node.op_type for node in ours.node] == [n.op_type for n in theirs.node]
    assert ours.input == theirs.input
    assert ours.initializer == theirs.initializer


def test_an_optimised_model_that_cannot_be_written_is_refused(tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "nowhere" / "m.onnx")

    with pytest.raises(InvalidArgument, match="Check optimized_model_filepath"):
        onnxruntime.InferenceSession(MODEL, options)


def test_eps_of_onnxruntime_that_are_not_here_are_left_out_with_a_warning():
    with pytest.warns(UserWarning, match="CUDAExecutionProvider: not installed"):
        session = onnxruntime.InferenceSession(
            MODEL,
            providers=["CUDAExecutionProvider", "CPUExecutionProvider"],
            provider_options=[{"device_id": "0"}, {}],
        )

    assert session.get_providers() == ["CPUExecutionProvider"]


class WithoutDevice(OnnxRuntimeProvider):
    """An EP that is installed for another machine than this one."""

    name = "CUDAExecutionProvider"
    vendor = "NVIDIA"
    library = PluginLibrary(ep="CUDAExecutionProvider")


def test_an_ep_that_is_not_available_is_left_out_before_its_options_are_read():
    options = {"num_of_threads": 4}

    with (
        epctx_core.temporary_execution_provider(WithoutDevice),
        pytest.warns(UserWarning, match=r"CUDAExecutionProvider: not available \("),
        onnxruntime.InferenceSession(
            MODEL, providers=[(WithoutDevice.name, options), "CPUExecutionProvider"]
        ) as session,
    ):
        assert session.get_providers() == ["CPUExecutionProvider"]


ABSENT = """
import sys
import onnx.parser
import epctx_onnxruntime as onnxruntime

model = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) '
    "{ y = Relu (x) }"
).SerializeToString()
session = onnxruntime.InferenceSession(
    model, providers=[("CUDAExecutionProvider", {"device_id": 1}), "CPUExecutionProvider"]
)
print(session.get_providers())
"""


def test_an_ep_of_several_packages_is_left_out_where_none_of_them_is_available(
    tmp_path,
):
    body = (
        "    @classmethod\n    def availability(cls, purpose):\n"
        "        return Availability(False, reason='no driver')\n"
    )
    for name in ("acme_one", "acme_two"):
        entries = {
            "epctx.execution_providers": {"CUDAExecutionProvider": f"{name}:Provider"}
        }
        install_distribution(tmp_path, name, entries)
        code = PROVIDER.format(name="CUDAExecutionProvider", body=body)
        (tmp_path / f"{name}.py").write_text(code)

    done = subprocess.run(
        [sys.executable, "-c", ABSENT],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "['CPUExecutionProvider']\n", done.stderr
    assert "CUDAExecutionProvider: not available (no driver)" in done.stderr


@pytest.mark.parametrize("options", [[{}], 5])
def test_options_that_do_not_fit_the_providers_are_refused(options):
    with pytest.raises(native.InvalidArgument):
        onnxruntime.InferenceSession(
            MODEL,
            providers=["CUDAExecutionProvider", "CPUExecutionProvider"],
            provider_options=options,
        )


@pytest.mark.parametrize(
    "options",
    [["CPUExecutionProvider"], {"intra_op_num_threads": 1}, onnxruntime.RunOptions()],
    ids=["providers", "mapping", "options of a run"],
)
@pytest.mark.parametrize("first", [[], ["QNN"]], ids=["alone", "with an EP before"])
def test_an_argument_that_is_no_session_options_is_refused_by_its_name(
    options, first, monkeypatch
):
    monkeypatch.setattr(sessions, "first_providers", first)

    with pytest.raises(native.InvalidArgument, match="sess_options is an object of"):
        onnxruntime.InferenceSession(MODEL, options)


@pytest.mark.parametrize("wrong", ["QNN", 5, [5]])
def test_providers_of_a_wrong_form_are_refused_behind_those_of_install(
    wrong, monkeypatch
):
    monkeypatch.setattr(sessions, "first_providers", ["OpenVINO"])

    with pytest.raises(native.InvalidArgument):
        onnxruntime.InferenceSession(MODEL, providers=wrong)


@pytest.mark.parametrize(
    "same",
    [
        ["QNN"],
        ["QNNExecutionProvider", "CPUExecutionProvider"],
        [("QNN", {"htp_arch": 75}), "CPUExecutionProvider"],
    ],
)
def test_a_session_accepts_the_providers_that_it_has(same):
    opened = onnxruntime.InferenceSession(
        models.linear(), providers=[("QNN", {"htp_arch": "75"})]
    )

    opened.set_providers(same)

    assert opened.get_providers()[0] == "QNNExecutionProvider"


@pytest.mark.parametrize(
    "other",
    [
        ["CPUExecutionProvider"],
        ["QNN", "OpenVINO"],
        [("QNN", {"htp_arch": "73"})],
        None,
    ],
)
def test_a_session_refuses_other_providers_than_it_has(other):
    opened = onnxruntime.InferenceSession(
        models.linear(), providers=[("QNN", {"htp_arch": "75"})]
    )

    with pytest.raises(InvalidArgument, match="fixed when it is made"):
        opened.set_providers(other)


def test_arguments_that_only_tune_are_accepted_and_a_typo_is_not():
    opened = onnxruntime.InferenceSession(
        models.linear(), disabled_optimizers=["ConstantFolding"], enable_fallback=1
    )

    opened.disable_fallback()
    opened.enable_fallback()

    with pytest.raises(InvalidArgument, match="Did you mean 'disabled_optimizers'"):
        onnxruntime.InferenceSession(models.linear(), disabled_optimizer=[])


@pytest.mark.parametrize("name", ["io_binding", "run_with_iobinding"])
def test_a_cached_session_without_a_name_says_how_the_drop_in_opens_the_entry(
    name, tmp_path
):
    path = tmp_path / "model.onnx"
    path.write_bytes(models.linear())
    cache = {"providers": ["QNN"], "cache_dir": tmp_path / "cache"}

    with (
        epctx_core.load_or_compile(path, **cache) as opened,
        pytest.raises(AttributeError, match=r"InferenceSession\(compile_cached\("),
    ):
        getattr(opened, name)

    entry = epctx_core.compile_cached(path, **cache)
    with onnxruntime.InferenceSession(entry) as opened:
        assert hasattr(opened, name)
