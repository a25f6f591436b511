"""`load_or_compile` of epctx_onnxruntime: compiled once, whole, fresh, and
onnxruntime's own session.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from cached_runtime import (
    EP,
    OptionalCpuExecutionProvider,
    in_place,
    registry,
    session_options,
)
from epctx_cache import content
from epctx_cache.store import EntryStore
from epctx_onnxruntime import cached
from epctx_onnxruntime.cached import load_or_compile, translate
from epctx_onnxruntime.providers.programs import ProgramMaker
from support.folders import MODELS
from support.packages import Packages
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core.errors import PackageMissing
from epctx_core.options import SESSION_OPTIONS
from epctx_core.plugin import Compatibility

pytestmark = pytest.mark.internal

HERE = Path(__file__).parent
KILLED = HERE.parents[1] / "epctx-cache" / "tests" / "killed.py"
OPEN_BATCH = "batch"


class Host:
    """A program that loads models by `load_or_compile`, with a cache of its own."""

    def __init__(self, folder, caplog):
        self.folder = folder
        self._caplog = caplog
        self.registry = registry()

    def session(self, model, options=None, **arguments):
        options = session_options() if options is None else options
        given = {
            "provider": EP,
            "cache_dir": self.folder,
            "registry": self.registry,
            **arguments,
        }
        return load_or_compile(model, options, **given)

    def answer(self, model, options=None, **arguments):
        return self.session(model, options, **arguments).run(None, {"x": example()})[0]

    @property
    def entries(self):
        return list(EntryStore(self.folder).entries())

    def _messages(self, level):
        records = self._caplog.get_records("call")
        return [
            r.getMessage()
            for r in records
            if r.levelno >= level and r.name == "epctx.cache"
        ]

    @property
    def compiles(self):
        return sum(text.startswith("compiled ") for text in self.messages)

    @property
    def messages(self):
        return self._messages(logging.INFO)

    @property
    def warnings(self):
        return self._messages(logging.WARNING)


@pytest.fixture
def host(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="epctx.cache")
    return Host(tmp_path / "cache", caplog)


@pytest.fixture
def runtime(monkeypatch):
    """A runtime in onnxruntime's place; see `engines.cached_runtime`."""
    return in_place(monkeypatch.setattr)


@pytest.fixture
def model(tmp_path):
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), tmp_path / "small.onnx")


@pytest.fixture
def expected(model):
    return onnxruntime.InferenceSession(model).run(None, {"x": example()})[0]


# -- a load
# --------------------------------------------------------------------------------------


def test_the_model_is_compiled_the_first_time_and_loaded_after_that(
    host, model, expected, runtime
):
    answers = [host.answer(model) for _ in range(3)]

    assert all(np.allclose(answer, expected, atol=1e-6) for answer in answers)
    assert host.compiles == 1
    (entry,) = host.entries
    assert [opened for opened, _ in runtime.opened] == [
        entry.folder / "model_ctx.onnx"
    ] * 3


def test_bytes_are_a_model_too(host, model, expected, runtime):
    assert np.allclose(host.answer(model.read_bytes()), expected, atol=1e-6)
    assert np.allclose(host.answer(model), expected, atol=1e-6)
    assert host.compiles == 1


def test_a_model_whose_compiled_form_onnxruntime_cannot_load_is_loaded_as_it_is(
    host, model, expected
):
    sessions = [host.session(model) for _ in range(2)]

    assert all(type(session) is onnxruntime.InferenceSession for session in sessions)
    assert host.compiles == 1
    for session in sessions:
        assert np.allclose(session.run(None, {"x": example()})[0], expected, atol=1e-6)


class TakesNothingExecutionProvider(OptionalCpuExecutionProvider):
    writes_contexts = True

    def may_try_whole(self, graph):
        return False

    def can_take(self, graph, node):
        return "not today"


def test_a_model_of_which_the_ep_takes_nothing_is_loaded_without_it_and_remembered(
    host, model, expected, caplog
):
    host.registry = epctx.Registry(entry_points=False)
    host.registry.register(TakesNothingExecutionProvider)
    options = [session_options() for _ in range(2)]

    answers = [host.answer(model, given) for given in options]

    assert all(np.allclose(answer, expected, atol=1e-6) for answer in answers)
    assert host.compiles == 1
    assert not any(given.has_providers() for given in options)
    assert (
        host.warnings
        == [
            (
                f"{EP} takes no node of small.onnx, which is loaded without it; "
                "`epctx explain` has the reasons."
            )
        ]
        * 2
    )
    assert "not today" in caplog.text


