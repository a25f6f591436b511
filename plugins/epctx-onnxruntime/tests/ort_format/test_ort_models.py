"""Models in ONNX Runtime's own format go wherever ONNX models go, and mean the same."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from epctx_kernels import KernelDef
from onnx import TensorProto, helper
from ort_format.sources import FUNCTIONS, NAMES, SMALL, inputs_of, source
from ort_format.stored import NEWEST, OLD, ort_file
from support.acme import kernel_ep, with_eps
from support.command_line import main
from support.install_commands import pip_install

import epctx_core as epctx

TOLERANCE = 1e-5
EPS = (["QNN"], ["OpenVINO"], ["VitisAI"], ["OpenVINO", "QNN", "VitisAI"])
CPU = ["CPUExecutionProvider"]
TOOL = "onnxruntime.tools.convert_onnx_models_to_ort"


@pytest.fixture(scope="module")
def expected():
    """Give what onnxruntime makes of the ONNX model."""
    made = {}

    def answer(name):
        if name not in made:
            session = onnxruntime.InferenceSession(
                source(name).SerializeToString(), providers=CPU
            )
            made[name] = session.run(None, inputs_of(name))
        return made[name]

    return answer


@pytest.fixture
def ort_model(tmp_path):
    """Write a model as `model.ort`; give its path."""

    def write(name, version=NEWEST):
        path = tmp_path / "model.ort"
        path.write_bytes(ort_file(name, version))
        return path

    return write


def options_for(eps, **config):
    options = epctx.SessionOptions()
    for ep in eps:
        options.add_provider(ep, {})
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return options


def assert_close(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert np.abs(np.asarray(a, np.float64) - b).max() <= TOLERANCE * (
            np.abs(b).max() + 1e-6
        )


@pytest.mark.parametrize("version", [*OLD, NEWEST])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_each_version_answers_as_the_onnx_model_from_a_file_and_from_bytes(
    name, version, ort_model, expected
):
    for model in (ort_model(name, version), ort_file(name, version)):
        with epctx.InferenceSession(model, providers=CPU) as session:
            assert_close(session.run(None, inputs_of(name)), expected(name))


@pytest.mark.parametrize("eps", EPS, ids=" ".join)
@pytest.mark.parametrize("name", NAMES)
def test_each_ep_compiles_it_into_a_context_model_named_after_it_that_needs_it_no_more(
    name, eps, ort_model, expected
):
    model = ort_model(name)
    epctx.ModelCompiler(options_for(eps), model, name in SMALL).compile_to_file()
    model.unlink()

    context = model.with_name("model_ctx.onnx")
    with epctx.InferenceSession(context, options_for(eps)) as session:
        assert_close(session.run(None, inputs_of(name)), expected(name))
    assert epctx.verify_model(context).ok


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("name", ["bert", "qdq", "branches"])
def test_an_old_version_compiles_too(name, version, ort_model, expected):
    model = ort_model(name, version)

    epctx.ModelCompiler(options_for(["QNN", "OpenVINO"]), model).compile_to_file()

    with epctx.InferenceSession(model.with_name("model_ctx.onnx")) as session:
        assert_close(session.run(None, inputs_of(name)), expected(name))


@pytest.fixture(scope="module", params=["Fixed", "Runtime"])
def converted(request, tmp_path_factory):
    """Give a model with functions as onnxruntime's own tool converts it in a style."""
    folder = tmp_path_factory.mktemp(request.param)
    onnx.save(source(FUNCTIONS), folder / "model.onnx")
    words = [str(folder / "model.onnx"), "--optimization_style", request.param]
    subprocess.run(
        [sys.executable, "-m", TOOL, *words], check=True, capture_output=True
    )
    (found,) = folder.glob("*.ort")
    return found


@pytest.fixture
def inlined(converted, tmp_path):
    """Give the path of a copy of it."""
    return Path(shutil.copy(converted, tmp_path / "inlined.ort"))


@pytest.fixture
def cases():
    """Give inputs that take each branch, with onnxruntime's results of the ONNX
    model.
    """
    session = onnxruntime.InferenceSession(
        source(FUNCTIONS).SerializeToString(), providers=CPU
    )
    inputs = [{"x": np.linspace(low, low + 3, 7, dtype=np.float32)} for low in (-3, 0)]
    found = [(given, session.run(None, given)) for given in inputs]
    assert sorted(bool(results[2]) for _, results in found) == [False, True]
    return found


