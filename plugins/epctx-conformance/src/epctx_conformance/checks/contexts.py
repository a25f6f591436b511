"""Context models: written in every way that a host can ask for, moved, handed over, and loaded again."""

from __future__ import annotations

import shutil
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_conformance.elsewhere import elsewhere
from epctx_conformance.models.structures import single
from epctx_conformance.table import CheckFailed, Skipped, check
from epctx_core import verify_model
from epctx_core.ext import implemented_hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_conformance.scene import Compiled, Scene

NEEDS = ("partitions", "export")
SEVERAL = (*NEEDS, "several_partitions")


@check("contexts", "what is written to a file loads and runs", needs=NEEDS)
def check_file(scene: Scene) -> None:
    """The source is gone by then."""
    scene.expect_run(scene.network, "loaded from a file", scene.compile(scene.network).path)


@check("contexts", "payloads may stand inside the model", needs=(*NEEDS, "embed"))
def check_embedded(scene: Scene) -> None:
    """One file, and nothing beside it."""
    compiled = scene.compile(scene.network, embed=True)
    others = sorted(path.name for path in compiled.path.parent.iterdir() if path != compiled.path)
    if others:
        raise CheckFailed(f"an embedded compile left {', '.join(others)} beside the model.")
    scene.expect_run(scene.network, "loaded with embedded payloads", compiled.path)


@check("contexts", "a model with embedded payloads loads from bytes", needs=(*NEEDS, "embed"))
def check_embedded_bytes(scene: Scene) -> None:
    """Without any folder."""
    compiled = scene.compile(scene.network, embed=True)
    content = compiled.path.read_bytes()
    shutil.rmtree(compiled.path.parent)
    scene.expect_run(scene.network, "loaded from bytes", content)


@check("contexts", "a moved folder loads", needs=NEEDS)
def check_moved(scene: Scene) -> None:
    """Another path, and the old one is gone."""
    compiled = scene.compile(scene.network)
    moved = scene.folder() / "elsewhere"
    shutil.move(compiled.path.parent, moved)
    scene.expect_run(scene.network, "loaded from a moved folder", moved / compiled.path.name)


def load_and_run(scene: Scene, path: str, inputs: str, outputs: str) -> None:
    """Load a model, run it and store its results; done in another process."""
    with np.load(inputs) as stored, scene.session(Path(path)) as session:
        np.savez(outputs, *session.run(None, dict(stored)))


@check("contexts", "another process loads what this one compiled", needs=NEEDS)
def check_another_process(scene: Scene) -> None:
    """Nothing of this process is there: no instance, no class attribute, no file but the model's."""
    compiled, feeds = scene.compile(scene.network), scene.network.feeds()
    folder = scene.folder()
    np.savez(folder / "inputs.npz", **feeds)  # type: ignore[arg-type]
    arguments = {
        "path": str(compiled.path),
        "inputs": str(folder / "inputs.npz"),
        "outputs": str(folder / "outputs.npz"),
    }
    elsewhere(scene, f"{__name__}:{load_and_run.__name__}", arguments)
    with np.load(folder / "outputs.npz") as stored:
        results = [stored[name] for name in stored.files]
    scene.expect_agreement(scene.network, results, feeds, "loaded in another process")


def found_by_name(scene: Scene) -> bool:
    """Whether the EP's module is on a path; done in another process, which could also find it in its file."""
    module = scene.provider.__module__
    del sys.modules[module]  # of a loaded module, `find_spec` tells what it was loaded with
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is on none
        return False


@check("contexts", "it compiles in a process of its own", needs=NEEDS)
def check_isolated(scene: Scene) -> None:
    """`ep.isolate=compile`: claims, tokens and payloads made there; nothing of the class that this process changed."""
    if "get_kernel_registry" in implemented_hooks(scene.provider):
        raise Skipped("an EP with kernels is not isolated")
    if find_spec("epctx_isolation") is None:
        raise Skipped("epctx-isolation is not installed")
    if not elsewhere(scene, f"{__name__}:{found_by_name.__name__}"):
        raise Skipped(
            f"an isolating process could not import {scene.provider.__module__}, which is on no path"
        )
    scene.expect_run(scene.network, "compiled in a process of its own", config={"ep.isolate": "compile"})


@check("contexts", "a model given as bytes finds its binaries by the path that the host names", needs=NEEDS)
def check_bytes(scene: Scene) -> None:
    """`ep.context_file_path` stands for the model's place."""
    compiled = scene.compile(scene.network)
    config = {"ep.context_file_path": str(compiled.path)}
    scene.expect_run(scene.network, "loaded from bytes", compiled.path.read_bytes(), config=config)


@check("contexts", "a compile to bytes gives what a compile to a file gives", needs=NEEDS)
def check_compile_to_bytes(scene: Scene) -> None:
    """It loads; the binaries lie in the folder that the host names."""
    folder = scene.folder()
    config = {"ep.context_file_path": str(folder / "m_ctx.onnx")}
    content = scene.compiler(scene.network, config=config).compile_to_bytes()
    scene.expect_run(scene.network, "compiled to bytes", content, config=config)


