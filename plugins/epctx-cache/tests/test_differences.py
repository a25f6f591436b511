"""The nearest entry of a model that is not in the cache, and how its key differs, in
words.
"""

from __future__ import annotations

import json

import pytest
from epctx_cache.differences import find_nearest
from epctx_cache.request import Request, cacheable
from epctx_cache.settings import cache_settings
from epctx_cache.store import read_record
from support.engine_eps import Alpha
from support.sim_eps import QNN, VITISAI, with_eps
from support.small_models import chain, saved

import epctx_core as epctx

pytestmark = pytest.mark.internal

SECRET = "c0ffee" * 10 + "beef"


def asked(cache, model, options=None, level=None, registry=epctx.default_registry):
    """Return the request that `load_or_compile` makes of its arguments."""
    return Request(
        model=model,
        options=cacheable(options or with_eps(QNN), None, None),
        level=level,
        settings=cache_settings(cache.folder),
        progress=None,
        registry=registry,
    )


def nearest(cache, model, options=None, **arguments):
    _, parts = asked(cache, model, options, **arguments).identify()
    return find_nearest(parts, model.name, cache.store.entries())


def differences(cache, model, options=None, **arguments):
    """Return the values of the parts that differ: now and in the nearest entry."""
    found = nearest(cache, model, options, **arguments)
    return {each.part: (each.now, each.entry) for each in found.differences}


def with_option(**given):
    options = epctx.SessionOptions()
    options.add_provider(QNN, {**with_eps(QNN).providers[0][1], **given})
    return options


def with_config(key, value):
    options = with_eps(QNN)
    options.add_session_config_entry(key, value)
    return options


def with_dimension(length):
    options = with_eps(QNN)
    options.add_free_dimension_override_by_name("batch", length)
    return options


def test_identify_gives_the_key_of_the_entry_and_compiles_nothing(cache, model):
    key, _ = asked(cache, model).identify()

    assert not cache.folder.exists()
    assert cache.key(model) == key
    assert asked(cache, model).identify()[0] == key


def test_identify_writes_nothing_into_a_folder_that_is_no_cache_yet(
    cache, model, none_too_new
):
    cache.folder.mkdir()

    asked(cache, model, with_config("acme.entry", "hidden")).identify()

    assert list(cache.folder.iterdir()) == []


def test_identify_reads_the_secret_of_a_cache_and_makes_none(cache, model):
    hidden = with_config("acme.entry", "hidden")
    cache.path(model)
    assert not (cache.folder / "v1" / "secret").exists()

    asked(cache, model, hidden).identify()

    assert not (cache.folder / "v1" / "secret").exists()
    assert cache.key(model, hidden) == asked(cache, model, hidden).identify()[0]


def test_of_a_context_model_no_key_is_made(cache, model):
    with pytest.raises(epctx.InvalidArgument, match="is a context model already"):
        asked(cache, cache.path(model)).identify()


def test_an_empty_cache_has_no_nearest_entry(cache, model):
    assert nearest(cache, model) is None


def test_an_entry_of_the_key_itself_differs_in_nothing(cache, model):
    key = cache.key(model)

    found = nearest(cache, model)

    assert (found.entry.key, found.differences) == (key, ())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            with_option(htp_arch="75"),
            {
                "target of QNNExecutionProvider": ("htp v75", "htp v73"),
                "option htp_arch of QNNExecutionProvider": ("75", "73"),
            },
        ),
        (
            with_config("ep.partition_min_nodes", "2"),
            {"session option ep.partition_min_nodes": ("2", "1")},
        ),
        (with_dimension(3), {"length of the dimension batch": ("3", None)}),
    ],
    ids=["option", "session option", "dimension"],
)
def test_a_part_that_differs_has_words_and_both_values(cache, model, options, expected):
    cache.key(model)

    assert differences(cache, model, options) == expected


def test_an_ep_that_only_one_key_has_is_named_without_its_options(cache, model):
    cache.key(model, with_eps("QNN"))

    found = differences(cache, model, with_eps("QNN", "OpenVINO"))

    assert found["EPs, in order"] == (
        "QNNExecutionProvider, OpenVINOExecutionProvider",
        "QNNExecutionProvider",
    )
    assert set(found) == {"EPs, in order", "distribution epctx-sim-openvino"}


