"""The folder and the models that a behaviour is tried on, and what came of it in a form
that can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

CPU = "CPUExecutionProvider"
HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
CHAIN = HEAD + "(float[N, 3] x) => (float[N, 3] y) { a = Relu(x) y = Neg(a) }"


@dataclass
class Harness:
    """An empty folder of one behaviour, and one of the modules that are compared.

    Attributes:
        ort: `onnxruntime` or `epctx_core`.
        folder: files that appear in it during a behaviour are part of its outcome.
        before: the files that the behaviour itself put there.
    """

    ort: Any
    folder: Path
    before: set[str] = field(default_factory=set)

    def write(self, name: str, data: bytes) -> Path:
        """Put a file into the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.before.add(name)
        return path

    def model(
        self,
        text: str = CHAIN,
        name: str = "m.onnx",
        edit: Callable[[Any], object] = id,
    ) -> str:
        """Write a model in ONNX's text form, after `edit` changed it; return its
        path.
        """
        proto = onnx.parser.parse_model(text)
        edit(proto)
        return str(self.write(name, proto.SerializeToString()))

    def weighted(self, *, external: bool = False, location: str = "w.data") -> str:
        """Write a model that adds 512 floats to its input, in a file of their own if
        external.
        """
        weight = numpy_helper.from_array(np.arange(512, dtype=np.float32), "w")
        if external:
            self.write("w.data", weight.raw_data)
            weight.ClearField("raw_data")
            weight.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", location),
                ("offset", "0"),
                ("length", "2048"),
            ):
                weight.external_data.add(key=key, value=value)
        scalar = numpy_helper.from_array(np.float32(2), "s")
        nodes = [
            helper.make_node("Add", ["x", "w"], ["a"]),
            helper.make_node("Mul", ["a", "s"], ["y"]),
        ]
        x, y = (
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [512]) for n in "xy"
        )
        graph = helper.make_graph(nodes, "g", [x], [y], [weight, scalar])
        proto = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        return str(self.write("m.onnx", proto.SerializeToString()))

    def context(self, **attributes: Any) -> str:
        """Write a model of one EPContext node with these attributes."""
        node = helper.make_node(
            "EPContext", ["x"], ["y"], name="c", domain="com.microsoft", **attributes
        )
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        proto = helper.make_model(
            helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8
        )
        return str(self.write("c.onnx", proto.SerializeToString()))

    def options(self, **entries: object) -> Any:
        """Return session options with these config entries, `__` for a point."""
        options = self.ort.SessionOptions()
        options.log_severity_level = 4
        for key, value in entries.items():
            options.add_session_config_entry(key.replace("__", "."), str(value))
        return options

    def session(self, model: Any, options: Any = None, **arguments: Any) -> Any:
        """Return a session on the CPU EP."""
        arguments.setdefault("providers", [CPU])
        return self.ort.InferenceSession(
            model, self.options() if options is None else options, **arguments
        )

    def compiler(self, model: Any, options: Any = None, **arguments: Any) -> Any:
        """Return a compiler with the CPU EP alone."""
        return self.ort.ModelCompiler(
            self.options() if options is None else options, model, **arguments
        )

    def out(self, name: str = "out.onnx") -> str:
        """Return a path in the folder."""
        return str(self.folder / name)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one of the two modules.

    Attributes:
        value: what the behaviour returned, arrays as rounded lists; None after an
            error.
        error: the exception, None without.
        files: those that appeared.
    """

    value: Any
    error: Exception | None
    files: tuple[str, ...]

    def shown(self) -> str:
        """Return it as one line."""
        what = (
            repr(self.value)
            if self.error is None
            else f"{type(self.error).__name__}: {self.error}".split("\n")[0]
        )
        return " + ".join([what[:110], *self.files])


def outcome_of(act: Callable[[Harness], Any], ort: Any, folder: Path) -> Outcome:
    """Run a behaviour in an empty folder with one of the modules."""
    folder.mkdir(parents=True)
    harness, value, error = Harness(ort, folder), None, None
    try:
        value = comparable(act(harness))
    except Exception as raised:  # noqa: BLE001 - every error is an outcome
        error = raised
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return Outcome(
        value=value, error=error, files=tuple(sorted(found - harness.before))
    )


def comparable(value: Any) -> Any:
    """Return a value in the form in which two are compared."""
    if isinstance(value, np.ndarray):
        return comparable(value.tolist())
    if isinstance(value, (list, tuple)):
        return [comparable(item) for item in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.5g}")
    return value


def agree(theirs: Outcome, ours: Outcome) -> bool:
    """Whether a host that changes its import sees the same: value, files, and an error
    that its handlers catch.
    """
    if theirs.files != ours.files or (theirs.error is None) != (ours.error is None):
        return False
    if theirs.error is None or ours.error is None:
        return bool(theirs.value == ours.value)
    kind = type(theirs.error)
    if kind.__module__ == "builtins":
        return isinstance(ours.error, kind)
    name = {"NotImplemented": "NotImplementedByProvider"}.get(
        kind.__name__, kind.__name__
    )
    return name in {cls.__name__ for cls in type(ours.error).__mro__}
