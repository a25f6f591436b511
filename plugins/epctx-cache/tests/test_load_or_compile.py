"""`load_or_compile` and `compile_cached`: what is compiled once is found again, and
gives the same results.
"""

from __future__ import annotations

import shutil
import threading

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.routes import Transforming
from support.sim_eps import CPU, OPENVINO, QNN, with_eps
from support.small_models import SHAPE, chain, example, finished, saved, tensor

import epctx_core as epctx


def entry(options, key, value):
    options.add_session_config_entry(key, value)
    return options


def answer(session, x=None):
    with session:
        return session.run(None, {"x": example() if x is None else x})[0]


def test_the_first_call_compiles_and_the_next_ones_load(cache, model):
    expected = answer(epctx.InferenceSession(model))

    answers = [answer(cache.session(model)) for _ in range(3)]

    assert cache.compiles == 1
    assert all(np.allclose(a, expected, atol=1e-6) for a in answers)
    assert cache.warnings == []


def test_the_session_runs_what_the_ep_compiled(cache, model):
    options = entry(with_eps(QNN), "session.record_ep_graph_assignment_info", "1")

    with cache.session(model, options) as session:
        assigned = session.get_provider_graph_assignment_info()

        assert session.get_providers() == [QNN, CPU]
        assert assigned[0].ep_name == QNN


def test_a_path_in_the_cache_is_given_that_loads_by_itself(cache, model):
    path = cache.path(model)

    assert path == cache.path(model)
    assert path.parent.parent.parent == cache.folder / "v1"
    assert path.parent.parent.name == path.parent.name[:2]
    with epctx.InferenceSession(path) as session:
        assert session.get_providers() == [QNN, CPU]
    assert epctx.verify_model(path).ok
    assert cache.compiles == 1


def test_a_copy_elsewhere_under_another_name_is_the_same_model(cache, model, tmp_path):
    other = tmp_path / "elsewhere" / "renamed.onnx"
    other.parent.mkdir()
    shutil.copyfile(model, other)

    assert (
        cache.key(model)
        == cache.key(other)
        == cache.key(str(other))
        == cache.key(model.read_bytes())
    )
    assert cache.compiles == 1


def test_a_model_changed_in_place_is_another_model(cache, model):
    before = answer(cache.session(model))
    saved(chain(["Relu", "Add", "Sigmoid", "Add"], seed=1), model)

    after = answer(cache.session(model))

    assert cache.compiles == 2
    assert np.allclose(after, answer(epctx.InferenceSession(model)), atol=1e-6)
    assert not np.allclose(before, after)


def test_providers_may_be_given_as_to_a_session(cache, model):
    options = epctx.SessionOptions()

    first = cache.key(model, options, providers=["QNN", "CPUExecutionProvider"])
    second = cache.key(
        model, options, providers=["QNN"], provider_options=[{"htp_arch": "73"}]
    )

    assert first == cache.key(model, with_eps("QNN"))
    assert first == second  # 73 is what the EP takes for itself
    with pytest.raises(epctx.InvalidArgument, match="both"):
        cache.key(model, with_eps("QNN"), providers=["QNN"])


def test_several_eps_share_an_entry(cache, tmp_path):
    path = saved(
        chain(["Relu", "Add", "Erf"]), tmp_path / "two.onnx"
    )  # QNN takes no Erf

    answers = [answer(cache.session(path, with_eps(QNN, OPENVINO))) for _ in range(2)]

    assert cache.compiles == 1
    assert [e.record.partitions for e in cache.store.entries()] == [2]
    assert np.allclose(answers[1], answer(epctx.InferenceSession(path)), atol=1e-6)


def test_a_model_of_which_no_ep_takes_a_node_is_kept_too(cache, tmp_path):
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.DOUBLE)]
    model = finished(nodes, [tensor("x")], [tensor("y", onnx.TensorProto.DOUBLE)])
    path = saved(model, tmp_path / "plain.onnx")

    answers = [answer(cache.session(path)) for _ in range(2)]

    assert cache.compiles == 1
    assert [e.record.partitions for e in cache.store.entries()] == [0]
    assert np.array_equal(answers[0], example().astype(np.float64))
    assert np.array_equal(answers[0], answers[1])


