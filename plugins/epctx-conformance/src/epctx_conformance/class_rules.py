"""Rules for an EP's class that the core does not check when it imports one: a mistake
shows late, at a call, or never.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from epctx_core.errors import suggestion
from epctx_core.ext import HOOKS, implemented_hooks
from epctx_core.plugin import ExecutionProvider, WeightlessMode

_ITEMS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "weightless_modes",
        lambda v: isinstance(v, WeightlessMode),
        "(WeightlessMode.ALL,)",
    ),
    (
        "keeps_functions",
        lambda v: isinstance(v, tuple) and [*map(type, v)] == [str, str],
        '{("domain", "Name")}',
    ),
    ("environment", lambda v: isinstance(v, str) and v != "", '("NAME",)'),
)
"""Attributes of a class that are collections: name, check of an item, an example."""
_COLLECTIONS = (tuple, list, set, frozenset)


def find_mistakes(cls: type[ExecutionProvider]) -> Iterator[tuple[str, str]]:
    """Yield mistakes in a class that the registry accepts, each with a hint."""
    for attribute in ExecutionProvider.__annotations__:
        default = getattr(ExecutionProvider, attribute, "")
        value = getattr(cls, attribute, None)
        if isinstance(default, str | int) and not isinstance(value, type(default)):
            hint = f"See {attribute} in `epctx docs ep-class-methods`."
            kind = type(default).__name__
            yield f"{attribute} is {value!r:.80}, not of type {kind}", hint

    for attribute, is_right, example in _ITEMS:
        items = getattr(cls, attribute)
        default = getattr(ExecutionProvider, attribute)
        if items is not default and not isinstance(items, _COLLECTIONS):
            yield f"{attribute} is {items!r:.80}, no tuple", f"Write {example}."
            continue
        for item in items or ():
            if not is_right(item):
                yield f"{attribute} holds {item!r:.80}", f"Write {example}."

    match cls.factory:
        case None:
            pass
        case str(function), Mapping() if ":" in function:
            pass
        case other:
            hint = 'Write ("module:function", {"argument": value}), or leave it out.'
            yield f"factory is {other!r:.80}", hint

    yield from _find_unused(cls)
    for method in implemented_hooks(cls).values():
        yield from _find_method_mistakes(method)


def _find_unused(cls: type[ExecutionProvider]) -> Iterator[tuple[str, str]]:
    """Yield options and hooks that the core would not find."""
    for option, count in Counter(option.name for option in cls.options).items():
        if count > 1:
            yield f"option name {option!r} is used twice", "Name each option once."

    for hook in HOOKS.keys() - implemented_hooks(cls):
        if inspect.getattr_static(cls, hook, None) is not None:
            fault = f"{hook} has a hook's name but no @hookimpl: it is never called"
            yield fault, "Write @hookimpl above it, also above an override."


def _find_method_mistakes(method: Any) -> Iterator[tuple[str, str]]:
    name = method.attribute
    marks = [
        argument
        for argument, value in method.mark.items()
        if value and argument != "specname"
    ]
    if {"wrapper", "hookwrapper"}.intersection(marks):
        hint = "An EP implements hooks and wraps none; plugins of hosts do."
        yield f"{name} is a hook wrapper", hint
        return
    if marks:
        fault = f"{name} is marked with {' and '.join(marks)}, without effect"
        yield fault, "Write @hookimpl alone: an EP's hooks are called for it alone."

    function = inspect.unwrap(method.function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        hint = "Hooks are plain functions; run your event loop inside."
        yield f"{name} is async", hint
    elif inspect.isgeneratorfunction(function):
        fault = f"{name} has a yield, so calling it would do nothing"
        yield fault, "Return a list instead."

    try:
        # Bound to any object, so without `self`.
        signature = inspect.signature(method.static.__get__(method, type(method)))
    except (ValueError, TypeError, AttributeError) as error:
        fault = f"the arguments of {name} can't be read: {error}"
        yield fault, "Wrap it in a Python function."
        return
    parameters = list(signature.parameters.values())
    yield from _find_parameter_mistakes(name, method.hook, parameters)


def _find_parameter_mistakes(
    name: str, hook: str, parameters: list[inspect.Parameter]
) -> Iterator[tuple[str, str]]:
    arguments = HOOKS[hook].arguments
    hint = f"Arguments of {hook}: {', '.join(arguments)}; leave out those not needed."
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield f"{name} takes {parameter}, which would stay empty", hint
        elif parameter.name not in arguments:
            fault = f"{name} takes {parameter.name!r}, which the hook does not give"
            yield fault, f"{suggestion(parameter.name, arguments)} {hint}".lstrip()
        elif parameter.default is not parameter.empty:
            fault = (
                f"{name} has a default for {parameter.name!r}, so it might never be "
                "passed"
            )
            yield fault, hint
        elif parameter.kind is parameter.KEYWORD_ONLY:
            yield f"{name} takes {parameter.name!r} by keyword only", hint
