"""Folders for onnxruntime-genai: whoever compiled their stages, GenAI generates the tokens
that it generates from the source.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import epctx_files
import pytest
from epctx_genai import BuildSettings, bench_folders, build_folder, verify_folder
from support.folders import MODELS
from support.pipelines import WINDOW, write_pipeline
from support.vendor_routes import make_qnn_session_options
from support.vendors_onnxruntime import QNN, PluginEP, devices, qnn_options

from epctx_core.errors import Fail

genai = pytest.importorskip("onnxruntime_genai")

HERE = Path(__file__).parent
PROMPTS = f"1,{WINDOW - 1},{WINDOW},{WINDOW + 1}"
LAYERS = ("prefill", "decode")
LLAMA = MODELS / "llama"
SIMULATED = {"EPCTX_PREFER": "QNN=epctx-sim-qnn"}


def run(program, *arguments, **environment):
    """Return what a host prints."""
    done = subprocess.run(
        [sys.executable, HERE / program, *map(str, arguments)],
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def generate(folder, tokens, library=""):
    """Return the tokens after each prompt."""
    return run("genai_folder_host.py", folder, PROMPTS, tokens, library)


def find_library():
    import onnxruntime_qnn

    return onnxruntime_qnn.get_library_path()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Keep what is compiled for this module alone."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("EPCTX_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(
    scope="module", params=[40, pytest.param(200, marks=pytest.mark.stress)]
)
def tokens(request):
    """Number of tokens; the simulator takes half a minute for many."""
    return request.param


@pytest.fixture(scope="module", params=["tiny", "llama"])
def source(request, tmp_path_factory):
    """The folder of a drawn pipeline, and of one cut from a llama of PyTorch's."""
    folder = tmp_path_factory.mktemp("source") / request.param
    if request.param == "llama":
        return shutil.copytree(LLAMA, folder)
    return write_pipeline(folder)


@pytest.fixture(scope="module")
def expected(source, tokens):
    """The tokens from the source on the CPU, by the length of the prompt."""
    return generate(source, tokens)


@pytest.fixture(scope="module")
def expected_of_qnn(source, tokens, tmp_path_factory):
    """The tokens from the source where Qualcomm's EP compiles its layers for GenAI, in
    half precision.
    """
    folder = tmp_path_factory.mktemp("plain") / "model"
    shutil.copytree(source, folder)
    change_layers(folder, lambda name: f"{name}.onnx")
    return generate(folder, tokens, find_library())


def change_layers(folder, rename):
    """Give the layers Qualcomm's EP, and other models, by the names of their stages."""
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    for entry in config["model"]["decoder"]["pipeline"]:
        for name in set(entry) & set(LAYERS):
            entry[name]["filename"] = rename(name)
            entry[name]["session_options"] = {
                "provider_options": [{"QNN": qnn_options()}]
            }
    path.write_text(json.dumps(config))


@pytest.fixture(scope="module")
def by_epctx(source, tmp_path_factory):
    """A build for Qualcomm's simulator."""
    output = tmp_path_factory.mktemp("epctx") / "tiny-qnn"
    settings = BuildSettings(local=True, stages=LAYERS)
    build_folder(source, output, make_qnn_session_options(), settings=settings)
    return output


@pytest.fixture(scope="module")
def by_onnxruntime(source, tmp_path_factory):
    """The same stages, compiled by onnxruntime."""
    import onnxruntime_qnn

    folder = tmp_path_factory.mktemp("onnxruntime") / "tiny-qnn"
    shutil.copytree(source, folder)
    compiler = PluginEP(
        ep=QNN, devices=devices(QNN, onnxruntime_qnn)[:1], options=qnn_options()
    )
    for name in LAYERS:
        model = (source / f"{name}.onnx").read_bytes()
        output = folder / f"{name}_ctx.onnx"
        compiler.compile_to_file(model, output, embedded=False)
    change_layers(folder, lambda name: f"{name}_ctx.onnx")
    return folder


