"""A build of a folder: what is compiled, copied, renamed and sealed; and that a folder is
replaced as a whole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import epctx_files
import onnx
import pytest
from epctx_genai import BuildSettings, build_folder, verify_folder
from support.pipelines import write_pipeline

import epctx_core as epctx
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, NoSuchFile
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    ProviderOption,
    hookimpl,
    supported_partitions,
)

CONFIG = "genai_config.json"
LAYERS = BuildSettings(stages=("prefill", "decode"))


def read_stages(folder):
    """Return the facts of each stage in the configuration, by its name."""
    config = json.loads((folder / CONFIG).read_text())
    pipeline = config["model"]["decoder"]["pipeline"]
    return {name: facts for entry in pipeline for name, facts in entry.items()}


def change_config(folder, change):
    """Change a configuration as JSON."""
    config = json.loads((folder / CONFIG).read_text())
    change(config["model"]["decoder"])
    (folder / CONFIG).write_text(json.dumps(config))


def list_files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_stage_that_an_ep_takes_is_a_context_model_in_a_folder_of_its_own(
    source, openvino, tmp_path
):
    report = build_folder(source, tmp_path / "out", openvino)

    assert [stage.name for stage in report.stages] == [
        "embeddings", "prefill", "decode", "head",
    ]  # fmt: skip
    # A table alone is not worth a partition.
    assert (report.stages[0].file, report.stages[0].eps) == ("embeddings.onnx", ())
    for stage in report.stages[1:]:
        assert stage.file == f"epctx/{stage.name}/model_ctx.onnx"
        assert (stage.eps, stage.partitions) == (("OpenVINOExecutionProvider",), 1)
        assert epctx.verify_model(report.folder / stage.file).ok
    assert verify_folder(report.folder).ok


def test_stages_that_were_not_chosen_stay_and_sources_of_others_go(source, built):
    files = list_files(built)

    assert set(files) == {
        "embeddings.onnx", "head.onnx", "tokenizer.json", CONFIG, "folder.epctx.json",
        "epctx/prefill/model_ctx.onnx", "epctx/prefill/model_qnn.bin",
        "epctx/decode/model_ctx.onnx", "epctx/decode/model_qnn.bin",
    }  # fmt: skip
    for name in ("embeddings.onnx", "head.onnx", "tokenizer.json"):
        assert files[name] == (source / name).read_bytes()


def test_the_configuration_differs_in_file_names_and_eps_alone(source, built):
    before, after = read_stages(source), read_stages(built)

    assert after["embeddings"] == before["embeddings"]
    for name in ("prefill", "decode"):
        changed = dict(after[name])
        assert changed.pop("session_options") == {
            "provider_options": [{"QNNExecutionProvider": {"htp_arch": "75"}}]
        }
        assert changed.pop("filename") == f"epctx/{name}/model_ctx.onnx"
        assert changed.items() <= before[name].items()


def test_options_in_the_source_stay_under_those_of_the_host(source, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    listed = [{"QNN": {"htp_arch": "69", "vtcm_mb": "4"}}]

    def change(decoder):
        decoder["session_options"] = {
            "intra_op_num_threads": 2,
            "provider_options": [{"QNNExecutionProvider": listed[0]["QNN"]}],
        }

    change_config(copied, change)
    options = epctx.SessionOptions()
    options.add_provider("QNN", {"htp_arch": "73"})

    build_folder(copied, tmp_path / "out", options, settings=LAYERS)

    assert read_stages(tmp_path / "out")["decode"]["session_options"] == {
        "intra_op_num_threads": 2,
        "provider_options": [
            {"QNNExecutionProvider": {"htp_arch": "73", "vtcm_mb": "4"}}
        ],
    }


def test_stages_with_equal_weights_share_a_binary_on_demand(source, openvino, tmp_path):
    alone = build_folder(source, tmp_path / "alone", openvino)
    settings = BuildSettings(share=True)
    shared = build_folder(source, tmp_path / "shared", openvino, settings=settings)

    files = {stage.name: stage.file for stage in shared.stages}
    assert files["prefill"] == "epctx/prefill+decode/prefill_ctx.onnx"
    assert files["decode"] == "epctx/prefill+decode/decode_ctx.onnx"
    # Nothing of these is in another stage.
    assert files["head"] == "epctx/head/model_ctx.onnx"
    sizes = [
        sum(path.stat().st_size for path in each.folder.rglob("*.bin"))
        for each in (alone, shared)
    ]
    assert sizes[1] < 0.7 * sizes[0]
    assert verify_folder(shared.folder).ok


def test_a_stage_that_no_ep_takes_stays_as_it_is(source, openvino, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    model = onnx.load(copied / "head.onnx")
    model.graph.node[0].op_type = "MatMulOfNobody"
    model.graph.node[0].domain = "nobody"
    model.opset_import.append(onnx.helper.make_opsetid("nobody", 1))
    onnx.save(model, copied / "head.onnx")

    report = build_folder(copied, tmp_path / "out", openvino)

    head = report.stages[-1]
    assert (head.file, head.eps) == ("head.onnx", ())
    assert (tmp_path / "out/head.onnx").read_bytes() == (
        copied / "head.onnx"
    ).read_bytes()


def test_weights_in_files_stay_only_where_a_stage_needs_them(source, options, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    for name in ("prefill", "head"):
        model = onnx.load(copied / f"{name}.onnx")
        onnx.save(
            model,
            copied / f"{name}.onnx",
            save_as_external_data=True,
            location=f"{name}.data",
            size_threshold=0,
        )

    build_folder(copied, tmp_path / "out", options, settings=LAYERS)

    assert (tmp_path / "out/head.data").is_file()
    assert not (tmp_path / "out/prefill.data").exists()
    assert verify_folder(tmp_path / "out").ok


def test_the_folder_has_a_digest_that_says_who_compiled(built):
    sealed = epctx_files.verify_folder(built).sealed

    assert sealed.purpose == "onnxruntime-genai: QNNExecutionProvider"
    assert "epctx-sim-qnn" in " ".join(sealed.compiled_by)


def test_a_second_build_takes_the_place_of_the_first_as_a_whole(
    source, openvino, options, tmp_path
):
    output = tmp_path / "out"
    build_folder(source, output, openvino)

    build_folder(source, output, options, settings=LAYERS)

    assert not (output / "epctx/head").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert verify_folder(output).ok


def test_a_folder_of_links_into_a_cache_is_built_as_hubs_keep_them(
    source, options, tmp_path
):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/main"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for index, path in enumerate(sorted(source.iterdir())):
        shutil.copy(path, blobs / str(index))
        (snapshot / path.name).symlink_to(f"../../blobs/{index}")

    build_folder(snapshot, tmp_path / "out", options, settings=LAYERS)

    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert verify_folder(tmp_path / "out").ok


def test_a_link_that_leaves_the_folder_is_refused(source, options, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    (tmp_path / "secret").write_text("secret")
    (copied / "vocab.txt").symlink_to(tmp_path / "secret")

    with pytest.raises(
        InvalidGraph, match=r"names the file 'vocab.txt', .* a link that leaves"
    ):
        build_folder(copied, tmp_path / "out", options, settings=LAYERS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    ["../model.onnx", "/etc/hostname", "sha256:0123/model.onnx", "a\\..\\b.onnx"],
)
def test_a_file_name_that_leaves_the_folder_is_refused(source, options, tmp_path, name):
    copied = shutil.copytree(source, tmp_path / "source")
    change_config(
        copied, lambda decoder: decoder["pipeline"][3]["head"].update(filename=name)
    )

    with pytest.raises(InvalidGraph, match="'source' names the file"):
        build_folder(copied, tmp_path / "out", options)


@pytest.mark.parametrize(
    ("output", "settings", "message"),
    [
        ("source", None, "is the source, in it or around it"),
        ("source/out", None, "is the source, in it or around it"),
        ("", None, "is the source, in it or around it"),
        ("out", BuildSettings(stages=("prefil",)), "there is no stage 'prefil'"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_compiled(
    source, options, tmp_path, output, settings, message
):
    copied = shutil.copytree(source, tmp_path / "source")

    with pytest.raises(InvalidArgument, match=message):
        build_folder(copied, tmp_path / output, options, settings=settings)


def test_without_an_ep_there_is_nothing_to_build_for(source, tmp_path):
    with pytest.raises(InvalidArgument, match="no EP to compile"):
        build_folder(source, tmp_path / "out", epctx.SessionOptions())


def test_a_folder_of_which_no_ep_takes_anything_is_not_written(built, options):
    with pytest.raises(InvalidArgument, match="no EP takes a node of prefill, decode"):
        build_folder(built, built.with_name("out"), options, settings=LAYERS)
    assert not built.with_name("out").exists()


def test_a_payload_of_genie_is_named_and_refused(built, options):
    path = built / "epctx/decode/model_ctx.onnx"
    model = onnx.load(path, load_external_data=False)
    model.graph.node[0].attribute.append(
        onnx.helper.make_attribute("ep_context_type", "dlc")
    )
    onnx.save(model, path)

    with pytest.raises(InvalidGraph, match="stage 'decode' has a payload of the type"):
        build_folder(built, built.with_name("out"), options)
    codes = [finding.code for finding in verify_folder(built).findings]
    assert "payload-type" in codes


def test_a_file_in_place_of_the_output_is_refused(source, options, tmp_path):
    (tmp_path / "out").write_text("mine")

    (tmp_path / "link").symlink_to(tmp_path)

    for name in ("out", "link"):
        with pytest.raises(InvalidArgument, match=f"{name}' is not a folder"):
            build_folder(source, tmp_path / name, options, settings=LAYERS)
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("sealed", [False, True])
def test_a_folder_of_other_files_is_never_replaced(source, options, tmp_path, sealed):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    if sealed:
        epctx_files.seal_folder(tmp_path / "out")

    with pytest.raises(InvalidArgument, match="is not a folder that was built"):
        build_folder(source, tmp_path / "out", options, settings=LAYERS)
    assert (tmp_path / "out/thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", ".git"])
def test_a_build_with_files_of_the_user_is_never_replaced(source, options, built, name):
    (built / name).write_text("mine")

    with pytest.raises(InvalidArgument, match=f"has '{name}', which no build wrote"):
        build_folder(source, built, options, settings=LAYERS)
    assert (built / name).read_text() == "mine"


def test_names_that_are_not_ascii_are_written_as_genai_reads_them(
    source, options, tmp_path
):
    copied = shutil.copytree(source, tmp_path / "source")
    (copied / "head.onnx").rename(copied / "hé漢.onnx")
    change_config(
        copied,
        lambda decoder: decoder["pipeline"][3]["head"].update(filename="hé漢.onnx"),
    )

    build_folder(copied, tmp_path / "out", options, settings=LAYERS)

    assert "hé漢.onnx" in (tmp_path / "out" / CONFIG).read_text(encoding="utf-8")
    assert (tmp_path / "out/hé漢.onnx").is_file()


def write_parts(source, folder, **decoder):
    """Write a decoder beside another part, which has no session options of its own."""
    shutil.copytree(source, folder)
    parts = {
        "decoder": {"filename": "decode.onnx", **decoder},
        "embedding": {"filename": "embeddings.onnx"},
    }
    (folder / CONFIG).write_text(json.dumps({"model": {"type": "phi3v", **parts}}))
    return folder


def test_a_compiled_decoder_changes_the_options_of_no_other_part(
    source, options, tmp_path
):
    session = {"intra_op_num_threads": 2, "provider_options": []}
    folder = write_parts(source, tmp_path / "source", session_options=session)

    settings = BuildSettings(stages=("decoder",))
    report = build_folder(folder, tmp_path / "out", options, settings=settings)

    decoder, embedding = report.stages
    assert decoder.providers == ("QNNExecutionProvider",)
    assert embedding.providers == ()
    written = json.loads((report.folder / CONFIG).read_text())["model"]
    assert written["embedding"]["session_options"] == session


def test_a_stage_that_inherits_options_is_compiled_with_both(source, options, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")

    def change(decoder):
        decoder["session_options"] = {
            "provider_options": [{"qnn": {"vtcm_mb": "4", "htp_arch": "69"}}]
        }
        decoder["pipeline"][2]["decode"] |= {
            "inherit_session_options": True,
            "session_options": {"intra_op_num_threads": 2},
        }

    change_config(copied, change)

    build_folder(copied, tmp_path / "out", options, settings=LAYERS)

    assert read_stages(tmp_path / "out")["decode"]["session_options"] == {
        "intra_op_num_threads": 2,
        "provider_options": [
            {"QNNExecutionProvider": {"vtcm_mb": "4", "htp_arch": "75"}}
        ],
    }
    assert verify_folder(tmp_path / "out").ok


def test_a_small_cache_is_enough_for_many_stages(
    source, options, tmp_path, monkeypatch
):
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EPCTX_CACHE_SIZE", "1")

    build_folder(source, tmp_path / "out", options, settings=LAYERS)

    assert verify_folder(tmp_path / "out").ok


def test_a_linked_folder_is_refused_by_its_name(source, options, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    (tmp_path / "real").mkdir()
    (copied / "adapters").symlink_to(tmp_path / "real")

    with pytest.raises(InvalidGraph, match="adapters' is a link"):
        build_folder(copied, tmp_path / "out", options, settings=LAYERS)


def test_a_hidden_file_that_a_stage_needs_is_copied(source, options, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    (copied / "head.onnx").rename(copied / ".head.onnx")
    change_config(
        copied,
        lambda decoder: decoder["pipeline"][3]["head"].update(filename=".head.onnx"),
    )

    build_folder(copied, tmp_path / "out", options, settings=LAYERS)

    assert (tmp_path / "out/.head.onnx").is_file()


def test_a_place_where_nothing_can_be_written_is_named_before_anything_is_compiled(
    source, options, tmp_path
):
    stages = []
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(Fail, match=r"file/out' cannot be written"):
        build_folder(
            source,
            tmp_path / "file/out",
            options,
            progress=lambda stage, *_: stages.append(stage),
        )
    assert stages == []


def test_an_empty_folder_is_filled(source, options, tmp_path):
    (tmp_path / "out").mkdir()

    build_folder(source, tmp_path / "out", options, settings=LAYERS)

    assert verify_folder(tmp_path / "out").ok


class SecretProvider(ExecutionProvider):
    """An EP with a secret option, which takes products of matrices."""

    name = "SecretExecutionProvider"
    vendor = "tests"
    binary_suffix = "secret"
    options = (
        ProviderOption("key", str, default="", secret=True, doc="A key."),
        ProviderOption("level", int, default=1, doc="A level."),
    )

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "MatMul")

    @hookimpl
    def compile(self, partitions):
        self.partitions = partitions
        return [CompiledPartition(None) for _ in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        payload.write(b"binary")
        return [EPContextNode(partition, payload) for partition in self.partitions]

    @hookimpl
    def load_context(self, nodes, reader):
        return [CompiledPartition(None) for _ in nodes]


def test_a_secret_option_is_not_written(source, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    listed = [{"SecretExecutionProvider": {"key": "hunter2"}}]
    change_config(
        copied,
        lambda decoder: decoder.update(session_options={"provider_options": listed}),
    )
    options = epctx.SessionOptions()
    options.add_provider("Secret", {"key": "hunter2", "level": "2"})
    options.add_session_config_entry("ep.isolate", "")

    with epctx.temporary_execution_provider(SecretProvider):
        build_folder(copied, tmp_path / "out", options, settings=LAYERS)

    decode = read_stages(tmp_path / "out")["decode"]
    assert decode["session_options"]["provider_options"] == [
        {"SecretExecutionProvider": {"level": "2"}}
    ]
    assert not any(b"hunter2" in data for data in list_files(tmp_path / "out").values())


def test_two_stages_of_one_name_are_refused(source, options, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    change_config(
        copied, lambda decoder: decoder["pipeline"].append(decoder["pipeline"][0])
    )

    with pytest.raises(InvalidGraph, match="two stages have one name"):
        build_folder(copied, tmp_path / "out", options)


def test_stages_of_another_pipeline_have_the_name_of_their_part(
    source, openvino, tmp_path
):
    copied = shutil.copytree(source, tmp_path / "source")
    config = json.loads((copied / CONFIG).read_text())
    stage = config["model"]["decoder"]["pipeline"][3]
    config["model"]["vision"] = {"pipeline": [stage]}
    (copied / CONFIG).write_text(json.dumps(config))

    settings = BuildSettings(stages=("vision.head", "head"))
    report = build_folder(copied, tmp_path / "out", openvino, settings=settings)

    files = {stage.name: stage.file for stage in report.stages}
    assert files["head"] == "epctx/head/model_ctx.onnx"
    assert files["vision.head"] == "epctx/vision.head/model_ctx.onnx"


def test_a_folder_without_a_configuration_is_named(tmp_path, options):
    with pytest.raises(NoSuchFile, match=r"has no genai_config\.json"):
        build_folder(tmp_path, tmp_path.with_name("out"), options)


PROGRAM = """
import os, signal, sys
source, output, last = sys.argv[1:]
import epctx_core as epctx
from epctx_genai import BuildSettings, build_folder
options = epctx.SessionOptions()
options.add_provider("QNN")
events = 0
def count(event, arguments):
    # What changes files, by the process that builds.
    global events
    if os.getpid() == builder and event.startswith(("os.", "shutil.", "open", "tempfile.")):
        events += 1
        if last in {event, str(events)}:
            os.kill(builder, signal.SIGKILL)
