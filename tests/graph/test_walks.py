"""What is known of ONNX's operators without asking for their schemas."""

from __future__ import annotations

import pytest
from onnx import defs

from epctx_core.graph.walks import WITH_SUBGRAPHS

pytestmark = pytest.mark.internal


def test_operators_with_subgraphs_are_those_of_onnxs_schemas():
    kinds = {defs.OpSchema.AttrType.GRAPH, defs.OpSchema.AttrType.GRAPHS}

    found = {
        schema.name
        for schema in defs.get_all_schemas_with_history()
        if not schema.domain
        and any(attribute.type in kinds for attribute in schema.attributes.values())
    }

    assert found == WITH_SUBGRAPHS
