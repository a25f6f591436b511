"""Share groups end to end: sizes, groups built at once, failures that leave nothing,
and many threads.
"""

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
from compiling.bert_lengths import LENGTH, at_length, with_int8_products
from onnx import TensorProto
from support.agreement import TOLERANCE, worst_relative_error
from support.engine_eps import EngineProvider
from support.isolation import registry_of
from support.networks.catalog import run_onnxruntime
from support.share_models import (
    LAYERS,
    WIDTH,
    example,
    options,
    run,
    sharing,
    unique_weight_bytes,
    write_model,
)
from support.sim_eps import OPENVINO, QNN, SUFFIXES, VITISAI, with_eps
from support.small_models import chain, saved, snapshot
from support.small_models import example as small_example

import epctx_core as epctx
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.plugin import EPContextNode, hookimpl

EPS = [QNN, OPENVINO, VITISAI]
GRAPH_ROOM = 64 << 10
THREADS = 16


def grouped(ep, sources, folder=None):
    """Compile models into one group."""
    with epctx.ShareGroup(folder) as group:
        for source in sources:
            group.compile(source, options(ep))
    return group.report


def assert_small(report, sources):
    """Hold a group's only binary against what its models' weights have."""
    (binary,) = report.binaries
    graphs = sum(len(member.partitions) for member in report.members)
    assert binary.bytes <= 1.01 * unique_weight_bytes(*sources) + GRAPH_ROOM * graphs


@pytest.mark.parametrize("ep", EPS)
def test_a_group_of_eight_stores_equal_weights_once(ep, tmp_path):
    sources = [
        write_model(ep, tmp_path / f"m{n}.onnx", n + 1, prefix=f"p{n}")
        for n in range(8)
    ]

    report = grouped(ep, sources, tmp_path)

    assert_small(report, sources)
    # VitisAI has int8 weights, whose scales are part of each graph.
    assert report.saved_bytes == 7 * LAYERS * WIDTH**2 * (1 if ep == VITISAI else 4)
    assert [f.path for f in report.outputs] == [
        f"m0_{SUFFIXES[ep]}.bin",
        *(f"m{n}_ctx.onnx" for n in range(8)),
    ]
    for n in (0, 3, 7):
        model = tmp_path / f"m{n}_ctx.onnx"
        assert not epctx.verify_model(model).findings
        assert np.allclose(
            run(model, n + 1, options(ep)), run(sources[n], n + 1), atol=1e-4
        )


class Storing(EngineProvider):
    """EP that writes weights as `as_weights` says, into the payload that `payload_of`
    a model's number names.
    """

    name = "StoringExecutionProvider"
    operators = frozenset({"Add"})
    as_weights = True

    @staticmethod
    def payload_of(model):
        return "shared"

    @hookimpl
    def get_ep_context_nodes(self, writer):
        kept = self.context.workspace.get_or_create("weights", dict)
        kept |= {part.name: part.weights.values() for part, _ in self._compiled}
        names = [self.payload_of(n) for n in range(len(writer.graphs_by_model))]
        started = dict.fromkeys(names if writer.final else names[-1:])
        payloads = {name: writer.payload(name) for name in started}
        for name, graphs in zip(names, writer.graphs_by_model, strict=True):
            for view in [view for graph in graphs for view in kept[graph]]:
                if writer.final and self.as_weights:
                    payloads[name].write_tensor(view)
                elif writer.final:
                    payloads[name].write(b"".join(view.chunks()))
        own = payloads[names[-1]]
        return [EPContextNode(part, own) for part, _ in self._compiled]


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, 2),
        ({"payload_of": staticmethod(lambda model: f"half{model // 2}")}, 1),
        ({"payload_of": staticmethod(lambda model: f"own{model}")}, 0),
        ({"as_weights": False}, 0),
    ],
    ids=["one payload", "two payloads", "a payload each", "mere bytes"],
)
def test_saved_are_the_weights_that_a_binary_has_once_for_several_models(
    changes, times, tmp_path
):
    registry = registry_of(type("Changed", (Storing,), changes))
    with epctx.ShareGroup(tmp_path, registry=registry) as group:
        for name in "abc":
            model = saved(chain(["Add"]), tmp_path / f"{name}.onnx")
            group.compile(model, options(Storing.name))

    assert group.report.saved_bytes == times * small_example().nbytes


