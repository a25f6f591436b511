"""`epctx compile`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
from support.agreement import TOLERANCE, worst_relative_error
from support.cli_fixtures import PROVIDER

import epctx_core


def test_a_compiled_network_runs_and_agrees_with_onnxruntime(epctx, resnet):
    said = epctx("compile", resnet.path, "--ep", "QNN")

    output = resnet.path.with_name("resnet_ctx.onnx")
    with epctx_core.InferenceSession(output) as session:
        results = session.run(None, resnet.inputs)
    assert said.code == 0
    assert worst_relative_error(results, resnet.reference) <= TOLERANCE


def test_the_report_tells_partitions_shares_files_and_what_to_do_next(epctx, resnet):
    said = epctx("compile", resnet.path, "--ep", "QNN")

    output = resnet.path.with_name("resnet_ctx.onnx")
    assert said.err == ""
    assert "QNNExecutionProvider_" in said.out
    assert "20 Conv, 17 Relu" in said.out
    assert "epctx-sim-qnn" in said.out
    folder = re.escape(str(resnet.path.parent))
    files = rf"^{folder}/\n  resnet_qnn\.bin   [\d.]+ MiB\n  resnet_ctx\.onnx  "
    assert re.search(files, said.out, re.MULTILINE)
    assert said.out.rstrip().endswith(f"epctx run {output}")


def test_the_report_says_that_the_ep_is_simulated(epctx, resnet):
    said = epctx("compile", resnet.path, "--ep", "QNN")

    assert (
        "Simulated: QNNExecutionProvider computes on this CPU, not on a vendor's "
        "hardware."
    ) in said.out


def test_the_class_of_an_ep_alone_may_say_that_it_is_simulated(process, model, site):
    taking = """
    simulated = True

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: True)

    @hookimpl
    def compile(self, partitions):
        return [
            CompiledPartition(
                lambda inputs, outputs=None: [inputs[0].copy()], close=None
            )
            for _ in partitions
        ]
