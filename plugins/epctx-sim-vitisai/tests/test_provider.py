"""What the package declares, writes and says about it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import entry_points

import numpy as np
import onnx
import pytest
from epctx_sim_sdk.container import PAGE, open_container
from epctx_sim_vitisai import VitisAIProvider
from epctx_sim_vitisai.archive import COMPILED, CONTEXT
from epctx_sim_vitisai.settings import model_file_name
from support.strange_files import STRANGE

import epctx_core as epctx
from epctx_core.errors import InvalidArgument, NoSuchFile

pytestmark = pytest.mark.internal

MODES = [pytest.param(False, id="file"), pytest.param(True, id="embedded")]


def test_the_installed_package_is_found_through_its_entry_point():
    (entry,) = entry_points(
        group="epctx.execution_providers", name="VitisAIExecutionProvider"
    )

    assert entry.dist.name == "epctx-sim-vitisai"
    assert entry.load() is VitisAIProvider


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("onnx", "numpy", "onnxruntime", "cryptography", "epctx_sim_sdk.container")
    code = (
        f"import epctx_sim_vitisai, sys; print([m for m in {heavy} if m in "
        "sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_its_source_is_taken_exactly():
    assert VitisAIProvider.accepts_source("VitisAIExecutionProvider")
    assert not VitisAIProvider.accepts_source("vitisaiexecutionprovider")
    assert not VitisAIProvider.accepts_source("VitisAI")


def test_every_option_has_a_default_that_is_allowed_and_a_sentence():
    assert all(o.default in o.choices for o in VitisAIProvider.options if o.choices)
    assert all(o.doc.endswith(".") for o in VitisAIProvider.options)
    assert [o.name for o in VitisAIProvider.options if o.secret] == ["encryption_key"]


def test_the_vendor_says_that_it_is_simulated():
    assert "SIMULATED" in VitisAIProvider.vendor
    assert "not for hardware" in VitisAIProvider.vendor


def test_the_attributes_of_the_nodes(bench):
    path, _ = bench.compile(bench.two_partitions(), cache_key="mine")

    main, other = bench.nodes(path)

    assert [main.pop("index"), other.pop("index")] == [0, 1]
    assert [main.pop("main_context"), other.pop("main_context")] == [1, 0]
    assert main.pop("ep_cache_context") == b"net_vitisai.bin"
    assert main.pop("partition_name") != other.pop("partition_name")
    assert main == other
    assert main["source"] == b"VitisAIExecutionProvider"
    assert main["onnx_model_filename"] == b"net.onnx"
    assert main["enable_encryption"] == 0
    assert main["cache_file_prefix"].startswith(b"mine-")
    assert main["version_of_vaip"] == b"sim-1.7.0"
    assert main.keys() == {
        "source", "embed_mode", "cache_file_prefix", "enable_encryption", "notes",
        "onnx_model_filename", "version_of_vaip", "version_of_xcompiler",
        "version_of_xrt",
    }  # fmt: skip
    key = main["cache_file_prefix"].decode()
    assert json.loads(main["notes"]) == {
        "backend_cache_dir": "",
        "backend_cache_key": key,
    }


def test_every_node_says_that_it_is_not_for_hardware(bench):
    path, _ = bench.compile(bench.two_partitions())

    contexts = [
        node for node in onnx.load(path).graph.node if node.op_type == "EPContext"
    ]

    assert all("not for hardware" in node.doc_string for node in contexts)


def test_the_payload_is_a_tar_that_says_that_it_is_simulated(bench):
    bench.compile(bench.two_partitions())

    with tarfile.open(bench.binary()) as archive:
        assert archive.getnames() == [CONTEXT, COMPILED]
        assert all(member.isreg() and member.mtime == 0 for member in archive)
        context = json.load(archive.extractfile(CONTEXT))
    assert "not for hardware" in context["simulated"]
    assert len(context["graphs"]) == 2
    assert "SIMULATED" in CONTEXT


def test_the_container_begins_on_a_page_and_holds_a_graph_for_each_node(bench):
    path, _ = bench.compile(bench.two_partitions())

    with tarfile.open(bench.binary()) as archive:
        member = archive.getmember(COMPILED)
        assert member.offset_data % PAGE == 0
        content = archive.extractfile(member).read()
    container = open_container(memoryview(content), ep="x", node="n", name="p")
    assert [node["partition_name"].decode() for node in bench.nodes(path)] == list(
        container.tables.graphs
    )


def test_weights_are_used_from_the_mapped_file_where_the_archive_is_not_encrypted(
    bench, monkeypatch
):
    from epctx_sim_sdk.device import Device

    path, _ = bench.compile(bench.two_partitions(channels=64))
    given = []
    load = Device.load

    def watched(self, container, entry):
        given.append(container.arrays(entry))
        return load(self, container, entry)

    monkeypatch.setattr(Device, "load", watched)
    bench.run(path, bench.x_for(bench.two_partitions(channels=64)))

    arrays = [
        array for found in given for array in found.values() if array.nbytes > 1024
    ]
    assert arrays
    for array in arrays:
        assert array.ctypes.data % 64 == 0
        assert not array.flags.owndata
        assert "mmap" in type(owner(array)).__name__


def owner(array):
    """What keeps an array's memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    while isinstance(array, memoryview):
        array = array.obj
    return array


