"""Names for hosts and EP authors: pinned, importable, and cheap until they are used."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.install_commands import pip_install

import epctx_core
from epctx_core import ext, plugin, testing

pytestmark = pytest.mark.internal

HOST = {
    "CompileReport", "CompiledModelCompatibility", "ContextNodeInfo", "EPFail",
    "EpctxError", "ErrorCode", "ExecutionMode", "Explanation", "Fail",
    "GraphOptimizationLevel", "InferenceSession", "InitializerValue", "InputBudget",
    "InternalError", "InvalidArgument", "InvalidGraph", "InvalidProtobuf",
    "ModelCompiler", "ModelInfo", "ModelLoadCanceled", "ModelMetadata",
    "ModelRequiresCompilation", "NoSuchFile", "NodeArg", "NodeExplanation", "NotFound",
    "NotImplementedByProvider", "OrtCompileApiFlags", "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph", "OrtEpContextData", "OrtEpContextDataBuffer",
    "OrtExternalInitializerInfo", "Placement", "PluginError", "PluginRecord", "PluginState",
    "Registry", "RunOptions", "RuntimeException", "SessionOptions", "ShareGroup",
    "ShareReport", "VerifyReport", "__version__", "add_plugin_path", "compile_cached",
    "convert_model", "default_registry", "disable_telemetry_events",
    "enable_telemetry_events", "explain_model", "get_all_providers", "get_device",
    "get_version_string", "set_default_logger_severity", "set_default_logger_verbosity",
    "set_seed", "get_available_providers", "get_compatibility_info_from_model",
    "get_ep_metadata", "get_model_compatibility", "inspect_model", "load_or_compile",
    "plugins", "refresh_plugins", "register_execution_provider", "seal_model",
    "temporary_execution_provider", "unregister_execution_provider", "verify_model",
}  # fmt: skip
CONTRACT = {
    "Availability", "BaseEngine", "Blobs", "BuildInfo", "CONTAINER_CODES",
    "CORE_ATTRIBUTES", "Cancellation", "Compatibility", "CompiledPartition",
    "ComputeCapability", "ContextNode", "ContextReader", "ContextWriter",
    "EPContextNode", "Engine", "EnginePolicy", "ExecutionProvider", "Extent", "Finding",
    "GraphView", "HardwareDevice", "HookSpecs", "Kernel", "KernelDef",
    "KernelLookup", "KernelRegistry", "ModelFormat", "ModelIdentity", "NodeView", "OperatorTypes", "OptimizedModel",
    "PLUGIN_API", "Partition", "Payload", "PayloadView", "PreparedModel",
    "ProcessIsolation", "ProviderContext", "ProviderOption", "Purpose", "Refusal", "RunnableModel",
    "Severity", "TensorType", "TensorView", "UNKNOWN_TYPE", "ValueInfo",
    "WeightlessMode", "Workspace", "current_options", "hookimpl", "number_nodes",
    "read_inputs", "supported_partitions", "write_blobs", "write_in_place",
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "names"),
    [(epctx_core, HOST), (plugin, CONTRACT)],
    ids=["host", "contract"],
)
def test_the_public_names_are_these(module, names):
    # A name that goes breaks somebody; a new one is added here and in the docs.
    assert set(module.__all__) == names
    assert len(module.__all__) == len(names)


def test_each_name_of_the_host_can_be_imported_and_is_described():
    found = {name: getattr(epctx_core, name) for name in HOST}

    assert {
        name for name in HOST if getattr(epctx_core, name) is not found[name]
    } == set()
    described = {
        n
        for n, value in found.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }
    assert len(described) > 50
    assert {name for name in described if not found[name].__doc__} == set()


@pytest.mark.parametrize(
    "module", [epctx_core, plugin, testing, ext], ids=lambda module: module.__name__
)
def test_dir_has_each_public_name(module):
    assert set(module.__all__) - set(dir(module)) == set()
    assert {"__name__", "__doc__"} <= set(dir(module))


@pytest.mark.parametrize(
    "module", [plugin, testing, ext], ids=lambda module: module.__name__
)
def test_dir_has_no_function_that_is_not_public(module):
    functions = {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and name[0] != "_"
    }
    assert functions & set(dir(module)) - set(module.__all__) == set()


def test_each_name_of_the_contract_can_be_imported():
    assert {name for name in CONTRACT if getattr(plugin, name, None) is None} == set()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(
        AttributeError, match="module 'epctx_core' has no attribute 'Session'"
    ):
        _ = epctx_core.Session


def loaded_after(statement):
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    return set(
        json.loads(
            subprocess.check_output(
                [sys.executable, "-I", "-c", code], text=True, timeout=60
            )
        )
    )


WITHOUT_THE_CACHE = """
import json, pydoc, sys
sys.modules["epctx_cache"] = None
import epctx_core
from epctx_core import *
pydoc.render_doc(epctx_core)
try:
    epctx_core.load_or_compile