@check("contexts", "a compile to a stream gives the same bytes", needs=(*NEEDS, "embed", "deterministic"))
def check_stream(scene: Scene) -> None:
    """Piece by piece."""
    pieces: list[bytes] = []
    scene.compiler(scene.network, embed=True).compile_to_stream(lambda piece: pieces.append(bytes(piece)))
    if b"".join(pieces) != scene.compiler(scene.network, embed=True).compile_to_bytes():
        raise CheckFailed("the stream got other bytes than compile_to_bytes gives.")


@check("contexts", "payloads may go through the host's callbacks", needs=NEEDS)
def check_callbacks(scene: Scene) -> None:
    """Written and read by functions; no file but the model."""
    stored: dict[str, bytes] = {}
    folder = scene.folder()
    compiler = scene.compiler(scene.network)
    compiler.set_ep_context_data_write_func(lambda name, data: stored.update({name: data.read()}))
    compiler.compile_to_file(folder / "m_ctx.onnx")
    names = sorted(path.name for path in folder.iterdir())
    if names != ["m_ctx.onnx"]:
        raise CheckFailed(f"with a write callback the folder holds {names}.")
    options = scene.session_options()
    largest = max(map(len, stored.values()))

    def read(name: str, buffer: Any) -> None:
        buffer.allocate(len(stored[name]))
        buffer.write(stored[name])

    options.set_ep_context_data_read_func(read, largest)
    with scene.session(folder / "m_ctx.onnx", options) as session:
        scene.expect_run(scene.network, "loaded through a callback", session)


@check("contexts", "describing its nodes does not end its work", needs=NEEDS)
def check_runs_after_describing(scene: Scene) -> None:
    """A session that writes a context model beside running goes on."""
    folder, model = scene.folder(), scene.network
    config = {"ep.context_enable": "1", "ep.context_file_path": str(folder / "m_ctx.onnx")}
    scene.expect_run(model, "run by a session that also writes", model.data, config=config)
    scene.expect_run(model, "written by a session and loaded", folder / "m_ctx.onnx")


@check("contexts", "two sessions of one context model live side by side", needs=(*NEEDS, "concurrency"))
def check_two_sessions(scene: Scene) -> None:
    """The second still runs when the first is closed."""
    compiled = scene.compile(scene.network)
    with scene.session(compiled.path) as second:
        with scene.session(compiled.path) as first:
            scene.expect_run(scene.network, "in the first session", first)
        scene.expect_run(scene.network, "after the first was closed", second)


@check("contexts", "a session goes on when its folder is gone", needs=NEEDS)
def check_folder_gone(scene: Scene) -> None:
    """What was loaded is loaded."""
    compiled = scene.compile(scene.network)
    with scene.session(compiled.path) as session:
        shutil.rmtree(compiled.path.parent)
        scene.expect_run(scene.network, "without its folder", session)


@check("contexts", "a binary that is read into memory instead of mapped will do", needs=NEEDS)
def check_not_mapped(scene: Scene) -> None:
    """`ep.context_file_mapping=0`."""
    config = {"ep.context_file_mapping": "0"}
    scene.expect_run(
        scene.network, "loaded without a mapping", scene.compile(scene.network).path, config=config
    )


@check("contexts", "a context model that is compiled again still loads", needs=(*NEEDS, "embed"))
def check_compiled_again(scene: Scene) -> None:
    """Payloads move from a file into the model; the core does it, and the EP's nodes stay as they are."""
    compiled = scene.compile(scene.network)
    target = scene.folder() / "again.onnx"
    scene.compiler(compiled.path, embed=True).compile_to_file(target)
    scene.expect_run(scene.network, "compiled again", target)


@check("contexts", "weights of a model may lie in files of their own", needs=NEEDS)
def check_external_weights(scene: Scene) -> None:
    """The files are gone when the context model is loaded."""
    folder, model = scene.folder(), single(scene.large_block)
    onnx.save(deepcopy(model.proto), folder / "m.onnx", save_as_external_data=True, location="m.weights")
    scene.compiler(folder / "m.onnx").compile_to_file()
    (folder / "m.weights").unlink()
    scene.expect_run(model, "loaded without the weights' file", folder / "m_ctx.onnx")


def _verified(compiled: Compiled, scene: Scene) -> Sequence[Any]:
    return verify_model(compiled.path, registry=scene.registry).findings


@check("contexts", "a verification finds nothing wrong with what it wrote", needs=NEEDS)
def check_verified(scene: Scene) -> None:
    """`epctx verify`, with the EP's own look into its payloads if it has one."""
    findings = [f for f in _verified(scene.compile(scene.network), scene) if f.severity.value == "error"]
    if findings:
        raise CheckFailed(f"{findings[0].code}: {findings[0].message}", hint=findings[0].hint)
