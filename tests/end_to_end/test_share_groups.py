"""Share groups end to end: sizes, groups built at once, failures that leave nothing, and many threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from agreement import TOLERANCE, worst_relative_error
from end_to_end.share_models import example, options, run, sharing, unique_weight_bytes, write_model
from end_to_end.sim_eps import OPENVINO, QNN, SUFFIXES, VITISAI, with_eps
from end_to_end.small_models import chain, saved, snapshot
from end_to_end.small_models import example as small_example

import epctx_core as epctx
from epctx_core.context.workspace import loaded_workspaces
from epctx_core.errors import Fail, InvalidArgument

EPS = [QNN, OPENVINO, VITISAI]
GRAPH_ROOM = 64 << 10
THREADS = 16


def grouped(ep, sources, folder=None):
    """Compile models into one group."""
    with epctx.ShareGroup(options(ep), folder) as group:
        for source in sources:
            group.add(source)
        return group.finish()


def assert_small(report, sources):
    """Hold a group's only binary against what its models' weights have."""
    (binary,) = report.binaries
    graphs = sum(len(member.partitions) for member in report.members)
    assert binary.bytes <= 1.01 * unique_weight_bytes(*sources) + GRAPH_ROOM * graphs


@pytest.mark.parametrize("ep", EPS)
def test_a_group_of_eight_stores_equal_weights_once(ep, tmp_path):
    sources = [write_model(ep, tmp_path / f"m{n}.onnx", n + 1, prefix=f"p{n}") for n in range(8)]

    report = grouped(ep, sources, tmp_path)

    assert_small(report, sources)
    assert report.saved_bytes >= 7 * 128 * 128
    assert [f.path for f in report.outputs] == [
        f"m0_{SUFFIXES[ep]}.bin",
        *(f"m{n}_ctx.onnx" for n in range(8)),
    ]
    for n in (0, 3, 7):
        model = tmp_path / f"m{n}_ctx.onnx"
        assert not epctx.verify_model(model).findings
        assert np.allclose(run(model, n + 1, options(ep)), run(sources[n], n + 1), atol=1e-4)


@pytest.mark.parametrize("ep", [QNN, OPENVINO])
def test_bert_twice_under_other_weight_names_has_its_weights_once(ep, network, tmp_path):
    source = network("bert")
    again = source.path.with_name("again.onnx")
    model = onnx.load(source.path)
    rename(model, "again_")
    onnx.save(model, again)

    report = grouped(ep, [source.path, again], tmp_path)

    assert_small(report, [source.path])
    assert all(member.partitions for member in report.members)
    for name in (f"{source.path.stem}_ctx.onnx", "again_ctx.onnx"):
        with epctx.InferenceSession(tmp_path / name, options(ep)) as session:
            assert worst_relative_error(session.run(None, source.inputs), source.reference) <= TOLERANCE


def rename(model, prefix):
    """Give all initializers of a model other names, in no other respect changing it."""
    names = {tensor.name for tensor in model.graph.initializer}
    for tensor in model.graph.initializer:
        tensor.name = prefix + tensor.name
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in names:
                node.input[place] = prefix + name


def test_a_group_of_several_eps_has_one_binary_for_each(tmp_path):
    sources = [
        write_model(ep, tmp_path / f"{name}.onnx", rows)
        for name, ep, rows in (("a", QNN, 1), ("b", VITISAI, 2), ("c", QNN, 3))
    ]

    with epctx.ShareGroup(with_eps(VITISAI, QNN)) as group:
        for source in sources:
            group.add(source)
        report = group.finish()

    assert sorted(f.path for f in report.binaries) == ["a_qnn.bin", "a_vitisai.bin"]
    for name, rows in (("a", 1), ("b", 2), ("c", 3)):
        result = run(tmp_path / f"{name}_ctx.onnx", rows, with_eps(VITISAI, QNN))
        assert np.allclose(result, run(tmp_path / f"{name}.onnx", rows), atol=1e-4)


def test_two_groups_are_built_at_once(tmp_path):
    names = ("a", "b", "c", "d")
    a, b, c, d = (write_model(QNN, tmp_path / f"{n}.onnx", r) for r, n in enumerate(names, 1))
    with epctx.ShareGroup(options(QNN)) as one, epctx.ShareGroup(options(QNN)) as two:
        one.add(a)
        two.add(b)
        one.add(c)
        two.add(d)
        first, second = one.finish(), two.finish()

    assert [f.path for f in first.outputs] == ["a_qnn.bin", "a_ctx.onnx", "c_ctx.onnx"]
    assert [f.path for f in second.outputs] == ["b_qnn.bin", "b_ctx.onnx", "d_ctx.onnx"]
    for rows, name in enumerate(names, 1):
        assert run(tmp_path / f"{name}_ctx.onnx", rows, options(QNN)).shape == (rows, 128)


def test_option_driven_groups_of_two_folders_do_not_mix(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for name in ("a", "b"):
        for folder in folders:
            folder.mkdir(exist_ok=True)
            source = write_model(QNN, folder / f"{name}.onnx", 1 + (name == "b"))
            epctx.ModelCompiler(sharing(QNN, stop=name == "b"), source).compile_to_file()

    assert snapshot(folders[0]) == snapshot(folders[1])
    assert run(folders[0] / "b_ctx.onnx", 2, options(QNN)).shape == (2, 128)


def test_leaving_a_group_without_an_end_raises_and_leaves_nothing(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)

    with pytest.raises(Fail, match="left without finish"), epctx.ShareGroup(options(QNN)) as group:
        group.add(source)
    with pytest.raises(KeyError), epctx.ShareGroup(options(QNN)) as group:
        group.add(source)
        raise KeyError

    assert sorted(snapshot(tmp_path)) == ["a.onnx"]
    with pytest.raises(Fail, match="is over"):
        group.add(source)


def test_a_model_that_cannot_be_compiled_leaves_the_group_as_it_was(tmp_path):
    a, b = (write_model(QNN, tmp_path / f"{n}.onnx", 1 + (n == "b")) for n in "ab")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with epctx.ShareGroup(options(QNN)) as group:
        group.add(a)
        with pytest.raises(epctx.InvalidProtobuf):
            group.add(tmp_path / "bad.onnx")
        with pytest.raises(InvalidArgument, match="same EPs with the same options"):
            group.add(b, sess_options=options(OPENVINO))
        with pytest.raises(InvalidArgument, match="needs a name"):
            group.add(b.read_bytes())
        group.add(b.read_bytes(), name="from_bytes")
        report = group.finish()

    assert [f.path for f in report.outputs] == ["a_qnn.bin", "a_ctx.onnx", "from_bytes_ctx.onnx"]


def test_a_first_model_that_fails_names_nothing(tmp_path):
    b = write_model(QNN, tmp_path / "b.onnx", 2)
    bad = tmp_path / "a.onnx"
    bad.write_bytes(write_model(QNN, bad, 1).read_bytes().replace(b"MatMul", b"NoSuch"))
    with epctx.ShareGroup(options(QNN)) as group:
        with pytest.raises(epctx.EpctxError):
            group.add(bad)
        group.add(b)
        report = group.finish()

    assert [f.path for f in report.outputs] == ["b_qnn.bin", "b_ctx.onnx"]


def test_relative_and_absolute_folders_are_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        for name, rows, folder in (("a", 1, Path()), ("b", 2, tmp_path)):
            source = write_model(QNN, folder / f"{name}.onnx", rows)
            epctx.ModelCompiler(sharing(QNN, stop=name == "b"), source).compile_to_file()

    assert sorted(snapshot(tmp_path)) == ["a.onnx", "a_ctx.onnx", "a_qnn.bin", "b.onnx", "b_ctx.onnx"]
    assert run(Path("a_ctx.onnx"), 1, options(QNN)).shape == (1, 128)


def test_each_model_may_put_its_initializers_into_a_file_of_its_own(tmp_path):
    sources = [
        saved(chain(["Add", "Relu", "Acosh", "Add"], seed=n), tmp_path / f"{n}.onnx") for n in range(2)
    ]
    with epctx.ShareGroup(options(QNN)) as group:
        for source in sources:
            weights = {"ep__context_model_external_initializers_file_name": f"{source.stem}.weights"}
            group.add(source, sess_options=options(QNN, ep__partition_max_count=1, **weights))
        report = group.finish()

    names = {file.path for file in report.outputs}
    assert names == {"0_qnn.bin", "0_ctx.onnx", "1_ctx.onnx", "0.weights", "1.weights"}
    for source in sources:
        results = []
        for model, how in ((source, epctx.SessionOptions()), (context_model(source), options(QNN))):
            with epctx.InferenceSession(model, how) as session:
                results.append(session.run(None, {"x": 2 + np.abs(small_example())})[0])
        assert np.allclose(*results, atol=1e-5)


def context_model(source):
    return source.with_name(f"{source.stem}_ctx.onnx")


def test_a_group_compiled_again_replaces_all_its_files(tmp_path):
    for seed in (0, 1):
        sources = [write_model(QNN, tmp_path / f"{n}.onnx", 1 + (n == "b"), seed=seed) for n in "ab"]
        grouped(QNN, sources)
        for rows, source in enumerate(sources, 1):
            model = source.with_name(f"{source.stem}_ctx.onnx")
            assert np.allclose(run(model, rows, options(QNN)), run(source, rows), atol=1e-4)

    assert len(snapshot(tmp_path)) == 5


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("seconds", [1.6, pytest.param(20, marks=pytest.mark.stress)])
def test_sessions_of_a_group_begin_run_and_end_in_many_threads(ep, seconds, tmp_path):
    sources = [write_model(ep, tmp_path / f"m{n}.onnx", n + 1) for n in range(4)]
    grouped(ep, sources)
    models = [tmp_path / f"m{n}_ctx.onnx" for n in range(4)]
    # Without prepacked weights, as sessions of a group are, the kernels add in another order.
    expected = [run(model, n + 1, options(ep, ep__prefer_latency=0)) for n, model in enumerate(models)]
    before = held(tmp_path)
    end = time.monotonic() + seconds
    begin = threading.Barrier(THREADS)

    def work(number):
        begin.wait(timeout=30)
        rounds = 0
        while time.monotonic() < end:
            which = (number + rounds) % 4
            with epctx.InferenceSession(models[which], sharing(ep)) as session:
                assert np.array_equal(session.run(None, example(which + 1))[0], expected[which])
            rounds += 1
        return rounds

    with ThreadPoolExecutor(THREADS) as pool:
        rounds = list(pool.map(work, range(THREADS)))

    assert min(rounds) >= 1
    assert len(loaded_workspaces) == 0
    assert held(tmp_path) == before


def held(folder):
    """Return how many mappings and descriptors this process has of a folder's files."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count(str(folder))
    links = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return maps, sum(link.startswith(str(folder)) for link in links)