@pytest.mark.parametrize("ep", EPS)
def test_a_prefill_and_a_decode_model_of_bert_have_their_weights_once(
    ep, network, tmp_path
):
    exported = network("bert")
    whole = onnx.load(exported.path)
    if ep == VITISAI:
        whole = with_int8_products(whole)
    lengths = {"prefill": LENGTH, "decode": 8}
    sources = [
        saved(at_length(whole, length), tmp_path / f"{n}.onnx")
        for n, length in lengths.items()
    ]

    report = grouped(ep, sources)

    taken = TensorProto.INT8 if ep == VITISAI else TensorProto.FLOAT
    plain = epctx.SessionOptions()
    if ep == VITISAI:
        # A fused LayerNormalization adds in another order, and the last bit decides how
        # INT8 is rounded.
        plain.graph_optimization_level = epctx.GraphOptimizationLevel.ORT_DISABLE_ALL
    (binary,) = report.binaries
    assert binary.bytes <= 1.01 * unique_weight_bytes(
        *sources, elem_type=taken
    ) + GRAPH_ROOM * len(sources)
    for source, length in zip(sources, lengths.values(), strict=True):
        inputs = {name: array[:, :length] for name, array in exported.inputs.items()}
        results = []
        for model, how in ((source, plain), (context_model(source), options(ep))):
            with epctx.InferenceSession(model, how) as session:
                results.append(session.run(None, inputs)[0])
        assert results[0].shape == (1, length, 128)
        assert np.allclose(*results, atol=1e-4)


def test_a_shorter_bert_computes_what_the_whole_one_does_of_what_it_may_attend_to(
    network, tmp_path
):
    exported = network("bert")
    inputs = {
        **exported.inputs,
        "attention_mask": (np.arange(LENGTH) < 8).astype(np.int64)[None],
    }
    short = saved(at_length(onnx.load(exported.path), 8), tmp_path / "short.onnx")

    whole = run_onnxruntime(exported.path, inputs)[0]
    found = run_onnxruntime(
        short, {name: array[:, :8] for name, array in inputs.items()}
    )[0]

    assert np.allclose(found, whole[:, :8], atol=1e-5)


@pytest.mark.parametrize("ep", [QNN, OPENVINO])
def test_bert_twice_under_other_weight_names_has_its_weights_once(
    ep, network, tmp_path
):
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
            assert (
                worst_relative_error(session.run(None, source.inputs), source.reference)
                <= TOLERANCE
            )


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

    with epctx.ShareGroup() as group:
        for source in sources:
            group.compile(source, with_eps(VITISAI, QNN))

    assert sorted(f.path for f in group.report.binaries) == [
        "a_qnn.bin",
        "a_vitisai.bin",
    ]
    for name, rows in (("a", 1), ("b", 2), ("c", 3)):
        result = run(tmp_path / f"{name}_ctx.onnx", rows, with_eps(VITISAI, QNN))
        assert np.allclose(result, run(tmp_path / f"{name}.onnx", rows), atol=1e-4)