@pytest.mark.parametrize("embed", MODES)
def test_the_same_model_gives_the_same_bytes_in_any_folder(bench, tmp_path, embed):
    path, _ = bench.compile(bench.two_partitions(), embed=embed)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    (tmp_path / "far").mkdir()
    other = type(bench)(tmp_path / "far")

    other.compile(bench.two_partitions(), embed=embed)

    assert {
        file.name: file.read_bytes() for file in (tmp_path / "far").iterdir()
    } == first
    assert str(tmp_path).encode() not in b"".join(first.values())
    assert path.name in first


@pytest.mark.parametrize("embed", MODES)
def test_a_moved_model_runs_like_onnxruntime(bench, tmp_path, embed):
    model = bench.two_partitions()
    path, report = bench.compile(model, embed=embed)
    (tmp_path / "far").mkdir()
    for file in [p for p in tmp_path.iterdir() if p.is_file()]:
        shutil.move(file, tmp_path / "far")

    (result,) = bench.run(tmp_path / "far" / path.name, bench.x_for(model))

    assert len(report.partitions) == 2
    assert np.array_equal(result, reference(model, bench.x_for(model)))
    assert bench.binary("far/net").exists() is not embed


def reference(model, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)[0]


def test_compiled_and_run_in_one_session_gives_the_same(bench, tmp_path):
    model = bench.two_partitions()
    onnx.save(model, tmp_path / "plain.onnx")

    (result,) = bench.run(tmp_path / "plain.onnx", bench.x_for(model))

    assert np.array_equal(result, reference(model, bench.x_for(model)))


def test_a_weight_of_both_graphs_is_stored_once(bench):
    net = bench.net(shape=(1, 64, 8, 8))
    weight = net.random(64, 64, 3, 3)

    def conv(value):
        return net.quantised(
            net.node("Conv", value, net.constant(weight), pads=[1, 1, 1, 1])
        )

    middle = net.quantised(net.node("Erf", conv(net.quantised("x"))))
    _, report = bench.compile(net.model(conv(middle)))

    assert len(report.partitions) == 2
    assert bench.binary().stat().st_size < 2 * weight.nbytes


def test_nothing_to_take_writes_no_archive(bench):
    net = bench.net()

    path, report = bench.compile(net.model(net.node("Erf", "x")))

    assert report.partitions == ()
    assert not bench.binary().exists()
    assert bench.nodes(path) == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("net", "net.onnx"),
        ("a/b", "b.onnx"),
        ("C:\\models\\n", "n.onnx"),
        ("", "model.onnx"),
        ("a/", "model.onnx"),
    ],
)
def test_the_models_file_name_never_holds_a_folder(name, shown):
    assert model_file_name(name) == shown


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target": "X3"}, "target"),
        ({"cache_key": "../up"}, "cannot name a folder"),
        ({"cache_key": ".hidden"}, "cannot name a folder"),
        ({"encryption_key": "12"}, "hexadecimal"),
        ({"runtime_vaip_version": "1.7"}, "not a simulated version"),
        ({"cache_dirr": "x"}, "Did you mean 'cache_dir'"),
    ],
)
def test_wrong_options_are_refused_at_once(bench, options, text):
    with pytest.raises(InvalidArgument, match=text):
        bench.compile(bench.two_partitions(), **options)


@pytest.mark.parametrize("content", ["[1]", "no json", ""])
def test_a_configuration_that_is_no_json_object_is_refused(bench, tmp_path, content):
    (tmp_path / "config.json").write_text(content)

    with pytest.raises(InvalidArgument, match="no JSON object"):
        bench.compile(bench.two_partitions(), config_file=str(tmp_path / "config.json"))


def test_a_missing_configuration_is_named(bench, tmp_path):
    with pytest.raises(NoSuchFile, match=r"nowhere\.json"):
        bench.compile(
            bench.two_partitions(), config_file=str(tmp_path / "nowhere.json")
        )


def test_a_configuration_that_is_one_changes_nothing(bench, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    bench.compile(bench.two_partitions())
    plain = bench.binary().read_bytes()

    bench.compile(bench.two_partitions(), config_file=str(tmp_path / "config.json"))

    assert bench.binary().read_bytes() == plain


def test_a_cancelled_compile_stops(bench, tmp_path):
    onnx.save(bench.two_partitions(), tmp_path / "net.onnx")
    options = bench.options()
    options.set_load_cancellation_flag(True)

    with pytest.raises(epctx.ModelLoadCanceled):
        epctx.ModelCompiler(options, tmp_path / "net.onnx").compile_to_file()


@pytest.mark.parametrize("kind", STRANGE)
def test_a_configuration_that_could_not_be_read_to_its_end_is_refused(
    kind, bench, tmp_path
):
    STRANGE[kind](tmp_path / "config.json")

    with pytest.raises(InvalidArgument, match="no JSON object"):
        bench.compile(bench.two_partitions(), config_file=str(tmp_path / "config.json"))
