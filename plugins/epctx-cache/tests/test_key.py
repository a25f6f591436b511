"""What makes another entry, what does not, and that a key is the same in every
process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from epctx_cache import key as keys
from support.engine_eps import Alpha
from support.sim_eps import OPENVINO, QNN, VITISAI, with_eps
from support.small_models import SHAPE, chain, saved

import epctx_core as epctx
from epctx_core.ext import ProviderChoice
from epctx_core.plugin import BuildInfo, ProviderOption, hookimpl

pytestmark = pytest.mark.internal

SECRET = "c0ffee" * 10 + "beef"


def with_entry(key, value, *eps):
    options = with_eps(*(eps or (QNN,)))
    options.add_session_config_entry(key, value)
    return options


def with_option(name=QNN, **given):
    """Return options with QNN as `with_eps` has it, and more said."""
    options = epctx.SessionOptions()
    options.add_provider(name, {**with_eps(QNN).providers[0][1], **given})
    return options


def with_value(value):
    options = with_eps(QNN)
    options.add_initializer("w1", np.full(SHAPE, value, np.float32))
    return options


@pytest.fixture
def plain(cache, model):
    return cache.key(model)


@pytest.mark.parametrize(
    "options",
    [
        with_eps(OPENVINO),
        with_eps(QNN, OPENVINO),
        with_eps(),
        with_option(htp_arch="75"),
        with_entry("ep.qnnexecutionprovider.htp_arch", "75"),
        with_entry("ep.context_node_name_prefix", "a_"),
        with_entry("ep.context_embed_mode", "1"),
        with_entry("ep.context_model_external_initializers_file_name", "w.data"),
        with_entry("ep.partition_min_nodes", "2"),
        with_entry("ep.partition_max_count", "1"),
        with_entry("ep.partition_without_computation", "keep"),
        with_entry("ep.on_compile_failure", "next"),
        with_entry("acme.something_that_an_ep_may_read", "1"),
        with_value(1),
    ],
    ids=[
        "another EP", "an EP more", "no EP", "option", "option as an entry", "prefix", "embedded",
        "initializers file", "min nodes", "max count", "no computation", "compile failure", "unknown entry",
        "initializer",
    ],
)  # fmt: skip
def test_what_changes_the_output_gives_another_entry(cache, model, plain, options):
    assert cache.key(model, options) != plain


def test_an_option_given_either_way_is_one_option(cache, model):
    assert cache.key(model, with_option(htp_arch="75")) == cache.key(
        model, with_entry("ep.qnnexecutionprovider.htp_arch", "75")
    )


def test_the_order_of_eps_matters(cache, model):
    assert cache.key(model, with_eps(QNN, OPENVINO)) != cache.key(
        model, with_eps(OPENVINO, QNN)
    )


def test_the_value_of_an_initializer_and_the_length_of_a_dimension_matter(
    cache, tmp_path
):
    model = chain(["Relu", "Add"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path = saved(model, tmp_path / "open.onnx")

    def key(name, length):
        options = with_eps(QNN)
        getattr(options, name)("batch", length)
        return cache.key(path, options)

    by_length = {key("add_free_dimension_override_by_name", n) for n in (2, 1)}
    by_value = {cache.key(path, with_value(value)) for value in (1, 2)}

    assert len({cache.key(path), *by_length, *by_value}) == 5


def test_the_optimisation_level_matters(cache, model, plain):
    basic = cache.key(
        model, graph_optimization_level=epctx.GraphOptimizationLevel.ORT_ENABLE_BASIC
    )

    assert basic != plain


class Wrapper:
    """Host plugin of a hook."""

    @hookimpl(wrapper=True)
    def get_capability(self):
        return (yield)


def wrapped(version):
    options = with_eps(QNN)
    plugin = Wrapper()
    if version is not None:
        plugin.version = version
    options.add_host_plugin(plugin)
    return options


def test_a_host_plugin_matters_if_it_has_a_version(cache, model, plain):
    watching, first, second = (
        cache.key(model, wrapped(version)) for version in (None, "1", "2")
    )

    assert watching == plain
    assert len({plain, first, second}) == 3


def test_a_weight_in_a_file_matters_and_its_place_on_the_machine_does_not(
    cache, with_weights
):
    first = cache.key(with_weights(0.5, "a", "one.onnx"))

    assert cache.key(with_weights(0.5, "b", "two.onnx")) == first
    assert cache.key(with_weights(0.25, "c", "one.onnx")) != first


def changed(field, value):
    return lambda monkeypatch: monkeypatch.setattr(*field, value)


@pytest.mark.parametrize(
    "change",
    [
        changed((epctx, "__version__"), "9.9"),
        changed((keys, "PLUGIN_API"), 99),
        changed((keys, "VERSION"), 99),
        changed((keys.platform, "machine"), lambda: "another"),
        changed((keys, "installed_states"), lambda *_a, **_k: {"epctx-sim-qnn": "9.9"}),
        changed((keys, "newest_change"), lambda _path: "edited"),
        changed((ProviderChoice, "build_info"), lambda _choice: BuildInfo(sdk="9.9")),
    ],
    ids=[
        "core version",
        "plugin API",
        "key version",
        "machine",
        "distribution",
        "core's code",
        "SDK",
    ],
)
def test_what_compiles_matters(cache, model, plain, monkeypatch, change):
    change(monkeypatch)

    assert cache.key(model) != plain


@pytest.mark.parametrize(
    "options",
    [
        with_entry("session.log_severity_level", "0"),
        with_entry("session.intra_op_num_threads", "3"),
        with_entry("ep.context_verify", "full"),
        with_entry("ep.context_file_mapping", "0"),
        with_entry("ep.context_file_path", "somewhere/m_ctx.onnx"),
        with_entry("ep.prefer_latency", "1"),
        with_entry("ep.isolate", "compile"),
        with_entry("ep.compile_timeout", "60"),
        with_entry("ep.partition_min_nodes", "1"),
        with_option(htp_arch="73"),
        with_entry("session.record_ep_graph_assignment_info", "1"),
        with_option("qnn"),
    ],
    ids=[
        "log level", "threads", "verification", "mapping", "file path", "latency", "isolation", "time limit", "a default", "an EP's default",
        "assignment", "short name",
    ],
)  # fmt: skip
def test_what_does_not_change_the_output_gives_the_same_entry(
    cache, model, plain, options
):
    assert cache.key(model, options) == plain


def test_properties_that_only_a_session_has_give_the_same_entry(cache, model, plain):
    options = with_eps(QNN)
    options.log_severity_level = 0
    options.intra_op_num_threads = 2
    options.graph_optimization_level = epctx.GraphOptimizationLevel.ORT_DISABLE_ALL

    assert cache.key(model, options) == plain


def test_options_stand_in_the_key_as_they_did_in_entries_made_before(monkeypatch):
    monkeypatch.setattr(keys, "newest_change", lambda _path: "")
    options = with_entry("acme.something_that_an_ep_may_read", "1")
    options.add_session_config_entry("ep.context_node_name_prefix", "a_")
    options.add_session_config_entry("ep.partition_max_count", "3")
    options.add_session_config_entry("ep.context_verify", "full")
    options.add_session_config_entry("mlas.use_lut_gemm", "1")

    parts = keys.ingredients("m", [], options, 0, lambda: b"1" * 32)

    key = keys.key_of({name: parts[name] for name in ("session", "other_entries")})
    assert key == "cabe60c698d3ca127b25cf0f4401bde3142355f099e0e825c2ffbb4b346b08b7"


def test_what_an_isolated_ep_compiled_is_found_without_isolation(cache, model):
    isolated = cache.key(model, with_entry("ep.isolate", "compile"))

    assert cache.key(model) == isolated
    assert cache.compiles == 1


def test_a_secret_option_matters_and_is_nowhere_in_the_cache(cache, model):
    pytest.importorskip("cryptography")
    options = epctx.SessionOptions()
    options.add_provider(VITISAI, {"encryption_key": SECRET})
    other = epctx.SessionOptions()
    other.add_provider(VITISAI, {"encryption_key": SECRET[::-1]})

    key = cache.key(model, options)

    assert key == cache.key(model, options) != cache.key(model, other)
    files = [path.read_bytes() for path in cache.folder.rglob("*") if path.is_file()]
    assert all(
        SECRET.encode() not in data and bytes.fromhex(SECRET) not in data
        for data in files
    )
    assert (cache.folder / "v1" / "secret").stat().st_mode & 0o077 == 0


def test_two_caches_hide_a_secret_differently():
    choice = SimpleNamespace(
        name="A",
        cls=Alpha,
        options={"k": "v"},
        public_options=dict,
        build_info=BuildInfo,
        record=SimpleNamespace(distribution=None, version=None, place=""),
    )

    first, second = (
        keys.ingredients("m", [choice], epctx.SessionOptions(), 0, lambda s=secret: s)
        for secret in (b"1" * 32, b"2" * 32)
    )

    assert first["eps"][0]["secrets"] != second["eps"][0]["secrets"]
    assert {**first, "eps": []} == {**second, "eps": []}


def test_a_class_that_the_host_registered_counts_by_its_module(
    cache, model, monkeypatch
):
    registry = epctx.Registry(entry_points=False)
    registry.register(Alpha)
    options = with_eps(Alpha.name)

    first = cache.key(model, options, registry=registry)
    monkeypatch.setattr(keys, "newest_change", lambda path: f"later {path.name}")

    assert cache.key(model, options, registry=registry) != first


def test_of_two_classes_of_one_ep_type_each_has_its_entries(cache, model):
    class Other(Alpha):
        options = (ProviderOption("depth", int, default=1, doc="Of the search."),)

    found = set()
    for cls in (Alpha, Other):
        registry = epctx.Registry(entry_points=False)
        registry.register(cls)
        found.add(cache.key(model, with_eps(Alpha.name), registry=registry))

    assert len(found) == 2


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import epctx_core as epctx
options = epctx.SessionOptions()
options.add_provider("QNN", {"vtcm_mb": "4", "htp_arch": "75"})
options.add_session_config_entry("acme.one", "1")
options.add_session_config_entry("acme.two", "2")
print(epctx.compile_cached(sys.argv[2], options, sys.argv[3]).parent.name)
"""


