"""write-an-ep.md and the pages after it: their code does what they say, and their
EPs keep the contract.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module, invalidate_caches
from textwrap import indent

import numpy as np
import onnx
import pytest
from documentation.blocks import blocks, commands, files, snippets
from support.installed import install_distribution

import epctx_core as epctx
from epctx_core.testing import Requirements, check_provider

STEPS = ("write-an-ep.md", "ep-payloads.md", "ep-declarations.md", "ep-package.md")
"""The pages that make one EP, in order."""

PAGES = (
    *STEPS,
    "ep-compiler-command.md",
    "ep-static-shapes.md",
    "ep-checklist.md",
)
NETWORK = """
<ir_version: 9, opset_import: ["" : 17]>
network (float[2,4] x) => (float[2,3] y) <float[4,3] w = {0,1,2,3,4,5,6,7,8,9,10,11}> {
    product = MatMul(x, w)
    y = Relu(product)
}
"""
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
Y = np.maximum(X @ np.arange(12, dtype=np.float32).reshape(4, 3), 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with all files of the pages, and a network."""
    made = tmp_path_factory.mktemp("page")
    for name, text in files(*PAGES).items():
        (made / name).write_text(text)
    (made / "npuc").write_text(
        f"#!{sys.executable}\n{files(*PAGES)['npuc'].partition(chr(10))[2]}"
    )
    (made / "npuc").chmod(0o755)
    onnx.save(onnx.parser.parse_model(NETWORK), made / "network.onnx")
    return made


