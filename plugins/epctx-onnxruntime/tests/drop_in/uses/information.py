"""Uses of what the module tells of itself and of its log; and enum classes."""

from __future__ import annotations

import inspect

import onnxruntime as ort
from uses import models
from uses.recording import caught, plain, uses
from uses.sessions import session

X = models.X


@uses("get_version_string", "version", "package_name", "cuda_version")
def versions():
    return [
        ort.__version__,
        ort.get_version_string(),
        ort.version,
        ort.package_name,
        ort.cuda_version,
        ort.__author__,
    ]


@uses("get_device", "has_collective_ops", "import_capi_exception")
def build():
    return [ort.get_device(), ort.has_collective_ops(), ort.import_capi_exception]


@uses("get_build_info")
def build_info():
    return ort.get_build_info()


@uses("get_build_info", case="onnxruntime's build among it")
def build_info_of_onnxruntime():
    return "build type" in ort.get_build_info()


@uses("print_debug_info", "preload_dlls")
def printed():
    ort.preload_dlls(cuda=False, cudnn=False, msvc=False)
    return ort.print_debug_info()


@uses("capi", "onnxruntime_validation", "contextlib")
def modules():
    return [
        ort.capi.__name__,
        ort.onnxruntime_validation.__name__,
        ort.contextlib.__name__,
        hasattr(ort.capi, "onnxruntime_pybind11_state"),
    ]


@uses("disable_telemetry_events", "enable_telemetry_events")
def telemetry():
    return [ort.disable_telemetry_events(), ort.enable_telemetry_events()]


@uses("set_default_logger_severity", "set_default_logger_verbosity")
def levels_of_the_log():
    return [
        ort.set_default_logger_severity(3),
        ort.set_default_logger_verbosity(0),
        plain(session().run(None, {"x": X})),
        ort.set_default_logger_severity(2),
    ]


@uses("set_default_logger_severity", case="wrong uses")
def wrong_levels_of_the_log():
    return [
        caught(ort.set_default_logger_severity, 99),
        caught(ort.set_default_logger_severity, "high"),
        caught(ort.set_default_logger_verbosity, "high"),
    ]


@uses("set_default_logger_callback")
def log_callback():
    told = []

    def keep(severity, category, log_id, location, message):
        told.append([type(each).__name__ for each in (severity, category, message)])
        told.append([type(log_id).__name__, type(location).__name__])

    ort.set_default_logger_callback(keep, 0)
    ort.set_default_logger_callback(callback=keep, severity=1)
    ort.set_default_logger_severity(0)
    options = ort.SessionOptions()
    options.log_severity_level = 0
    session(options=options).run(None, {"x": X})
    ort.set_default_logger_severity(2)
    ort.set_default_logger_callback(None)
    return [told[:2], caught(ort.set_default_logger_callback, 3)]


@uses("set_seed")
def seed():
    ort.set_seed(7)
    first = session(models.random()).run(None, {})[0]
    ort.set_seed(7)
    second = session(models.random()).run(None, {})[0]
    return [first.tolist() == second.tolist(), plain(first)]


def describe_enum(cls):
    """Return the members of an enum class and what programs do with them."""
    members = cls.__members__
    first = next(iter(members.values()))
    return [
        [[name, int(each), each.name, each.value] for name, each in members.items()],
        [getattr(cls, name) == each for name, each in members.items()],
        cls(first.value) == first,
        [str(each) for each in members.values()],
        len(set(members.values())),
    ]


for _name, _cls in inspect.getmembers(ort, inspect.isclass):
    if hasattr(_cls, "__members__") and not _name.startswith("_"):
        _names = {_name, *_cls.__members__, "name", "value"} - {_name}
        uses(_name, *(f"{_name}.{each}" for each in sorted(_names)))(
            lambda cls=_cls: describe_enum(cls)
        )