def test_another_optimisation_level_is_named(cache, model):
    basic = epctx.GraphOptimizationLevel.ORT_ENABLE_BASIC
    cache.key(model, graph_optimization_level=basic)

    assert differences(cache, model) == {
        "optimisation level": ("folding", "ORT_ENABLE_BASIC")
    }


def test_a_model_that_was_trained_again_differs_in_its_content_alone(cache, model):
    before = read_record(cache.path(model).parent).ingredients["model"]
    saved(chain(["Relu", "Add", "Sigmoid", "Add"], seed=5), model)

    (values,) = differences(cache, model).values()

    assert values[1] == before != values[0]


def test_an_entry_of_the_same_model_is_nearer_than_one_of_another(
    cache, model, tmp_path
):
    other = saved(chain(["Add", "Relu"], seed=8), tmp_path / "other.onnx")
    cache.key(other)
    key = cache.key(model, with_option(htp_arch="75", vtcm_mb="4"))

    assert nearest(cache, model).entry.key == key


def test_a_copy_of_the_model_under_another_name_is_the_same_model(
    cache, model, tmp_path
):
    key = cache.key(model, with_option(htp_arch="75"))
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(model.read_bytes())

    assert nearest(cache, copy).entry.key == key


def test_a_secret_option_is_compared_and_not_shown(cache, model):
    options = epctx.SessionOptions()
    options.add_provider(VITISAI, {"encryption_key": SECRET})
    other = epctx.SessionOptions()
    other.add_provider(VITISAI, {"encryption_key": SECRET[::-1]})
    cache.key(model, options)

    found = differences(cache, model, other)

    ((part, values),) = found.items()
    assert part == "option encryption_key of VitisAIExecutionProvider"
    assert values[0] != values[1]
    assert all(value.startswith("hidden (") for value in values)
    assert SECRET not in json.dumps(found)
    assert SECRET[::-1] not in json.dumps(found)


def test_damaged_entries_are_not_compared(cache, model):
    (cache.path(model).parent / "entry.json").write_text("{}")

    assert nearest(cache, model) is None


def test_a_part_of_an_unknown_form_is_shown_as_it_is(cache, model):
    cache.key(model)
    _, parts = asked(cache, model).identify()

    found = find_nearest(
        {**parts, "target": 7, "engine": None, "session": [1], "new": {"a": 1}},
        model.name,
        cache.store.entries(),
    )

    values = {each.part: each.now for each in found.differences}
    assert values["operating system and processor"] == "7"
    assert values["new"] == '{"a": 1}'
    assert values["session"] == "[1]"


class Reading(Alpha):
    """An EP that reads an environment variable."""

    environment = ("ACME_TARGET",)


def registry_of(cls):
    registry = epctx.Registry(entry_points=False)
    registry.register(cls)
    return registry


def test_an_environment_variable_that_an_ep_names_is_part_of_the_key(
    cache, model, monkeypatch
):
    arguments = {"options": with_eps(Alpha.name), "registry": registry_of(Reading)}
    monkeypatch.delenv("ACME_TARGET", raising=False)
    unset = cache.key(model, **arguments)
    monkeypatch.setenv("ACME_TARGET", "")
    empty = cache.key(model, **arguments)
    monkeypatch.setenv("ACME_TARGET", "a secret of acme")

    found = differences(cache, model, **arguments)

    assert unset != empty
    ((part, (now, entry)),) = found.items()
    assert part == f"environment variable ACME_TARGET of {Alpha.name}"
    assert now.startswith("hidden (")
    assert entry.startswith("hidden (") or entry == "not set"
    assert cache.key(model, **arguments) not in {unset, empty}
    stored = [path.read_bytes() for path in cache.folder.rglob("*") if path.is_file()]
    assert all(b"a secret of acme" not in data for data in stored)


def test_an_environment_variable_that_no_ep_names_is_no_part_of_the_key(
    cache, model, monkeypatch
):
    before = cache.key(model)
    monkeypatch.setenv("ACME_TARGET", "1")

    assert cache.key(model) == before