def test_names_that_inlined_functions_share_with_those_in_subgraphs_mean_the_nearest(
    inlined, cases
):
    theirs = onnxruntime.InferenceSession(str(inlined), providers=CPU)

    for model in (inlined, inlined.read_bytes()):
        with epctx.InferenceSession(model, providers=CPU) as session:
            for given, wanted in cases:
                assert_close(theirs.run(None, given), wanted)
                assert_close(session.run(None, given), wanted)
    assert epctx.verify_model(inlined).ok


@pytest.mark.parametrize("eps", EPS, ids=" ".join)
def test_inlined_functions_that_share_names_are_compiled_and_loaded(
    eps, inlined, cases
):
    epctx.ModelCompiler(options_for(eps), inlined).compile_to_file()
    context = inlined.with_name("inlined_ctx.onnx")

    assert epctx.verify_model(context).ok
    with epctx.InferenceSession(context, options_for(eps)) as session:
        for given, wanted in cases:
            assert_close(session.run(None, given), wanted)


def test_inlined_functions_that_share_names_become_a_model_that_onnxruntime_takes(
    inlined, cases, tmp_path
):
    plain = epctx.convert_model(inlined, tmp_path / "plain.onnx")

    onnx.checker.check_model(plain, full_check=True)
    session = onnxruntime.InferenceSession(str(plain), providers=CPU)
    for given, wanted in cases:
        assert_close(session.run(None, given), wanted)


def test_a_version_before_5_loads_with_a_warning_to_convert_it_again(ort_model, caplog):
    with epctx.InferenceSession(ort_model("loop", 4), providers=CPU):
        pass

    assert [
        r.message
        for r in caplog.records
        if "version 4" in r.message and "Convert" in r.message
    ]


def test_a_cached_model_is_found_by_the_content_of_its_file(
    ort_model, expected, tmp_path
):
    model, cache = ort_model("resnet"), tmp_path / "cache"
    first = epctx.compile_cached(model, options_for(["QNN"]), cache_dir=cache)
    again = epctx.compile_cached(model, options_for(["QNN"]), cache_dir=cache)
    shutil.copy(model, other := tmp_path / "other.ort")
    copied = epctx.compile_cached(other, options_for(["QNN"]), cache_dir=cache)
    other.write_bytes(ort_file("resnet", 5))
    changed = epctx.compile_cached(other, options_for(["QNN"]), cache_dir=cache)

    assert first == again == copied != changed
    with epctx.load_or_compile(model, options_for(["QNN"]), cache_dir=cache) as session:
        assert_close(session.run(None, inputs_of("resnet")), expected("resnet"))


@pytest.mark.parametrize("name", NAMES)
def test_every_one_is_loaded_from_the_cache_and_verifies_there(
    name, ort_model, expected, tmp_path
):
    model, options = ort_model(name), options_for(EPS[-1])
    context = epctx.compile_cached(model, options, cache_dir=tmp_path / "cache")

    with epctx.load_or_compile(model, options, cache_dir=tmp_path / "cache") as session:
        assert_close(session.run(None, inputs_of(name)), expected(name))
    assert epctx.verify_model(context).ok


def test_a_group_shares_weights_of_ort_files(tmp_path, expected):
    for name, version in (("resnet", NEWEST), ("lstm", 5)):
        (tmp_path / f"{name}.ort").write_bytes(ort_file(name, version))
    (tmp_path / "out").mkdir()
    with epctx.ShareGroup(output_dir=tmp_path / "out") as group:
        for name in ("resnet", "lstm"):
            group.compile(tmp_path / f"{name}.ort", options_for(["QNN"]))

    for name in ("resnet", "lstm"):
        with epctx.InferenceSession(tmp_path / "out" / f"{name}_ctx.onnx") as session:
            assert_close(session.run(None, inputs_of(name)), expected(name))


def test_an_isolated_ep_reads_weights_out_of_the_ort_file(ort_model, expected):
    model = ort_model("resnet")
    options = options_for(["QNN"], ep__isolate="all")

    with epctx.InferenceSession(model, options) as session:
        assert_close(session.run(None, inputs_of("resnet")), expected("resnet"))


@pytest.mark.parametrize("name", ["lstm", "loop"])
def test_commands_take_it(name, ort_model, capsys):
    model = ort_model(name)

    def epctx_command(*words):
        assert main([*words, "--json"]) in {0, 1}
        return json.loads(capsys.readouterr().out)

    assert epctx_command("inspect", str(model))["required_files"] == []
    assert epctx_command("verify", str(model))["ok"]
    assert "error" not in epctx_command("explain", str(model), "--ep", "QNN")
    assert epctx_command("compile", str(model), "--ep", "OpenVINO", "--check")[
        "output"
    ].endswith("model_ctx.onnx")
    compared = epctx_command(
        "compare", str(model), str(model.with_name("model_ctx.onnx"))
    )
    assert compared["equal"]