builder = os.getpid()
sys.addaudithook(count)
build_folder(source, output, options, settings=BuildSettings(stages=("decode",)))
print(events)
"""


def run_build(source, output, last):
    """Build in another process, which is killed at the event of a name or number."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, source, output, str(last)],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )


def test_a_kill_at_any_moment_leaves_the_old_folder_or_the_new(
    source, options, tmp_path
):
    old = tmp_path / "old"
    build_folder(source, old, options)
    done = run_build(source, tmp_path / "new", "never")
    events = int(done.stdout)
    whole = {"old": list_files(old), "new": list_files(tmp_path / "new")}
    output = tmp_path / "out" / "tiny"
    found = []
    kills = 0

    # By then the new folder has its name, and the old one is removed.
    for last in ["shutil.rmtree", *range(1, events, events // 10)]:
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(old, output)
        killed = run_build(source, output, last)
        # The number of events differs a little, so that the last one may not come.
        kills += killed.returncode == -signal.SIGKILL
        assert killed.returncode in {-signal.SIGKILL, 0}, killed.stderr
        (state,) = (
            name for name, files in whole.items() if files == list_files(output)
        )
        found.append(state)
        assert verify_folder(output).ok

    assert found[:2] == ["new", "old"]
    assert kills >= len(found) - 2
    assert run_build(source, output, "never").returncode == 0
    # What the killed ones left is gone.
    assert [path.name for path in output.parent.iterdir()] == ["tiny"]


def test_folders_of_others_that_look_like_leftovers_stay(source, options, tmp_path):
    output = tmp_path / "out"
    link = tmp_path / ".epctx-build-out-link"
    (tmp_path / "elsewhere").mkdir()
    link.symlink_to("elsewhere")
    file = tmp_path / ".epctx-build-out-file"
    file.write_text("a file")

    build_folder(source, output, options, settings=LAYERS)

    assert link.is_symlink()
    assert file.read_text() == "a file"
    assert Path(tmp_path, "elsewhere").is_dir()
    assert output.stat().st_mode & 0o777 == 0o777 & ~_get_mask()


def _get_mask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_part_of_another_kind_is_a_stage_too(openvino, tmp_path):
    folder = tmp_path / "vision"
    write_pipeline(folder)
    config = json.loads((folder / CONFIG).read_text())
    shutil.copy(folder / "head.onnx", folder / "vision.onnx")
    config["model"]["vision"] = {"filename": "vision.onnx"}
    (folder / CONFIG).write_text(json.dumps(config))

    settings = BuildSettings(stages=("vision",))
    report = build_folder(folder, tmp_path / "out", openvino, settings=settings)

    changed = json.loads((report.folder / CONFIG).read_text())["model"]["vision"]
    assert changed["filename"] == "epctx/vision/model_ctx.onnx"
    assert verify_folder(report.folder).ok
