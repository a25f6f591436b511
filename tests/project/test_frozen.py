"""The core's dataclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle

import pytest

from epctx_core import frozen

pytestmark = pytest.mark.internal


def make_pair(**options):
    """Return one class, made by the standard library and by epctx."""
    return [decorate(**options)(_write_class()) for decorate in DECORATORS]


DECORATORS = (dataclasses.dataclass, frozen.dataclass)


def _write_class():
    class Row:
        name: str
        size: int = 0
        origin: object = dataclasses.field(default=None, compare=False)
        facts: dict = dataclasses.field(default_factory=dict, hash=False)
        secret: str = dataclasses.field(default="", repr=False)

    return Row


ROWS = [
    {"name": "a"},
    {"name": "a", "origin": 1},
    {"name": "a", "facts": {"k": 1}},
    {"name": "a", "secret": "s"},
    {"name": "b", "size": 2},
]
OPTIONS = [
    {"frozen": True},
    {"frozen": True, "kw_only": True},
    {"frozen": True, "eq": False},
    {"kw_only": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_values_are_equal_and_other_ones_are_not(options):
    theirs, ours = make_pair(**options)

    for one, other in itertools.product(ROWS, repeat=2):
        assert (ours(**one) == ours(**other)) == (theirs(**one) == theirs(**other))


def test_values_of_two_classes_are_never_equal():
    theirs, ours = make_pair(frozen=True)

    assert ours("a") != theirs("a")
    assert theirs("a") != ours("a")
    assert ours("a") != ("a", 0)


def test_equal_values_have_one_hash():
    _, ours = make_pair(frozen=True, kw_only=True)
    plain, with_origin, *_ = (ours(**row) for row in ROWS)

    assert plain == with_origin
    assert hash(plain) == hash(with_origin)
    assert len({ours(**row) for row in ROWS if "facts" not in row}) == 3


def test_a_field_that_is_not_hashed_need_not_be_hashable():
    _, ours = make_pair(frozen=True)

    assert hash(ours("a", facts={"k": 1})) == hash(ours("a", facts={"k": 2}))
    with pytest.raises(TypeError, match="unhashable"):
        hash(ours(name=[]))


def test_a_value_that_may_change_has_no_hash():
    _, ours = make_pair(kw_only=True)

    with pytest.raises(TypeError, match="unhashable"):
        hash(ours(name="a"))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_text_of_a_value_shows_its_fields(options):
    theirs, ours = make_pair(**options)

    for row in ROWS:
        assert repr(ours(**row)) == repr(theirs(**row))


def test_methods_that_a_class_defines_stay():
    def own(self, *_others):
        return "own"

    body = {"__annotations__": {"a": "int"}, "__repr__": own, "__eq__": own}
    ours = frozen.dataclass(frozen=True)(type("Own", (), body))

    assert repr(ours(1)) == "own"
    assert (ours(1) == 2) == "own"


def test_values_are_frozen_copied_pickled_and_described_as_the_librarys():
    theirs, ours = make_pair(frozen=True)
    value = ours("a", 1)

    with pytest.raises(dataclasses.FrozenInstanceError):
        value.name = "b"
    assert dataclasses.replace(value, name="b") == ours("b", 1)
    assert dataclasses.asdict(value) == dataclasses.asdict(theirs("a", 1))
    assert copy.deepcopy(value) == value
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__match_args__ == theirs.__match_args__


def test_a_value_passes_through_a_pickle():
    from epctx_core import InputBudget

    budget = InputBudget(nodes=5)

    copied = pickle.loads(pickle.dumps(budget))  # noqa: S301 - the test's own
    assert copied == budget
    assert hash(copied) == hash(budget)
