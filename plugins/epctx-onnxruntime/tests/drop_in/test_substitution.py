"""Programs that import onnxruntime run on the drop-in, unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import epctx_onnxruntime
import numpy as np
import onnx
import pytest
from epctx_onnxruntime.drop_in import sessions
from onnx import TensorProto, helper, numpy_helper

from epctx_core.errors import InvalidArgument

pytestmark = pytest.mark.internal

MODEL = helper.make_model(
    helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")],
    ),
    opset_imports=[helper.make_opsetid("", 18)],
    ir_version=9,
)


@pytest.fixture
def program(tmp_path):
    """Return a function that runs a program's text and gives what it prints as JSON."""
    onnx.save(MODEL, tmp_path / "model.onnx")

    def run(text, *arguments, launcher=("-m", "epctx_onnxruntime")):
        (tmp_path / "program.py").write_text(textwrap.dedent(text))
        done = subprocess.run(
            [sys.executable, *launcher, "program.py", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_program_gets_the_drop_in_and_its_own_arguments(program):
    told = program(
        """
        import json, sys
        import onnxruntime as ort
        session = ort.InferenceSession("model.onnx")
        kind = type(session)
        print(json.dumps([sys.argv, __name__, kind.__module__, session.engine]))
        """,
        "a",
        "--b",
    )

    assert told[:3] == [
        ["program.py", "a", "--b"],
        "__main__",
        "epctx_onnxruntime.drop_in.sessions",
    ]
    # The engine runs on the real one.
    assert told[3].startswith("onnxruntime 1.")


def test_names_within_capi_are_those_of_onnxruntime_and_of_the_drop_in(program):
    told = program(
        """
        import json
        import onnxruntime
        import onnxruntime.capi.onnxruntime_inference_collection as collection
        from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
        from onnxruntime.capi.onnxruntime_pybind11_state import NoSuchFile
        try:
            InferenceSession("nowhere.onnx")
        except NoSuchFile as error:
            caught = isinstance(error, FileNotFoundError)
        print(json.dumps([
            InferenceSession is onnxruntime.InferenceSession,
            collection.InferenceSession is InferenceSession,
            caught,
        ]))
        """
    )

    assert told == [True, True, True]


def test_packages_within_onnxruntime_work_on_the_real_one(program):
    told = program(
        """
        import json
        import numpy as np
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic
        import onnxruntime.quantization.calibrate as calibrate
        # Not QInt8, whose products overflow on CPUs without VNNI.
        quantize_dynamic("model.onnx", "small.onnx", weight_type=QuantType.QUInt8)
        session = onnxruntime.InferenceSession("small.onnx")
        result = session.run(None, {"x": np.ones((1, 4), np.float32)})
        print(json.dumps([
            calibrate.onnxruntime.__name__,
            onnxruntime.__name__,
            result[0].tolist(),
        ]))
        """
    )

    assert told[:2] == ["onnxruntime", "epctx_onnxruntime"]
    np.testing.assert_allclose(told[2], [[18, 22, 26]], atol=0.5)


def test_threads_may_import_what_is_within_onnxruntime_while_others_import_it(program):
    # Modules of others that import each other, one of them from a function.
    told = program(
        """
        import importlib, json, pathlib, sys, threading, time
        import onnxruntime
        import epctx_onnxruntime.real as real
        folder = pathlib.Path("within")
        folder.mkdir()
        (folder / "one.py").write_text(
            "import time, onnxruntime; time.sleep(.2); import onnxruntime.two\\n"
            "def late():\\n    import onnxruntime\\n    return onnxruntime\\n"
        )
        (folder / "two.py").write_text(
            "import time, onnxruntime; time.sleep(.1); import onnxruntime.one\\n"
        )
        real.onnxruntime.__path__.append(str(folder))
        threads = [
            threading.Thread(target=importlib.import_module, args=[name], daemon=True)
            for name in ("onnxruntime.one", "onnxruntime.two", "onnxruntime.tools")
        ]
        for thread in threads:
            thread.start()
        seen = set()
        while any(thread.is_alive() for thread in threads):
            seen.add(__import__("onnxruntime").__name__)
        one, two = (sys.modules[f"onnxruntime.{name}"] for name in ("one", "two"))
        print(json.dumps([
            sorted(seen),
            one.onnxruntime is two.onnxruntime is one.late() is real.onnxruntime,
        ]))
        """
    )

    assert told == [["epctx_onnxruntime"], True]


def test_a_module_is_run_by_its_name(program, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text(
        "import json, sys, onnxruntime\n"
        "print(json.dumps([onnxruntime.__name__, sys.argv[1:]]))\n"
    )

    told = program("", launcher=("-m", "epctx_onnxruntime", "-m", "package"))

    assert told == ["epctx_onnxruntime", ["program.py"]]


def test_an_ep_is_put_before_those_that_the_program_names(program):
    told = program(
        """
        import json
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.add_provider("QNN")
        makes = (
            {},
            {"providers": ["CPUExecutionProvider"]},
            {"providers": ["OpenVINOExecutionProvider"], "provider_options": [{}]},
            {"sess_options": options},
        )
        print(json.dumps([
            onnxruntime.InferenceSession("model.onnx", **make).get_providers()
            for make in makes
        ]))
        """,
        launcher=("-m", "epctx_onnxruntime", "--ep=OpenVINO"),
    )

    cpu = "CPUExecutionProvider"
    assert told == [
        ["OpenVINOExecutionProvider", cpu],
        ["OpenVINOExecutionProvider", cpu],
        ["OpenVINOExecutionProvider", cpu],
        ["OpenVINOExecutionProvider", "QNNExecutionProvider", cpu],
    ]


def test_the_lengths_of_open_dimensions_are_set_as_the_warnings_say(program, tmp_path):
    graph = onnx.parser.parse_graph(
        "g (float[batch, height] x) => (float[batch, height] y) { y = Relu(x) }"
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8),
        tmp_path / "open.onnx",
    )

    told = program(
        """
        import json
        import onnxruntime
        sessions = map(onnxruntime.InferenceSession, ("open.onnx", "model.onnx"))
        print(json.dumps([session.get_inputs()[0].shape for session in sessions]))
        """,
        launcher=(
            *("-m", "epctx_onnxruntime", "--ep=QNN"),
            *("--free-dimension", "batch=1", "--free-dimension=height=7"),
        ),
    )

    assert told[0] == [1, 7]


def test_without_a_program_the_command_says_how_it_is_used(tmp_path):
    command = [sys.executable, "-m", "epctx_onnxruntime"]

    told = subprocess.run(
        [*command, "--help"], capture_output=True, text=True, check=False
    )
    nothing = subprocess.run(command, capture_output=True, text=True, check=False)
    missing = subprocess.run(
        [*command, str(tmp_path / "no.py")], capture_output=True, text=True, check=False
    )

    assert told.returncode == 0
    assert "SCRIPT.py" in told.stdout
    assert nothing.returncode == 2
    assert "no script and no module" in nothing.stderr
    assert missing.returncode == 2
    assert "there is no script" in missing.stderr
    wrong = subprocess.run(
        [*command, "--free-dimension", "height", "program.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert "'height' is not of the form NAME=LENGTH" in wrong.stderr


def test_the_command_refuses_an_ep_that_is_not_installed_before_it_runs_the_program(
    tmp_path,
):
    (tmp_path / "program.py").write_text("print('it ran')")

    done = subprocess.run(
        [sys.executable, "-m", "epctx_onnxruntime", "--ep=QNNN", "program.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "'QNNN'" in done.stderr
    assert "Did you mean 'QNN'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("QNN", "a list of EP names, not 'QNN'"),
        (None, "a list of EP names, not None"),
        ([("QNN", {})], "a list of EP names"),
        (["QMM"], "'QMM'"),
    ],
)
def test_install_refuses_providers_that_no_session_could_have(wrong, said):
    with pytest.raises(InvalidArgument, match=said):
        epctx_onnxruntime.install(wrong)

    assert sys.modules["onnxruntime"] is not epctx_onnxruntime
    assert sessions.first_providers == []


def test_a_process_may_put_the_drop_in_in_place_and_take_it_back(program):
    told = program(
        """
        import json, sys
        import onnxruntime as before
        import epctx_onnxruntime
        from epctx_onnxruntime.quantization import calibrate as aliased
        epctx_onnxruntime.install()
        epctx_onnxruntime.install()
        import onnxruntime as within
        import onnxruntime.quantization.calibrate as calibrate
        epctx_onnxruntime.uninstall()
        import onnxruntime as after
        from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
        print(json.dumps([
            within is epctx_onnxruntime,
            after is before,
            InferenceSession is before.InferenceSession,
            aliased is calibrate,
            len([f for f in sys.meta_path if "epctx" in type(f).__module__]),
        ]))
        """,
        launcher=(),
    )

    assert told == [True, True, True, True, 1]


def test_the_drop_in_is_imported_without_onnxruntime_and_numpy(program):
    told = program(
        """
        import json, sys
        import epctx_onnxruntime
        print(json.dumps(["numpy" in sys.modules, "onnxruntime" in sys.modules]))
        """,
        launcher=(),
    )

    assert told == [False, False]
