"""Two models of one name that differ in every file they compile to, and folders that
hold what they compile to.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import epctx_files
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.share_models import WIDTH, sharing, write_model
from support.share_models import example as share_example
from support.share_models import run as run_shared
from support.sim_eps import OPENVINO, QNN, with_eps
from support.small_models import saved, snapshot

import epctx_core as epctx

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW, PENDING = 0, 1, 2
ROWS = 2


def staging(folder: Path) -> list[str]:
    """Return the staging folders in a folder."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".epctx-")]


def files(folder: Path) -> dict[str, bytes]:
    """Return what lies in a folder, outside of staging."""
    return {
        name: data
        for name, data in snapshot(folder).items()
        if not name.startswith(".epctx-")
    }


def put(folder: Path, content: dict[str, bytes]) -> None:
    """Write files; all else goes."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)


class Pairs:
    """Old and new state of a folder: what compiling each of two models leaves there,
    and what that answers.

    Args:
        folder: for the models and one folder `out` to compile into. One that another
            process has made is taken as it is.

    Attributes:
        between: what a load may find beside the old and the new state while one is
            compiled.
    """

    between: frozenset[int] = frozenset()

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self._folder = folder
        self.sources = [folder / str(which) for which in (OLD, NEW)]
        if not self.out.exists():
            self._make()
        self.states = [files(folder / f"state {which}") for which in (OLD, NEW)]
        with np.load(folder / "answers.npz") as saved_answers:
            count = len(saved_answers.files) // 2
            self.answers = [
                [saved_answers[f"{which} {n}"] for n in range(count)]
                for which in (OLD, NEW)
            ]
        assert self.states[OLD].keys() == self.states[NEW].keys()
        assert all(
            self.states[OLD][name] != self.states[NEW][name]
            for name in self.states[OLD]
        )

    def _make(self) -> None:
        self.out.mkdir()
        answers = {}
        for which in (NEW, OLD):
            self.sources[which].mkdir()
            self.write_sources(self.sources[which], seed=which)
            self.compile(which)
            shutil.copytree(self.out, self._folder / f"state {which}")
            answers.update(
                {f"{which} {n}": answer for n, answer in enumerate(self.answer())}
            )
        np.savez(self._folder / "answers.npz", **answers)

    def write_sources(self, folder: Path, *, seed: int) -> None:
        """Write what is compiled."""
        raise NotImplementedError

    def compile(self, which: int) -> None:
        """Compile a state into `out`."""
        raise NotImplementedError

    def answer(self) -> list[np.ndarray]:
        """Load what lies in `out`, and run it: an array for each context model."""
        raise NotImplementedError

    def loaded(self) -> list[int]:
        """Return of which state each context model is that a load finds, by its exact
        answer.
        """
        found = []
        for answer, *known in zip(self.answer(), *self.answers, strict=True):
            found.append(_which(answer, known))
        return found


def _which(answer: np.ndarray, known: list[np.ndarray]) -> int:
    (which,) = [n for n, array in enumerate(known) if np.array_equal(answer, array)]
    return which


class OneModel(Pairs):
    """A model with weights in a file, compiled into a binary and a file for the
    initializers that stay.
    """

    def write_sources(self, folder: Path, *, seed: int) -> None:
        """A product that QNN takes, and one in double that it does not."""
        generator = np.random.default_rng(seed)
        weights = [
            numpy_helper.from_array(
                generator.standard_normal((WIDTH, WIDTH), dtype=np.float32), "taken"
            ),
            numpy_helper.from_array(generator.standard_normal(WIDTH), "left"),
        ]
        nodes = [
            helper.make_node("MatMul", ["x", "taken"], ["m"]),
            helper.make_node("Cast", ["m"], ["wide"], to=TensorProto.DOUBLE),
            helper.make_node("Mul", ["wide", "left"], ["wider"]),
            helper.make_node("Cast", ["wider"], ["y"], to=TensorProto.FLOAT),
        ]
        boundary = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH])
            for name in "xy"
        ]
        graph = helper.make_graph(nodes, "pair", boundary[:1], boundary[1:], weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        )
        onnx.external_data_helper.convert_model_to_external_data(
            model, location="w.data", size_threshold=16
        )
        onnx.external_data_helper.write_external_data_tensors(model, str(folder))
        saved(model, folder / "m.onnx")

    def compile(self, which: int) -> None:
        """Compile with the simulated QNN."""
        compiler = epctx.ModelCompiler(
            with_eps(QNN),
            self.sources[which] / "m.onnx",
            external_initializers_file_path="m.data",
            external_initializers_size_threshold=16,
        )
        compiler.compile_to_file(self.out / "m_ctx.onnx")

    def answer(self) -> list[np.ndarray]:
        """Run the context model."""
        with epctx.InferenceSession(self.out / "m_ctx.onnx") as session:
            return session.run(None, share_example(ROWS))


class Group(Pairs):
    """Two models of a share group, compiled into one binary."""

    def write_sources(self, folder: Path, *, seed: int) -> None:
        """Two models with one set of weights."""
        for rows, name in enumerate(("a", "b"), ROWS):
            write_model(QNN, folder / f"{name}.onnx", rows, seed=seed)

    def compile(self, which: int) -> None:
        """Compile both, all or none."""
        with epctx.ShareGroup(output_dir=self.out) as group:
            for name in ("a", "b"):
                group.compile(self.sources[which] / f"{name}.onnx", sharing(QNN))

    def answer(self) -> list[np.ndarray]:
        """Run both."""
        pairs = enumerate(("a", "b"), ROWS)
        return [run_shared(self.out / f"{name}_ctx.onnx", rows) for rows, name in pairs]


class StoppedGroup(Group):
    """The same group by session options: its first model is published before its end,
    its binary pending.
    """

    between = frozenset({PENDING})

    def compile(self, which: int) -> None:
        """Compile the first, then the last."""
        for name, stop in (("a", False), ("b", True)):
            source = self.sources[which] / f"{name}.onnx"
            compiler = epctx.ModelCompiler(sharing(QNN, stop=stop), source)
            compiler.compile_to_file(self.out / f"{name}_ctx.onnx")

    def loaded(self) -> list[int]:
        """Return the same, and which model waits for the group's end."""
        found = []
        for rows, (name, *known) in enumerate(
            zip(("a", "b"), *self.answers, strict=True), ROWS
        ):
            try:
                answer = run_shared(self.out / f"{name}_ctx.onnx", rows)
            except epctx.InvalidGraph as error:
                assert "its share group was never stopped" in error.message
                found.append(PENDING)
            else:
                found.append(_which(answer, known))
        return found