"""
    code = PROVIDER.partition("{body}")[0] + taking
    folder = site("acme-simulating", "AcmeEP", code=code.format(name="AcmeEP"))

    said = process(
        *("run", model("y = Relu(x)"), "--ep", "AcmeEP", "--json"), path=[folder]
    )

    assert said.json["simulated"] == ["AcmeEP"]


def test_json_holds_the_promised_keys_and_describes_the_files_as_they_are(
    epctx, resnet
):
    said = epctx("compile", resnet.path, "--ep", "QNN", "--json")

    answer = said.json
    folder = resnet.path.parent
    assert said.code == 0
    assert answer["output"] == "resnet_ctx.onnx"
    assert {f["path"]: f["bytes"] for f in answer["files"]} == {
        name: (folder / name).stat().st_size
        for name in ("resnet_qnn.bin", "resnet_ctx.onnx")
    }
    assert (
        answer["files"][-1]["digest"]
        == hashlib.sha256((folder / "resnet_ctx.onnx").read_bytes()).hexdigest()
    )
    (partition,) = answer["partitions"]
    assert partition["ep"] == "QNNExecutionProvider"
    assert partition["nodes"] == len(partition["node_names"]) == 46
    assert {"refusals", "timings"} <= set(answer)
    assert answer["providers"][0]["simulated"] is True


@pytest.mark.parametrize("spelling", ["out", "out/"])
def test_an_output_that_is_a_folder_gets_the_default_name(
    epctx, resnet, tmp_path, spelling
):
    (tmp_path / "out").mkdir()

    said = epctx("compile", resnet.path, "--ep", "QNN", "-o", f"{tmp_path}/{spelling}")

    assert said.code == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "resnet_ctx.onnx",
        "resnet_qnn.bin",
    ]


@pytest.mark.parametrize("spelling", ["new/dir/", "new/dir/x_ctx.onnx"])
def test_the_folder_of_an_output_is_created(epctx, resnet, tmp_path, spelling):
    said = epctx("compile", resnet.path, "--ep", "QNN", "-o", f"{tmp_path}/{spelling}")

    assert said.code == 0
    assert [p.suffix for p in sorted((tmp_path / "new" / "dir").iterdir())] == [
        ".onnx",
        ".bin",
    ]


def test_a_session_option_names_the_output_if_nothing_else_does(
    epctx, resnet, tmp_path
):
    said = epctx(
        "compile",
        resnet.path,
        "--ep",
        "QNN",
        "-c",
        f"ep.context_file_path={tmp_path}/here.onnx",
    )

    assert said.code == 0
    assert (tmp_path / "here.onnx").is_file()


@pytest.mark.parametrize("way", [["--embed"], ["-c", "ep.context_embed_mode=1"]])
def test_an_embedded_payload_leaves_one_file(epctx, resnet, tmp_path, way):
    (tmp_path / "out").mkdir()

    said = epctx("compile", resnet.path, "--ep", "QNN", "-o", tmp_path / "out", *way)

    assert said.code == 0
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["resnet_ctx.onnx"]


def test_initializers_that_stay_go_into_the_file_named_and_the_result_is_checked(
    epctx, resnet
):
    nothing_taken = ["-c", "ep.partition_min_nodes=1000", "--allow-uncompiled"]

    said = epctx(
        "compile",
        resnet.path,
        "--ep",
        "QNN",
        *nothing_taken,
        "--external-initializers",
        "w.data",
        "--check",
        "--json",
    )

    sizes = {file["path"]: file["bytes"] for file in said.json["files"]}
    assert said.code == 0
    assert said.json["required_files"] == ["w.data", "resnet_ctx.onnx"]
    assert sizes == {name: (resnet.path.parent / name).stat().st_size for name in sizes}
    assert sizes["w.data"] > 10 * sizes["resnet_ctx.onnx"]


@pytest.mark.parametrize("ep", ["QNN", "qnnexecutionprovider", "epctx-sim-qnn:QNN"])
@pytest.mark.parametrize(
    "option",
    ["QNN.htp_arch=75", "QnnExecutionProvider.htp_arch=75", "{ep}.htp_arch=75"],
)
def test_a_provider_option_reaches_the_ep_however_it_is_called(
    epctx, resnet, ep, option
):
    option = option.format(ep=ep)

    said = epctx("compile", resnet.path, "--ep", ep, "-p", option)

    (node,) = epctx_core.inspect_model(
        resnet.path.with_name("resnet_ctx.onnx")
    ).ep_contexts
    assert said.code == 0
    assert node.attributes["hardware_architecture"] == "htp-v75 (simulated)"


def test_check_compares_what_was_written_with_the_cpu_ep(epctx, resnet):
    said = epctx("compile", resnet.path, "--ep", "QNN", "--check", "--json")

    check = said.json["check"]
    assert said.code == 0
    assert check["equal"] is True
    assert [o["name"] for o in check["outputs"]] == ["relu_16"]
    assert check["outputs"][0]["max_rel"] <= 1e-4


def test_check_fails_on_half_precision_prints_the_numbers_and_keeps_the_model(
    epctx, resnet
):
    said = epctx(
        "compile",
        resnet.path,
        "--ep",
        "QNN",
        "-p",
        "QNN.enable_htp_fp16_precision=1",
        "--check",
    )

    assert said.code == 1
    assert "DIFFERENT" in said.out
    assert "0.0001" in said.out
    assert "error: the compiled model disagrees with the CPU EP" in said.err
    assert "Next:" not in said.out
    assert resnet.path.with_name("resnet_ctx.onnx").is_file()


def test_check_loads_with_the_options_that_the_model_was_compiled_for(epctx, resnet):
    said = epctx(
        "compile", resnet.path, "--ep", "QNN", "-p", "QNN.htp_arch=81", "--check"
    )

    assert said.code == 0
    assert said.out.rstrip().endswith("resnet_ctx.onnx with the same --ep and -p")


@pytest.mark.parametrize(
    ("flags", "code", "is_checked"),
    [
        ((), 1, False),
        (("--allow-uncompiled",), 0, False),
        (("--check",), 1, False),
        (("--check", "--allow-uncompiled"), 0, True),
    ],
)
def test_nothing_compiled_writes_the_plain_model_and_fails_unless_that_is_allowed(
    epctx, model, flags, code, is_checked
):
    path = model("y = Erf(x)")

    said = epctx("compile", path, "--ep", "QNN", *flags)

    written = onnx.load(path.with_name("small_ctx.onnx"))
    assert said.code == code
    assert [node.op_type for node in written.graph.node] == ["Erf"]
    assert said.err.count("warning: nothing was compiled") == 1
    assert "Erf is not an operator of QNN's HTP backend" in said.err
    assert ("With --allow-uncompiled" in said.out) == (code != 0)
    assert "Simulated" not in said.out
    assert ("Checked against the CPU EP" in said.out) == is_checked
    is_left_out = "--check" in flags and not is_checked
    assert ("Nothing was compiled, so nothing was checked." in said.out) == is_left_out


def test_nothing_compiled_fails_if_something_was_required_and_nothing_is_written(
    epctx, model
):
    path = model("y = Erf(x)")

    said = epctx("compile", path, "--ep", "QNN", "--require-compiled")

    assert said.code == 1
    assert "no node of small.onnx could be compiled" in said.err
    assert not path.with_name("small_ctx.onnx").exists()


def test_an_existing_output_is_replaced_unless_that_is_forbidden(epctx, compiled):
    source = compiled.with_name("resnet.onnx")
    before = compiled.stat().st_ino

    forbidden = epctx("compile", source, "--ep", "QNN", "--no-clobber")
    kept = compiled.stat().st_ino
    allowed = epctx("compile", source, "--ep", "QNN")

    assert forbidden.code == 2
    assert "exists already" in forbidden.err
    assert kept == before
    assert allowed.code == 0
    assert compiled.stat().st_ino != before


@pytest.mark.parametrize("way", ["same", "dots", "link"])
def test_the_source_is_never_replaced_by_its_own_compilation(epctx, resnet, way):
    before = resnet.path.read_bytes()
    output = {
        "same": resnet.path,
        "dots": resnet.path.parent
        / "."
        / ".."
        / resnet.path.parent.name
        / "resnet.onnx",
    }
    output["link"] = resnet.path.with_name("link.onnx")
    output["link"].symlink_to(resnet.path)

    said = epctx("compile", resnet.path, "--ep", "QNN", "-o", os.fspath(output[way]))

    assert said.code == 2
    assert "which is being compiled, reads it" in said.err
    assert resnet.path.read_bytes() == before


def test_compile_asks_for_an_ep_and_names_the_installed_ones(epctx, resnet):
    said = epctx("compile", resnet.path)

    assert said.code == 2
    assert "Installed: " in said.err
    assert "QNNExecutionProvider" in said.err


def test_a_binary_of_another_model_is_not_replaced(epctx, compiled):
    shutil.copyfile(compiled.with_name("resnet.onnx"), compiled.with_name("other.onnx"))

    said = epctx(
        "compile",
        compiled.with_name("other.onnx"),
        "--ep",
        "QNN",
        "-o",
        compiled.with_name("resnet.onnx_ctx"),
    )

    assert said.code == 2
    assert "belongs to 'resnet_ctx.onnx'" in said.err


def test_what_was_compiled_here_runs_after_its_source_is_gone(epctx, compiled):
    compiled.with_name("resnet.onnx").unlink()

    said = epctx("run", compiled)

    assert said.code == 0


def test_the_written_model_resolves_in_onnxruntime_up_to_the_missing_ep(
    epctx, compiled
):
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented):
        onnxruntime.InferenceSession(str(compiled), providers=["CPUExecutionProvider"])


def test_many_refusals_are_cut_short_unless_verbose(epctx, model):
    refused = ("Erf", "Celu", "Shrink", "Selu", "Sinh", "Cosh", "Det")
    nodes = " ".join(
        [*(f"a{i} = {op}(x)" for i, op in enumerate(refused)), "y = Relu(x)"]
    )
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[3, 3] x) => (float[3, 3] '
        f"y) {{ {nodes} }}"
    )

    short = epctx("compile", path, "--ep", "QNN")
    long = epctx("compile", path, "--ep", "QNN", "-v")

    assert "more; -v shows all" in short.out
    assert "more; -v shows all" not in long.out
    assert "Det" not in short.out
    assert "Det" in long.out


def test_a_refusal_that_follows_from_another_is_counted_there(epctx, model):
    path = model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) {
          [c] k = Constant<value = float[1] {1.0}>()
          [relu] a = Relu(x)
          [mod] y = Mod<fmod = 1>(a, k)
        }
        """
    )

    said = epctx("compile", path, "--ep", "QNN")
    answer = epctx("compile", path, "--ep", "QNN", "--json").json

    assert "(1 node, such as 'mod', and 1 that only serves such nodes)" in (said.out)
    assert "Constant: no node" not in said.out
    assert {
        tuple(refusal["nodes"]): (refusal["operators"], refusal["follows"])
        for refusal in answer["refusals"]
    } == {("c",): (["Constant"], {"c": "mod"}), ("mod",): (["Mod"], {})}


