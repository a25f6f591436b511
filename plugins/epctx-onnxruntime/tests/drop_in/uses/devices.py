"""Uses of devices, EPs, allocators and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
from uses import models
from uses.recording import caught, plain, uses
from uses.sessions import CPU, session

X = models.X


def cpu_device() -> ort.OrtEpDevice:
    return next(d for d in ort.get_ep_devices() if d.ep_name == CPU[0])


@uses("get_available_providers")
def available():
    return ort.get_available_providers()


@uses("get_available_providers", case="the CPU EP among them")
def cpu_ep_is_available():
    return CPU[0] in ort.get_available_providers()


@uses("get_all_providers")
def all_providers():
    return sorted(ort.get_all_providers())


@uses("get_ep_devices")
def listed_devices():
    return [d.ep_name for d in ort.get_ep_devices()]


@uses(
    "OrtEpDevice",
    "OrtEpDevice.ep_name",
    "OrtEpDevice.ep_vendor",
    "OrtEpDevice.ep_metadata",
    "OrtEpDevice.ep_options",
    "OrtEpDevice.device",
    "OrtHardwareDevice",
    "OrtHardwareDevice.type",
    "OrtHardwareDevice.vendor",
    "OrtHardwareDevice.vendor_id",
    "OrtHardwareDevice.device_id",
    "OrtHardwareDevice.metadata",
)
def the_cpus_device():
    device = cpu_device()
    hardware = device.device
    return plain(
        [
            isinstance(device, ort.OrtEpDevice),
            isinstance(hardware, ort.OrtHardwareDevice),
            device.ep_name,
            device.ep_vendor,
            device.ep_metadata,
            device.ep_options,
            hardware.type,
            hardware.vendor,
            hardware.vendor_id,
            hardware.device_id,
            hardware.metadata,
        ]
    )


@uses("OrtEpDevice.memory_info")
def memory_of_the_cpu():
    made = [
        cpu_device().memory_info(kind)
        for kind in ort.OrtDeviceMemoryType.__members__.values()
    ]
    return [each and each.name for each in made]


@uses("OrtEpDevice.create_sync_stream", "OrtSyncStream", "OrtSyncStream.get_handle")
def stream():
    return caught(lambda: cpu_device().create_sync_stream().get_handle())


@uses(
    "OrtMemoryInfo",
    "OrtMemoryInfo.create_v2",
    "OrtMemoryInfo.allocator_type",
    "OrtMemoryInfo.device_id",
    "OrtMemoryInfo.device_mem_type",
    "OrtMemoryInfo.device_vendor_id",
    "OrtMemoryInfo.mem_type",
    "OrtMemoryInfo.name",
)
def memory():
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    made = [
        ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT),
        ort.OrtMemoryInfo.create_v2(
            "Test",
            ort.OrtMemoryInfoDeviceType.CPU,
            0,
            0,
            ort.OrtDeviceMemoryType.DEFAULT,
            0,
            kind,
        ),
    ]
    return [
        plain(
            [
                each.name,
                each.allocator_type,
                each.device_id,
                each.device_mem_type,
                each.device_vendor_id,
                each.mem_type,
            ]
        )
        for each in made
    ]


@uses(
    "OrtArenaCfg",
    "OrtArenaCfg.arena_extend_strategy",
    "OrtArenaCfg.initial_chunk_size_bytes",
    "OrtArenaCfg.initial_growth_chunk_size_bytes",
    "OrtArenaCfg.max_dead_bytes_per_chunk",
    "OrtArenaCfg.max_mem",
    "OrtArenaCfg.max_power_of_two_extend_bytes",
)
def arena():
    made = [
        ort.OrtArenaCfg(1 << 20, 0, 4096, 2048),
        ort.OrtArenaCfg({"max_mem": 1 << 20, "initial_growth_chunk_size_bytes": 512}),
    ]
    return [
        [
            each.arena_extend_strategy,
            each.initial_chunk_size_bytes,
            each.initial_growth_chunk_size_bytes,
            each.max_dead_bytes_per_chunk,
            each.max_mem,
            each.max_power_of_two_extend_bytes,
        ]
        for each in made
    ]


@uses("create_and_register_allocator", "create_and_register_allocator_v2")
def allocator():
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    info = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    config = ort.OrtArenaCfg({"max_mem": 1 << 24, "arena_extend_strategy": 1})
    ort.create_and_register_allocator(info, config)
    ort.create_and_register_allocator_v2("CPUExecutionProvider", info, {}, config)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    return plain(session(options=options).run(None, {"x": X}))


@uses("OrtValue.ortvalue_from_shape_and_type", case="by a description of memory")
def value_in_described_memory():
    kind = ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    info = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    made = ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, memory_info=info)
    return [made.shape(), made.data_type(), made.device_name()]


@uses("register_execution_provider_library", case="a file that is missing")
def missing_library():
    return caught(ort.register_execution_provider_library, "mine", "nowhere.so")


@uses("register_execution_provider_library", case="arguments of wrong types")
def wrong_library():
    return caught(ort.register_execution_provider_library, 3, None)


@uses("unregister_execution_provider_library", case="one that is not registered")
def unknown_library():
    return caught(ort.unregister_execution_provider_library, "mine")


@uses("register_execution_provider_library", "unregister_execution_provider_library")
def libraries_are_registered_once_they_are_there():
    # Real libraries of EPs are tried in tests/campaigns/vendors; a program that takes those
    # which it finds runs anywhere.
    before = len(ort.get_ep_devices())
    for name, path in {"a": "a.so", "b": "b.so"}.items():
        try:
            ort.register_execution_provider_library(name, path)
        except Exception:  # noqa: BLE001 - it is not there
            assert not Path(path).exists()
        else:
            ort.unregister_execution_provider_library(name)
    return len(ort.get_ep_devices()) - before


@uses("set_global_thread_pool_sizes")
def threads_of_all_sessions():
    ort.set_global_thread_pool_sizes(1, 1)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    return plain(session(options=options).run(None, {"x": X}))
