"""Context models: written in every way that a host can ask for, with equal bytes,
moved, edited, and loaded again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_conformance.memory import MemoryPayloadView, MemoryReader, MemoryWriter
from epctx_conformance.models import rename_values, separated, side_by_side, single
from epctx_conformance.other_process import call_in_other_process
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check
from epctx_core import verify_model
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_conformance.harness import Harness
    from epctx_conformance.observing import Watch
    from epctx_core.plugin import CompiledPartition, ContextNode

NEEDS = ("partitions", "export")
SEVERAL = (*NEEDS, "several_partitions")
DETERMINISTIC = (*NEEDS, "deterministic")
_SORT = (
    "Sort what comes out of sets, and leave out clocks, paths, addresses and random "
    "numbers."
)


# --- the same bytes -------------------------------------------------------------------


def written(harness: Harness, *, embed: bool = False) -> dict[str, str]:
    """Compile in a new folder; return each file's name with its digest."""
    folder = harness.compile(harness.network, embed=embed).parent
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def _write_in_processes(harness: Harness) -> list[dict[str, str]]:
    """The order of sets of texts differs from process to process."""

    def write(seed: str) -> dict[str, str]:
        variables = {"PYTHONHASHSEED": seed}
        found: dict[str, str] = call_in_other_process(
            harness, written, environment=variables
        )
        return found

    # They start anew, and most of their time is the start.
    with ThreadPoolExecutor(2) as pool:
        others = pool.map(write, ("1", "2"))
        return [written(harness), *others]


def _write_after_others(harness: Harness) -> list[dict[str, str]]:
    first = written(harness)
    for model in harness.claimed_models()[:3]:
        harness.compile(model)
    return [first, written(harness)]


def _write_in_threads(harness: Harness) -> list[dict[str, str]]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda _: written(harness), range(2)))


_COMPILES: tuple[
    tuple[str, Callable[[Harness], list[dict[str, str]]], str, tuple[str, ...]], ...
] = (
    (
        "a second compile in another folder gives the same files",
        lambda harness: [written(harness) for _ in range(2)],
        "in another folder",
        DETERMINISTIC,
    ),
    (
        "a second compile gives the same embedded payloads",
        lambda harness: [written(harness, embed=True) for _ in range(2)],
        "embedded,",
        (*DETERMINISTIC, "embed"),
    ),
    (
        "another process with another hash seed gives the same files",
        _write_in_processes,
        "in another process",
        DETERMINISTIC,
    ),
    (
        "earlier compiles make no difference",
        _write_after_others,
        "after other models",
        DETERMINISTIC,
    ),
    (
        "compiles in two threads at once give the same files",
        _write_in_threads,
        "in another thread",
        (*DETERMINISTIC, "concurrency"),
    ),
)
"""Title, equal compiles, their place in messages, and the abilities needed."""


def _make_equality_check(
    compiles: Callable[[Harness], list[dict[str, str]]], where: str
) -> CheckFunction:
    def function(harness: Harness) -> None:
        first, *others = compiles(harness)
        for other in others:
            different = sorted(name for name, _ in first.items() ^ other.items())
            if different:
                names = ", ".join(dict.fromkeys(different))
                raise CheckFailed(
                    f"{where} the same compile gave another {names}.", hint=_SORT
                )

    return function


for _title, _compiles, _where, _needs in _COMPILES:
    check("determinism", _title, needs=_needs)(_make_equality_check(_compiles, _where))


@check("determinism", "its files contain no trace of the machine", needs=NEEDS)
def check_no_traces(harness: Harness) -> None:
    """Paths of this machine and its name are neither reproducible nor for others."""
    folder = harness.compile(harness.network).parent
    traces = {
        "the folder": str(folder),
        "the folder for temporary files": str(Path(tempfile.gettempdir()) / "epctx-"),
        "the home folder": str(Path.home()) if len(Path.home().parts) > 1 else "",
        "the working directory": str(Path.cwd()) if len(Path.cwd().parts) > 2 else "",  # noqa: PLR2004 - not / or /tmp
        "the host's name": socket.gethostname()
        if len(socket.gethostname()) > 7  # noqa: PLR2004 - not by chance
        else "",
        "the process's number": f"pid={os.getpid()}",
    }
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for what, text in traces.items():
            if text and text.encode() in content:
                raise CheckFailed(f"{path.name} contains {what}: {text!r}.", hint=_SORT)