TWICE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x) => (float[6] y) {
    s = Shape (x)
    n = ReduceProd <keepdims = 1> (s)
    flat = Reshape (x, n)
    i = Identity (flat)
    r = Relu (i)
    y = Relu (r)
}"""


@pytest.mark.parametrize(
    ("level", "folded", "nodes"),
    [("none", 0, 6), ("fold", 2, 4), ("basic", 0, 3), ("extended", 0, 3)],
)
def test_optimize_says_how_much_of_a_model_is_simplified_first(
    epctx, model, level, folded, nodes
):
    said = epctx(
        *("compile", model(TWICE), "--ep", "OpenVINO", "--optimize", level, "--json")
    )

    assert said.code == 0
    assert said.json["folded_nodes"] == folded
    assert sum(said.json["assignments"].values()) == nodes


def test_a_network_of_many_partitions_agrees_too(epctx, network):
    lstm = network("lstm")

    said = epctx(
        *("compile", lstm.path, "--ep", "QNN", "--check", "--json"),
        *("--optimize", "none"),
    )

    with epctx_core.InferenceSession(lstm.path.with_name("lstm_ctx.onnx")) as session:
        results = session.run(None, lstm.inputs)
    assert said.code == 0
    assert len(said.json["partitions"]) > 1
    assert sum(said.json["assignments"].values()) == len(
        onnx.load(lstm.path).graph.node
    )
    assert np.max(worst_relative_error(results, lstm.reference)) <= TOLERANCE


def test_a_context_model_that_is_compiled_again_says_what_passed_through(epctx, resnet):
    epctx("compile", resnet.path, "--ep", "QNN")
    output = resnet.path.with_name("again_ctx.onnx")

    said = epctx(
        "compile", resnet.path.with_name("resnet_ctx.onnx"), "--ep", "QNN", "-o", output
    )

    assert said.code == 0
    assert "1 EPContext node of the model passed through unchanged." in said.out
    assert "nothing" not in said.err.lower()
    with epctx_core.InferenceSession(output) as session:
        results = session.run(None, resnet.inputs)
    assert worst_relative_error(results, resnet.reference) <= TOLERANCE