def test_the_share_of_nodes_on_the_cpu_is_told_at_each_load(host, model, runtime):
    class Half(OptionalCpuExecutionProvider):
        def may_try_whole(self, graph):
            return False

        def can_take(self, graph, node):
            return node.op_type == "Add"

    host.registry = epctx.Registry(entry_points=False)
    host.registry.register(Half)

    for _ in range(2):
        host.session(model)

    assert [text for text in host.messages if text.startswith("small.onnx: ")] == [
        (
            f"small.onnx: {EP} runs 2 of 4 nodes (50%), CPUExecutionProvider runs 2 of 4 "
            "nodes (50%)"
        )
    ] * 2


def test_a_context_model_is_loaded_as_it_is(host, model, runtime):
    host.answer(model)
    context = host.entries[0].folder / "model_ctx.onnx"

    host.answer(context)

    assert runtime.opened[-1][0] == context
    assert host.compiles == 1


@pytest.mark.parametrize("isolate", [None, "compile"])
def test_a_compile_is_isolated_by_default(
    host, model, expected, runtime, isolate, monkeypatch
):
    monkeypatch.setattr(
        ProgramMaker, "make", lambda _self: pytest.fail("compiled in this process")
    )
    options = onnxruntime.SessionOptions()
    if isolate is not None:
        options.add_session_config_entry("ep.isolate", isolate)

    assert np.allclose(host.answer(model, options), expected, atol=1e-6)


def test_open_dimensions_get_their_lengths_by_the_argument(host, tmp_path, runtime):
    made = chain(["Relu", "Sigmoid"])
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = OPEN_BATCH
    path = saved(made, tmp_path / "open.onnx")

    (shape,) = [
        each.shape
        for each in host.session(path, free_dimensions={OPEN_BATCH: 2}).get_inputs()
    ]
    host.session(path, free_dimensions={OPEN_BATCH: 4})

    assert shape == [2, 3]
    assert host.compiles == 2


# -- what the key holds
# ------------------------------------------------------------------------------------