@check("determinism", "it describes the same nodes each time", needs=NEEDS)
def check_same_nodes(harness: Harness) -> None:
    """The hook may be called any number of times, with writers of the kit's own, and
    writes the same bytes.
    """
    nodes = []
    payloads = []

    def twice(honest: Any, **arguments: Any) -> Any:
        for _ in range(2):
            writer = MemoryWriter(arguments["writer"])
            nodes.append(writer.describe(honest(writer=writer)))
            payloads.append(writer.contents())
        return honest(**arguments)

    other, _ = harness.observed(get_ep_context_nodes=twice)
    other.compile(harness.network)
    if nodes[0] != nodes[1]:
        raise CheckFailed(
            "get_ep_context_nodes described other nodes the second time.",
            hint="Keep what was compiled until shutdown, and change none of it.",
        )
    if harness.requirements.deterministic and payloads[0] != payloads[1]:
        raise CheckFailed(
            "get_ep_context_nodes wrote other bytes the second time.", hint=_SORT
        )


@check(
    "determinism",
    "the same inputs give the same results, to the last bit",
    needs=("deterministic",),
)
def check_same_results(harness: Harness) -> None:
    """In one session, and in another one."""
    model = (
        harness.network if harness.requirements.partitions else single(harness.block)
    )
    feeds = model.feeds()
    with harness.session(model) as session:
        first, *others = (session.run(None, feeds) for _ in range(3))
    for other in (*others, harness.run(model, feeds)):
        if not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True)):
            raise CheckFailed("the same inputs gave other results.", hint=_SORT)


# --- written and handed over ----------------------------------------------------------


@check("contexts", "a context model in a file loads and runs", needs=NEEDS)
def check_file(harness: Harness) -> None:
    """The source is gone by then, and the instance that loads has compiled nothing."""
    path = harness.compile(harness.network)
    other, watch = harness.observed()
    other.expect_run(harness.network, "loaded from a file", path)
    if watch.of("compile") or not watch.of("load_context"):
        raise CheckFailed(
            "a load of its context model compiled again.",
            hint="Restore the payload in load_context.",
        )


@check(
    "contexts",
    "a model with embedded payloads loads from bytes",
    needs=(*NEEDS, "embed"),
)
def check_embedded(harness: Harness) -> None:
    """One file and nothing beside it, which needs no folder."""
    path = harness.compile(harness.network, embed=True)
    content = path.read_bytes()
    others = sorted(other.name for other in path.parent.iterdir() if other != path)
    if others:
        raise CheckFailed(
            f"a compile with embedded payloads left {', '.join(others)} beside the "
            "model."
        )
    harness.expect_run(harness.network, "loaded with embedded payloads", path)
    shutil.rmtree(path.parent)
    harness.expect_run(harness.network, "loaded from bytes", content)


@check("contexts", "a context model loads from a moved folder", needs=NEEDS)
def check_moved(harness: Harness) -> None:
    """Another path, and the old one is gone."""
    path = harness.compile(harness.network)
    moved = harness.folder() / "moved"
    shutil.move(path.parent, moved)
    harness.expect_run(harness.network, "loaded from a moved folder", moved / path.name)


def load_and_run(harness: Harness, path: str, inputs: str, outputs: str) -> None:
    """Load a model, run it and store its results; done in another process."""
    with np.load(inputs) as stored, harness.session(Path(path)) as session:
        np.savez(outputs, *session.run(None, dict(stored)))


@check("contexts", "another process loads what this one compiled", needs=NEEDS)
def check_another_process(harness: Harness) -> None:
    """It has nothing of this process: no instance, no class attribute, no file but the
    model's.
    """
    path = harness.compile(harness.network)
    feeds = harness.network.feeds()
    inputs, outputs = (
        harness.folder() / name for name in ("inputs.npz", "outputs.npz")
    )
    np.savez(inputs, **feeds)  # type: ignore[arg-type]
    arguments = {"path": str(path), "inputs": str(inputs), "outputs": str(outputs)}
    call_in_other_process(harness, load_and_run, arguments)
    with np.load(outputs) as stored:
        results = [stored[name] for name in stored.files]
    harness.expect_agreement(
        harness.network, results, feeds, "loaded in another process"
    )


def is_on_a_path(harness: Harness) -> bool:
    """Return whether the EP's module is on a path; done in another process, which could
    also find it in its file.
    """
    module = harness.provider.__module__
    del sys.modules[
        module
    ]  # of a loaded module, `find_spec` returns what it was loaded with
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is on none
        return False


