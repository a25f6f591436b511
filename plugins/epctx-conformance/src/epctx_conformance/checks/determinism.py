"""The same model, options and versions give the same bytes, wherever and whenever."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.elsewhere import elsewhere
from epctx_conformance.memory import MemoryWriter
from epctx_conformance.models.structures import single
from epctx_conformance.table import CheckFailed, check

if TYPE_CHECKING:
    from epctx_conformance.models.building import SmallModel
    from epctx_conformance.scene import Scene

NEEDS = ("partitions", "export", "deterministic")
HINT = "Sort what comes out of sets, and leave out clocks, paths, addresses and random numbers."


def written(scene: Scene, model: SmallModel, *, embed: bool = False) -> dict[str, str]:
    """Compile in a new folder; return each file's name with its digest."""
    folder = scene.compile(model, embed=embed).path.parent
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def written_elsewhere(scene: Scene) -> dict[str, str]:
    """Do so in another process."""
    return written(scene, scene.network)


def _expect_equal(first: dict[str, str], second: dict[str, str], where: str) -> None:
    different = sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
    if different:
        raise CheckFailed(f"{where} the same compile gave another {', '.join(different)}.", hint=HINT)


@check("determinism", "a second compile in another folder gives the same files", needs=NEEDS)
def check_files(scene: Scene) -> None:
    """Two folders, one process."""
    _expect_equal(written(scene, scene.network), written(scene, scene.network), "in another folder")


@check("determinism", "a second compile gives the same embedded payloads", needs=(*NEEDS, "embed"))
def check_embedded(scene: Scene) -> None:
    """The same for payloads inside the model."""
    first, second = (written(scene, scene.network, embed=True) for _ in range(2))
    _expect_equal(first, second, "embedded,")


@check("determinism", "another process with another hash seed gives the same files", needs=NEEDS)
def check_processes(scene: Scene) -> None:
    """The order of sets of texts differs from process to process."""
    function = f"{__name__}:{written_elsewhere.__name__}"
    first, second = (elsewhere(scene, function, environment={"PYTHONHASHSEED": seed}) for seed in ("1", "2"))
    _expect_equal(first, second, "in another process")
    _expect_equal(written(scene, scene.network), first, "in another process")


@check("determinism", "what was compiled before makes no difference", needs=NEEDS)
def check_history(scene: Scene) -> None:
    """Another model in between: nothing is counted on."""
    first = written(scene, scene.network)
    for model in scene.claimed_models()[:3]:
        scene.compile(model)
    _expect_equal(first, written(scene, scene.network), "after other models")


@check("determinism", "compiles in two threads at once give the same files", needs=(*NEEDS, "concurrency"))
def check_threads(scene: Scene) -> None:
    """Two instances at work at the same time."""
    model = scene.network
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: written(scene, model), range(2))
    _expect_equal(first, second, "in another thread")


@check("determinism", "nothing that it writes tells where it was written", needs=("partitions", "export"))
def check_no_traces(scene: Scene) -> None:
    """Paths of this machine and its name are neither reproducible nor anybody's business."""
    folder = scene.compile(scene.network).path.parent
    traces = {
        "the folder": str(folder),
        "the folder for temporary files": str(Path(tempfile.gettempdir()) / "epctx-"),
        "the home folder": str(Path.home()) if len(Path.home().parts) > 1 else "",
        "the working directory": str(Path.cwd()) if len(Path.cwd().parts) > 2 else "",  # noqa: PLR2004 - not / or /tmp
        "the host's name": socket.gethostname() if len(socket.gethostname()) > 7 else "",  # noqa: PLR2004 - not by chance
        "the process's number": f"pid={os.getpid()}",
    }
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for what, text in traces.items():
            if text and text.encode() in content:
                raise CheckFailed(f"{path.name} holds {what}: {text!r}.", hint=HINT)


def _asked_twice(scene: Scene) -> list[dict[str, Any]]:
    """Return what an instance says of its nodes, twice, to writers of the kit's own."""
    answers: list[dict[str, Any]] = []

    def twice(honest: Any, **given: Any) -> Any:
        for _ in range(2):
            writer = MemoryWriter(given["writer"])
            answers.append(writer.answer(honest(writer=writer)))
        return honest(**given)

    watched, _ = scene.observed(get_ep_context_nodes=twice)
    watched.compile(scene.network)
    return answers


@check("determinism", "asked again, it describes the same nodes", needs=("partitions", "export"))
def check_same_nodes(scene: Scene) -> None:
    """The hook may be called any number of times."""
    first, second = _asked_twice(scene)
    if first["nodes"] != second["nodes"]:
        raise CheckFailed(
            "get_ep_context_nodes described other nodes the second time.",
            hint="Keep what was compiled until shutdown, and change none of it.",
        )


@check("determinism", "asked again, it writes the same bytes", needs=NEEDS)
def check_same_payloads(scene: Scene) -> None:
    """The bytes of the first answer, once more."""
    first, second = _asked_twice(scene)
    if first["payloads"] != second["payloads"]:
        raise CheckFailed("get_ep_context_nodes wrote other bytes the second time.", hint=HINT)


@check("determinism", "the same inputs give the same results, to the last bit", needs=("deterministic",))
def check_same_results(scene: Scene) -> None:
    """In one session, and in another one."""
    model = scene.network if scene.requirements.partitions else single(scene.block)
    feeds = model.feeds()
    with scene.session(model) as session:
        results = [session.run(None, feeds) for _ in range(3)]
    results.append(scene.run(model, feeds))
    for other in results[1:]:
        if not all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True)):
            raise CheckFailed("the same inputs gave other results.", hint=HINT)