def test_weights_that_stay_are_mapped_from_a_file_of_their_own(cache, tmp_path):
    weight = numpy_helper.from_array(np.full((64, 64), 0.5), "w")  # QNN takes no double
    kind = onnx.TensorProto.DOUBLE
    values = [tensor("x", kind, [1, 64])], [tensor("y", kind, [1, 64])]
    path = saved(
        finished([helper.make_node("MatMul", ["x", "w"], ["y"])], *values, [weight]),
        tmp_path / "m.onnx",
    )

    model = cache.path(path)

    assert model.stat().st_size < 4096
    assert (model.parent / "model.weights").stat().st_size > 64 * 64 * 8
    assert np.array_equal(
        answer(cache.session(path), np.ones((1, 64))), np.full((1, 64), 32.0)
    )


def test_a_context_model_is_loaded_as_it_is(cache, model, tmp_path):
    epctx.ModelCompiler(with_eps(QNN), model).compile_to_file(tmp_path / "m_ctx.onnx")

    with cache.session(tmp_path / "m_ctx.onnx") as session:
        assert session.get_providers() == [QNN, CPU]
    assert cache.keys == set()
    with pytest.raises(
        epctx.InvalidArgument, match=r"m_ctx\.onnx is a context model already"
    ):
        cache.path(tmp_path / "m_ctx.onnx")


def test_what_takes_the_place_of_the_models_own_words_is_compiled_in(cache, tmp_path):
    model = chain(["Relu", "Add"])
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    path = saved(model, tmp_path / "open.onnx")
    options = with_eps(QNN)
    options.add_free_dimension_override_by_name("batch", SHAPE[0])
    options.add_initializer("w1", np.full(SHAPE, 2, np.float32))

    answers = [answer(cache.session(path, options)) for _ in range(2)]

    assert cache.compiles == 1
    assert [e.record.partitions for e in cache.store.entries()] == [1]
    assert np.allclose(answers[0], np.maximum(example(), 0) + 2)
    assert np.array_equal(answers[0], answers[1])


def test_payloads_may_be_in_the_model(cache, model):
    options = entry(with_eps(QNN), "ep.context_embed_mode", "1")

    path = cache.path(model, options)

    assert sorted(p.name for p in path.parent.iterdir()) == [
        "entry.json",
        "model_ctx.onnx",
        "used",
    ]
    assert np.allclose(
        answer(cache.session(model, options)), answer(cache.session(model))
    )


def test_the_entry_of_a_model_that_needs_a_larger_budget_loads_by_that_budget(cache):
    model = chain(["Relu", "Add"])
    for _ in range(300_000):
        model.graph.metadata_props.add()
    options = with_eps(QNN)
    options.input_budget = epctx.InputBudget(bytes_per_message=1)

    answers = [
        answer(cache.session(model.SerializeToString(), options)) for _ in range(2)
    ]

    assert cache.compiles == 1
    assert cache.warnings == []
    assert np.array_equal(answers[0], answers[1])


def test_the_hosts_name_for_the_initializers_file_is_kept(cache, with_weights):
    options = epctx.SessionOptions()
    entry(options, "ep.context_model_external_initializers_file_name", "rest.data")

    path = cache.path(with_weights(), options)

    assert (path.parent / "rest.data").stat().st_size > 128 * 128 * 4


def test_the_weights_of_a_model_from_bytes_lie_where_the_host_says(cache, with_weights):
    path = with_weights()
    options = entry(
        with_eps(QNN),
        "session.model_external_initializers_file_folder_path",
        str(path.parent),
    )

    from_bytes = cache.key(path.read_bytes(), options)

    assert from_bytes == cache.key(path) == cache.key(path, options)
    x = np.ones((1, 128), np.float32)
    assert np.allclose(answer(cache.session(path.read_bytes(), options), x), 64)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ep.share_ep_contexts", "1"),
        ("ep.enable_weightless", "1"),
        ("ep.enable_weightless_ep_context_nodes", "1"),
        ("ep.enable_weightless_mode", "2"),
    ],
)
def test_options_whose_result_is_not_alone_in_its_files_are_refused_by_name(
    cache, model, key, value
):
    options = entry(with_eps(QNN), key, value)

    for ask in (cache.session, cache.path):
        with pytest.raises(epctx.InvalidArgument, match=key):
            ask(model, options)
    assert not cache.folder.exists()


def counting(calls):
    """Return a host plugin of version 1 that notes its calls, and options with it."""
    options = with_eps(QNN)
    noting = Transforming(lambda _model, _weights, level: calls.append(level))
    options.add_host_plugin(noting)
    return noting, options