@check("contexts", "it compiles out of process", needs=NEEDS)
def check_isolated(harness: Harness) -> None:
    """`ep.isolate=compile`: claims, tokens and payloads made there; nothing of the
    class that this process changed.
    """
    if harness.provider.keeps_nodes:
        raise Skipped("nodes that stay in the model cannot be compiled elsewhere")
    if find_spec("epctx_isolation") is None:
        raise Skipped("epctx-isolation is not installed")
    if not call_in_other_process(harness, is_on_a_path):
        raise Skipped(
            f"an isolating process cannot import {harness.provider.__module__}, which "
            "is on no path"
        )
    harness.expect_run(
        harness.network,
        "compiled in a process of its own",
        config={"ep.isolate": "compile"},
    )


@check(
    "contexts",
    "a context model from bytes finds its binaries beside ep.context_file_path",
    needs=NEEDS,
)
def check_bytes(harness: Harness) -> None:
    """`ep.context_file_path` says where the model would be; a compile to bytes puts
    binaries there.
    """
    model = harness.network
    target = harness.folder() / "m_ctx.onnx"
    config = {"ep.context_file_path": str(target)}
    content = harness.compiler(model, config=config).compile_to_bytes()
    harness.expect_run(
        model, "compiled to bytes and loaded from bytes", content, config=config
    )


@check("contexts", "payloads may go through the host's callbacks", needs=NEEDS)
def check_callbacks(harness: Harness) -> None:
    """Written and read by functions; no file but the model."""
    stored: dict[str, bytes] = {}
    target = harness.folder() / "m_ctx.onnx"
    compiler = harness.compiler(harness.network)
    compiler.set_ep_context_data_write_func(
        lambda name, data: stored.update({name: data.read()})
    )
    compiler.compile_to_file(target)
    names = sorted(path.name for path in target.parent.iterdir())
    if names != [target.name]:
        raise CheckFailed(f"despite a write callback the folder contains {names}.")

    def read(name: str, buffer: Any) -> None:
        buffer.allocate(len(stored[name]))
        buffer.write(stored[name])

    options = harness.session_options()
    options.set_ep_context_data_read_func(read, max(map(len, stored.values())))
    with harness.session(target, options) as session:
        harness.expect_run(harness.network, "loaded through a callback", session)


@check("contexts", "a session may run after its context model is written", needs=NEEDS)
def check_runs_after_describing(harness: Harness) -> None:
    """A session that writes a context model while it runs goes on."""
    model = harness.network
    target = harness.folder() / "m_ctx.onnx"
    config = {"ep.context_enable": "1", "ep.context_file_path": str(target)}
    harness.expect_run(model, "run by a session that also writes", config=config)
    harness.expect_run(model, "written by a session and loaded", target)


@check("contexts", "a session runs after its folder is removed", needs=NEEDS)
def check_folder_gone(harness: Harness) -> None:
    """A load has all that it needs."""
    path = harness.compile(harness.network)
    with harness.session(path) as session:
        shutil.rmtree(path.parent)
        harness.expect_run(harness.network, "without its folder", session)


@check("contexts", "a binary may be read instead of mapped", needs=NEEDS)
def check_not_mapped(harness: Harness) -> None:
    """`ep.context_file_mapping=0`."""
    path = harness.compile(harness.network)
    config = {"ep.context_file_mapping": "0"}
    harness.expect_run(harness.network, "loaded without a mapping", path, config=config)


@check("contexts", "a model may have external weights", needs=NEEDS)
def check_external_weights(harness: Harness) -> None:
    """The files are gone when the context model is loaded."""
    folder = harness.folder()
    model = single(harness.large_block)
    onnx.save(
        deepcopy(model.proto),
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.weights",
    )
    harness.compiler(folder / "m.onnx").compile_to_file()
    (folder / "m.weights").unlink()
    harness.expect_run(model, "loaded without the weights' file", folder / "m_ctx.onnx")


@check("contexts", "verification finds no error in its context model", needs=NEEDS)
def check_verified(harness: Harness) -> None:
    """`epctx verify`, with the EP's own look into its payloads if it has one."""
    findings = verify_model(
        harness.compile(harness.network), registry=harness.registry
    ).findings
    for finding in findings:
        if finding.severity.value == "error":
            raise CheckFailed(f"{finding.code}: {finding.message}", hint=finding.hint)


# --- nodes ----------------------------------------------------------------------------