def test_the_key_is_the_same_in_every_process(cache, model):
    def key(seed):
        command = [
            sys.executable,
            "-c",
            PROGRAM,
            str(Path.cwd()),
            str(model),
            str(cache.folder),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.check_output(
            command, env=environment, text=True, timeout=120
        ).strip()

    assert len({key(seed) for seed in ("0", "1", "random")}) == 1


class Site:
    """A folder on sys.path with distributions in it."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def add(self, name, version="1.0", *, requires=(), editable=None, files=None):
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir()
        lines = [f"Requires-Dist: {text}" for text in requires]
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*head, *lines, ""]))
        if files is not None:
            (info / "RECORD").write_text(files)
        if editable is not None:
            said = {"url": editable.as_uri(), "dir_info": {"editable": True}}
            (info / "direct_url.json").write_text(json.dumps(said))


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(made.folder)
    forget()
    yield made
    forget()


def forget():
    """Look again, as a new process does."""
    keys._found.clear()
    keys.newest_change.cache_clear()


def test_a_distributions_state_holds_what_it_requires(site):
    site.add(
        "acme_ep",
        "1.2",
        requires=["acme-sdk>=2", 'acme-fast; extra == "fast"', "not-there"],
    )
    site.add("acme_sdk", "2.1", requires=["acme-ep", 'acme-docs; extra == "docs"'])
    site.add("acme_fast", "3.0")
    site.add("acme_docs", "4.0")

    states = keys.installed_states(["Acme.EP"])

    assert states == {"acme-ep": "1.2", "acme-sdk": "2.1", "acme-fast": "3.0"}


def test_a_distribution_whose_files_were_replaced_within_a_version_has_another_state(
    site,
):
    site.add("acme", files="acme/libacme.so,sha256=aaaa,10\n")
    first = keys.installed_states(["acme"])
    (site.folder / "acme-1.0.dist-info" / "RECORD").write_text(
        "acme/libacme.so,sha256=bbbb,10\n"
    )
    forget()

    assert keys.installed_states(["acme"]) != first
    assert first["acme"].startswith("1.0, files ")


def test_an_editable_installation_has_another_state_after_each_change_of_its_packages(
    site, tmp_path
):
    source = tmp_path / "acme" / "src" / "acme"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    os.utime(source / "__init__.py", (1, 1))
    site.add("acme", editable=tmp_path / "acme")

    def state():
        forget()
        return keys.installed_states(["acme"])["acme"]

    first = state()
    (source.parent / "notes.txt").write_text("no code, and in no package")
    (source.parent.parent / ".git").mkdir()
    assert state() == first == "1.0, edited 1000000000/1"
    os.utime(source / "__init__.py", (2, 2))
    second = state()
    (source / "more.py").write_text("")
    os.utime(source / "more.py", (1, 1))
    third = state()
    (source / "tables").mkdir()
    (source / "tables" / "rules.json").write_text("{}")
    os.utime(source / "tables" / "rules.json", (1, 1))

    assert len({first, second, third, state()}) == 4
