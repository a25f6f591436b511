"""Import of a plugin's class, and its check against the contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, TypeAlias

from epctx_core.errors import suggestion
from epctx_core.plugin import (
    PLUGIN_API,
    ExecutionProvider,
    ProviderOption,
    WeightlessMode,
)
from epctx_core.plugin.hookspecs import CLASS_METHODS, HOOKS, PROJECT
from epctx_core.registry.discovery import EP_NAME, EntryPoint
from epctx_core.registry.guard import mark_broken
from epctx_core.registry.records import PluginRecord, PluginState

_MARK = f"{PROJECT}_impl"
_SWITCHES = (
    "keeps_nodes",
    "loads_without_device",
    "needs_verified_payloads",
    "simulated",
)
_GONE = {
    "get_kernel_registry": (
        "Kernels are a package of their own: derive the EP from "
        "`epctx_kernels.KernelProvider` (pip install epctx-kernels), without @hookimpl "
        "above this method."
    )
}
"""Hints by the names of hooks that were there before API 1 was released."""


@dataclass(frozen=True, kw_only=True)
class MarkedMethod:
    """An attribute marked with `hookimpl`.

    Attributes:
        attribute: its name in the class.
        hook: the name of the hook that it implements.
        static: the attribute as the class has it, unbound.
        function: the underlying function.
        marks: the arguments of the marker that are set, but for the hook's name.
    """

    attribute: str
    hook: str
    static: Any
    function: Callable[..., Any]
    marks: tuple[str, ...]

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """Parameters that the core has to pass: all but `self`.

        Raises:
            ValueError, TypeError: the function has no signature.
        """
        parameters = list(inspect.signature(self.function).parameters.values())
        return parameters if isinstance(self.static, staticmethod) else parameters[1:]


def find_marked_methods(cls: type) -> Iterator[MarkedMethod]:
    """Yield the attributes of a class that are marked with `hookimpl`; evaluate no
    property.
    """
    # Ten times faster than inspect.getmembers_static; each new session calls this for
    # each EP.
    attributes = {
        name: static
        for base in reversed(cls.__mro__)
        for name, static in vars(base).items()
    }
    for attribute, static in sorted(attributes.items()):
        function = (
            static.__func__
            if isinstance(static, (staticmethod, classmethod))
            else static
        )
        # Most attributes are data, and few questions cost less than this one.
        if not callable(function):
            continue

        mark = _mark(static) or _mark(function)
        if mark is not None:
            yield MarkedMethod(
                attribute=attribute,
                hook=mark.get("specname") or attribute,
                static=static,
                function=function,
                marks=tuple(n for n, v in mark.items() if v and n != "specname"),
            )


def _mark(static: object) -> Mapping[str, Any] | None:
    if isinstance(static, (FunctionType, staticmethod, classmethod)):
        mark = vars(static).get(_MARK)
    elif type(static).__module__ == "builtins" and not isinstance(static, type):
        return None
    else:
        # Not getattr: an object with __getattr__, such as a logger proxy, would have
        # any attribute.
        mark = inspect.getattr_static(static, _MARK, None)
    return mark if isinstance(mark, dict) else None


def implemented_hooks(cls: type[ExecutionProvider]) -> dict[str, MarkedMethod]:
    """Return the hooks that a valid class implements."""
    return {method.hook: method for method in find_marked_methods(cls)}


_OPTION_TYPES = (bool, int, float, str)
Problem: TypeAlias = tuple[str, str]
"""One way in which a class breaks the contract, and what its author is to do."""


def find_problems(cls: object, *, name: str | None = None) -> list[Problem]:
    """Return every way in which a class breaks the contract; empty for a valid one.

    Args:
        cls: the value that a plugin or a host gave.
        name: the name of its entry point, if it has one.
    """
    if not (inspect.isclass(cls) and issubclass(cls, ExecutionProvider)):
        but = (
            ""
            if inspect.isclass(cls)
            else f", but an object of type {type(cls).__name__}"
        )
        hint = (
            "Derive it from ExecutionProvider, and let the entry point name the class "
            "itself."
        )
        return [
            (f"it is not a subclass of epctx_core.plugin.ExecutionProvider{but}", hint)
        ]

    version: object = cls.api_version
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        hint = f"Write api_version = {PLUGIN_API}, the PLUGIN_API it was written for."
        return [(f"api_version is {version!r}, not a whole number from 1", hint)]
    if version > PLUGIN_API:
        # It may have other hooks and rules, so nothing else would be true.
        fault = (
            f"it was written for plugin API {version}, and this epctx-core has "
            f"{PLUGIN_API}"
        )
        return [
            (fault, "Upgrade epctx-core, or install an older version of the plugin.")
        ]

    problems = [
        (f"{attribute} is {getattr(cls, attribute, None)!r:.80}, not {expected}", hint)
        for attribute, is_right, expected, hint in _ATTRIBUTES
        if not is_right(getattr(cls, attribute, None))
    ]
    class_name = getattr(cls, "name", None)
    if name is not None and class_name not in (None, name):
        fault = f"its name is {class_name!r}, but it was found as {name!r}"
        problems += [
            (
                fault,
                (
                    "Make the entry point's name and the class's name equal: both are "
                    "the EP name."
                ),
            )
        ]

    problems += _schema_problems("options", cls.options)
    problems += _schema_problems("dynamic_options", cls.dynamic_options)
    for method in CLASS_METHODS:
        if not isinstance(
            inspect.getattr_static(cls, method), (classmethod, staticmethod)
        ):
            hint = f"Write @classmethod above {method}: it is called on the class."
            problems.append((f"{method} is not a class method", hint))

    return [*problems, *_hook_problems(cls)]


def _has_items(value: object, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(
        map(is_right, value)
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and EP_NAME.fullmatch(value) is not None


def _are_functions(value: object) -> bool:
    return _has_items(
        value, lambda v: isinstance(v, tuple) and [*map(type, v)] == [str, str]
    )


def _are_modes(value: object) -> bool:
    return value is None or _has_items(value, lambda v: isinstance(v, WeightlessMode))


def _is_factory(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != len(("function", "arguments")):
        return value is None
    function, arguments = value
    return (
        isinstance(function, str) and ":" in function and isinstance(arguments, Mapping)
    )


_NAME = "a text of letters, digits, '_', '.' and '-'"
_ATTRIBUTES: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    ("name", _is_name, _NAME, 'Write name = "…ExecutionProvider", the EP name.'),
    (
        "vendor",
        lambda v: isinstance(v, str),
        "text",
        'Write vendor = "…", who is responsible for it.',
    ),
    (
        "binary_suffix",
        lambda v: v == "" or _is_name(v),
        _NAME,
        "Leave it out to use the EP name.",
    ),
    (
        "keeps_functions",
        _are_functions,
        "a set of pairs (domain, name)",
        'Write frozenset({("domain", "Name")}).',
    ),
    (
        "weightless_modes",
        _are_modes,
        "a set of WeightlessMode",
        "Write (WeightlessMode.ALL,).",
    ),
    (
        "environment",
        lambda v: _has_items(v, lambda name: isinstance(name, str) and name != ""),
        "a tuple of names of environment variables",
        'Write ("NAME",).',
    ),
    *(
        (
            name,
            lambda v: isinstance(v, bool),
            "True or False",
            "Leave it out for False.",
        )
        for name in _SWITCHES
    ),
    (
        "factory",
        _is_factory,
        "a pair of a function's place and its arguments",
        'Write ("module:function", {"argument": value}), or leave it out.',
    ),
)
"""Attributes of a class: name, check, expected value in words, and hint."""


def _schema_problems(attribute: str, options: object) -> Iterator[Problem]:
    if not isinstance(options, (list, tuple)):
        hint = (
            f"Write {attribute} = (ProviderOption(...),), with a comma after a single "
            "one."
        )
        yield f"{attribute} is of type {type(options).__name__}, not a tuple", hint
        return
    seen: set[str] = set()
    for option in options:
        if not isinstance(option, ProviderOption):
            hint = (
                'Declare each option as ProviderOption("name", int, default=…, '
                'doc="…").'
            )
            yield f"{attribute} holds {option!r}, which is not a ProviderOption", hint
        elif not isinstance(option.name, str) or not option.name or option.name in seen:
            yield (
                f"option name {option.name!r} is empty or used twice",
                "Name each option once.",
            )
        elif option.type not in _OPTION_TYPES:
            yield (
                f"option {option.name!r} has the type {option.type!r}",
                "Use bool, int, float or str.",
            )
        elif fault := _find_option_fault(option):
            yield (
                f"option {option.name!r} {fault}",
                "Give values of its type; a default that is not None is one of them.",
            )
        else:
            seen.add(option.name)


def _find_option_fault(option: ProviderOption) -> str:
    """Return what is wrong with the values of an option; empty if nothing is."""
    if not isinstance(option.choices, (tuple, list)):
        return f"has the choices {option.choices!r:.80}, not a tuple"
    default = () if option.default is None else (option.default,)
    types = (int, float) if option.type is float else (option.type,)
    for value in (*option.choices, *default):
        is_flag = isinstance(value, bool)
        if not isinstance(value, types) or is_flag is not (option.type is bool):
            return f"is of type {option.type.__name__}, and has the value {value!r:.80}"
    if option.choices and not {*default} <= {*option.choices}:
        return f"has the default {option.default!r:.80}, which is no choice"
    return ""


def _hook_problems(cls: type[ExecutionProvider]) -> Iterator[Problem]:
    marked = list(find_marked_methods(cls))
    implemented = [method.hook for method in marked]
    for method in marked:
        name = method.attribute
        hook = method.hook
        if hook in CLASS_METHODS:
            hint = f"{hook} is called on the class: write @classmethod instead."
            yield f"{name} is marked with @hookimpl but is no hook", hint
        elif hook not in HOOKS:
            hint = f"{suggestion(hook, HOOKS)} Hooks: {', '.join(HOOKS)}.".lstrip()
            hint = _GONE.get(hook, hint)
            yield (
                f"{name} is marked with @hookimpl, but there is no hook {hook!r}",
                hint,
            )
        elif implemented.count(hook) > 1:
            yield (
                f"{name} is not the only implementation of {hook}",
                "Implement each hook once.",
            )
        else:
            yield from _implementation_problems(method)
    for hook, row in HOOKS.items():
        if hook in implemented:
            continue
        if inspect.getattr_static(cls, hook, None) is not None:
            hint = (
                "Write @hookimpl above it, also above an override of a parent's "
                "method, or rename it."
            )
            yield (
                (
                    f"{hook} has a hook's name but no @hookimpl, so it would never be "
                    "called"
                ),
                hint,
            )
        elif row.needed_for == "run":
            yield (
                f"the required hook {hook} is missing",
                f"Implement {hook}, marked with @hookimpl.",
            )


def _implementation_problems(method: MarkedMethod) -> Iterator[Problem]:
    name = method.attribute
    if {"wrapper", "hookwrapper"}.intersection(method.marks):
        hint = "An EP implements hooks and wraps none; plugins of hosts do."
        yield f"{name} is a hook wrapper", hint
        return
    if method.marks:
        yield (
            f"{name} is marked with {' and '.join(method.marks)}, which means nothing",
            "Write @hookimpl alone: an EP's hooks are called for it alone.",
        )

    if not hasattr(type(method.static), "__get__"):
        yield f"{name} is not a method", "Write it with def, in the class."
        return
    function = inspect.unwrap(method.function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield (
            f"{name} is async",
            "Hooks are plain functions; run your event loop inside.",
        )
    elif inspect.isgeneratorfunction(function):
        yield (
            f"{name} has a yield, so calling it would do nothing",
            "Return a list instead.",
        )

    try:
        parameters = method.parameters
    except (ValueError, TypeError) as error:
        yield (
            f"the arguments of {name} can't be read: {error}",
            "Wrap it in a Python function.",
        )
        return

    yield from _find_parameter_problems(name, method.hook, parameters)


def _find_parameter_problems(
    name: str, hook: str, parameters: list[inspect.Parameter]
) -> Iterator[Problem]:
    arguments = HOOKS[hook].arguments
    hint = f"Arguments of {hook}: {', '.join(arguments)}; leave out those not needed."
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield f"{name} takes {parameter}, which would stay empty", hint
        elif parameter.name not in arguments:
            fault = (
                f"{name} takes {parameter.name!r}, which the hook does not give (it "
                f"gives {', '.join(arguments)})"
            )
            yield fault, f"{suggestion(parameter.name, arguments)} {hint}".lstrip()
        elif parameter.default is not parameter.empty:
            yield (
                (
                    f"{name} has a default for {parameter.name!r}, so it might never "
                    "be passed"
                ),
                hint,
            )
        elif parameter.kind is parameter.KEYWORD_ONLY:
            yield f"{name} takes {parameter.name!r} by keyword only", hint


def import_provider(
    record: PluginRecord,
) -> tuple[PluginRecord, type[ExecutionProvider] | None, BaseException | None]:
    """Import and check a class; raise nothing but KeyboardInterrupt.

    Args:
        record: the EP's record, with entry point and name.

    Returns:
        The EP's new record; its class, or None if it can't be used; the exception that
        the plugin raised, or None.
    """
    try:
        cls = EntryPoint(name=record.name, value=record.entry_point, group="").load()
        problems = find_problems(cls, name=record.name)
        is_ep = inspect.isclass(cls) and issubclass(cls, ExecutionProvider)
        is_too_new = (
            is_ep and isinstance(cls.api_version, int) and cls.api_version > PLUGIN_API
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, SystemExit included
        return (
            mark_broken(record, error, f"{record.entry_point} failed to import"),
            None,
            error,
        )
    if problems:
        reason = "; ".join(fault for fault, _ in problems)
        if is_too_new:
            return (
                replace(record, state=PluginState.API_TOO_NEW, reason=reason),
                None,
                None,
            )
        # The plugin's author reads this, too, and can follow the hints.
        hints = " ".join(dict.fromkeys(hint for _, hint in problems)).rstrip(".")
        reason = f"{record.entry_point} breaks the contract: {reason}. {hints}"
        return replace(record, state=PluginState.BROKEN, reason=reason), None, None
    loaded = replace(
        record,
        state=PluginState.LOADED,
        reason="",
        vendor=cls.vendor or None,
        simulated=cls.simulated,
    )
    return loaded, cls, None
