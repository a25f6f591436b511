"""Uses of packages of models, LoRA adapters and onnxruntime's native session."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as native
from uses import models
from uses.recording import caught, plain, uses
from uses.sessions import session

X = models.X
CPU = "CPUExecutionProvider"


def package() -> ort.ModelPackage:
    """Return a package of one component, with one variant for the CPU EP."""
    asset = Path("asset")
    asset.mkdir(exist_ok=True)
    (asset / "model.onnx").write_bytes(models.linear())
    made = ort.ModelPackage()
    uri = made.add_shared_asset("asset")
    made.set_metadata(name="mine", version="1.0", description="a package")
    made.set_component_inline("net", json.dumps({"variants": {}}))
    made.set_variant("net", "cpu", json.dumps({"ep": CPU}))
    model = {"model_file": f"{uri}/model.onnx"}
    made.set_variant_executor_info_inline("net", "cpu", "ort", json.dumps(model))
    return made


def committed(name: str) -> str:
    package().commit(name, ort.ModelPackageWriteMode.DENSE)
    return name


@uses(
    "ModelPackage",
    "ModelPackage.add_shared_asset",
    "ModelPackage.compute_directory_hash",
    "ModelPackage.get_component_json",
    "ModelPackage.get_info",
    "ModelPackage.get_variant_json",
    "ModelPackage.resolve_asset_uri",
    "ModelPackage.resolve_string_ref",
    "ModelPackage.set_component_inline",
    "ModelPackage.set_layout",
    "ModelPackage.set_metadata",
    "ModelPackage.set_variant",
    "ModelPackage.set_variant_executor_info_inline",
)
def described_package():
    made = package()
    made.set_layout("portable")
    info = made.get_info()
    uri = ort.ModelPackage.compute_directory_hash("asset")
    return [
        info["package_name"],
        [each["name"] for each in info["components"]],
        json.loads(made.get_component_json("net")),
        json.loads(made.get_variant_json("net", "cpu")),
        [each["uri"] for each in info["shared_assets"]] == [uri],
        Path(made.resolve_asset_uri(uri)).name,
        Path(made.resolve_string_ref(f"{uri}/model.onnx")).name,
        caught(made.set_layout, "of nobody"),
    ]


@uses(
    "ModelPackage.open",
    "ModelPackage.close",
    "ModelPackage.commit",
    "ModelPackage.prune",
    "ModelPackage.remove_component",
    "ModelPackage.remove_shared_asset",
    "ModelPackage.remove_variant",
    "ModelPackage.remove_variant_executor_info",
    "ModelPackage.set_additional_metadata_json",
    "ModelPackage.set_component_external",
    "ModelPackage.set_variant_executor_info_external",
)
def changed_package():
    made = ort.ModelPackage.open(committed("changed"))
    made.set_additional_metadata_json("manifest", json=json.dumps({"a": 1}))
    Path("changed/other.json").write_text(json.dumps({"variants": {}}))
    Path("changed/info.json").write_text(json.dumps({"a": 1}))
    told = [
        caught(made.set_component_external, "other", "other.json"),
        caught(made.set_variant_executor_info_external, "net", "cpu", "x", "info.json"),
    ]
    made.remove_variant_executor_info("net", "cpu", "ort")
    made.remove_variant("net", "cpu")
    made.remove_component("net")
    made.remove_shared_asset(ort.ModelPackage.compute_directory_hash("asset"))
    made.prune()
    made.commit()
    info = made.get_info()
    made.close()
    return [told, info["additional_metadata_json"], len(info["shared_assets"])]


def context() -> ort.ModelPackageContext:
    if not Path("opened").exists():
        committed("opened")
    return ort.ModelPackageContext("opened")


@uses(
    "ModelPackageContext",
    "ModelPackageContext.get_component_count",
    "ModelPackageContext.get_component_names",
    "ModelPackageContext.get_schema_version",
    "ModelPackageContext.get_variant_count",
    "ModelPackageContext.get_variant_ep_name",
    "ModelPackageContext.get_variant_names",
    "ModelPackageContext.resolve_string_ref",
)
def listed_package():
    opened = context()
    return [
        opened.get_component_count(),
        opened.get_component_names(),
        opened.get_schema_version(),
        opened.get_variant_count("net"),
        opened.get_variant_ep_name("net", "cpu"),
        opened.get_variant_names("net"),
        Path(opened.resolve_string_ref("manifest.json")).name,
        caught(ort.ModelPackageContext, "nowhere"),
    ]


def component() -> ort.ModelPackageComponentContext:
    options = ort.SessionOptions()
    options.add_provider(CPU, {})
    return context().select_component("net", ort.ModelPackageOptions(options))


@uses(
    "ModelPackageOptions",
    "ModelPackageContext.select_component",
    "ModelPackageComponentContext",
    "ModelPackageComponentContext.create_session",
    "ModelPackageComponentContext.get_selected_variant_folder_path",
    "ModelPackageComponentContext.get_selected_variant_name",
)
def selected_from_package():
    chosen = component()
    return [
        chosen.get_selected_variant_name(),
        type(chosen.get_selected_variant_folder_path()).__name__,
        plain(chosen.create_session().run(None, {"x": X})),
    ]


@uses("ModelPackageComponentContext.create_session", case="with options")
def session_with_options():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    opened = component().create_session(options)
    return plain(opened.run(None, {"x": X}))


@uses(
    "AdapterFormat",
    "AdapterFormat.export_adapter",
    "AdapterFormat.get_adapter_version",
    "AdapterFormat.get_format_version",
    "AdapterFormat.get_model_version",
    "AdapterFormat.get_parameters",
    "AdapterFormat.read_adapter",
    "AdapterFormat.set_adapter_version",
    "AdapterFormat.set_model_version",
    "AdapterFormat.set_parameters",
)
def adapter_file():
    read = ort.AdapterFormat.read_adapter(exported())
    return [
        read.get_format_version(),
        read.get_adapter_version(),
        read.get_model_version(),
        {name: plain(value.numpy()) for name, value in read.get_parameters().items()},
    ]


def exported() -> str:
    made = ort.AdapterFormat()
    made.set_adapter_version(3)
    made.set_model_version(7)
    bias = ort.OrtValue.ortvalue_from_numpy(np.array([5, 6, 7], np.float32))
    made.set_parameters({"b": bias})
    made.export_adapter("mine.onnx_adapter")
    return "mine.onnx_adapter"


@uses("LoraAdapter", "LoraAdapter.Load")
def loaded_adapter():
    adapter = ort.LoraAdapter()
    return [adapter.Load(exported()), caught(adapter.Load, "nowhere.onnx_adapter")]


@uses("RunOptions.add_active_adapter")
def active_adapter():
    adapter = ort.LoraAdapter()
    adapter.Load(exported())
    options = ort.RunOptions()
    options.add_active_adapter(adapter)
    return plain(session().run(None, {"x": X}, options))


@uses(
    "SessionIOBinding",
    "SessionIOBinding.bind_input",
    "SessionIOBinding.bind_ortvalue_input",
    "SessionIOBinding.bind_ortvalue_output",
    "SessionIOBinding.bind_output",
    "SessionIOBinding.clear_binding_inputs",
    "SessionIOBinding.clear_binding_outputs",
    "SessionIOBinding.copy_outputs_to_cpu",
    "SessionIOBinding.get_outputs",
    "SessionIOBinding.synchronize_inputs",
    "SessionIOBinding.synchronize_outputs",
)
def native_binding():
    opened = native.InferenceSession(
        native.SessionOptions(), models.linear(), False, False
    )
    opened.initialize_session([CPU], [{}], set())
    cpu = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
    binding = ort.SessionIOBinding(opened)
    binding.bind_input("x", X)
    binding.synchronize_inputs()
    binding.bind_output("y", cpu)
    opened.run_with_iobinding(binding, None)
    binding.synchronize_outputs()
    told = [plain(binding.copy_outputs_to_cpu()), len(binding.get_outputs())]
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    x = ort.OrtValue.ortvalue_from_numpy(X)
    y = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_ortvalue_input("x", x._get_c_value())
    binding.bind_ortvalue_output("y", y._get_c_value())
    opened.run_with_iobinding(binding, None)
    return [*told, plain(y.numpy())]
