"""Session options: every key has its rule, and what is misspelt is said."""

from __future__ import annotations

import threading

import pytest

from epctx_core import (
    ExecutionMode,
    GraphOptimizationLevel,
    OrtCompileApiFlags,
    RunOptions,
    SessionOptions,
)
from epctx_core.errors import InvalidArgument, ModelLoadCanceled


@pytest.fixture
def options():
    return SessionOptions()


def test_a_config_is_a_snapshot(options):
    config = options.config()
    options.add_session_config_entry("ep.context_enable", "1")

    assert not config.context_enable
    with pytest.raises(AttributeError):
        config.context_enable = True


@pytest.mark.parametrize(("value", "means"), [("", None), ("0", False), ("1", True)])
def test_preferring_latency_may_be_left_to_the_rule(options, value, means):
    options.add_session_config_entry("ep.prefer_latency", value)

    assert options.config().prefer_latency is means


@pytest.mark.parametrize("prefix", ["a/b", "ü", "a b", "a\n", "x" * 129])
def test_a_prefix_that_no_file_or_vendor_could_take_is_refused(options, prefix):
    with pytest.raises(InvalidArgument, match="allowed is"):
        options.add_session_config_entry("ep.context_node_name_prefix", prefix)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/m.data", "is an absolute path"),
        ("C:/m.data", "is an absolute path"),
        ("C:\\m.data", "is an absolute path"),
        ("\\\\server\\share\\m.data", "is an absolute path"),
        ("../m.data", "leaves the model's folder"),
        ("sub/../../m.data", "leaves the model's folder"),
        ("sub/", "is a folder"),
        (".", "is a folder"),
        ("sub/..", "is a folder"),
        ("a\0b", "no file system takes"),
    ],
)
def test_a_file_for_initializers_that_is_none_of_the_output_models_folder_is_refused(
    options, name, why
):
    with pytest.raises(InvalidArgument, match=why):
        options.add_session_config_entry(
            "ep.context_model_external_initializers_file_name", name
        )

    assert options.config().external_initializers_file is None


@pytest.mark.parametrize(
    "name", ["m.data", "sub/m.data", "sub/../m.data", "a..b", "a:b.data", "..data"]
)
def test_a_file_for_initializers_may_be_named_in_any_way_that_stays_inside(
    options, name
):
    options.add_session_config_entry(
        "ep.context_model_external_initializers_file_name", name
    )

    assert options.config().external_initializers_file == name


@pytest.mark.parametrize("value", ["", "HEAD", "none", "1"])
def test_verification_is_one_of_four_words(options, value):
    with pytest.raises(
        InvalidArgument, match="allowed is 'once' or 'head' or 'lazy' or 'full'"
    ):
        options.add_session_config_entry("ep.context_verify", value)


@pytest.mark.parametrize("value", ["3", "0x2", "", "-1", "true"])
def test_the_weightless_mode_is_0_1_or_2(options, value):
    with pytest.raises(InvalidArgument, match="allowed is '0' or '1' or '2'"):
        options.add_session_config_entry("ep.enable_weightless_mode", value)


@pytest.mark.entry(131)
@pytest.mark.parametrize(("switch", "mode"), [("1", "0"), ("0", "1"), ("0", "2")])
def test_two_keys_for_weightless_mode_that_contradict_each_other_are_refused(
    options, switch, mode
):
    set_weightless(options, switch, mode)

    with pytest.raises(InvalidArgument, match="contradict each other") as caught:
        options.config()

    assert "ep.enable_weightless_mode alone" in caught.value.hint


def set_weightless(options, switch, mode):
    for key, value in (
        ("ep.enable_weightless", switch),
        ("ep.enable_weightless_mode", mode),
    ):
        if value is not None:
            options.add_session_config_entry(key, value)


def test_the_end_of_a_group_without_a_group_is_refused_once_all_is_known(options):
    options.add_session_config_entry("ep.stop_share_ep_contexts", "1")

    with pytest.raises(InvalidArgument, match=r"without ep\.share_ep_contexts=1"):
        options.config()
    options.add_session_config_entry("ep.share_ep_contexts", "1")
    assert options.config().stop_sharing


def test_a_prefix_of_plain_characters_is_taken(options):
    options.add_session_config_entry("ep.context_node_name_prefix", "Model_1.a-b")

    assert options.config().node_name_prefix == "Model_1.a-b"


def test_a_misspelt_key_of_ours_brings_a_suggestion(options):
    with pytest.raises(
        InvalidArgument,
        match=(
            r"unknown session option 'ep\.context_enabled'\. Did you mean "
            r"'ep\.context_enable'\?"
        ),
    ) as caught:
        options.add_session_config_entry("ep.context_enabled", "1")

    assert "ep.<lower-case EP name>.<key>" in caught.value.hint


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("session.disable_model_compiles", "session.disable_model_compile"),
        ("session.intra_op.allow_spining", "session.intra_op.allow_spinning"),
        ("session.context_enable", "ep.context_enable"),
    ],
)
def test_a_session_key_that_neither_epctx_nor_onnxruntime_knows_is_refused(
    options, key, meant
):
    with pytest.raises(
        InvalidArgument,
        match=f"unknown session option '{key}'. Did you mean '{meant}'?",
    ):
        options.add_session_config_entry(key, "1")


def test_a_key_that_resembles_nothing_is_refused_without_a_guess(options):
    with pytest.raises(
        InvalidArgument, match=r"unknown session option 'session\.xyzzy'\.\n"
    ):
        options.add_session_config_entry("session.xyzzy", "1")


