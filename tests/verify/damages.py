"""One damage for each code: what is done to a model so that exactly this is found."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper
from support.context_pairs import Alpha, Harness, attribute, context_node, drop, knowing
from support.pages import read_page
from support.small_models import chain, saved, tensor

import epctx_core as epctx

INFO = "ep_compatibility_info."


_ROW = re.compile(r"\| `([a-z-]+)` \| (\w+) \| (.+?) \| (.+?) \|")


def documented_codes() -> list[tuple[str, str, str, str]]:
    """Return the rows of verify.md: code, severity, meaning, what to do."""
    text = read_page("verify.md")
    matches = map(_ROW.fullmatch, text.splitlines())
    return [
        (match[1], match[2], match[3], match[4])
        for match in matches
        if match is not None
    ]


@dataclass(frozen=True)
class Damage:
    """Change to a model, and the harness that it needs."""

    harness: str
    apply: Callable[[Harness], object]


DAMAGES: dict[str, Damage] = {}


def damage(
    code: str, harness: str = "handmade"
) -> Callable[[Callable[[Harness], object]], Callable[[Harness], object]]:
    """Enter a function as the damage that gives a code."""

    def enter(function: Callable[[Harness], object]) -> Callable[[Harness], object]:
        DAMAGES[code] = Damage(harness, function)
        return function

    return enter


# -- the model
# --------------------------------------------------------------------------------------


@damage("model-unreadable")
def _(harness):
    harness.path.write_bytes(b"\xff" * 40)


@damage("budget-exceeded")
def _(harness):
    harness.options.input_budget = epctx.InputBudget(nodes=1)


@damage("model-invalid")
def _(harness):
    harness.edit(
        lambda proto: proto.graph.node.append(
            helper.make_node("Relu", ["nowhere"], ["z"])
        )
    )


@damage("no-context-nodes", "plain")
def _(harness):
    saved(chain(["Relu"]), harness.path)


# -- EPContext nodes
# --------------------------------------------------------------------------------------


@damage("node-refused")
def _(harness):
    harness.edit_node(
        1, lambda node: node.attribute.append(helper.make_attribute("notes", 7))
    )


@damage("source-missing")
def _(harness):
    harness.edit_node(1, lambda node: drop(node, "source"))


@damage("primary-missing")
def _(harness):
    harness.edit_node(0, lambda node: setattr(attribute(node, "main_context"), "i", 0))


@damage("subgraph-not-run")
def _(harness):
    inner = context_node("inner", ["x"], ["z"])
    body = helper.make_graph([inner], "body", [], [tensor("z")])
    holder = helper.make_node("Odd", ["x"], ["o"], domain="my", body=body)

    def add(proto: onnx.ModelProto) -> None:
        proto.graph.node.append(holder)
        proto.opset_import.append(helper.make_opsetid("my", 1))

    harness.edit(add)


@damage("type-not-allowed")
def _(harness):
    harness.edit(
        lambda proto: proto.graph.input[0].CopyFrom(tensor("x", TensorProto.STRING))
    )


@damage("type-undeclared")
def _(harness):
    harness.edit(lambda proto: proto.graph.ClearField("value_info"))


# -- files
# --------------------------------------------------------------------------------------


def renames(name: bytes) -> Callable[[onnx.NodeProto], None]:
    """Return what makes a node name another file."""
    return lambda node: setattr(attribute(node, "ep_cache_context"), "s", name)


@damage("payload-refused", "compiled")
def _(harness):
    harness.binary.unlink()


@damage("file-not-sought", "compiled")
def _(harness):
    harness.given = harness.path.read_bytes()


# -- the manifest
# --------------------------------------------------------------------------------------


@damage("manifest-missing", "compiled")
def _(harness):
    harness.edit_metadata("epctx.manifest", None)


@damage("manifest-unknown", "compiled")
def _(harness):
    harness.edit_manifest(lambda content: content.update(version=2))


@damage("manifest-damaged", "compiled")
def _(harness):
    harness.edit_metadata("epctx.manifest", '{"version": 1, "payloads": 7')


@damage("seal-broken", "handmade")
def _(harness):
    epctx.seal_model(harness.path)
    harness.edit(lambda proto: setattr(proto, "producer_name", "another tool"))


def state_dependencies(proto: onnx.ModelProto, words: str) -> None:
    """Replace what a model says that it needs besides its file."""
    (entry,) = [
        entry for entry in proto.metadata_props if entry.key == "external_dependencies"
    ]
    entry.value = words


@damage("dependencies-wrong", "compiled")
def _(harness):
    harness.edit(lambda proto: state_dependencies(proto, ""))


@damage("manifest-unlisted", "compiled")
def _(harness):
    harness.edit_manifest(lambda content: content["payloads"].clear())


@damage("digest-mismatch", "compiled")
def _(harness):
    harness.flip(len(harness.binary.read_bytes()) // 2)


@damage("source-refused", "compiled")
def _(harness):
    reference = ["0" * 64, 1, [2, 3], "w.data", 0]
    harness.edit_manifest(
        lambda content: content.update(source_weights={"w0": reference})
    )
    harness.edit(
        lambda proto: state_dependencies(proto, "source_model;ep_context_binary")
    )


@damage("publication-unfinished", "compiled")
def _(harness):
    unfinished(harness)
    harness.flip(100)


def unfinished(harness: Harness) -> None:
    """Leave the binary in a staging folder, as a compile that was killed does."""
    from epctx_core.context.paths import OLD
    from epctx_core.file_names import STAGING_PREFIX

    kept = harness.path.parent / f"{STAGING_PREFIX}{'0' * 16}" / OLD
    kept.mkdir(parents=True, mode=0o700)
    kept.parent.chmod(0o700)
    shutil.copyfile(harness.binary, kept / harness.binary.name)


# -- plugins
# --------------------------------------------------------------------------------------


@damage("plugin-missing")
def _(harness):
    harness.registry = knowing()


@damage("plugin-broken")
def _(harness):
    def fail(context, nodes, reader):
        raise ZeroDivisionError("the SDK is broken")

    harness.registry = knowing(
        type("Broken", (Alpha,), {"verify_payloads": staticmethod(fail)})
    )


@damage("compatibility-damaged")
def _(harness):
    harness.edit_metadata(f"{INFO}{Alpha.name}", "EP_SUPPORTED_OPTIMAL")
    content = harness.path.read_bytes()
    harness.path.write_bytes(
        content.replace(b"EP_SUPPORTED_OPTIMAL", b"EP_SUPPORTED_OPTIM\xff\xff")
    )


@damage("compatibility-unsupported")
def _(harness):
    harness.edit_metadata(f"{INFO}{Alpha.name}", "EP_UNSUPPORTED")


@damage("compatibility-outdated")
def _(harness):
    harness.edit_metadata(f"{INFO}{Alpha.name}", "EP_SUPPORTED_PREFER_RECOMPILATION")


@damage("container-refused", "compiled")
def _(harness):
    harness.edit_node(
        1, lambda node: setattr(attribute(node, "partition_name"), "s", b"another")
    )


@damage("kernel-missing")
def _(harness):
    harness.edit(
        lambda proto: proto.graph.node.append(
            onnx.helper.make_node("NoSuch", ["y"], ["z"], "lonely", domain="acme")
        )
    )
    harness.edit(lambda proto: proto.opset_import.add(domain="acme", version=1))


@damage("not-checked")
@damage("container-not-checked")
def _(harness):
    def none(context, nodes, reader):
        return None

    harness.registry = knowing(
        type("Silent", (Alpha,), {"verify_payloads": staticmethod(none)})
    )