def _compile_one_by_one(
    honest: Any, partitions: Sequence[Any], **_others: Any
) -> list[CompiledPartition]:
    return [
        compiled
        for partition in partitions
        for compiled in honest(partitions=[partition])
    ]


def _compile_backwards(
    honest: Any, partitions: Sequence[Any], **_others: Any
) -> list[CompiledPartition]:
    return list(honest(partitions=list(partitions)[::-1]))[::-1]


def _expect_compiled(harness: Harness, count: int, what: str, **acts: Any) -> None:
    model = separated(harness.block, harness.barrier, count)
    other, _ = harness.observed(**acts)
    other.expect_run(model, f"compiled {what} in a session")
    harness.expect_run(model, f"compiled {what} and loaded", other.compile(model))


@check("nodes", "partitions may come in several calls", needs=SEVERAL)
def check_compile_again(harness: Harness) -> None:
    """Each partition in a call of its own, as other hosts do it; then all are saved."""
    _expect_compiled(harness, 3, "one by one", compile=_compile_one_by_one)


@check("nodes", "partitions may come in any order", needs=SEVERAL)
def check_partition_order(harness: Harness) -> None:
    """The last first; what was found out about a claim comes back with its partition,
    as `token`, and not by order.
    """
    _expect_compiled(harness, 4, "in another order", compile=_compile_backwards)


@check("nodes", "it compiles a part of its claims", needs=SEVERAL)
def check_fewer_partitions(harness: Harness) -> None:
    """`ep.partition_max_count`: some of what it claimed, with a token or without, never
    comes back.
    """
    model = separated(harness.block, harness.barrier, 3)
    config = {"ep.partition_max_count": "1"}
    harness.expect_run(model, "with one partition in a session", config=config)
    harness.expect_run(
        model, "with one partition, loaded", harness.compile(model, config=config)
    )


@check(
    "nodes",
    "it loads the nodes of a payload in several calls",
    needs=(*SEVERAL, "load_in_parts"),
)
def check_load_in_parts(harness: Harness) -> None:
    """One node a call, primaries first; a reference's primary came in an earlier
    call.
    """

    def one_by_one(
        honest: Any, nodes: Sequence[Any], **_others: Any
    ) -> list[CompiledPartition]:
        return [loaded for node in nodes for loaded in honest(nodes=[node])]

    model = separated(harness.block, harness.barrier, 3)
    other, _ = harness.observed(load_context=one_by_one)
    try:
        other.expect_run(model, "loaded one node a call", harness.compile(model))
    except EpctxError as error:
        raise CheckFailed(
            f"loaded one node a call: {error.message}",
            hint=(
                "If it needs all nodes of a payload at once, declare it: "
                "Requirements(load_in_parts=False); `--without load_in_parts` on the "
                "command line."
            ),
        ) from error


@check("nodes", "nodes may come in any order", needs=SEVERAL)
def check_node_order(harness: Harness) -> None:
    """Primaries first, and otherwise the last first; results are in the order of the
    arguments.
    """

    def backwards(
        honest: Any, nodes: Sequence[ContextNode], **_others: Any
    ) -> list[CompiledPartition]:
        order = sorted(
            nodes, key=lambda node: (not node.main_context, -nodes.index(node))
        )
        loaded = dict(
            zip([node.name for node in order], honest(nodes=order), strict=True)
        )
        return [loaded[node.name] for node in nodes]

    model = separated(harness.block, harness.barrier, 4)
    other, _ = harness.observed(load_context=backwards)
    other.expect_run(model, "loaded in another order", harness.compile(model))


@check("nodes", "it needs nothing of writer and reader but the contract", needs=NEEDS)
def check_contract_alone(harness: Harness) -> None:
    """Written to a writer and read from a reader that are nothing but memory."""
    payloads: dict[str, MemoryPayloadView] = {}

    def to_memory(honest: Any, **arguments: Any) -> Any:
        writer = MemoryWriter(arguments["writer"])
        nodes = honest(writer=writer)
        for name, payload in writer.payloads.items():
            # One for all nodes that carry it.
            view = MemoryPayloadView(
                str(name), bytes(payload.content), harness.folder()
            )
            carried = [node for node in nodes if node.payload is payload]
            payloads.update(
                (node.graph_name or node.partition.name, view) for node in carried
            )
        return honest(**arguments)

    def from_memory(honest: Any, **_arguments: Any) -> Any:
        return honest(reader=MemoryReader(payloads))

    other, _ = harness.observed(
        get_ep_context_nodes=to_memory, load_context=from_memory
    )
    other.expect_run(
        harness.network, "read from memory", other.compile(harness.network)
    )


