"""Session options: every key has its rule, and what is misspelt is said."""

from __future__ import annotations

import threading

import pytest

from epctx_core.errors import InvalidArgument, ModelLoadCanceled
from epctx_core.options import (
    MAX_KEY_LENGTH,
    MAX_VALUE_LENGTH,
    SESSION_OPTIONS,
    CancellationFlag,
    ExecutionMode,
    GraphOptimizationLevel,
    OrtCompileApiFlags,
    RunOptions,
    SessionConfig,
    SessionOptions,
)

FLAGS = [
    "ep.context_enable",
    "ep.context_embed_mode",
    "session.disable_cpu_ep_fallback",
    "session.disable_model_compile",
    "session.fail_on_suboptimal_compiled_model",
]


@pytest.fixture
def options():
    return SessionOptions()


def test_the_defaults_are_those_of_onnxruntime(options):
    assert options.config() == SessionConfig(
        context_enable=False,
        context_file_path=None,
        embed=False,
        node_name_prefix="",
        prefer_latency=None,
        partition_min_nodes=1,
        partition_max_count=None,
        external_initializers_folder=None,
        disable_cpu_ep_fallback=False,
        disable_model_compile=False,
        fail_on_suboptimal=False,
    )
    assert options.graph_optimization_level is GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode is ExecutionMode.ORT_SEQUENTIAL
    assert (options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level) == (
        0,
        0,
        2,
    )
    assert (options.providers, dict(options.config_entries)) == ([], {})


def test_every_entry_is_read_as_what_it_means(options):
    for key in FLAGS:
        options.add_session_config_entry(key, "1")
    options.add_session_config_entry("ep.context_file_path", "out/m_ctx.onnx")
    options.add_session_config_entry("ep.context_node_name_prefix", "pre-")
    options.add_session_config_entry("ep.prefer_latency", "0")
    options.add_session_config_entry("ep.partition_min_nodes", "3")
    options.add_session_config_entry("ep.partition_max_count", "7")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "weights")

    assert options.config() == SessionConfig(
        context_enable=True,
        context_file_path="out/m_ctx.onnx",
        embed=True,
        node_name_prefix="pre-",
        prefer_latency=False,
        partition_min_nodes=3,
        partition_max_count=7,
        external_initializers_folder="weights",
        disable_cpu_ep_fallback=True,
        disable_model_compile=True,
        fail_on_suboptimal=True,
    )


def test_a_config_is_a_snapshot(options):
    config = options.config()
    options.add_session_config_entry("ep.context_enable", "1")

    assert not config.context_enable
    with pytest.raises(AttributeError):
        config.context_enable = True


@pytest.mark.parametrize("key", FLAGS)
@pytest.mark.parametrize("value", ["true", "", "2", " 1", "yes"])
def test_a_flag_is_0_or_1(options, key, value):
    with pytest.raises(
        InvalidArgument, match=f"'{key}' has the value '{value}'; allowed is '0' or '1'"
    ) as caught:
        options.add_session_config_entry(key, value)

    assert caught.value.hint == SESSION_OPTIONS[key].doc
    assert options.get_session_config_entry(key) == "0"


@pytest.mark.parametrize(("value", "means"), [("", None), ("0", False), ("1", True)])
def test_preferring_latency_may_be_left_to_the_rule(options, value, means):
    options.add_session_config_entry("ep.prefer_latency", value)

    assert options.config().prefer_latency is means


@pytest.mark.parametrize("prefix", ["a/b", "ü", "a b", "a\n", "x" * 129])
def test_a_prefix_that_no_file_or_vendor_could_take_is_refused(options, prefix):
    with pytest.raises(InvalidArgument, match="does not match"):
        options.add_session_config_entry("ep.context_node_name_prefix", prefix)


def test_a_prefix_of_plain_characters_is_taken(options):
    options.add_session_config_entry("ep.context_node_name_prefix", "Model_1.a-b")

    assert options.config().node_name_prefix == "Model_1.a-b"


def test_a_misspelt_key_of_ours_brings_a_suggestion(options):
    with pytest.raises(
        InvalidArgument,
        match=r"unknown session option 'ep\.context_enabled'\. Did you mean 'ep\.context_enable'\?",
    ) as caught:
        options.add_session_config_entry("ep.context_enabled", "1")

    assert "ep.<lower-case EP name>.<key>" in caught.value.hint


def test_a_key_of_onnxruntime_that_means_nothing_here_is_kept_and_listed(options):
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.qnnexecutionprovider.htp_arch", "73")

    assert options.ignored_config_entries == ("session.use_env_allocators",)
    assert options.get_session_config_entry("session.use_env_allocators") == "1"