FOR_RUNS = {
    "threads": lambda options: setattr(options, "intra_op_num_threads", 2),
    "threads between operators": lambda options: setattr(
        options, "inter_op_num_threads", 2
    ),
    "log": lambda options: setattr(options, "log_severity_level", 3),
    "name in logs": lambda options: setattr(options, "logid", "host"),
    "arena": lambda options: setattr(options, "enable_cpu_mem_arena", False),
    "mode": lambda options: setattr(
        options, "execution_mode", onnxruntime.ExecutionMode.ORT_PARALLEL
    ),
    "level of the load": lambda options: setattr(
        options,
        "graph_optimization_level",
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ),
    "spinning": lambda options: options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    ),
    "checks": lambda options: options.add_session_config_entry(
        "ep.context_verify", "full"
    ),
    "fallback": lambda options: options.add_session_config_entry(
        "session.disable_cpu_ep_fallback", "0"
    ),
}
FOR_COMPILES = {
    "option of the EP": {"provider_options": {"effort": "3"}},
    "level of the compile": {
        "graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    },
    "embedded": {"options": {"ep__context_embed_mode": "1"}},
    "prefix": {"options": {"ep__context_node_name_prefix": "acme_"}},
    "least nodes": {"options": {"ep__partition_min_nodes": "2"}},
}


@pytest.mark.parametrize("change", FOR_RUNS.values(), ids=FOR_RUNS)
def test_an_option_of_runs_compiles_nothing_again(host, model, runtime, change):
    host.answer(model)
    options = session_options()
    change(options)

    host.answer(model, options)

    assert host.compiles == 1


@pytest.mark.parametrize("change", FOR_COMPILES.values(), ids=FOR_COMPILES)
def test_an_option_of_the_compile_compiles_again(host, model, runtime, change):
    host.answer(model)
    given = {**change, "options": session_options(**change.get("options", {}))}

    host.answer(model, **given)
    host.answer(model, **given)

    assert host.compiles == 2


def test_another_library_of_the_ep_compiles_again(host, model, runtime, monkeypatch):
    host.answer(model)
    before = OptionalCpuExecutionProvider.get_build_info({})
    newer = type(before)(
        sdk=f"{before.sdk} later", driver=before.driver, target=before.target
    )
    monkeypatch.setattr(
        OptionalCpuExecutionProvider, "get_build_info", lambda _options: newer
    )

    host.answer(model)

    assert host.compiles == 2


# -- entries that are not what they were
# --------------------------------------------------------------------


def test_an_entry_that_the_ep_calls_unsupported_is_compiled_again(
    host, model, expected, runtime, monkeypatch
):
    host.answer(model)
    verdicts = iter([Compatibility.EP_UNSUPPORTED, Compatibility.EP_SUPPORTED_OPTIMAL])
    asked_of(monkeypatch, lambda: next(verdicts))

    assert np.allclose(host.answer(model), expected, atol=1e-6)
    assert host.compiles == 2
    (warning,) = host.warnings
    assert "EP_UNSUPPORTED of what was compiled from small.onnx" in warning


def test_an_ep_that_prefers_to_compile_again_does_so_once(
    host, model, expected, runtime, monkeypatch
):
    host.answer(model)
    asked_of(monkeypatch, lambda: Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION)

    assert np.allclose(host.answer(model), expected, atol=1e-6)
    assert host.compiles == 2


def test_an_ep_that_refuses_what_it_has_just_compiled_is_an_error(
    host, model, runtime, monkeypatch
):
    asked_of(monkeypatch, lambda: Compatibility.EP_UNSUPPORTED)

    with pytest.raises(epctx.InvalidGraph, match="EP_UNSUPPORTED"):
        host.answer(model)


def asked_of(monkeypatch, verdict):
    """Have the EP say something about every compiled model."""
    monkeypatch.setattr(
        OptionalCpuExecutionProvider, "get_compatibility_info", lambda *_: "1"
    )
    monkeypatch.setattr(cached, "get_model_compatibility", lambda *_a, **_k: verdict())


def test_a_binary_swapped_for_that_of_another_model_is_compiled_again(
    host, model, expected, runtime, tmp_path
):
    other = saved(
        chain(["Relu", "Add", "Sigmoid", "Add"], seed=9), tmp_path / "other.onnx"
    )
    host.answer(model)
    (first,) = host.entries
    host.answer(other)
    (second,) = (entry for entry in host.entries if entry.key != first.key)
    (binary,) = first.folder.glob("*.bin")
    theirs = second.folder / binary.name
    assert binary.stat().st_size == theirs.stat().st_size
    shutil.copyfile(theirs, binary)

    assert np.allclose(host.answer(model), expected, atol=1e-6)
    assert host.compiles == 3
    assert "have another digest" in host.warnings[-1]


@pytest.mark.parametrize(
    "kind", [epctx.InvalidGraph, epctx.EPFail, epctx.RuntimeException]
)
def test_an_entry_that_the_runtime_cannot_load_is_compiled_again(
    host, model, expected, runtime, kind
):
    host.answer(model)
    runtime.fail = kind("the driver is another one")

    assert np.allclose(host.answer(model), expected, atol=1e-6)
    assert host.compiles == 2


def test_an_error_of_onnxruntime_that_is_not_the_entrys_fault_leaves_it(
    host, model, runtime
):
    host.answer(model)
    runtime.fail = epctx.InvalidArgument("these options do not fit")

    with pytest.raises(epctx.InvalidArgument, match="do not fit"):
        host.answer(model)

    assert host.compiles == 1
    assert len(host.entries) == 1


# -- session options of the host
# ----------------------------------------------------------------------------


def test_a_translation_has_the_entries_that_epctx_acts_on_and_the_threads():
    given = onnxruntime.SessionOptions()
    given.intra_op_num_threads = 3
    given.add_session_config_entry("ep.context_embed_mode", "1")
    given.add_session_config_entry("session.intra_op.allow_spinning", "0")

    options = translate(given, {"batch": 4})

    assert dict(options.config_entries) == {
        "ep.isolate": "compile",
        "ep.context_embed_mode": "1",
    }
    assert options.intra_op_num_threads == 3
    assert dict(options.model_overrides.dimensions) == {"batch": 4}


def test_every_option_of_epctx_can_be_given_by_an_entry():
    given = onnxruntime.SessionOptions()
    for key, option in SESSION_OPTIONS.items():
        given.add_session_config_entry(key, option.default)

    assert set(cached._read_entries(given)) == set(SESSION_OPTIONS)


def test_a_wrong_entry_is_refused_by_its_name():
    given = onnxruntime.SessionOptions()
    given.add_session_config_entry("ep.context_embed_mode", "yes")

    with pytest.raises(epctx.InvalidArgument, match=r"ep\.context_embed_mode"):
        translate(given, {})


def test_session_options_of_epctx_are_refused(host, model):
    with pytest.raises(
        epctx.InvalidArgument, match=r"takes onnxruntime\.SessionOptions"
    ):
        host.session(model, epctx.SessionOptions())


OF_THE_SOURCE = {
    "ep.context_enable": "1",
    "ep.context_file_path": "elsewhere/m_ctx.onnx",
    "session.model_external_initializers_file_folder_path": str(HERE),
    "session.load_model_format": "ONNX",
}


def test_entries_about_the_source_do_not_reach_the_compiled_model_and_stay_the_hosts(
    host, model, runtime
):
    options = session_options()
    for key, value in OF_THE_SOURCE.items():
        options.add_session_config_entry(key, value)

    host.answer(model, options)

    (_, entries) = runtime.opened[-1]
    assert {key: entries[key] for key in OF_THE_SOURCE} == {
        key: SESSION_OPTIONS[key].default for key in OF_THE_SOURCE
    }
    assert {
        key: options.get_session_config_entry(key) for key in OF_THE_SOURCE
    } == OF_THE_SOURCE


def test_session_options_can_be_used_for_many_models(host, model, tmp_path):
    other = saved(chain(["Relu", "Sigmoid"]), tmp_path / "other.onnx")
    options = session_options()

    assert options.has_providers() is False
    host.session(model, options)
    host.session(other, options)

    assert options.has_providers() is True


def test_session_options_with_an_ep_of_the_hosts_own_are_refused(host, model):
    options = session_options()
    options.add_provider_for_devices(
        OptionalCpuExecutionProvider.library.list_devices()[:1], {}
    )

    with pytest.raises(epctx.InvalidArgument, match="have an EP already"):
        host.session(model, options)
    assert host.compiles == 0


# -- errors and what is not cached
# --------------------------------------------------------------------------


def test_an_ep_that_is_not_one_of_onnxruntimes_is_refused(host, model):
    with pytest.raises(epctx.InvalidArgument, match="not a plugin EP of onnxruntime"):
        host.session(model, provider="VitisAI", registry=epctx.default_registry)


def test_an_ep_that_is_not_installed_is_an_error_and_an_optional_one_is_left_out(
    host, model, expected
):
    with pytest.raises(epctx.EpctxError, match="NoSuchExecutionProvider"):
        host.session(model, provider="NoSuchExecutionProvider")

    options = session_options(ep__optional_providers="NoSuchExecutionProvider")
    assert np.allclose(
        host.answer(model, options, provider="NoSuchExecutionProvider"),
        expected,
        atol=1e-6,
    )


@pytest.mark.parametrize("provider", [None, 3, ["QNN"]])
def test_an_ep_is_named_by_a_text_or_a_device(host, model, provider):
    with pytest.raises(epctx.InvalidArgument):
        host.session(model, provider=provider)


def test_a_device_other_than_the_one_that_the_options_choose_is_refused(host, model):
    npu = SimpleNamespace(type=SimpleNamespace(name="NPU"), vendor_id=1, device_id=2)

    with pytest.raises(epctx.InvalidArgument, match="compiles for another device"):
        host.session(model, provider=SimpleNamespace(ep_name=EP, device=npu))


def test_the_cpu_ep_compiles_nothing(host, model, expected):
    (device, *_) = OptionalCpuExecutionProvider.library.list_devices()

    assert np.allclose(host.answer(model, provider=device), expected, atol=1e-6)
    assert host.entries == []


@pytest.fixture
def two(host, tmp_path, monkeypatch):
    """The host has two distributions of the EP, of which one is no EP of
    onnxruntime's.
    """
    packages = Packages(tmp_path / "site")
    code = f"from cached_runtime import {EP} as Provider"
    packages.install("acme-ort", EP, code=code)
    packages.install("labs-own", EP)
    monkeypatch.syspath_prepend(packages.folder)
    host.registry = epctx.Registry()
    return host


@pytest.mark.parametrize("isolate", ["", "compile"])
@pytest.mark.parametrize("name", [f"acme-ort:{EP}", "Acme_Ort:optionalcpu", EP])
def test_of_two_distributions_of_an_ep_the_one_named_or_on_onnxruntime_is_used(
    two, model, expected, runtime, name, isolate
):
    options = session_options(ep__isolate=isolate)

    answers = [two.answer(model, options, provider=name) for _ in range(2)]

    assert all(np.allclose(answer, expected, atol=1e-6) for answer in answers)
    (entry,) = two.entries
    assert [opened for opened, _ in runtime.opened] == [
        entry.folder / "model_ctx.onnx"
    ] * 2


def test_a_device_means_the_distribution_of_its_ep_that_is_on_onnxruntime(two, model):
    (cpu, *_) = OptionalCpuExecutionProvider.library.list_devices()
    device = SimpleNamespace(ep_name=EP, device=cpu.device)

    with pytest.raises(epctx.InvalidArgument, match="compiles for another device"):
        two.session(model, provider=device)


def test_the_distribution_of_an_ep_that_is_named_has_to_be_on_onnxruntime(two, model):
    with pytest.raises(
        epctx.InvalidArgument, match="of labs-own is not a plugin EP"
    ) as caught:
        two.session(model, provider=f"labs-own:{EP}")

    assert "name its EP as '<distribution>:<EP>'" in caught.value.hint


SECOND_START = """
import json, sys
import cached_runtime
from epctx_onnxruntime import cached
opened = []
cached_runtime.in_place(setattr)
cached._open = lambda model, *_: opened.append(str(model))
cached.load_or_compile(
    sys.argv[1], cached_runtime.session_options(), provider=cached_runtime.EP,
    cache_dir=sys.argv[2], registry=cached_runtime.registry(),
)
heavy = ("onnx", "epctx_core.compiling.compile", "epctx_core.graph.weights")
print(json.dumps([opened, [name for name in heavy if name in sys.modules]]))
"""


def test_a_second_start_imports_neither_onnx_nor_what_compiles(
    host, runtime, model, monkeypatch
):
    # Else the file is too new to be known by its time.
    monkeypatch.setattr(content, "RACY_NS", 0)
    host.session(model)
    (entry,) = host.entries
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }

    said = subprocess.check_output(
        [sys.executable, "-c", SECOND_START, model, host.folder],
        text=True,
        env=environment,
        timeout=100,
    )

    assert json.loads(said) == [[str(entry.folder / "model_ctx.onnx")], []]