@pytest.fixture(scope="module")
def provider(folder):
    """Import an EP of the pages; forgotten afterwards."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(folder))
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    invalidate_caches()
    yield lambda module, name: getattr(import_module(module), name)
    patch.undo()
    for module in ("acme", "npuc_epctx", "fixed"):
        sys.modules.pop(module, None)


def test_every_block_of_the_pages_is_of_a_kind_that_is_run_here():
    assert {block["kind"] for block in blocks(*PAGES)} == {"console", "python", "toml"}
    assert set(files(*PAGES)) == {
        "acme.py",
        "test_acme.py",
        "pyproject.toml",
        "npuc",
        "npuc_epctx.py",
        "fixed.py",
        "in_onnxruntime.py",
    }


def test_the_eps_of_the_pages_pass_mypy_strict_as_they_are_pasted(folder, tmp_path):
    names = [name for name in files(*PAGES) if name.endswith(".py")]

    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path),
            # onnxruntime has no types.
            *("--disable-error-code", "import-untyped"),
            *names,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert checked.stdout == f"Success: no issues found in {len(names)} source files\n"


def test_the_snippets_run_the_network_and_compile_it(
    folder, provider, monkeypatch, capsys
):
    provider("acme", "AcmeProvider")
    monkeypatch.chdir(folder)

    for page in STEPS:
        names = {"x": X}
        for text in snippets(page):
            exec(text, names)  # noqa: S102 - the page's own code
            epctx.unregister_execution_provider("AcmeExecutionProvider")
            report = names.get("report")

    assert capsys.readouterr().out == f"{[Y]}\n" * 2
    assert [file.path for file in report.outputs] == [
        "network_acme.bin",
        "network_ctx.onnx",
    ]


def test_the_ep_of_the_pages_lists_the_faults_of_its_payloads(
    folder, provider, tmp_path
):
    acme = provider("acme", "AcmeProvider")
    registry = epctx.Registry(entry_points=False)
    registry.register(acme)
    options = epctx.SessionOptions()
    options.add_provider("Acme")
    report = epctx.ModelCompiler(
        options, folder / "network.onnx", registry=registry
    ).compile_to_file(tmp_path / "network_ctx.onnx")

    model = onnx.load(report.output)
    kept = [e for e in model.metadata_props if not e.key.startswith("epctx.")]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, report.output)
    good = epctx.verify_model(report.output, registry=registry)
    binary = tmp_path / "network_acme.bin"
    content = bytearray(binary.read_bytes())
    content[0] ^= 1
    binary.write_bytes(content)
    bad = epctx.verify_model(report.output, registry=registry)

    assert (good.verdict, bad.verdict) == ("ok", "not-ok")
    assert [f.code for f in bad.findings] == ["container-refused", "manifest-missing"]


def test_the_first_page_alone_has_an_ep_that_runs(tmp_path, monkeypatch):
    first = files(STEPS[0])["acme.py"]
    names = {"__name__": "first_step"}
    exec(first, names)  # noqa: S102 - the page's own code
    registry = epctx.Registry(entry_points=False)
    registry.register(names["AcmeProvider"])
    model = onnx.parser.parse_model(NETWORK).SerializeToString()

    with epctx.InferenceSession(
        model, providers=["Acme"], registry=registry
    ) as session:
        (y,) = session.run(None, {"x": X})
        assert session.get_providers()[0] == "AcmeExecutionProvider"

    np.testing.assert_array_equal(y, Y)


@pytest.mark.parametrize(
    "only",
    [
        ["signatures", "claims", "nodes", "payloads"],
        pytest.param(None, marks=pytest.mark.stress),
    ],
    ids=["sample", "whole"],
)
def test_the_first_ep_keeps_the_contract(provider, only):
    report = check_provider(provider("acme", "AcmeProvider"), only=only)

    assert report.ok, report.text()


@pytest.mark.parametrize(
    "only",
    [
        ["signatures", "claims", "payloads_may_go_through_the_host_s_callbacks"],
        pytest.param(
            ["partitions", "boundaries", "contexts", "nodes"], marks=pytest.mark.stress
        ),
    ],
    ids=["sample", "more"],
)
def test_the_command_line_compilers_ep_keeps_the_contract(provider, only):
    report = check_provider(
        provider("npuc_epctx", "NpucProvider"),
        requirements=Requirements(share_groups=False),
        only=only,  # each compile starts a process
    )

    assert report.ok, report.text()


def test_what_the_command_line_compiler_made_is_loaded_and_runs(
    folder, provider, tmp_path
):
    registry = epctx.Registry(entry_points=False)
    registry.register(provider("npuc_epctx", "NpucProvider"))
    options = epctx.SessionOptions()
    options.add_provider("Npuc")
    output = tmp_path / "network_ctx.onnx"

    epctx.ModelCompiler(
        options, folder / "network.onnx", registry=registry
    ).compile_to_file(output)
    with epctx.InferenceSession(output, registry=registry) as session:
        (y,) = session.run(None, {"x": X})

    np.testing.assert_array_equal(y, Y)


@pytest.mark.parametrize("place", [0, 7, 8, -1])
def test_a_damaged_program_of_the_command_line_compiler_is_refused(
    folder, provider, tmp_path, place
):
    registry = epctx.Registry(entry_points=False)
    registry.register(provider("npuc_epctx", "NpucProvider"))
    options = epctx.SessionOptions()
    options.add_provider("Npuc")
    output = tmp_path / "network_ctx.onnx"
    epctx.ModelCompiler(
        options, folder / "network.onnx", registry=registry
    ).compile_to_file(output)
    binary = tmp_path / "network_npuc.bin"
    data = bytearray(binary.read_bytes())
    data[place] ^= 1
    binary.write_bytes(data)

    with pytest.raises(epctx.InvalidGraph):
        epctx.InferenceSession(output, registry=registry)


def test_what_the_tool_refuses_becomes_an_error_with_its_words(
    folder, provider, tmp_path
):
    cls = provider("npuc_epctx", "NpucProvider")
    registry = epctx.Registry(entry_points=False)
    registry.register(type("Npuc", (cls,), {"get_capability": taking_all(cls)}))
    text = NETWORK.replace("Relu(product)", "Softmax(product)")
    options = epctx.SessionOptions()
    options.add_provider("Npuc")

    compiler = epctx.ModelCompiler(
        options,
        onnx.parser.parse_model(text).SerializeToString(),
        True,
        registry=registry,
    )

    with pytest.raises(
        epctx.EPFail, match=r"on: npuc: error: no pattern matches Softmax"
    ):
        compiler.compile_to_bytes()


def taking_all(cls):
    from epctx_core.plugin import hookimpl, supported_partitions

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: True)

    return get_capability


def test_a_machine_without_the_tool_still_loads(provider, monkeypatch, folder):
    from epctx_core.plugin import Purpose

    cls = provider("npuc_epctx", "NpucProvider")
    monkeypatch.setenv("PATH", "")

    assert not cls.availability(Purpose.EXPORT).available
    assert cls.availability(Purpose.LOAD).available


DECLARED = """
<ir_version: 9, opset_import: ["" : 17]>
network (float[2,4] x, int64[2] shape) => (float[4,2] y) <float[4,2] reshaped> {
    positive = Relu(x)
    reshaped = Reshape(positive, shape)
    y = Add(reshaped, reshaped)
}
"""
"""Only the declarations know the shapes of `reshaped` and `y`."""


def test_the_predicate_for_static_shapes_is_a_part_of_its_ep():
    (predicate,) = snippets("ep-static-shapes.md")
    code = files("ep-static-shapes.md")["fixed.py"].splitlines()

    assert set(indent(predicate, " " * 12).splitlines()) <= set(code)


@pytest.fixture
def fixed(provider):
    """The registry and options of the EP for static shapes."""
    registry = epctx.Registry(entry_points=False)
    registry.register(provider("fixed", "FixedProvider"))
    options = epctx.SessionOptions()
    options.add_provider("Fixed")
    return registry, options


def compile_declared(fixed, folder, text=DECLARED):
    registry, options = fixed
    model = onnx.parser.parse_model(text).SerializeToString()
    output = folder / "declared_ctx.onnx"
    epctx.ModelCompiler(options, model, registry=registry).compile_to_file(output)
    return output


def run_declared(fixed, output, shape):
    with epctx.InferenceSession(output, registry=fixed[0]) as session:
        return session.run(None, {"x": X, "shape": np.int64(shape)})[0]


def test_the_ep_for_static_shapes_keeps_the_contract(provider):
    report = check_provider(
        provider("fixed", "FixedProvider"),
        requirements=Requirements(dynamic_shapes=False),
        only=["signatures", "claims", "nodes", "payloads"],
    )

    assert report.ok, report.text()


def test_the_ep_for_static_shapes_compiles_loads_and_runs_declared_ones(
    fixed, tmp_path
):
    output = compile_declared(fixed, tmp_path)

    placed = epctx.inspect_model(output).ep_contexts
    assert [context.source for context in placed] == ["FixedExecutionProvider"] * 2
    np.testing.assert_array_equal(
        run_declared(fixed, output, [4, 2]), 2 * np.maximum(X, 0).reshape(4, 2)
    )


def test_a_declaration_that_a_run_contradicts_is_named(fixed, tmp_path):
    output = compile_declared(fixed, tmp_path)

    with pytest.raises(
        epctx.RuntimeException, match=r"declares float\[4,2\] for the value 'reshaped'"
    ):
        run_declared(fixed, output, [2, 4])


def test_the_ep_for_static_shapes_leaves_open_ones_with_a_reason(fixed):
    registry, options = fixed
    text = NETWORK.replace("float[2,4]", "float[n,4]").replace(
        "float[2,3]", "float[n,3]"
    )
    model = onnx.parser.parse_model(text).SerializeToString()

    with epctx.InferenceSession(model, options, registry=registry) as session:
        (y,) = session.run(None, {"x": X})
    explanation = epctx.explain_model(model, options, registry=registry)

    np.testing.assert_array_equal(y, Y)
    assert "a shape is open" in str(explanation.as_dict())


def test_a_program_for_another_chip_is_refused_before_its_payload_is_read(
    fixed, tmp_path
):
    registry, _ = fixed
    options = epctx.SessionOptions()
    options.add_provider("Fixed", {"chip": "f200"})
    output = compile_declared((registry, options), tmp_path)

    with pytest.raises(epctx.InvalidGraph, match="Fixed"):
        run_declared(fixed, output, [4, 2])


@pytest.mark.parametrize(
    ("chip", "info", "verdict"),
    [
        ("f100", "fixed 2 f100", "EP_SUPPORTED_OPTIMAL"),
        ("f100", "fixed 1 f100", "EP_SUPPORTED_PREFER_RECOMPILATION"),
        ("f100", "fixed 3 f100", "EP_UNSUPPORTED"),
        ("f100", "fixed 2 f200", "EP_UNSUPPORTED"),
        (None, "fixed 2 f200", "EP_SUPPORTED_OPTIMAL"),
        (None, "fixed 3 f200", "EP_UNSUPPORTED"),
        ("f100", "acme 2", "EP_NOT_APPLICABLE"),
        ("f100", "fixed " + "9" * 5000 + " f100", "EP_NOT_APPLICABLE"),
    ],
)
def test_the_rule_for_versions_and_chips_has_all_four_verdicts(
    fixed, provider, monkeypatch, chip, info, verdict
):
    cls = provider("fixed", "FixedProvider")
    monkeypatch.setattr(sys.modules["fixed"], "find_chip", lambda: chip)

    assert cls.validate_compatibility(info, {"chip": "f100"}).name == verdict


def test_a_build_machine_without_the_chip_compiles_and_verifies_and_cannot_load(
    fixed, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys.modules["fixed"], "find_chip", lambda: None)
    registry, _ = fixed
    options = epctx.SessionOptions()
    options.add_provider("Fixed", {"chip": "f200"})

    output = compile_declared((registry, options), tmp_path)

    assert epctx.verify_model(output, registry=registry).ok
    with pytest.raises(epctx.NotImplementedByProvider, match="no Fixed chip found"):
        run_declared(fixed, output, [4, 2])


def test_an_omitted_input_has_no_type_and_does_not_refuse_its_node(fixed):
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    network (float[2,4] x) => (float[2,3] y) <float[4,3] w = {0,1,2,3,4,5,6,7,8,9,10,11}> {
        y = Gemm(x, w, )
    }"""
    model = onnx.parser.parse_model(text).SerializeToString()

    explanation = epctx.explain_model(model, fixed[1], registry=fixed[0])

    assert [node.ep for node in explanation.nodes] == ["FixedExecutionProvider"]