@pytest.mark.parametrize("producer", ["by_epctx", "by_onnxruntime"])
def test_context_models_generate_the_tokens_of_the_source(
    request, source, tokens, expected, expected_of_qnn, producer
):
    folder = request.getfixturevalue(producer)

    found = generate(folder, tokens, find_library())

    assert found == expected_of_qnn
    # The weights of this one were chosen so that half precision chooses the same.
    if source.name == "tiny":
        assert found == expected


@pytest.mark.parametrize("share", [False, True])
def test_a_build_of_an_ep_in_python_generates_them_too(
    source, tokens, expected, tmp_path, cache, share
):
    options = make_simulated_options()
    settings = BuildSettings(share=share)
    output = build_folder(
        source, tmp_path / "tiny-sim", options, settings=settings
    ).folder

    found = run(
        "genai_loading_host.py", "load", output, cache, PROMPTS, tokens, **SIMULATED
    )
    assert found["tokens"] == expected


def make_simulated_options():
    import epctx_core

    options = epctx_core.SessionOptions()
    options.add_provider("epctx-sim-qnn:QNN")
    return options


def test_a_second_start_compiles_nothing(source, expected_of_qnn, tmp_path):
    shared = {"EPCTX_CACHE_DIR": str(tmp_path / "cache")}
    pairs = [f"{key}={value}" for key, value in qnn_options().items()]
    copied = shutil.copytree(source, tmp_path / "tiny")

    def start():
        return run(
            *("genai_loading_host.py", "load_or_compile", copied, tmp_path),
            *(WINDOW, 20, *pairs),
            **shared,
        )

    first, second = start(), start()

    known = expected_of_qnn[str(WINDOW)]
    for found in (first, second):
        assert found["tokens"][str(WINDOW)] == known[: WINDOW + 20]
    assert (first["compiles"], second["compiles"]) == (4, 4)
    # Those that run from the source are named.
    assert "the EPs take nothing of embeddings, head" in first["said"]
    (build,) = (tmp_path / "folders").iterdir()
    assert verify_folder(build).ok

    # One damaged file, and it is built again, from the cache.
    (build / "epctx/decode/model_qnn.bin").write_bytes(b"other")
    third = start()
    assert third["tokens"] == first["tokens"]
    assert third["compiles"] == 4
    assert any("is built again" in words for words in third["said"])

    # So it is without its digest.
    (build / "folder.epctx.json").unlink()
    assert start()["tokens"] == first["tokens"]
    assert verify_folder(build).ok

    # Another source takes the place of the build of the earlier one.
    shutil.copy(source / "head.onnx", copied / "head.onnx")
    assert start()["tokens"] == first["tokens"]
    assert len(list((tmp_path / "folders").iterdir())) == 1
    assert next((tmp_path / "folders").iterdir()) != build


def test_folders_are_measured_in_turns(source, by_epctx):
    plain, compiled = bench_folders([source, by_epctx], prompt=9, tokens=4, turns=2)

    for times in (plain, compiled):
        for samples in (times.load, times.first_token, times.each_token):
            assert len(samples) == 2
            assert min(samples) > 0
        assert times.tokens_per_second > 0
    assert plain.bytes == sum(plain.stage_bytes.values())
    assert compiled.stage_bytes["decode"] > plain.stage_bytes["head"]


def test_what_genai_refuses_is_a_typed_error(by_epctx, tmp_path):
    folder = shutil.copytree(by_epctx, tmp_path / "tiny")
    path = folder / "genai_config.json"
    path.write_text(path.read_text().replace("decoder-pipeline", "no-such-type"))
    epctx_files.seal_folder(folder)

    with pytest.raises(Fail, match="no-such-type"):
        bench_folders([folder], turns=1)


def test_a_prompt_that_does_not_fit_is_said_in_genais_words(source):
    with pytest.raises(Fail) as caught:
        bench_folders([source], prompt=300, turns=1)

    assert "Traceback" not in caught.value.message
    assert "256" in caught.value.message