def test_where_compiling_is_forbidden_only_what_is_cached_is_loaded(
    host, model, runtime
):
    options = session_options(session__disable_model_compile="1")

    with pytest.raises(epctx.ModelRequiresCompilation):
        host.session(model, options)
    host.answer(model)

    host.answer(model, options)
    assert host.compiles == 1


class Absent:
    """Finds that epctx-cache is not installed."""

    def find_spec(self, name, *_):
        if name.partition(".")[0] == "epctx_cache":
            raise ModuleNotFoundError(name="epctx_cache")


def test_a_missing_package_is_named(host, model, monkeypatch):
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "epctx_cache"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])

    with pytest.raises(PackageMissing, match="needs the package epctx-cache"):
        host.session(model)


@pytest.mark.parametrize("key", ["ep.share_ep_contexts", "ep.enable_weightless_mode"])
def test_what_cannot_be_cached_is_refused(host, model, key):
    with pytest.raises(epctx.InvalidArgument, match="cannot be cached"):
        host.session(model, session_options(**{key.replace(".", "__"): "1"}))


def test_where_the_cache_cannot_be_used_the_model_is_loaded_as_it_is(
    host, model, expected, tmp_path, runtime
):
    host.folder = tmp_path / "a file"
    host.folder.write_text("")

    assert np.allclose(host.answer(model), expected, atol=1e-6)
    assert "cannot be used" in host.warnings[0]
    assert runtime.opened[-1][0] == model


