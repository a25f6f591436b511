"""Names of the core for epctx's own packages only; they change without notice.

An EP or a host needs none of them; `epctx_core`, `epctx_core.plugin` and `epctx_core.errors` are the public names.
A package that imports this module requires exactly its own version of the core.

| name | used by | for |
|---|---|---|
| `CpuEngine`, `ProviderSession` | epctx-cli, epctx-isolation | an EP instance for claims alone, or in another process |
| `GraphIndex`, `GraphPartition`, `GraphSlice`, `Node` | epctx-isolation | a copy of a model in another process |
| `HOOKS` | epctx-conformance, epctx-isolation | giving an implementation a hook's whole signature |
| `MappedFile` | epctx-cli, epctx-isolation | reading a payload that is sealed; that copy's weights |
| `MarkedMethod` | epctx-conformance | the type of what `implemented_hooks` returns |
| `ModelFolder` | epctx-cli | opening only what lies in a model's folder |
| `ModelSource` | epctx-cache | a digest of a model with its weights, and the state of its files |
| `Publication` | epctx-cli | putting a sealed model in its place |
| `PrivatePayloads` | epctx-isolation | loading in a session what an EP compiled in another process |
| `ProviderChoice` | epctx-cache, epctx-isolation, epctx-onnxruntime | an EP of a compile or a session, with its options |
| `SESSION_OPTIONS` | epctx-cache, epctx-onnxruntime | the part of each in a key; the same options of onnxruntime |
| `types_of` | epctx-isolation | that copy's types |
| `Weight` | epctx-isolation, epctx-onnxruntime | weights that another process sent, or that the optimiser computed |
| `check_files` | epctx-cache | checking every byte of an entry |
| `check_folder` | epctx-cli | saying that a file cannot be written before any work is done for it |
| `CompileCancellation`, `assign_nodes`, `optimise_model` | epctx-cli | asking EPs for claims alone, as a compile does |
| `choose_providers` | epctx-cache, epctx-cli | the EPs that a compile will have, with options and versions |
| `concealed` | epctx-cli, epctx-conformance | leaving secrets out of tracebacks and of told calls |
| `describe_distrust`, `make_private_folder`, `remove_tree`, `get_user_folder` | epctx-cache | folders of one user alone |
| `find_problems` | epctx-conformance | checking a class as its registration does |
| `host_call` | epctx-cache, epctx-onnxruntime | one call of a host that compiles and loads |
| `implemented_hooks` | epctx-cli, epctx-conformance, epctx-isolation | knowing which hooks an EP has |
| `import_installed` | epctx-cli, epctx-conformance, epctx-onnxruntime | naming the package that a command or a function needs |
| `internal_error` | epctx-cli | reporting a mistake of epctx in the words of the core |
| `known_ep` | epctx-cli | keeping vendors' names from new plugins |
| `OpenModel`, `open_model` | epctx-cli, epctx-onnxruntime | reading a model that is to be sealed, explained or converted |
| `read_manifest` | epctx-conformance | knowing which bytes of a payload are weights before damaging it |
| `suggestion` | epctx-cli, epctx-conformance | suggesting what was meant by a misspelt name |
| `copy_options` | epctx-cache, epctx-cli | options of a host |
| `parse_providers` | epctx-cache | EPs as `InferenceSession` takes them |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.forwarding import make_forwarders as _make_forwarders

if TYPE_CHECKING:
    from epctx_core.compiling.destination import *
    from epctx_core.context.manifest import *
    from epctx_core.context.paths import *
    from epctx_core.context.payload_writer import *
    from epctx_core.context.scratch import *
    from epctx_core.engines.cpu_engine import *
    from epctx_core.errors import *
    from epctx_core.forwarding import *
    from epctx_core.graph.extraction import *
    from epctx_core.graph.index import *
    from epctx_core.graph.mapping import *
    from epctx_core.graph.type_table import *
    from epctx_core.graph.weights import *
    from epctx_core.options.table import *
    from epctx_core.plugin.hookspecs import *
    from epctx_core.publish.files import *
    from epctx_core.publish.publication import *
    from epctx_core.registry.explaining import *
    from epctx_core.registry.importing import *
    from epctx_core.sessions.assignment import *
    from epctx_core.sessions.host import *
    from epctx_core.sessions.inspection import *
    from epctx_core.sessions.optimise import *
    from epctx_core.sessions.providers import *
    from epctx_core.sessions.source import *

_HOME = {
    "epctx_core.compiling.destination": ("check_folder",),
    "epctx_core.context.manifest": ("read_manifest",),
    "epctx_core.context.paths": ("ModelFolder",),
    "epctx_core.context.payload_writer": ("PrivatePayloads",),
    "epctx_core.context.scratch": ("describe_distrust", "make_private_folder", "get_user_folder"),
    "epctx_core.engines.cpu_engine": ("CpuEngine",),
    "epctx_core.errors": ("concealed", "internal_error", "suggestion"),
    "epctx_core.forwarding": ("import_installed",),
    "epctx_core.graph.index": ("GraphIndex", "Node"),
    "epctx_core.graph.mapping": ("MappedFile",),
    "epctx_core.graph.extraction": ("GraphPartition", "GraphSlice"),
    "epctx_core.graph.type_table": ("types_of",),
    "epctx_core.graph.weights": ("Weight",),
    "epctx_core.options.table": ("SESSION_OPTIONS",),
    "epctx_core.plugin.hookspecs": ("HOOKS",),
    "epctx_core.publish.files": ("remove_tree",),
    "epctx_core.publish.publication": ("Publication",),
    "epctx_core.registry.explaining": ("known_ep",),
    "epctx_core.registry.importing": ("MarkedMethod", "find_problems", "implemented_hooks"),
    "epctx_core.sessions.assignment": ("assign_nodes",),
    "epctx_core.sessions.host": ("CompileCancellation", "copy_options", "host_call", "parse_providers"),
    "epctx_core.sessions.inspection": ("ModelSource", "check_files"),
    "epctx_core.sessions.optimise": ("optimise_model",),
    "epctx_core.sessions.providers": ("ProviderChoice", "ProviderSession", "choose_providers"),
    "epctx_core.sessions.source": ("OpenModel", "open_model"),
}  # fmt: skip
if not TYPE_CHECKING:  # they take a computed list for an empty one
    __all__ = [name for names in _HOME.values() for name in names]
    __getattr__, __dir__ = _make_forwarders(__name__, _HOME)