except ImportError as error:
    print(json.dumps([sorted(epctx_core.__all__), sorted(set(dir(epctx_core))), str(error)]))
"""


def test_without_the_cache_all_other_names_are_there_and_its_own_say_what_to_install():
    command = [sys.executable, "-c", WITHOUT_THE_CACHE]

    listed, shown, error = json.loads(
        subprocess.check_output(command, text=True, timeout=60)
    )

    assert set(listed) == HOST - {"compile_cached", "load_or_compile"}
    assert not {"compile_cached", "load_or_compile"} & set(shown)
    assert pip_install("epctx-cache") in error


def test_importing_the_package_loads_nothing_but_itself():
    new = loaded_after("import epctx_core") - loaded_after("pass")

    assert {name for name in new if name.startswith("epctx_core")} == {
        "epctx_core",
        "epctx_core._version",
    }
    assert not {"dataclasses", "enum", "re", "inspect"} & new


@pytest.mark.parametrize("name", ["SessionOptions", "InvalidGraph", "plugins"])
def test_light_names_load_neither_onnx_nor_numpy(name):
    assert not {"onnx", "numpy", "onnxruntime"} & loaded_after(
        f"from epctx_core import {name}"
    )


def test_the_contract_loads_neither_onnx_nor_numpy():
    assert not {"onnx", "numpy", "onnxruntime"} & loaded_after(
        "import epctx_core.plugin"
    )


@pytest.mark.parametrize(
    "module", [epctx_core, plugin, ext], ids=lambda module: module.__name__
)
def test_type_checkers_read_each_module_that_names_come_from(module):
    # Strict ones take a name from a package if that imports all of the name's home;
    # examples/ and benchmarks/ are checked as hosts are.
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    read = [
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and [alias.name for alias in node.names] == ["*"]
    ]

    assert sorted(read) == sorted(module._HOME)


def test_a_name_is_found_once_and_then_kept_by_its_module():
    first = plugin.TensorType

    assert vars(plugin)["TensorType"] is first


LACKING = """
import sys
sys.modules["onnxruntime"] = None
import epctx_core
try:
    epctx_core.convert_model
except epctx_core.NotFound as error:
    print(isinstance(error, ImportError), error.message, error.hint, sep="; ")
"""


def test_a_library_that_an_installed_package_lacks_is_named_with_the_package():
    said = subprocess.check_output(
        [sys.executable, "-c", LACKING], text=True, timeout=60
    )

    assert said.startswith(
        "True; epctx-onnxruntime needs onnxruntime, and none is installed.; "
        "pip install onnxruntime, or one with the EPs of a device: onnxruntime-gpu"
    )


def test_what_our_own_packages_take_besides_is_listed_with_their_users():
    rows = re.findall(
        r"^(`\w+`(?:, `\w+`)*):\n +.+?\(([\w,\s-]+)\)\.$",
        ext.__doc__,
        re.MULTILINE | re.DOTALL,
    )
    said = {
        name: re.findall(r"[\w-]+", users)
        for names, users in rows
        for name in re.findall(r"\w+", names)
    }
    users = {name: [] for name in ext.__all__}
    for package in sorted(Path(ext.__file__).parents[1].glob("plugins/*/src")):
        trees = [ast.parse(path.read_text("utf-8")) for path in package.rglob("*.py")]
        imports = [
            node
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        ]
        taken = {
            alias.name
            for node in imports
            if node.module == "epctx_core.ext"
            for alias in node.names
        }
        attributes = [
            node
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
        ]
        taken |= {
            n.attr
            for n in attributes
            if isinstance(n.value, ast.Name) and n.value.id == "ext"
        }
        for name in taken:
            users[name].append(package.parent.name)

    assert said == users