class Merged(Pairs):
    """Two context models with a binary each, as one model with both binaries."""

    def write_sources(self, folder: Path, *, seed: int) -> None:
        """Compile one model for each of two EPs, the second for the first's output."""
        for ep, name in ((QNN, "a"), (OPENVINO, "b")):
            source = write_model(ep, folder / f"{name}.onnx", ROWS, seed=seed)
            if name == "b":
                saved(_renamed(onnx.load(source), {"x": "y", "y": "z"}), source)
            epctx.ModelCompiler(with_eps(ep), source).compile_to_file(
                folder / f"{name}_ctx.onnx"
            )

    def compile(self, which: int) -> None:
        """Merge them."""
        models = [self.sources[which] / f"{name}_ctx.onnx" for name in ("a", "b")]
        epctx_files.merge(models, self.out / "m_ctx.onnx")

    def answer(self) -> list[np.ndarray]:
        """Run the merged model."""
        return [run_shared(self.out / "m_ctx.onnx", ROWS)]


def _renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """Return a model with other names of values."""
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names[value.name]
    return model


class Externalized(OneModel):
    """A context model with all in it, whose payload and initializers get files."""

    def write_sources(self, folder: Path, *, seed: int) -> None:
        """Compile, and embed what the compile wrote into files."""
        super().write_sources(folder, seed=seed)
        options = with_eps(QNN)
        options.add_session_config_entry("ep.context_embed_mode", "1")
        epctx.ModelCompiler(options, folder / "m.onnx").compile_to_file(
            folder / "whole_ctx.onnx"
        )

    def compile(self, which: int) -> None:
        """Externalize it."""
        epctx_files.externalize(
            self.sources[which] / "whole_ctx.onnx", self.out / "m_ctx.onnx"
        )


HARNESSES = {
    "compile": OneModel,
    "share": Group,
    "share by options": StoppedGroup,
    "merge": Merged,
    "externalize": Externalized,
}
"""Publications that are killed and watched, by name; whatever writes files all or none
can be added.
"""
