"""The rows of session options, and what the core reads out of them."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from support.pages import read_page

from epctx_core import errors
from epctx_core.errors import InvalidArgument
from epctx_core.options import (
    CancellationFlag,
    ExecutionMode,
    GraphOptimizationLevel,
    Isolation,
    SessionConfig,
    SessionOptions,
    Verification,
    WeightlessMode,
)
from epctx_core.options.ignored_keys import IGNORED_KEYS, is_ignored
from epctx_core.options.session_options import MAX_KEY_LENGTH, MAX_VALUE_LENGTH
from epctx_core.options.table import SESSION_OPTIONS, SessionOption

pytestmark = pytest.mark.internal

PACKAGE = Path(errors.__file__).parent
PLUGINS = PACKAGE.parent / "plugins"
ROWS = {
    name: row
    for name, row in vars(SessionConfig).items()
    if isinstance(row, SessionOption)
}
FLAGS = [
    "ep.context_enable",
    "ep.context_embed_mode",
    "ep.enable_weightless",
    "ep.enable_weightless_ep_context_nodes",
    "ep.share_ep_contexts",
    "ep.stop_share_ep_contexts",
    "ep.context_trust_unverified",
    "session.disable_cpu_ep_fallback",
    "session.disable_model_compile",
    "session.fail_on_suboptimal_compiled_model",
    "session.record_ep_graph_assignment_info",
]


@pytest.fixture
def options():
    return SessionOptions()


def assert_reads(options, **expected):
    config = options.config()
    assert {name: getattr(config, name) for name in expected} == expected


def test_the_defaults_are_those_of_onnxruntime(options):
    assert_reads(
        options,
        context_enable=False,
        context_file_path=None,
        embed=False,
        node_name_prefix="",
        external_initializers_file=None,
        map_binaries=True,
        verification=Verification.ONCE,
        source_model_path=None,
        weightless=WeightlessMode.NONE,
        share_contexts=False,
        stop_sharing=False,
        prefer_latency=None,
        partition_min_nodes=1,
        partition_max_count=None,
        keeps_idle=False,
        external_initializers_folder=None,
        disable_cpu_ep_fallback=False,
        disable_model_compile=False,
        fail_on_suboptimal=False,
        record_assignments=False,
        optional_providers=(),
        read_back=True,
        trust_unverified=False,
        model_format=None,
        isolation=Isolation.NONE,
        isolation_seconds=600,
        isolation_bytes=None,
        compile_seconds=None,
        goes_on_to_next=False,
    )
    assert options.graph_optimization_level is GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode is ExecutionMode.ORT_SEQUENTIAL
    assert (
        options.intra_op_num_threads,
        options.inter_op_num_threads,
        options.log_severity_level,
    ) == (
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
    options.add_session_config_entry(
        "ep.context_model_external_initializers_file_name", "sub/m.data"
    )
    options.add_session_config_entry("ep.context_file_mapping", "0")
    options.add_session_config_entry("ep.context_verify", "full")
    options.add_session_config_entry("ep.context_source_model_path", "/models/m.onnx")
    options.add_session_config_entry("ep.enable_weightless_mode", "1")
    options.add_session_config_entry("ep.prefer_latency", "0")
    options.add_session_config_entry("ep.partition_min_nodes", "3")
    options.add_session_config_entry("ep.partition_max_count", "7")
    options.add_session_config_entry("ep.partition_without_computation", "keep")
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", "weights"
    )
    options.add_session_config_entry("ep.optional_providers", "A, B,")
    options.add_session_config_entry("ep.context_read_back", "0")
    options.add_session_config_entry("session.load_model_format", "ORT")
    options.add_session_config_entry("ep.isolate", "compile")
    options.add_session_config_entry("ep.isolate_timeout_seconds", "5")
    options.add_session_config_entry("ep.isolate_max_bytes", "1000")
    options.add_session_config_entry("ep.compile_timeout", "30")
    options.add_session_config_entry("ep.on_compile_failure", "next")

    assert_reads(
        options,
        context_enable=True,
        context_file_path="out/m_ctx.onnx",
        embed=True,
        node_name_prefix="pre-",
        external_initializers_file="sub/m.data",
        map_binaries=False,
        verification=Verification.FULL,
        source_model_path="/models/m.onnx",
        weightless=WeightlessMode.EXTERNAL_ONLY,
        share_contexts=True,
        stop_sharing=True,
        prefer_latency=False,
        partition_min_nodes=3,
        partition_max_count=7,
        keeps_idle=True,
        external_initializers_folder="weights",
        trust_unverified=True,
        disable_cpu_ep_fallback=True,
        disable_model_compile=True,
        fail_on_suboptimal=True,
        record_assignments=True,
        optional_providers=("A", "B"),
        read_back=False,
        model_format="ORT",
        isolation=Isolation.COMPILE,
        isolation_seconds=5,
        isolation_bytes=1000,
        compile_seconds=30,
        goes_on_to_next=True,
    )


@pytest.mark.parametrize("key", FLAGS)
@pytest.mark.parametrize("value", ["true", "", "2", " 1", "yes"])
def test_a_flag_is_0_or_1(options, key, value):
    with pytest.raises(
        InvalidArgument, match=f"'{key}' has the value '{value}'; allowed is '0' or '1'"
    ) as caught:
        options.add_session_config_entry(key, value)

    assert caught.value.hint == SESSION_OPTIONS[key].doc
    assert options.get_session_config_entry(key) == "0"


@pytest.mark.parametrize(
    ("switch", "mode", "means"),
    [
        (None, "2", WeightlessMode.ALL),
        ("1", None, WeightlessMode.ALL),
        ("0", None, WeightlessMode.NONE),
        ("1", "1", WeightlessMode.EXTERNAL_ONLY),
        ("0", "0", WeightlessMode.NONE),
    ],
)
def test_of_two_keys_for_weightless_mode_the_newer_says_which_weights(
    options, switch, mode, means
):
    set_weightless(options, switch, mode)

    assert options.config().weightless is means


@pytest.mark.entry(131)
def test_the_first_name_of_weightless_mode_means_the_same(options):
    options.add_session_config_entry("ep.enable_weightless_ep_context_nodes", "1")
    assert options.config().weightless is WeightlessMode.ALL

    options.add_session_config_entry("ep.enable_weightless", "0")
    with pytest.raises(
        InvalidArgument,
        match=r"nodes=1 and ep\.enable_weightless=0 contradict each other",
    ):
        options.config()


def set_weightless(options, switch, mode):
    for key, value in (
        ("ep.enable_weightless", switch),
        ("ep.enable_weightless_mode", mode),
    ):
        if value is not None:
            options.add_session_config_entry(key, value)


def test_every_key_in_onnxruntimes_binary_is_known():
    import onnxruntime

    binary = next(
        Path(onnxruntime.__file__).parent.glob("capi/onnxruntime_pybind11_state*.so")
    ).read_bytes()
    theirs = {
        match.decode()
        for match in re.findall(
            rb"\0((?:session|ep)\.[a-z0-9_.]+[a-z0-9])(?=\0)", binary
        )
    }

    assert len(theirs) > 50
    assert {
        key for key in theirs if not is_ignored(key) and key not in SESSION_OPTIONS
    } == set()


def test_lengths_are_those_of_onnxruntime(options):
    options.add_session_config_entry("k" * MAX_KEY_LENGTH, "v" * MAX_VALUE_LENGTH)

    for key, value in (
        ("", "v"),
        ("k" * (MAX_KEY_LENGTH + 1), "v"),
        ("k", "v" * (MAX_VALUE_LENGTH + 1)),
    ):
        with pytest.raises(
            InvalidArgument,
            match=f"1 to {MAX_KEY_LENGTH} and a value at most {MAX_VALUE_LENGTH}",
        ):
            options.add_session_config_entry(key, value)


def test_every_option_has_a_doc_and_a_default_that_it_allows():
    for option in SESSION_OPTIONS.values():
        option.check(option.default)
        assert option.doc.endswith(".")


def test_waiting_ends_when_the_host_asks():
    flag = CancellationFlag()
    assert flag.wait(0) is False

    thread = threading.Thread(target=flag.set, args=(True,))
    thread.start()

    assert flag.wait(30) is True
    thread.join()


def tables_of_the_document():
    """Return the tables of options.md: each a list of rows of cells, without the
    heading.
    """
    text = read_page("options.md")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [
            [cell.strip() for cell in row.strip("|").split(" | ")]
            for row in table.splitlines()[2:]
        ]
        for table in tables
    ]


def test_the_document_names_errors_that_there_are():
    acted_on, _ = tables_of_the_document()

    for row in acted_on:
        error = row[4]
        named = re.findall(r"`([A-Z]\w+)`", error)
        assert (error == "none") == (not named)
        assert all(
            issubclass(getattr(errors, name), errors.EpctxError) for name in named
        )


def test_keys_of_one_option_have_one_part_in_a_cache():
    for option in SESSION_OPTIONS.values():
        assert {alias.cache for alias in option.aliases} <= {option.cache}


def test_the_document_shows_each_key_that_only_onnxruntime_knows():
    _, ignored = tables_of_the_document()

    assert [row[0] for row in ignored] == [f"`{key}`" for key in sorted(IGNORED_KEYS)]
    for _, instead in ignored:
        for name in re.findall(r"`SessionOptions\.(\w+)`", instead):
            assert hasattr(SessionOptions(), name)


def test_every_option_says_which_values_it_takes():
    for option in SESSION_OPTIONS.values():
        assert option.allowed
        assert bool(option.choices) != bool(option.values)
