"""Reports of a child become objects of the classes that the host expects, with fields
of the types that these declare; or none.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from epctx_isolation.channel import ProtocolError
from epctx_isolation.results import decode_fields, decode_kept, encode_fields
from support.engine_eps import Alpha
from support.isolation import (
    OPERATORS,
    options_for,
    registry_of,
    source,
    turn_bits_over,
)
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.plugin import Availability, Purpose, TensorType

pytestmark = pytest.mark.internal


class Elsewhere(Alpha):
    """EP for another machine."""

    name = "ElsewhereExecutionProvider"

    @classmethod
    def availability(cls, purpose):
        reason = "no such device" if purpose is Purpose.RUN else "no compiler"
        return Availability(False, reason=reason, hint="Use another machine.")


def compile_model(folder):
    options = options_for(Alpha, isolate="")
    return epctx.ModelCompiler(
        options, source(folder), registry=registry_of(Alpha)
    ).compile_to_file(folder / "m_ctx.onnx")


def place(folder):
    with epctx.InferenceSession(
        source(folder), options_for(Alpha, isolate=""), registry=registry_of(Alpha)
    ) as session:
        return session.placement()


def verify(folder):
    report = compile_model(folder)
    path = report.folder / report.outputs[0].path
    path.write_bytes(b"damaged" + path.read_bytes()[7:])
    found = epctx.verify_model(report.output, registry=registry_of(Alpha))
    assert not found.ok
    return found


def share(folder):
    with epctx.ShareGroup(folder / "shared") as group:
        for name in ("a", "b"):
            model = saved(chain(OPERATORS), folder / f"{name}.onnx")
            group.compile(model, options_for("QNNExecutionProvider", isolate=""))
        return group.finish()


def record(_folder):
    registry = registry_of(Elsewhere)
    for purpose in (Purpose.EXPORT, Purpose.RUN):
        registry.availability(registry.resolve(Elsewhere.name), purpose)
    (found,) = registry.records()
    assert len(found.availability) == 2
    return found


def describe_inputs(folder):
    with epctx.InferenceSession(source(folder)) as session:
        return session.get_inputs()[0]


def describe_model(folder):
    with epctx.InferenceSession(source(folder)) as session:
        return session.get_modelmeta()


MAKERS = [compile_model, place, verify, share, record, describe_inputs, describe_model]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def report(request, tmp_path_factory):
    """A report of the core."""
    return request.param(tmp_path_factory.mktemp("report"))


def transfer(value):
    """Return a value as a message holds it."""
    return json.loads(json.dumps(encode_fields(value)))


def find_fields(value, path=()):
    """Yield path, field and value of each field of a dataclass and of those in it; of
    lists the first element's.
    """
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            yield (*path, field.name), field, item
            yield from find_fields(item, (*path, field.name))
    elif isinstance(value, tuple | list) and value:
        yield from find_fields(value[0], (*path, 0))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from find_fields(item, (*path, encode_fields(key)))


def replaced(told, path, value):
    """Return a report with another value at a path."""
    changed = copy.deepcopy(told)
    *parents, last = path
    place = changed
    for key in parents:
        place = place[key]
    place[last] = value
    return changed


def test_a_report_arrives_as_it_was(report):
    found = decode_fields(type(report), transfer(report))

    assert (type(found), transfer(found)) == (type(report), transfer(report))
    assert str(found) == str(report)


def test_each_field_of_a_report_that_arrives_has_the_type_that_it_had(report):
    found = decode_fields(type(report), transfer(report))

    types = {path: type(value) for path, _, value in find_fields(report)}
    for path, field, value in find_fields(found):
        # Of a sequence it is not said of which kind it is.
        if not field.type.startswith("Sequence"):
            assert (path, type(value)) == (path, types[path])


VALUES = (None, True, 7, 0.5, "no name of anything", [[1]], {"a": {"b": 1}})
"""A value of each type that JSON has."""

TOLD_AS = {
    "None": {type(None)},
    "bool": {bool},
    "int": {int},
    "float": {int, float},
    "str": {str},
    "Path": {str},
    "tuple": {list},
    "list": {list},
    "Sequence": {list},
    "Mapping": {dict},
}
"""Types in JSON of what fields declare; of other classes none of `VALUES` is one."""


def list_other_values(field):
    """Return the values that are of no type that a field declares."""
    declared = re.sub(r"\[.*\]", "", field.type).split(" | ")
    types = set().union(*(TOLD_AS.get(name, set()) for name in declared))
    return [value for value in VALUES if type(value) not in types]


def test_a_field_with_a_value_of_another_type_makes_no_report(report):
    told = transfer(report)

    for path, field, _ in find_fields(report):
        others = list_other_values(field)
        assert len(others) >= 4
        for other in others:
            with pytest.raises(ProtocolError):
                decode_fields(type(report), replaced(told, path, other))


def test_a_report_has_all_fields_of_its_class_and_no_others(report):
    told = transfer(report)

    for name in told:
        with pytest.raises(ProtocolError):
            decode_fields(type(report), {k: v for k, v in told.items() if k != name})
    with pytest.raises(ProtocolError):
        decode_fields(type(report), {**told, "more": 1})


@pytest.mark.parametrize("told", [*VALUES, [], {}])
def test_what_is_no_report_is_none(report, told):
    with pytest.raises(ProtocolError):
        decode_fields(type(report), told)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("EXPORT", {"available": True, "reason": 1, "hint": ""}),
        ("EXPORT", {"available": 1, "reason": "", "hint": ""}),
        ("EXPORT", None),
        ("export", {"available": True, "reason": "", "hint": ""}),
        ("__class__", {"available": True, "reason": "", "hint": ""}),
        ("", {"available": True, "reason": "", "hint": ""}),
    ],
)
def test_a_mapping_has_keys_and_values_of_its_types(key, value):
    told = {**transfer(record(None)), "availability": {key: value}}

    with pytest.raises(ProtocolError):
        decode_fields(epctx.PluginRecord, told)


@pytest.mark.parametrize(
    "state", ["loaded", "name", "mro", "_member_map_", "", 1, ["LOADED"]]
)
def test_an_enum_is_one_of_its_names(state):
    told = transfer(record(None))

    with pytest.raises(ProtocolError):
        decode_fields(epctx.PluginRecord, {**told, "state": state})


@pytest.mark.parametrize(
    "told",
    [
        {"elem_type": 1, "shape": [1, True], "is_proven": True},
        {"elem_type": 1, "shape": [1, 0.5], "is_proven": True},
        {"elem_type": 1, "shape": [1, [2]], "is_proven": True},
        {"elem_type": 1, "shape": "12", "is_proven": True},
        {"elem_type": 1, "shape": {"1": 2}, "is_proven": True},
        {"elem_type": True, "shape": [1], "is_proven": True},
        {"elem_type": "FLOAT", "shape": [1], "is_proven": True},
        {"elem_type": 1, "shape": [1], "is_proven": 1},
    ],
)
def test_each_element_of_a_list_has_one_of_the_types_of_its_elements(told):
    good = {"elem_type": 1, "shape": [1, "batch", None], "is_proven": False}
    assert decode_fields(TensorType, good) == TensorType(1, (1, "batch", None))

    with pytest.raises(ProtocolError):
        decode_fields(TensorType, told)


@pytest.mark.parametrize(
    ("told", "number"), [(3, 3.0), (0.5, 0.5), (math.inf, math.inf)]
)
def test_a_number_is_told_with_or_without_a_fraction(told, number):
    found = decode_fields(float, told)

    assert (found, type(found)) == (number, float)


def test_a_number_that_no_float_can_hold_makes_no_report():
    with pytest.raises(ProtocolError):
        decode_fields(float, 10**400)


def test_a_path_arrives_as_a_path():
    path = Path("folder") / "é.onnx"

    assert decode_fields(Path | None, transfer(path)) == path
    assert decode_fields(Path | None, None) is None


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_value_within_too_many_lists_makes_no_report(depth):
    told = []
    for _ in range(depth):
        told = [told]

    with pytest.raises(ProtocolError):
        decode_fields(TensorType, told)


def test_what_a_child_keeps_has_a_number():
    assert decode_kept(int, {"number": 3, "facts": 7}) == (3, 7)


@pytest.mark.parametrize(
    "told",
    [
        None,
        3,
        [3, 7],
        {},
        {"number": 3},
        {"facts": 7},
        {"number": 3, "facts": 7, "more": 0},
        {"number": -1, "facts": 7},
        {"number": True, "facts": 7},
        {"number": "3", "facts": 7},
        {"number": [3], "facts": 7},
        {"number": 3, "facts": "7"},
    ],
)
def test_what_a_child_keeps_has_no_other_number_than_a_whole_one(told):
    with pytest.raises(ProtocolError):
        decode_kept(int, told)


def list_damages(told, count):
    """Yield JSON values of which some bits were turned over, where that is JSON."""
    generator = random.Random(0)  # noqa: S311 - damage, no secrets
    good = json.dumps(told).encode()
    for _ in range(count):
        with contextlib.suppress(ValueError):
            yield json.loads(turn_bits_over(good, generator))


def test_a_report_with_bits_turned_over_is_a_report_or_none(report):
    outcomes = set()

    for told in list_damages(transfer(report), 500):
        try:
            found = decode_fields(type(report), told)
        except ProtocolError:
            outcomes.add(None)
        else:
            assert transfer(found) == told
            outcomes.add(type(found))

    assert outcomes == {None, type(report)}