def test_two_groups_are_built_at_once(tmp_path):
    names = ("a", "b", "c", "d")
    a, b, c, d = (
        write_model(QNN, tmp_path / f"{n}.onnx", r) for r, n in enumerate(names, 1)
    )
    with epctx.ShareGroup() as one, epctx.ShareGroup() as two:
        for group, source in ((one, a), (two, b), (one, c), (two, d)):
            group.compile(source, options(QNN))

    assert [f.path for f in one.report.outputs] == [
        "a_qnn.bin",
        "a_ctx.onnx",
        "c_ctx.onnx",
    ]
    assert [f.path for f in two.report.outputs] == [
        "b_qnn.bin",
        "b_ctx.onnx",
        "d_ctx.onnx",
    ]
    for rows, name in enumerate(names, 1):
        assert run(tmp_path / f"{name}_ctx.onnx", rows, options(QNN)).shape == (
            rows,
            128,
        )


def test_option_driven_groups_of_two_folders_do_not_mix(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for name in ("a", "b"):
        for folder in folders:
            folder.mkdir(exist_ok=True)
            source = write_model(QNN, folder / f"{name}.onnx", 1 + (name == "b"))
            epctx.ModelCompiler(
                sharing(QNN, stop=name == "b"), source
            ).compile_to_file()

    assert snapshot(folders[0]) == snapshot(folders[1])
    assert run(folders[0] / "b_ctx.onnx", 2, options(QNN)).shape == (2, 128)


def test_an_exception_in_the_block_discards_the_group(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)

    with pytest.raises(KeyError), epctx.ShareGroup() as group:
        group.compile(source, options(QNN))
        raise KeyError

    assert sorted(snapshot(tmp_path)) == ["a.onnx"]
    with pytest.raises(Fail, match="is over"):
        group.compile(source, options(QNN))
    with pytest.raises(Fail, match="no report"):
        _ = group.report


def test_an_end_inside_of_the_block_gives_the_report(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)

    with epctx.ShareGroup() as group:
        group.compile(source, options(QNN))
        with pytest.raises(Fail, match="was not written, so there is no report"):
            _ = group.report
        report = group.finish()
        with pytest.raises(Fail, match="is over"):
            group.finish()

    assert report is group.report
    assert [file.path for file in report.outputs] == ["a_qnn.bin", "a_ctx.onnx"]


def test_a_group_without_a_block_is_ended_or_discarded(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)
    discarded = epctx.ShareGroup()
    discarded.compile(source, options(QNN))
    discarded.discard()
    discarded.discard()
    assert sorted(snapshot(tmp_path)) == ["a.onnx"]

    ended = epctx.ShareGroup()
    ended.compile(source, options(QNN))
    ended.finish()
    ended.discard()

    assert sorted(snapshot(tmp_path)) == ["a.onnx", "a_ctx.onnx", "a_qnn.bin"]


def test_dropping_a_group_without_an_end_is_a_resource_warning(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)
    before = held(tmp_path)
    group = epctx.ShareGroup()
    group.compile(source, options(QNN))
    group.compile(source, options(QNN), name="again")

    with pytest.warns(
        ResourceWarning,
        match=r"of 'a_ctx\.onnx', 'again_ctx\.onnx' was left without an end",
    ):
        del group

    assert held(tmp_path) == before
    assert sorted(snapshot(tmp_path)) == ["a.onnx"]


def test_a_block_that_compiles_nothing_is_refused(tmp_path):
    with (
        pytest.raises(Fail, match="without a model cannot be written"),
        epctx.ShareGroup(tmp_path),
    ):
        pass

    with epctx.ShareGroup(tmp_path) as group:
        group.discard()


def test_an_end_that_fails_leaves_nothing_and_inside_of_the_block_can_be_tried_again(
    tmp_path,
):
    a, b = (write_model(QNN, tmp_path / f"{n}.onnx", 1 + (n == "b")) for n in "ab")
    in_the_way = tmp_path / "a_qnn.bin"
    in_the_way.mkdir()
    with (
        pytest.raises(epctx.EpctxError, match=r"a_qnn\.bin"),
        epctx.ShareGroup() as group,
    ):
        group.compile(a, options(QNN))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.onnx",
        "a_qnn.bin",
        "b.onnx",
    ]

    with epctx.ShareGroup() as group:
        for source in (a, b):
            group.compile(source, options(QNN))
        with pytest.raises(epctx.EpctxError, match=r"a_qnn\.bin"):
            group.finish()
        in_the_way.rmdir()

    assert [f.path for f in group.report.outputs] == [
        "a_qnn.bin",
        "a_ctx.onnx",
        "b_ctx.onnx",
    ]
    for rows, name in enumerate("ab", 1):
        model = tmp_path / f"{name}_ctx.onnx"
        assert np.allclose(
            run(model, rows, options(QNN)),
            run(tmp_path / f"{name}.onnx", rows),
            atol=1e-4,
        )


