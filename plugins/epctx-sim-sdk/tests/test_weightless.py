"""Containers that leave weights in the source model: what stands in them, and what is
used instead.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from epctx_sim_sdk.compiler import compile_partition
from epctx_sim_sdk.container import (
    FOOT_SIZE,
    HEAD_SIZE,
    Foot,
    SourceWeight,
    head,
    open_container,
)
from epctx_sim_sdk.device import Device
from epctx_sim_sdk.writing import write_container

from epctx_core.errors import InvalidGraph

pytestmark = pytest.mark.internal

WEIGHT = np.random.default_rng(1).standard_normal((400, 4)).astype(np.float32)


class Left:
    """A container of one graph whose weights stay outside.

    Attributes:
        weights: they, by name.
    """

    def __init__(self, scene, *, fp16=False):
        self.scene = scene
        partition = scene.partition(
            scene.dense(names="xwy", weight=WEIGHT, scale=1234.5)
        )
        self.weights = dict(partition.weights)
        for weight in self.weights.values():
            weight.source_name = weight.name
        self.graph = compile_partition(
            partition, ep=scene.ep, fp16=fp16, weightless=True
        )
        payload = scene.payload()
        self.tables = write_container(
            payload, [self.graph], scene.facts, reference=lambda view: view.source_name
        )
        self.content = payload.content

    def open(self, content=None, source=None):
        view = memoryview(content or self.content)
        return open_container(
            view, ep="x", node="n", name="p", source=source or self.weights.__getitem__
        )

    def run(self, container):
        device = Device(engine=self.scene.engine())
        (entry,) = container.tables.graphs.values()
        x = np.random.default_rng(2).standard_normal((1, 400)).astype(np.float32)
        (found,) = device.load(container, entry).run([x])
        device.close()
        self.scene.same(found, np.maximum(x @ WEIGHT + np.float32(1234.5), 0), 1e-5)


@pytest.fixture
def left(scene):
    return Left(scene)


def test_no_weight_is_in_the_container_not_even_a_small_one(left):
    bias = np.full(4, 1234.5, np.float32).tobytes()

    assert left.tables.weights == (
        SourceWeight(
            source="w",
            length=WEIGHT.nbytes,
            elem_type=1,
            shape=(400, 4),
            digest=left.weights["w"].digest,
        ),
        SourceWeight(
            source="w_bias",
            length=16,
            elem_type=1,
            shape=(4,),
            digest=left.weights["w_bias"].digest,
        ),
    )
    assert WEIGHT[:4].tobytes() not in left.content
    assert bias not in left.content
    assert len(left.content) < WEIGHT.nbytes


def test_it_runs_with_the_sources_weights_where_they_lie(left):
    container = left.open()
    (entry,) = container.tables.graphs.values()

    arrays = container.arrays(entry)

    assert container.tables == left.tables
    assert np.shares_memory(arrays["w0"], left.weights["w"].array())
    assert container.damaged_weights() == []
    left.run(container)


def test_what_is_converted_is_in_the_container(scene):
    left = Left(scene, fp16=True)

    assert WEIGHT.astype(np.float16).tobytes() in left.content
    assert not [w for w in left.tables.weights if isinstance(w, SourceWeight)]


def test_a_weight_of_the_same_name_and_other_content_is_refused(left, scene):
    other = scene.partition(scene.dense(names="xwy", weight=WEIGHT + 1)).weights

    with pytest.raises(
        InvalidGraph, match="the weight 'w' of the source model is not the one"
    ) as caught:
        left.run(left.open(source=other.__getitem__))

    assert "compile again" in caught.value.hint


def test_without_a_source_it_is_opened_and_not_loaded(left):
    container = open_container(memoryview(left.content), ep="x", node="n", name="p")

    with pytest.raises(
        InvalidGraph,
        match="refers to the weight 'w' of a source model, and there is none",
    ):
        left.run(container)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("source", None),
        ("source", 5),
        ("length", -1),
        ("elem_type", "x"),
        ("shape", 4),
        ("digest", "abc"),
    ],
)
def test_a_wrong_entry_with_a_right_digest_is_refused(left, key, value):
    foot = Foot.unpack(memoryview(left.content)[-FOOT_SIZE:])
    start = foot.structures_start + foot.structures
    tables = json.loads(left.content[start:-FOOT_SIZE])
    tables["weights"][0][key] = value
    body = left.content[foot.structures_start : start] + (
        text := json.dumps(tables).encode()
    )
    new = Foot(
        structures_start=HEAD_SIZE,
        structures=foot.structures,
        tables=len(text),
        total=HEAD_SIZE + len(body) + FOOT_SIZE,
    )

    with pytest.raises(InvalidGraph, match="is damaged"):
        left.open(head() + body + new.pack(body))