@check("nodes", "its names of graphs are unique and stable", needs=SEVERAL)
def check_graph_names(harness: Harness) -> None:
    """`EPContextNode.graph_name`: each is a node's partition_name, and a load finds its
    graph by it alone.
    """
    model = separated(harness.block, harness.barrier, 4)
    hint = (
        "graph_name is printable text, unlike those of other partitions, and the same "
        "each time that nodes are described."
    )
    other, watch = harness.observed()
    try:
        path = other.compile(model)
    except EpctxError as error:
        graph_names(watch)
        raise CheckFailed(error.message, hint=hint) from error
    attributes = (
        attribute for node in onnx.load(path).graph.node for attribute in node.attribute
    )
    partition_names = [
        attribute.s.decode()
        for attribute in attributes
        if attribute.name == "partition_name"
    ]
    names = graph_names(watch)
    if not names.issubset(partition_names):
        raise CheckFailed(
            f"it named its graphs {sorted(names)}, and the nodes say "
            f"{partition_names}.",
            hint=hint,
        )
    harness.expect_run(model, "loaded by the names of its graphs", path)


def graph_names(watch: Watch) -> set[str]:
    """Return the names of graphs that the EP gave.

    Raises:
        Skipped: it gave none.
    """
    described = (
        node for call in watch.of("get_ep_context_nodes") for node in call.result or ()
    )
    names = {node.graph_name for node in described if node.graph_name is not None}
    if not names:
        raise Skipped("the core names the EP's graphs")
    return names


@check("nodes", "no two of its binaries have the same bytes", needs=SEVERAL)
def check_one_binary(harness: Harness) -> None:
    """Several nodes carry one payload with all that they share: written once, mapped
    once at a load.
    """
    model = separated(harness.weighted_block, harness.barrier, 3)
    path = harness.compile(model)
    files = [other for other in path.parent.iterdir() if other != path]
    if len({file.read_bytes() for file in files}) < len(files):
        raise CheckFailed(
            f"{len(files)} binaries have the same bytes: "
            f"{', '.join(sorted(file.name for file in files))}.",
            hint=(
                "Start one payload and give it to all nodes, main_context=1 or 0; at "
                "a load each of them has it."
            ),
        )
    harness.expect_run(model, "loaded from its binaries", path)


@check("nodes", "each attribute of its nodes comes back as it was written", needs=NEEDS)
def check_attributes_come_back(harness: Harness) -> None:
    """load_context gets what get_ep_context_nodes gave."""
    other, watch = harness.observed()
    other.run(other.compile(harness.network), harness.network.feeds())
    loaded = {
        node.partition_name: node.attributes
        for call in watch.of("load_context")
        for node in call.arguments["nodes"]
    }
    for described in (
        node for call in watch.of("get_ep_context_nodes") for node in call.result
    ):
        back = loaded.get(described.graph_name or described.partition.name, {})
        for key, value in described.attributes.items():
            if repr(back.get(key)) != repr(value):
                raise CheckFailed(
                    f"the attribute {key!r} was {value!r} and came back as "
                    f"{back.get(key)!r}.",
                    hint=(
                        "Attributes are int, str, or float of 32 bits, or lists of "
                        "one of them; write other numbers as text."
                    ),
                )


@check("nodes", "partition names may have a prefix", needs=NEEDS)
def check_prefix(harness: Harness) -> None:
    """Nothing may be derived from a partition's name."""
    path = harness.compile(
        harness.network, config={"ep.context_node_name_prefix": "fleet-7."}
    )
    harness.expect_run(harness.network, "loaded with a prefix in names", path)


@check("nodes", "its nodes and the values around them may be renamed", needs=NEEDS)
def check_renamed(harness: Harness) -> None:
    """Tools rename nodes; the graph inside the payload goes by partition_name, inputs
    and outputs by their order.
    """
    model = side_by_side(harness.block)
    path = harness.compile(model)
    feeds = model.feeds()
    proto = onnx.load(path)
    for number, node in enumerate(proto.graph.node):
        node.name = f"renamed_{number}"
    rename_values(proto.graph, lambda name: f"renamed {name}")
    path.write_bytes(proto.SerializeToString(deterministic=True))
    results = harness.run(
        path, {f"renamed {name}": array for name, array in feeds.items()}
    )
    harness.expect_agreement(
        model, results, feeds, "loaded with renamed nodes and values"
    )
