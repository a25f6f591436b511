"""Answers of an isolated EP's process that are well-formed and wrong: each is one typed
error, never a result.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from end_to_end.small_models import example
from isolation.faulty_eps import Faulty
from isolation.harness import compiled, nothing_left, options_for, registry_of, source

import epctx_core as epctx

FLOAT, INT64, TEXT = 1, 7, 8


def lying(hook, **answer):
    return {"hook": hook, "answer": json.dumps(answer)}


def arrays(*types, sizes):
    return {"arrays": types, "sizes": sizes}


@pytest.mark.parametrize(
    "answer",
    [
        arrays(sizes=[]),
        arrays([FLOAT, [2, 3]], [FLOAT, [2, 3]], sizes=[24, 24]),
        arrays([FLOAT, [3, 2]], sizes=[24]),
        arrays([FLOAT, [1, 3]], sizes=[12]),
        arrays([FLOAT, []], sizes=[4]),
        arrays([FLOAT, [0, 3]], sizes=[0]),
        arrays([FLOAT, [2, 3]], sizes=[23]),
        arrays([FLOAT, [1 << 62, 4]], sizes=[0]),
        arrays([FLOAT, [0, 1 << 62]], sizes=[0]),
        arrays([INT64, [2, 3]], sizes=[48]),
        arrays([TEXT, [2, 3]], sizes=[48]),
        arrays([10**300, [2, 3]], sizes=[24]),
        {"arrays": 5},
        {},
    ],
    ids=repr,
)
def test_a_run_gives_what_the_model_says_or_an_error(tmp_path, temporary, answer):
    options = options_for(
        Faulty, isolate="all", provider_options=lying("run", **answer)
    )

    with (
        nothing_left(temporary),
        epctx.InferenceSession(
            source(tmp_path), options, registry=registry_of(Faulty)
        ) as session,
        pytest.raises(epctx.EpctxError) as caught,
    ):
        session.run(None, {"x": example()})

    assert not isinstance(caught.value, epctx.InternalError)
    assert caught.value.ep == Faulty.name


NODE = {"nodes": [0], "fuse": True, "keep": False, "exact": False, "token": None}
ROW = [0, 0, 1, 0, "", None, None, []]
HUGE = 10**300


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        *[
            ("get_capability", {"claims": claims})
            for claims in (
                5,
                [5],
                [{**NODE, "nodes": [5]}],
                [{**NODE, "nodes": [-1]}],
                [{**NODE, "nodes": [HUGE]}],
                [{**NODE, "nodes": [0.0]}],
                [{**NODE, "nodes": [[[], HUGE]]}],
                [{**NODE, "nodes": [[[[HUGE, "body"]], 0]]}],
                [{**NODE, "nodes": [0] * 10_000}],
                [{**NODE, "exact": True, "token": -HUGE}],
                [NODE, NODE],
                [{"reason": {"type": "x"}, "nodes": [0]}],
                [{"reason": "r", "nodes": [HUGE]}],
            )
        ],
        *[
            ("compile", {"first": first, "runnables": runnables})
            for first, runnables in (
                (0, []),
                (0, [False]),
                (0, [False] * 3),
                (0, [False] * 100_000),
                (0, ["run", 5]),
                (0, [{"type": "Runnable"}, {"type": "Runnable"}]),
                (0, [{"TensorProto": ""}, False]),
                (-1, [False, False]),
                (0.5, [False, False]),
                (0, {"0": False}),
            )
        ],
        *[
            ("get_ep_context_nodes", {"nodes": nodes, "attributes": attributes})
            for nodes, attributes in (
                ([], []),
                ([ROW], [[]]),
                ([[0, None, *ROW[2:]]], [[]]),
                ([[0, None, *ROW[2:]], [0, None, *ROW[2:]]], [[]]),
                ([[0, None, *ROW[2:]], [1, None, 0, *ROW[3:]]], [[["main_context", 5]]]),
                ([[HUGE, None, *ROW[2:]]], [[]]),
                ([[0, None, HUGE, *ROW[3:]]], [[]]),
                ([[0, None, 1, HUGE, *ROW[4:]]], [[]]),
                ([[0, None, *ROW[2:]]] * 10_000, [[]]),
                ([[0, None, 0, *ROW[3:]], [1, None, 0, *ROW[3:]]], [[["notes", HUGE]]]),
                ([[0, None, *ROW[2:7], [["y", [HUGE]]]]] * 2, [[]]),
                ({}, [[]]),
            )
        ],
    ],
    ids=lambda value: repr(value)[:80],
)  # fmt: skip
def test_a_compile_after_a_wrong_answer_is_one_error_and_writes_nothing(
    tmp_path, temporary, hook, answer
):
    options = options_for(Faulty, provider_options=lying(hook, **answer))

    with nothing_left(temporary), pytest.raises(epctx.PluginError) as caught:
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert caught.value.ep == Faulty.name
    assert caught.value.hook == hook
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        ("get_capability", {"claims": [{"reason": lists, "nodes": [0]}]})
        for lists in [json.loads("[" * 900 + "]" * 900)]
    ]
    + [
        ("compile", {"first": HUGE, "runnables": [True, True]}),
        ("compile", {"first": 0, "runnables": [json.loads("[" * 900 + "]" * 900)] * 2}),
    ],
    ids=["reason", "number", "runnables"],
)
def test_a_session_after_a_wrong_answer_is_one_error(tmp_path, temporary, hook, answer):
    options = options_for(Faulty, isolate="all", provider_options=lying(hook, **answer))

    with (
        nothing_left(temporary),
        pytest.raises(epctx.PluginError) as caught,
        epctx.InferenceSession(
            source(tmp_path), options, registry=registry_of(Faulty)
        ) as session,
    ):
        session.run(None, {"x": np.asarray(example())})

    assert caught.value.ep == Faulty.name