@pytest.mark.parametrize(("wanted", "given"), [("ORT", "onnx"), ("ONNX", "ort")])
def test_a_format_that_the_host_asks_for_is_the_only_one_taken(
    wanted, given, ort_model
):
    model = ort_model("loop") if given == "ort" else source("loop").SerializeToString()
    other = source("loop").SerializeToString() if given == "ort" else ort_file("loop")
    options = options_for([], session__load_model_format=wanted)

    with pytest.raises(
        epctx.errors.InvalidProtobuf, match=f"load_model_format is {wanted}"
    ):
        epctx.InferenceSession(model, options, providers=CPU)
    epctx.InferenceSession(other, options, providers=CPU).close()


def test_a_kernel_ep_runs_nodes_whose_operator_only_the_file_describes(tmp_path):
    """An operator that onnxruntime knows, under a name that it does not: as a build
    with custom operators writes it.
    """
    body = (
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[n] x) '
        "=> (float[n] y) {"
    )
    text = f"{body} a = com.microsoft.Gelu (x) y = Add (a, x) }}"
    known, unknown = tmp_path / "known.ort", tmp_path / "unknown.ort"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.optimized_model_filepath = str(known)
    onnxruntime.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(), options
    )
    unknown.write_bytes(known.read_bytes().replace(b"com.microsoft", b"com.acme-labs"))
    x = np.linspace(-1, 1, 5, dtype=np.float32)

    def double(_node):
        return lambda inputs: [inputs[0] * 2]

    kernel = KernelDef(
        domain="com.acme-labs",
        op_type="Gelu",
        since_version=1,
        create=double,
        type_constraints={"T": {1}},
    )
    ep = kernel_ep(kernel, described=())
    registry, options = with_eps(ep)

    with epctx.InferenceSession(unknown, options, registry=registry) as session:
        assert_close(session.run(None, {"x": x}), [x * 3])
    with pytest.raises(epctx.errors.NotImplementedByProvider, match=r"com\.acme-labs"):
        epctx.InferenceSession(unknown, providers=CPU)


def test_without_its_package_one_sentence_says_what_the_file_is_and_what_to_install(
    tmp_path,
):
    model = tmp_path / "model.ort"
    model.write_bytes(ort_file("loop"))
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'epctx_onnxruntime':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from epctx_cli import main\n"
        f"sys.exit(main(['run', {str(model)!r}]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert found.returncode == 3
    assert "ONNX Runtime's own format" in found.stderr
    assert pip_install("epctx-onnxruntime") in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("name", [*SMALL, "lstm"])
@pytest.mark.parametrize("version", [*OLD, NEWEST])
def test_it_becomes_onnx_and_an_ort_file_of_the_newest_version(
    name, version, ort_model, expected, tmp_path
):
    model = ort_model(name, version)

    plain = epctx.convert_model(model, tmp_path / "plain.onnx")
    newest = epctx.convert_model(
        model,
        tmp_path / "newest.ort",
        graph_optimization_level=epctx.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    )
    back = epctx.convert_model(
        plain,
        tmp_path / "back.ort",
        save_runtime_optimizations=True,
        target_platform="arm",
    )

    for converted in (plain, newest, back):
        theirs = onnxruntime.InferenceSession(str(converted), providers=CPU).run(
            None, inputs_of(name)
        )
        assert_close(theirs, expected(name))
    with epctx.InferenceSession(back, providers=CPU) as session:
        assert_close(session.run(None, inputs_of(name)), expected(name))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "back.ort",
        "model.ort",
        "newest.ort",
        "plain.onnx",
    ]


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(ort_model, tmp_path):
    model = ort_model("lstm")
    context = Path(
        epctx.ModelCompiler(options_for(["QNN"]), model).compile_to_file().output
    )
    before = sorted(tmp_path.iterdir())

    for given, target, match in (
        (model, "model.txt", "neither"),
        (context, "context.ort", "context model"),
        (context, "context.onnx", "already"),
    ):
        with pytest.raises(epctx.errors.InvalidArgument, match=match):
            epctx.convert_model(given, tmp_path / target)
    with pytest.raises(epctx.errors.NoSuchFile):
        epctx.convert_model(tmp_path / "none.ort", tmp_path / "a.onnx")
    for argument, match in (
        ({"target_platform": "x86"}, "target_platform is 'x86'"),
        ({"graph_optimization_level": 7}, "7 is not a value of GraphOptimizationLevel"),
    ):
        with pytest.raises(epctx.errors.InvalidArgument, match=match):
            epctx.convert_model(model, tmp_path / "a.ort", **argument)
    assert sorted(tmp_path.iterdir()) == before


