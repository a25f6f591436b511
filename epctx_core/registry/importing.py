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
)
from epctx_core.plugin.hookspecs import CLASS_METHODS, HOOKS, PROJECT
from epctx_core.registry.discovery import EP_NAME
from epctx_core.registry.guard import describe_type, mark_broken
from epctx_core.registry.installed import load_object
from epctx_core.registry.records import PluginRecord, PluginState

_MARK = f"{PROJECT}_impl"
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


Problem: TypeAlias = tuple[str, str]
"""One way in which a class breaks the contract, and what its author is to do."""


def find_problems(cls: object, *, name: str | None = None) -> list[Problem]:
    """Return the ways in which a class could not be used, or would harm the process;
    empty for a valid one.

    epctx-conformance checks the rest of the contract.

    Args:
        cls: the value that a plugin or a host gave.
        name: the name of its entry point, if it has one.
    """
    if not (inspect.isclass(cls) and issubclass(cls, ExecutionProvider)):
        but = "" if inspect.isclass(cls) else f", but {describe_type(cls)}"
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

    return [
        *_find_wrong_attributes(cls, name),
        *_find_wrong_options("options", cls.options),
        *_find_wrong_options("dynamic_options", cls.dynamic_options),
        *_find_wrong_hooks(cls),
    ]


_TYPES: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "vendor": (str,),
    "binary_suffix": (str,),
    "keeps_functions": (tuple, list, set, frozenset),
    "weightless_modes": (type(None), tuple, list, set, frozenset),
    "environment": (tuple, list, set, frozenset),
    "factory": (type(None), tuple),
    "keeps_nodes": (bool,),
    "loads_without_device": (bool,),
    "needs_verified_payloads": (bool,),
    "simulated": (bool,),
}
"""Types that attributes of a class may have: the core reads them without a check."""


def _find_wrong_attributes(
    cls: type[ExecutionProvider], expected_name: str | None
) -> Iterator[Problem]:
    for attribute, types in _TYPES.items():
        value: Any = getattr(cls, attribute, None)
        # Names of EPs and suffixes become parts of names of files.
        in_files = attribute == "name" or (attribute == "binary_suffix" and value != "")
        if not isinstance(value, types):
            names = " or ".join(each.__name__ for each in types)
            fault = f"{attribute} is {value!r:.80}, not of type {names}"
            yield fault, f"See {attribute} in `epctx docs ep-class-attributes`."
        elif attribute == "keeps_functions" and not all(
            isinstance(item, tuple) and [*map(type, item)] == [str, str]
            for item in cls.keeps_functions
        ):
            # Sessions make a set of them.
            yield f"{attribute} is {value!r:.80}", 'Write {("domain", "Name")}.'
        elif in_files and not EP_NAME.fullmatch(str(value)):
            fault = f"{attribute} is {value!r:.80}"
            yield fault, "Use letters, digits, '_', '.' and '-'."
        elif attribute == "name" and expected_name not in (None, value):
            fault = f"its name is {value!r}, but it was found as {expected_name!r}"
            yield (
                fault,
                "Give the entry point the name of the class: both are the EP's.",
            )


def _find_wrong_options(attribute: str, options: object) -> Iterator[Problem]:
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
            fault = f"{attribute} holds {option!r}, which is not a ProviderOption"
            hint = 'Write ProviderOption("name", int, default=…, doc="…").'
            yield fault, hint
        elif not isinstance(option.name, str) or not option.name or option.name in seen:
            fault = f"option name {option.name!r} is empty or used twice"
            yield fault, "Name each option once."
        elif fault := _find_wrong_value(option):
            hint = "Give values of its type; a default that is not None is one of them."
            yield f"option {option.name!r} {fault}", hint
        else:
            seen.add(option.name)


def _find_wrong_value(option: ProviderOption) -> str:
    """Return what is wrong with the values of an option; empty if nothing is."""
    if option.type not in (bool, int, float, str):
        return f"has the type {option.type!r}, not bool, int, float or str"
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


def _find_wrong_hooks(cls: type[ExecutionProvider]) -> Iterator[Problem]:
    """Yield hooks that are missing, unknown or implemented twice, and class methods
    that are not.
    """
    for name in CLASS_METHODS:
        method = inspect.getattr_static(cls, name)
        if not isinstance(method, (classmethod, staticmethod)):
            hint = f"Write @classmethod above {name}: it is called on the class."
            yield f"{name} is not a class method", hint
    marked = list(find_marked_methods(cls))
    implemented = [method.hook for method in marked]
    for method in marked:
        if method.hook not in HOOKS:
            fault = (
                f"{method.attribute} is marked with @hookimpl, but there is no hook "
                f"{method.hook!r}"
            )
            known = f"{suggestion(method.hook, HOOKS)} Hooks: {', '.join(HOOKS)}."
            yield fault, _GONE.get(method.hook, known.lstrip())
        elif implemented.count(method.hook) > 1:
            fault = f"{method.attribute} is not the only implementation of "
            yield fault + method.hook, "Implement each hook once."
    for hook, row in HOOKS.items():
        if hook in implemented:
            continue
        if inspect.getattr_static(cls, hook, None) is not None:
            fault = f"{hook} has a hook's name but no @hookimpl: it is never called"
            yield fault, "Write @hookimpl above it, also above an override."
        elif row.needed_for == "run":
            fault = f"the required hook {hook} is missing"
            yield fault, f"Implement {hook}, marked with @hookimpl."


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
        cls = load_object(record.entry_point)
        problems = find_problems(cls, name=record.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, SystemExit included
        broken = mark_broken(record, error, f"{record.entry_point} failed to import")
        return broken, None, error
    if problems:
        # The plugin's author reads this, too, and can follow the hints.
        hints = " ".join(dict.fromkeys(hint for _, hint in problems)).rstrip(".")
        faults = "; ".join(fault for fault, _ in problems)
        reason = f"{record.entry_point} breaks the contract: {faults}. {hints}"
        return replace(record, state=PluginState.BROKEN, reason=reason), None, None
    loaded = replace(
        record,
        state=PluginState.LOADED,
        reason="",
        vendor=cls.vendor or None,
        simulated=cls.simulated,
    )
    return loaded, cls, None