def test_a_dynamic_option_is_sent_where_it_belongs(options):
    with pytest.raises(
        InvalidArgument, match="is not a session option but a dynamic one"
    ) as caught:
        options.add_session_config_entry("ep.dynamic.workload_type", "Efficient")

    assert "set_ep_dynamic_options" in caught.value.hint


IGNORED = [
    "session.use_env_allocators",
    "ep.cuda.use_arena",
    "ep.nnapi.partitioning_stop_ops",
    "mlas.use_lut_gemm",
    "optimization.not_known_to_anybody",
    "a-key-of-the-hosts-own",
]


def test_a_key_that_means_nothing_here_is_kept_and_listed(options):
    for key in IGNORED:
        options.add_session_config_entry(key, "1")
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.qnnexecutionprovider.htp_arch", "73")

    assert list(options.ignored_config_entries) == IGNORED
    assert options.provider_option_keys == ("ep.qnnexecutionprovider.htp_arch",)
    assert options.get_session_config_entry("session.use_env_allocators") == "1"


def test_options_of_one_ep_are_told_apart_by_its_lower_case_name(options):
    options.add_session_config_entry("ep.qnnexecutionprovider.htp_arch", "73")
    options.add_session_config_entry("ep.qnnexecutionprovider.a.b", "1")
    options.add_session_config_entry("ep.openvinoexecutionprovider.device", "CPU")

    assert options.provider_config_entries("QNNExecutionProvider") == {
        "htp_arch": "73",
        "a.b": "1",
    }
    assert options.provider_config_entries("QNN") == {}


@pytest.mark.parametrize(
    "key", ["ep.QNNExecutionProvider.htp_arch", "ep.qnn.", "ep.", "ep..x"]
)
def test_what_only_looks_like_an_eps_option_is_refused(options, key):
    with pytest.raises(InvalidArgument, match="unknown session option"):
        options.add_session_config_entry(key, "1")


@pytest.mark.parametrize(
    ("key", "value"), [("ep.context_enable", 1), (3, "1"), ("k", None), ("k", b"1")]
)
def test_keys_and_values_are_text(options, key, value):
    with pytest.raises(InvalidArgument, match="key and value must be text"):
        options.add_session_config_entry(key, value)


def test_the_last_value_counts(options):
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_enable", "0")

    assert options.get_session_config_entry("ep.context_enable") == "0"


def test_a_key_that_was_never_set_has_its_default_or_an_error(options):
    assert options.get_session_config_entry("ep.context_embed_mode") == "0"

    with pytest.raises(
        InvalidArgument, match=r"'ep\.context_enabel' was never set\. Did you mean"
    ):
        options.get_session_config_entry("ep.context_enabel")


def test_entries_are_handed_out_read_only(options):
    options.add_session_config_entry("a", "1")
    entries = options.config_entries

    with pytest.raises(TypeError):
        entries["a"] = "2"
    options.add_session_config_entry("b", "1")
    assert dict(entries) == {"a": "1"}


def test_providers_are_kept_in_order_with_their_options_as_text(options):
    given = {"htp_arch": 73, "fp16": True}
    options.add_provider("QNN", given)
    options.add_provider("CPUExecutionProvider")
    given["htp_arch"] = 1

    assert options.providers == [
        ("QNN", {"htp_arch": "73", "fp16": "True"}),
        ("CPUExecutionProvider", {}),
    ]


def test_the_load_can_be_cancelled_from_another_thread(options):
    thread = threading.Thread(target=options.set_load_cancellation_flag, args=(True,))
    thread.start()
    thread.join()

    assert options.cancellation.requested
    with pytest.raises(
        ModelLoadCanceled, match="the host set the load cancellation flag"
    ):
        options.cancellation.raise_if_requested()

    options.set_load_cancellation_flag(False)
    options.cancellation.raise_if_requested()
    assert not options.cancellation.requested


def test_numbers_are_those_of_onnxruntime():
    import onnxruntime

    ours = {level.name: level.value for level in GraphOptimizationLevel}
    theirs = {
        n: int(v)
        for n, v in onnxruntime.GraphOptimizationLevel.__members__.items()
        if n in ours
    }
    assert ours == theirs
    assert {m.name: m.value for m in ExecutionMode} == {
        name: int(mode) for name, mode in onnxruntime.ExecutionMode.__members__.items()
    }
    assert (
        OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
        | OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
        == 3
    )


def test_a_run_has_a_tag_and_can_be_stopped():
    run = RunOptions()

    assert (run.terminate, run.tag) == (False, "")


@pytest.mark.parametrize(
    "name", ["intra_op_num_threads", "inter_op_num_threads", "log_severity_level"]
)
@pytest.mark.parametrize("value", ["4", 1.5, None, True, [2]])
def test_a_number_that_is_none_is_refused_when_it_is_set(name, value):
    options = SessionOptions()
    before = getattr(options, name)

    with pytest.raises(InvalidArgument, match=f"{name} must be a whole number, not"):
        setattr(options, name, value)

    assert getattr(options, name) == before


def test_an_execution_mode_is_one_of_the_two():
    options = SessionOptions()
    options.execution_mode = 1

    with pytest.raises(InvalidArgument, match="5 is not a value of ExecutionMode"):
        options.execution_mode = 5

    assert options.execution_mode is ExecutionMode.ORT_PARALLEL