NOTES = """
<ir_version: 9, opset_import: ["" : 17]>
network (float[2] x, float[2] replaced) => (float[2] y)
    <float[2] replaced = {7,8}, float[2] w = {1,2}, float[2] same = {1,2}>
{
    c = Constant<value = float[2] {3, 4}>()
    a = Add(x, w)
    b = Add(a, c)
    d = Add(b, same)
    y = Add(d, replaced)
}
"""
"""A weight, an equal one, a constant, and an input with a default."""


def notes_provider(seen):
    """Return an EP that appends to `seen` what the page says of its arguments."""
    from epctx_core.plugin import (
        Availability,
        Compatibility,
        CompiledPartition,
        EPContextNode,
        ExecutionProvider,
        hookimpl,
        supported_partitions,
    )

    class NotesProvider(ExecutionProvider):
        name = "NotesExecutionProvider"
        vendor = "Notes"
        loads_without_device = True

        @classmethod
        def availability(cls, purpose):
            seen.append(purpose.name)
            return Availability(True)

        @classmethod
        def get_compatibility_info(cls, partitions, options):
            return "notes"

        @classmethod
        def validate_compatibility(cls, info, options):
            seen.append("validate")
            return Compatibility.EP_SUPPORTED_OPTIMAL

        @hookimpl
        def get_capability(self, graph):
            return supported_partitions(graph, lambda node: node.op_type == "Add")

        @hookimpl
        def compile(self, partitions):
            self.partitions = partitions
            return [CompiledPartition(lambda inputs: inputs) for _ in partitions]

        @hookimpl
        def get_ep_context_nodes(self, writer):
            payload = writer.payload()
            payload.write(b"abc")
            (partition,) = self.partitions
            offsets = {
                name: payload.write_tensor(view)
                for name, view in partition.weights.items()
            }
            seen.append(([value.name for value in partition.inputs], offsets))
            return [EPContextNode(partition, payload)]

        @hookimpl
        def load_context(self, nodes, reader):
            seen.extend(bytes(reader.payload(node).view) for node in nodes)
            return [CompiledPartition(lambda inputs: inputs) for _ in nodes]

    return NotesProvider