def test_an_error_of_onnxruntime_has_the_class_of_its_code(host, tmp_path):
    with pytest.raises(epctx.InvalidProtobuf):
        cached._open(b"no model", session_options(), EP)
    with pytest.raises(epctx.NoSuchFile):
        cached._open(tmp_path / "none.onnx", session_options(), EP)


def test_the_example_starts_twice(host):
    root = HERE.parents[2]
    network = MODELS / "resnet" / "model.onnx"
    command = [
        sys.executable,
        root / "examples" / "keep_onnxruntime.py",
        network,
        host.folder,
    ]

    said = subprocess.check_output(command, text=True, timeout=300).splitlines()

    assert [line.split(":")[0] for line in said] == [
        "first start",
        "second start",
        "results",
    ]


# -- many processes
# --------------------------------------------------------------------------------------


def started(program, *arguments):
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_eight_processes_compile_once(host, model):
    processes = [started("cached_asking.py", model, host.folder, 5) for _ in range(8)]

    said = [json.loads(process.communicate(timeout=300)[0]) for process in processes]

    assert sum(each["compiles"] for each in said) == 1
    assert all(
        answer == said[0]["answers"][0] for each in said for answer in each["answers"]
    )
    assert len(host.entries) == 1


def kills(model, folder, step):
    process = started("cached_killed.py", KILLED, model, folder, 1, 1000, step)
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.stress)])
def test_killed_at_any_change_the_next_one_gets_a_whole_entry(host, model, step):
    found = kills(model, host.folder, step)

    assert sum(kill["killed"] for kill in found) >= 32 // step
    assert all(kill["answers"] == found[0]["answers"] for kill in found)
    assert [(kill["entries"], kill["faults"], kill["left"]) for kill in found] == [
        (1, [], [])
    ] * len(found)