def test_options_of_one_ep_are_told_apart_by_its_lower_case_name(options):
    options.add_session_config_entry("ep.qnnexecutionprovider.htp_arch", "73")
    options.add_session_config_entry("ep.qnnexecutionprovider.a.b", "1")
    options.add_session_config_entry("ep.openvinoexecutionprovider.device", "CPU")

    assert options.provider_config_entries("QNNExecutionProvider") == {"htp_arch": "73", "a.b": "1"}
    assert options.provider_config_entries("QNN") == {}


@pytest.mark.parametrize("key", ["ep.QNNExecutionProvider.htp_arch", "ep.qnn.", "ep.", "ep..x"])
def test_what_only_looks_like_an_eps_option_is_refused(options, key):
    with pytest.raises(InvalidArgument, match="unknown session option"):
        options.add_session_config_entry(key, "1")


def test_lengths_are_those_of_onnxruntime(options):
    options.add_session_config_entry("k" * MAX_KEY_LENGTH, "v" * MAX_VALUE_LENGTH)

    for key, value in (("", "v"), ("k" * (MAX_KEY_LENGTH + 1), "v"), ("k", "v" * (MAX_VALUE_LENGTH + 1))):
        with pytest.raises(
            InvalidArgument, match=f"1 to {MAX_KEY_LENGTH} and a value at most {MAX_VALUE_LENGTH}"
        ):
            options.add_session_config_entry(key, value)


@pytest.mark.parametrize(("key", "value"), [("ep.context_enable", 1), (3, "1"), ("k", None), ("k", b"1")])
def test_keys_and_values_are_text(options, key, value):
    with pytest.raises(InvalidArgument, match="key and value must be text"):
        options.add_session_config_entry(key, value)


def test_the_last_value_counts(options):
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_enable", "0")

    assert options.get_session_config_entry("ep.context_enable") == "0"


def test_a_key_that_was_never_set_has_its_default_or_an_error(options):
    assert options.get_session_config_entry("ep.context_embed_mode") == "0"

    with pytest.raises(InvalidArgument, match=r"'ep\.context_enabel' was never set\. Did you mean"):
        options.get_session_config_entry("ep.context_enabel")


def test_entries_are_handed_out_read_only(options):
    options.add_session_config_entry("a", "1")
    entries = options.config_entries

    with pytest.raises(TypeError):
        entries["a"] = "2"
    options.add_session_config_entry("b", "1")
    assert dict(entries) == {"a": "1"}


def test_every_option_has_a_doc_and_a_default_that_it_allows():
    for option in SESSION_OPTIONS.values():
        option.check(option.default)
        assert option.doc.endswith(".")


def test_providers_are_kept_in_order_with_their_options_as_text(options):
    given = {"htp_arch": 73, "fp16": True}
    options.add_provider("QNN", given)
    options.add_provider("CPUExecutionProvider")
    given["htp_arch"] = 1

    assert options.providers == [("QNN", {"htp_arch": "73", "fp16": "True"}), ("CPUExecutionProvider", {})]


def test_the_load_can_be_cancelled_from_another_thread(options):
    thread = threading.Thread(target=options.set_load_cancellation_flag, args=(True,))
    thread.start()
    thread.join()

    assert options.cancellation.requested
    with pytest.raises(ModelLoadCanceled, match="the host set the load cancellation flag"):
        options.cancellation.raise_if_requested()

    options.set_load_cancellation_flag(False)
    options.cancellation.raise_if_requested()
    assert not options.cancellation.requested


def test_waiting_ends_when_the_host_asks():
    flag = CancellationFlag()
    assert flag.wait(0) is False

    thread = threading.Thread(target=flag.set, args=(True,))
    thread.start()

    assert flag.wait(30) is True
    thread.join()


def test_numbers_are_those_of_onnxruntime():
    import onnxruntime

    ours = {level.name: level.value for level in GraphOptimizationLevel}
    theirs = {n: int(v) for n, v in onnxruntime.GraphOptimizationLevel.__members__.items() if n in ours}
    assert ours == theirs
    assert {m.name: m.value for m in ExecutionMode} == {
        name: int(mode) for name, mode in onnxruntime.ExecutionMode.__members__.items()
    }
    assert OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED | OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS == 3


def test_a_run_has_a_tag_and_can_be_stopped():
    run = RunOptions()

    assert (run.terminate, run.tag) == (False, "")