@pytest.fixture
def notes():
    """The model, and the registry, options and record of an EP that takes notes."""
    seen = []
    registry = epctx.Registry(entry_points=False)
    registry.register(notes_provider(seen))
    options = epctx.SessionOptions()
    options.add_provider("Notes")
    return onnx.parser.parse_model(NOTES).SerializeToString(), registry, options, seen


def test_weights_are_constants_of_any_kind_and_are_written_once_and_not_aligned(
    notes, tmp_path
):
    model, registry, options, seen = notes
    output = tmp_path / "notes_ctx.onnx"

    epctx.ModelCompiler(options, model, registry=registry).compile_to_file(output)

    purpose, (inputs, offsets), read_back = seen
    assert purpose == "EXPORT"
    assert inputs == ["x", "replaced"]
    assert offsets == {"w": 3, "c": 11, "same": 3}
    assert read_back == b"abc" + np.float32([1, 2, 3, 4]).tobytes()


def test_each_purpose_is_that_of_the_page(notes, tmp_path):
    model, registry, options, seen = notes
    output = tmp_path / "notes_ctx.onnx"
    both = options.copy()
    both.add_session_config_entry("ep.context_enable", "1")
    both.add_session_config_entry("ep.context_file_path", str(tmp_path / "b_ctx.onnx"))
    compiler = epctx.ModelCompiler(options, model, registry=registry)
    calls = {
        "compile": lambda: compiler.compile_to_file(output),
        "explain": lambda: epctx.explain_model(model, options, registry=registry),
        "verify": lambda: epctx.verify_model(output, registry=registry),
        "load": lambda: epctx.InferenceSession(output, registry=registry).close(),
        "run": lambda: epctx.InferenceSession(
            model, options, registry=registry
        ).close(),
        "both": lambda: epctx.InferenceSession(model, both, registry=registry).close(),
    }

    found = {}
    for name, call in calls.items():
        seen.clear()
        call()
        found[name] = {item for item in seen if isinstance(item, str)}

    assert found == {
        "compile": {"EXPORT"},
        "explain": {"EXPORT"},
        "verify": {"EXPORT", "validate"},
        "load": {"LOAD", "validate"},
        "run": {"RUN"},
        "both": {"RUN"},
    }