@pytest.mark.parametrize(("operator", "partitions"), [("Relu", 1), ("Mish", 0)])
def test_a_model_that_a_host_plugin_changed_is_found_again_and_loaded_without_it(
    cache, tmp_path, operator, partitions
):
    calls = []
    noting, options = counting(calls)
    model = saved(chain([operator]), tmp_path / "m.onnx")

    plain, first = cache.key(model), cache.key(model, options)
    answer(cache.session(model, options))
    same = cache.key(model, options)
    noting.version = "2"
    other = cache.key(model, options)

    assert first == same
    assert len({plain, first, other}) == 3
    assert len(calls) == 2, "once for each version"
    assert {entry.record.partitions for entry in cache.store.entries()} == {partitions}


def test_a_callback_that_reads_payloads_is_refused(cache, model):
    options = with_eps(QNN)
    options.set_ep_context_data_read_func(lambda _name, _buffer: None, 1024)

    with pytest.raises(epctx.InvalidArgument, match="callback reads payloads"):
        cache.session(model, options)


def test_where_compiling_is_forbidden_only_what_is_in_the_cache_loads(cache, model):
    options = entry(with_eps(QNN), "session.disable_model_compile", "1")

    with pytest.raises(
        epctx.ModelRequiresCompilation, match=r"small\.onnx is not in the cache"
    ):
        cache.session(model, options)
    cache.path(model)

    assert answer(cache.session(model, options)).shape == SHAPE
    assert cache.compiles == 1


def test_an_optional_ep_that_cannot_be_had_leaves_the_entry_of_the_others(cache, model):
    options = entry(with_eps(QNN, "Nowhere"), "ep.optional_providers", "Nowhere")

    assert cache.key(model, options) == cache.key(model)
    with cache.session(model, options) as session:
        assert session.get_providers() == [QNN, CPU]


def test_asking_a_session_to_export_does_not_export_from_the_cache(cache, model):
    options = entry(with_eps(QNN), "ep.context_enable", "1")

    answer(cache.session(model, options))

    assert [path.name for path in model.parent.iterdir()] == ["small.onnx"]


def test_what_is_wrong_with_the_model_or_the_options_is_said_as_without_a_cache(
    cache, tmp_path, model
):
    (tmp_path / "text.onnx").write_text("no model")

    with pytest.raises(epctx.NoSuchFile, match=r"missing\.onnx"):
        cache.session(tmp_path / "missing.onnx")
    with pytest.raises(epctx.InvalidProtobuf, match=r"text\.onnx"):
        cache.session(tmp_path / "text.onnx")
    with pytest.raises(epctx.InvalidArgument, match="no option 'htp'"):
        cache.session(model, epctx.SessionOptions(), providers=[("QNN", {"htp": "1"})])
    assert cache.keys == set()


def test_progress_is_told_of_a_compile_and_not_of_a_hit(cache, model):
    stages = []

    for _ in range(2):
        cache.path(model, progress=lambda stage, _done, _total: stages.append(stage))

    assert stages.count("write") == 2


def test_a_compile_that_fails_leaves_nothing(cache, tmp_path):
    model = chain(["Relu", "Add"])
    model.graph.node[0].op_type = "NoSuchOperator"

    with pytest.raises(epctx.EpctxError):
        cache.path(saved(model, tmp_path / "wrong.onnx"))

    assert cache.keys == set()
    assert [p for p in (cache.folder / "v1").rglob("*") if p.is_file()] == []


def test_threads_that_ask_at_once_compile_once(cache, model):
    answers = []

    def ask():
        answers.append(answer(cache.session(model)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert cache.compiles == 1
    assert len(answers) == 8
    assert all(np.array_equal(answers[0], a) for a in answers)


def test_the_folder_is_the_users_alone(cache, model):
    cache.path(model)

    assert cache.folder.stat().st_mode & 0o077 == 0


def test_without_an_ep_or_a_level_there_is_nothing_to_keep_for_a_session(cache, model):
    options = epctx.SessionOptions()
    basic = epctx.GraphOptimizationLevel.ORT_ENABLE_BASIC

    plain = answer(cache.session(model, options))
    assert cache.keys == set()
    optimised = answer(cache.session(model, options, graph_optimization_level=basic))

    assert len(cache.keys) == 1
    assert np.allclose(plain, optimised, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": ["model.onnx"]}, "a model is a path or bytes"),
        ({"model": ""}, "a model is a path or bytes"),
        ({"model": 3}, "a model is a path or bytes"),
        ({"graph_optimization_level": "x"}, "is not a value of GraphOptimizationLevel"),
        ({"progress": 5}, "progress takes a function"),
    ],
)
def test_a_wrong_argument_is_said_so_even_where_nothing_is_to_be_compiled(
    cache, model, wrong, says
):
    cache.session(model).close()
    given = {"model": model, **wrong}

    with pytest.raises(epctx.InvalidArgument, match=says):
        cache.session(given.pop("model"), **given)
