"""`PayloadView.verified`: an EP is told when the core has digested every byte."""

from __future__ import annotations

import onnx
import pytest
from support.engine_eps import EngineProvider
from support.isolation import options_for, registry_of
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.plugin import hookimpl


class Telling(EngineProvider):
    """Tells in its log what it is told."""

    name = "TellingExecutionProvider"
    binary_suffix = "telling"
    operators = frozenset({"Relu", "Add"})

    @hookimpl
    def load_context(self, nodes, reader):
        said = {reader.payload(node).verified for node in nodes}
        self.context.logger.warning(
            "verified %s, %d threads", said, self.context.intra_op_num_threads
        )
        return super().load_context(nodes, reader)


def compiled(folder, ep, **entries):
    model = saved(chain(("Relu", "Add", "Sigmoid", "Relu")), folder / "m.onnx")
    options = options_for(ep, isolate="", **entries)
    epctx.ModelCompiler(options, model, registry=registry_of(ep)).compile_to_file(
        folder / "m_ctx.onnx"
    )
    return folder / "m_ctx.onnx"


def told(model, caplog, *, threads=0, **entries):
    """Load once; return what the EP was told."""
    caplog.clear()
    options = options_for(Telling, **{"isolate": "", **entries})
    options.intra_op_num_threads = threads
    epctx.InferenceSession(model, options, registry=registry_of(Telling)).close()
    return [text for text in caplog.messages if text.startswith("verified")]


@pytest.mark.parametrize("isolate", ["", "all"])
@pytest.mark.parametrize("embedded", [0, 1])
@pytest.mark.parametrize(
    ("how", "verified"), [("once", "{True}"), ("full", "{True}"), ("head", "{False}")]
)
def test_an_ep_is_told_whether_every_byte_of_its_payload_was_digested(
    tmp_path, caplog, how, verified, embedded, isolate
):
    model = compiled(tmp_path, Telling, context_embed_mode=embedded)

    assert told(model, caplog, context_verify=how, isolate=isolate) == [
        f"verified {verified}, 0 threads"
    ]


def test_a_payload_without_a_manifest_is_not_verified(tmp_path, caplog):
    model = compiled(tmp_path, Telling)
    proto = onnx.load(model)
    del proto.metadata_props[:]
    onnx.save(proto, model)

    assert told(model, caplog) == ["verified {False}, 0 threads"]


@pytest.mark.parametrize("isolate", ["", "all"])
def test_an_ep_is_told_how_many_threads_the_host_allows(tmp_path, caplog, isolate):
    model = compiled(tmp_path, Telling)

    assert told(model, caplog, threads=3, isolate=isolate) == [
        "verified {True}, 3 threads"
    ]