def test_what_is_no_folder_or_names_one_models_output_is_refused(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)

    with pytest.raises(InvalidArgument, match="output_dir is"):
        epctx.ShareGroup(options(QNN))
    with epctx.ShareGroup(tmp_path) as group:
        with pytest.raises(InvalidArgument, match="sess_options is a"):
            group.compile(source, None)
        with pytest.raises(
            InvalidArgument, match=r"ep\.context_file_path has no meaning"
        ):
            group.compile(
                source, options(QNN, ep__context_file_path=tmp_path / "b_ctx.onnx")
            )
        with pytest.raises(
            InvalidArgument, match=r"ep\.stop_share_ep_contexts has no meaning"
        ):
            group.compile(source, sharing(QNN, stop=True))
        group.discard()


def test_a_model_that_cannot_be_compiled_leaves_the_group_as_it_was(tmp_path):
    a, b = (write_model(QNN, tmp_path / f"{n}.onnx", 1 + (n == "b")) for n in "ab")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with epctx.ShareGroup() as group:
        group.compile(a, options(QNN))
        with pytest.raises(epctx.InvalidProtobuf):
            group.compile(tmp_path / "bad.onnx", options(QNN))
        with pytest.raises(InvalidArgument, match="same EPs with the same options"):
            group.compile(b, options(OPENVINO))
        with pytest.raises(InvalidArgument, match="needs a name"):
            group.compile(b.read_bytes(), options(QNN))
        group.compile(b.read_bytes(), options(QNN), name="from_bytes")

    assert [f.path for f in group.report.outputs] == [
        "a_qnn.bin",
        "a_ctx.onnx",
        "from_bytes_ctx.onnx",
    ]


def test_a_first_model_that_fails_names_nothing(tmp_path):
    b = write_model(QNN, tmp_path / "b.onnx", 2)
    bad = tmp_path / "a.onnx"
    bad.write_bytes(write_model(QNN, bad, 1).read_bytes().replace(b"MatMul", b"NoSuch"))
    with epctx.ShareGroup() as group:
        with pytest.raises(epctx.EpctxError):
            group.compile(bad, options(QNN))
        group.compile(b, options(QNN))

    assert [f.path for f in group.report.outputs] == ["b_qnn.bin", "b_ctx.onnx"]


def test_relative_and_absolute_folders_are_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        for name, rows, folder in (("a", 1, Path()), ("b", 2, tmp_path)):
            source = write_model(QNN, folder / f"{name}.onnx", rows)
            epctx.ModelCompiler(
                sharing(QNN, stop=name == "b"), source
            ).compile_to_file()

    assert sorted(snapshot(tmp_path)) == [
        "a.onnx",
        "a_ctx.onnx",
        "a_qnn.bin",
        "b.onnx",
        "b_ctx.onnx",
    ]
    assert run(Path("a_ctx.onnx"), 1, options(QNN)).shape == (1, 128)


