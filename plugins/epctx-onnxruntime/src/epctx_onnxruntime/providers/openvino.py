"""Intel's OpenVINO EP, out of the package onnxruntime-ep-openvino."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_native_formats.openvino import decode_table, is_container

from epctx_core.errors import InvalidArgument
from epctx_core.ext import parse_json, read_small_file
from epctx_core.plugin import ProviderOption, hookimpl
from epctx_onnxruntime.providers.base import OnnxRuntimeProvider
from epctx_onnxruntime.providers.library import PluginLibrary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        GraphView,
        NodeView,
        ProviderContext,
    )
    from epctx_onnxruntime.real import onnxruntime

EP = "OpenVINOExecutionProvider"
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

# The EP warns of all other options that OpenVINO EPs inside onnxruntime had, and
# ignores them.
OPTIONS = (
    ProviderOption(
        "device_type",
        str,
        default="CPU",
        choices=("CPU", "GPU", "NPU"),
        doc="Which of the EP's devices to compile for and to run on.",
    ),
    ProviderOption(
        "load_config",
        str,
        default=None,
        doc=(
            "OpenVINO's properties by device, as JSON or as the path of a JSON file. "
            "On CPUs with bfloat16 OpenVINO"
            ' computes in it, unless {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}} is '
            "set where a model runs:"
            " a context model does not keep the precision."
        ),
    ),
    ProviderOption(
        "reshape_input",
        str,
        default=None,
        doc="Bounds of open dimensions, such as x[1,3,60..120,80].",
    ),
    ProviderOption(
        "enable_causallm",
        bool,
        default=None,
        doc="Keep the key-value cache of a language model in OpenVINO.",
    ),
    ProviderOption(
        "dump_subgraphs",
        str,
        default=None,
        doc="Folder for partitions as OpenVINO's IR, for debugging.",
    ),
)


class OpenVINOExecutionProvider(OnnxRuntimeProvider):
    """OpenVINO EP for Intel's CPUs, GPUs and NPUs."""

    name: ClassVar[str] = EP
    vendor: ClassVar[str] = "Intel"
    options: ClassVar[Sequence[ProviderOption]] = OPTIONS
    dynamic_options: ClassVar[Sequence[ProviderOption]] = (
        ProviderOption(
            "ep.dynamic.workload_type",
            str,
            default="Default",
            choices=("Default", "Efficient"),
            doc="Efficient lowers power and priority, on the NPU.",
        ),
    )
    library: ClassVar[PluginLibrary] = PluginLibrary(
        ep=EP,
        distribution="onnxruntime-ep-openvino",
        module="onnxruntime_ep_openvino",
        devices="devices of Intel processors only",
        hint=(
            "On another processor, epctx-openvino runs OpenVINO itself, and "
            "epctx-sim-openvino:OpenVINO is simulated."
        ),
    )

    finds_values_by_name: ClassVar[bool] = True
    writes_contexts: ClassVar[bool] = True
    file_options: ClassVar[tuple[str, ...]] = ("load_config",)

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        _check_load_config(context.options.get("load_config"))

    @classmethod
    def vendor_options(cls, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the options as text, without `device_type`: a device is chosen by
        listing it.
        """
        settings = super().vendor_options(options)
        settings.pop("device_type", None)
        return settings

    @classmethod
    def select_devices(
        cls, devices: Sequence[onnxruntime.OrtEpDevice], options: Mapping[str, Any]
    ) -> Sequence[onnxruntime.OrtEpDevice]:
        """Return the device of the type that the options say.

        Raises:
            InvalidArgument: no such device is listed.
        """
        wanted = options.get("device_type", "CPU")
        for device in devices:
            if device.ep_metadata.get("ov_device") == wanted:
                return [device]
        listed = ", ".join(
            sorted({device.ep_metadata.get("ov_device", "?") for device in devices})
        )
        raise InvalidArgument(
            f"{EP}: option 'device_type' is {wanted}, but on this machine it lists "
            f"{listed} alone.",
            ep=EP,
            hint="Choose one that it lists, or install the device's driver.",
        )

    @classmethod
    def get_device_options(
        cls, device: onnxruntime.OrtEpDevice
    ) -> Mapping[str, object]:
        """Return the device's name in OpenVINO."""
        return {"device_type": device.ep_metadata.get("ov_device", "CPU")}

    def can_take(self, graph: GraphView, node: NodeView) -> bool | str:
        """Return whether to offer a node where the EP refuses a model whole: it takes
        unknown ranks for scalars.
        """
        if node.op_type in _CONTROL_FLOW and not node.domain:
            return "OpenVINO does not convert all bodies of control flow"
        for name in filter(None, (*node.inputs, *node.outputs)):
            if graph.initializer(name) is None and graph.value(name).shape is None:
                return f"the rank of {name!r} is not known"
        return super().can_take(graph, node)

    def join_binaries(self, binaries: Sequence[Path], folder: Path) -> Path | None:
        """Return one container with the blobs of several: onnxruntime loads only one
        that is embedded.
        """
        from epctx_onnxruntime.providers.openvino_container import join_containers

        joined = folder / "joined.bin"
        return joined if join_containers(binaries, joined) else None

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Check the table of each container, then create a session over each node, as
        onnxruntime would load it.
        """
        for payload in dict.fromkeys(reader.payload(node) for node in nodes):
            # What Intel's EP reads besides is for it to judge.
            if is_container(payload.view):
                decode_table(payload.view, payload.name)
        return super().load_context(nodes, reader)

    @hookimpl
    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Pass options on to each session on an NPU; other devices have no workload
        types.
        """
        if (device := self.context.options["device_type"]) != "NPU":
            self.context.logger.info(
                "%s has no effect on the device %s", ", ".join(options), device
            )
            return
        super().set_dynamic_options(options)


def _check_load_config(text: str | None) -> None:
    """Raise InvalidArgument for properties that the EP would refuse, naming a context
    model instead of the option.
    """
    if text is None:
        return
    is_file = not text.lstrip().startswith("{")
    try:
        parsed = parse_json(read_small_file(text) if is_file else text)
    except (OSError, ValueError, RecursionError) as error:
        problem = f"cannot be read as JSON{' from that file' * is_file} ({error})"
    else:
        if isinstance(parsed, dict) and all(
            isinstance(value, dict) for value in parsed.values()
        ):
            return
        problem = "is not an object of properties by device"
    raise InvalidArgument(
        f"{EP}: option 'load_config' is {text!r:.200}, which {problem}.",
        ep=EP,
        hint=(
            'Give OpenVINO\'s properties by device, such as {"CPU": '
            '{"INFERENCE_PRECISION_HINT": "f32"}}.'
        ),
    )
