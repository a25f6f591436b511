"""Names of the core for epctx's own packages only; they change without notice.

An EP or a host needs none of them; `epctx_core`, `epctx_core.plugin` and
`epctx_core.errors` are the public names. A package that imports this module requires
exactly its own version of the core.

`CpuEngine`:
    the engine that EPs are lent in an explanation, or in another host
    (epctx-conformance, onnxruntime-ep-epctx).
`HOOKS`:
    giving an implementation a hook's whole signature (epctx-conformance).
`MappedFile`:
    files that a model names (epctx-files).
`ModelFolder`:
    opening only what lies in a model's folder, and the state of a file there
    (epctx-cache, epctx-cli, epctx-files, epctx-genai, epctx-report,
    onnxruntime-ep-epctx).
`PayloadEntry`, `dump_seal`:
    a manifest for a model that another tool wrote, and digests of a folder's files
    (epctx-files).
`Publication`:
    putting a converted, annotated or changed model, or a page, in its place, and
    saying that it cannot be before any work is done for it (epctx-batch,
    epctx-bench, epctx-cli, epctx-files, epctx-genai, epctx-onnxruntime, epctx-report).
`ProviderChoice`:
    an EP of a compile or a session, with its options (epctx-cache, epctx-onnxruntime).
`Request`:
    reading a model that is to be converted or sealed, the EPs that a compile will have,
    with options and versions, and handing a model with its options to another process
    (epctx-bench, epctx-cache, epctx-conformance, epctx-files, epctx-isolation,
    epctx-onnxruntime, onnxruntime-ep-epctx).
`SESSION_OPTIONS`:
    the part of each in a key; the same options of onnxruntime; those that another
    process knows; those that are no secret (epctx-batch, epctx-cache, epctx-isolation,
    epctx-onnxruntime, onnxruntime-ep-epctx).
`SessionState`:
    a session that another process loads and runs (epctx-isolation).
`Weight`:
    weights that another process sent, or that the optimiser computed (epctx-isolation,
    epctx-onnxruntime).
`choose`:
    asking EPs for their claims (epctx-conformance, onnxruntime-ep-epctx).
`check_required_files`:
    a check of every byte of the files beside an entry's model (epctx-cache).
`list_distributions`:
    versions, files and requirements of what compiles (epctx-cache).
`make_private_folder`, `remove_tree`, `get_user_folder`:
    folders of one user alone (epctx-cache).
`make_scratch_folder`:
    temporary files of another process (epctx-isolation).
`digest_model`:
    a digest of a model with its weights, and the state of its files (epctx-cache,
    epctx-cli).
`host_call`:
    one call of a host that compiles, loads or explains (epctx-cache, epctx-conformance,
    epctx-onnxruntime).
`implemented_hooks`:
    knowing which hooks an EP has (epctx-cli, epctx-conformance, onnxruntime-ep-epctx).
`check_host_plugin`:
    plugins of a host that stay with it (epctx-isolation).
`plugin_error`:
    errors about a plugin that another process called (epctx-isolation).
`import_installed`:
    naming the package that a command or a function needs (epctx-batch, epctx-cli,
    epctx-conformance, epctx-genai, epctx-onnxruntime).
`install_command`:
    hints that name a package to install (epctx-cli).
`infer_safely`:
    onnx's inference without what ends the process (epctx-files, epctx-onnxruntime).
`known_ep`:
    keeping vendors' names from new plugins (epctx-cli).
`prepare_claimed`:
    having EPs load and compile their nodes of a graph that another host owns
    (onnxruntime-ep-epctx).
`parse_json`:
    counting what a message, a manifest or a result has before it is decoded
    (epctx-bench, epctx-cache, epctx-cli, epctx-files, epctx-genai, epctx-isolation,
    epctx-onnxruntime, epctx-report).
`read_small_file`:
    reading files that anybody may have written (epctx-batch, epctx-bench,
    epctx-cache, epctx-cli, epctx-files, epctx-genai, epctx-onnxruntime,
    epctx-report).
`read_with_manifest`:
    reading a model with its manifest, within the core's budgets (epctx-cli,
    epctx-files).
`read_request`:
    options and EPs of a host as `InferenceSession` takes them (epctx-cache,
    epctx-conformance, epctx-onnxruntime).
`watch_calls`:
    telling which plugin was called when a process died (epctx-isolation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.forwarding import make_forwarders as _make_forwarders

if TYPE_CHECKING:
    from epctx_core.context.digests import *
    from epctx_core.context.manifest import *
    from epctx_core.context.metadata import *
    from epctx_core.context.model_formats import *
    from epctx_core.context.model_head import *
    from epctx_core.context.paths import *
    from epctx_core.context.scratch import *
    from epctx_core.engines.cpu_engine import *
    from epctx_core.forwarding import *
    from epctx_core.graph.inference import *
    from epctx_core.graph.mapping import *
    from epctx_core.graph.weights import *
    from epctx_core.installing import *
    from epctx_core.options.table import *
    from epctx_core.plugin.hookspecs import *
    from epctx_core.publish.publication import *
    from epctx_core.registry.entries import *
    from epctx_core.registry.guard import *
    from epctx_core.registry.installed import *
    from epctx_core.sessions.host import *
    from epctx_core.sessions.load import *
    from epctx_core.sessions.routing import *
    from epctx_core.sessions.source import *
    from epctx_core.sessions.stage_values import *
    from epctx_core.sessions.stages import *

_HOME = {
    "epctx_core.context.digests": ("PayloadEntry",),
    "epctx_core.context.manifest": ("dump_seal",),
    "epctx_core.context.model_head": ("check_required_files",),
    "epctx_core.context.metadata": ("parse_json",),
    "epctx_core.context.model_formats": ("read_with_manifest",),
    "epctx_core.context.paths": ("ModelFolder",),
    "epctx_core.context.scratch": (
        "make_private_folder",
        "make_scratch_folder",
        "get_user_folder",
        "remove_tree",
    ),
    "epctx_core.engines.cpu_engine": ("CpuEngine",),
    "epctx_core.forwarding": ("import_installed",),
    "epctx_core.installing": ("install_command", "known_ep"),
    "epctx_core.graph.mapping": ("MappedFile", "read_small_file"),
    "epctx_core.graph.inference": ("infer_safely",),
    "epctx_core.graph.weights": ("Weight",),
    "epctx_core.options.table": ("SESSION_OPTIONS",),
    "epctx_core.plugin.hookspecs": ("HOOKS",),
    "epctx_core.publish.publication": ("Publication",),
    "epctx_core.registry.entries": ("check_host_plugin",),
    "epctx_core.registry.guard": ("implemented_hooks", "plugin_error", "watch_calls"),
    "epctx_core.registry.installed": ("list_distributions",),
    "epctx_core.sessions.host": ("host_call", "read_request"),
    "epctx_core.sessions.load": ("SessionState", "prepare_claimed"),
    "epctx_core.sessions.routing": ("ProviderChoice",),
    "epctx_core.sessions.source": ("digest_model",),
    "epctx_core.sessions.stage_values": ("choose",),
    "epctx_core.sessions.stages": ("Request",),
}
if not TYPE_CHECKING:
    __getattr__, __dir__ = _make_forwarders(__name__, _HOME)