def test_each_model_may_put_its_initializers_into_a_file_of_its_own(tmp_path):
    sources = [
        saved(chain(["Add", "Relu", "Acosh", "Add"], seed=n), tmp_path / f"{n}.onnx")
        for n in range(2)
    ]
    with epctx.ShareGroup() as group:
        for source in sources:
            weights = {
                "ep__context_model_external_initializers_file_name": f"{source.stem}.weights"
            }
            group.compile(source, options(QNN, ep__partition_max_count=1, **weights))

    names = {file.path for file in group.report.outputs}
    assert names == {"0_qnn.bin", "0_ctx.onnx", "1_ctx.onnx", "0.weights", "1.weights"}
    for source in sources:
        results = []
        for model, how in (
            (source, epctx.SessionOptions()),
            (context_model(source), options(QNN)),
        ):
            with epctx.InferenceSession(model, how) as session:
                results.append(session.run(None, {"x": 2 + np.abs(small_example())})[0])
        assert np.allclose(*results, atol=1e-5)


def test_two_models_cannot_put_their_initializers_into_one_file(tmp_path):
    source = saved(chain(["Add", "Relu", "Acosh", "Add"]), tmp_path / "m.onnx")
    one_file = options(QNN, ep__context_model_external_initializers_file_name="w.bin")

    with epctx.ShareGroup() as group:
        group.compile(source, one_file)
        with pytest.raises(InvalidArgument, match=r"would both be written to 'w\.bin'"):
            group.compile(source, one_file, name="again")

    assert [file.path for file in group.report.members[0].outputs][-1] == "m_ctx.onnx"


def context_model(source):
    return source.with_name(f"{source.stem}_ctx.onnx")


def test_a_group_compiled_again_replaces_all_its_files(tmp_path):
    for seed in (0, 1):
        sources = [
            write_model(QNN, tmp_path / f"{n}.onnx", 1 + (n == "b"), seed=seed)
            for n in "ab"
        ]
        grouped(QNN, sources)
        for rows, source in enumerate(sources, 1):
            model = source.with_name(f"{source.stem}_ctx.onnx")
            assert np.allclose(
                run(model, rows, options(QNN)), run(source, rows), atol=1e-4
            )

    assert len(snapshot(tmp_path)) == 5


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize(
    "seconds", [2 / len(EPS), pytest.param(60 / len(EPS), marks=pytest.mark.stress)]
)
def test_sessions_of_a_group_begin_run_and_end_in_many_threads(ep, seconds, tmp_path):
    sources = [write_model(ep, tmp_path / f"m{n}.onnx", n + 1) for n in range(4)]
    grouped(ep, sources)
    models = [tmp_path / f"m{n}_ctx.onnx" for n in range(4)]
    # Without prepacked weights, as sessions of a group are, the kernels add in another
    # order.
    expected = [
        run(model, n + 1, options(ep, ep__prefer_latency=0))
        for n, model in enumerate(models)
    ]
    before = held(tmp_path)
    end = time.monotonic() + seconds
    begin = threading.Barrier(THREADS)

    def work(number):
        begin.wait(timeout=30)
        rounds = 0
        while rounds == 0 or time.monotonic() < end:
            which = (number + rounds) % 4
            with epctx.InferenceSession(models[which], sharing(ep)) as session:
                assert np.array_equal(
                    session.run(None, example(which + 1))[0], expected[which]
                )
            rounds += 1

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))

    assert held(tmp_path) == before


def held(folder):
    """Return how many mappings and descriptors this process has of a folder's files."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count(str(folder))
    links = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return maps, sum(link.startswith(str(folder)) for link in links)


def test_options_that_say_again_that_models_are_compiled_and_shared_change_nothing(
    tmp_path,
):
    source = write_model(QNN, tmp_path / "a.onnx", 1)
    folders = [tmp_path / name for name in ("without", "with")]

    for folder, entries in zip(
        folders,
        [{}, {"ep__share_ep_contexts": 1, "ep__context_enable": 1}],
        strict=True,
    ):
        folder.mkdir()
        with epctx.ShareGroup(folder) as group:
            group.compile(source, options(QNN, **entries))

    assert snapshot(folders[0]) == snapshot(folders[1])