CONVERT = """import os, resource, signal, sys
import epctx_core as epctx
{}
try:
    epctx.convert_model(*sys.argv[1:])
except epctx.EpctxError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


def convert_elsewhere(before, *paths):
    """Convert in another process, after these statements; return how it ended."""
    return subprocess.run(
        [sys.executable, "-c", CONVERT.format(before), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("target", ["converted.onnx", "converted.ort"])
def test_the_next_conversion_removes_what_a_killed_one_left(
    ort_model, tmp_path, target
):
    model = ort_model("lstm")
    # The first rename in the folder comes once all is written beside the output.
    kill = (
        "def watch(event, arguments):\n"
        "    if event == 'os.rename' and str(arguments[1]).startswith(FOLDER):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(watch)"
    ).replace("FOLDER", repr(str(tmp_path)))
    killed = convert_elsewhere(
        kill,
        model,
        tmp_path / target,
    )
    left = {path.name for path in tmp_path.iterdir()}

    epctx.convert_model(model, tmp_path / target)

    assert killed.returncode == -signal.SIGKILL
    assert left > {model.name}
    assert {path.name for path in tmp_path.iterdir()} == {model.name, target}


@pytest.mark.parametrize("target", ["converted.onnx", "converted.ort"])
def test_a_disk_that_is_full_is_a_failure_and_leaves_what_was_there(
    ort_model, tmp_path, target
):
    model = ort_model("lstm")
    (tmp_path / target).write_bytes(b"what was there")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    full = convert_elsewhere(
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))",
        model,
        tmp_path / target,
    )

    assert full.stderr.startswith("Fail: ")
    assert full.returncode == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_model_that_is_too_large_for_one_file_is_refused_with_what_to_do(tmp_path):
    length = 1 << 31
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Gather", ["w", "i"], ["y"])],
            "g",
            [helper.make_tensor_value_info("i", TensorProto.INT64, [1])],
            [helper.make_tensor_value_info("y", TensorProto.INT8, [1])],
            [
                TensorProto(
                    name="w",
                    data_type=TensorProto.INT8,
                    dims=[length],
                    data_location=TensorProto.EXTERNAL,
                )
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    made.graph.initializer[0].external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(length)  # takes no room on disk

    with pytest.raises(epctx.errors.Fail, match="less than 2 GiB") as caught:
        epctx.convert_model(tmp_path / "m.onnx", tmp_path / "m.ort")

    assert "with its weights in files of their own" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "w.bin"]


def test_a_weightless_context_model_finds_its_weights_in_the_ort_file(
    ort_model, expected
):
    model = ort_model("resnet")
    epctx.ModelCompiler(
        options_for(["OpenVINO"], ep__enable_weightless="1"), model
    ).compile_to_file()
    context = model.with_name("model_ctx.onnx")

    assert epctx.inspect_model(context).source_files == ("model.ort",)
    with epctx.InferenceSession(context) as session:
        assert_close(session.run(None, inputs_of("resnet")), expected("resnet"))
    model.unlink()
    with pytest.raises(epctx.errors.InvalidGraph, match=r"model\.ort"):
        epctx.InferenceSession(context)


def test_weights_in_the_file_are_found_although_others_lie_in_a_folder_that_the_host_names(
    ort_model, expected, tmp_path
):
    (tmp_path / "elsewhere").mkdir()
    options = options_for(
        [],
        session__model_external_initializers_file_folder_path=str(
            tmp_path / "elsewhere"
        ),
    )

    with epctx.InferenceSession(ort_model("lstm"), options, providers=CPU) as session:
        assert_close(session.run(None, inputs_of("lstm")), expected("lstm"))


def test_an_ort_file_is_asked_for_its_compatibility_like_any_model_that_is_not_compiled(
    ort_model,
):
    plain = epctx.get_model_compatibility(source("loop").SerializeToString(), "QNN")

    assert epctx.get_model_compatibility(ort_model("loop"), "QNN") == plain
    assert epctx.get_model_compatibility(ort_file("loop"), "QNN") == plain