def test_the_packages_entry_point_leads_to_the_class(folder, provider):
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]

    ((name, target),) = project["entry-points"]["epctx.execution_providers"].items()
    module, _, attribute = target.partition(":")
    assert provider(module, attribute).name == name


def test_a_context_model_of_the_vendors_own_tool_is_routed_by_the_second_group(
    folder, tmp_path, monkeypatch
):
    groups = [
        tomllib.loads(block["text"])["project"]["entry-points"]
        for block in blocks("ep-package.md")
        if block["kind"] == "toml" and "entry-points" in block["text"]
    ]
    entries = {
        group: next(each[group] for each in groups if group in each)
        for group in ("epctx.execution_providers", "epctx.ep_sources")
    }
    install_distribution(tmp_path, "epctx-acme", entries, version="0.1.0")
    monkeypatch.syspath_prepend(str(tmp_path))

    sources = {record.name: record.sources for record in epctx.Registry().records()}
    assert sources["AcmeExecutionProvider"] == ("AcmeExecutionProvider", "ACME")


@pytest.fixture
def environment(folder, tmp_path):
    """The variables of a process in which the package of the pages is installed."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    install_distribution(
        tmp_path, "epctx-acme", project["entry-points"], version="0.1.0"
    )
    path = [str(folder), str(tmp_path), os.environ.get("PYTHONPATH")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def test_the_commands_work_once_the_package_is_there(folder, environment):
    after = commands("ep-package.md")
    outcomes = {
        command: subprocess.run(
            [sys.executable, "-m", "epctx_core", *shlex.split(command)[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        for command in after
    }

    assert len(outcomes) == 4
    assert {c: d.stderr for c, d in outcomes.items() if d.returncode != 0} == {}


def test_the_ep_runs_inside_onnxruntime_once_the_package_is_there(folder, environment):
    run = (
        f"{files('ep-package.md')['in_onnxruntime.py']}\n"
        f"x = {X.tolist()}\n"
        "import numpy\n"
        "print(session.run(None, {'x': numpy.float32(x)})[0].tolist())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", run],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), Y, rtol=1e-6)
