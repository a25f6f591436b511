"""Loading a plugin: importing its class, and checking it against the contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

from epctx_core.errors import suggestion
from epctx_core.plugin import PLUGIN_API, ExecutionProvider, ProviderOption, WeightlessMode
from epctx_core.plugin.hookspecs import CLASS_METHODS, HOOKS, PROJECT
from epctx_core.registry.discovery import EP_NAME, EntryPoint, broken_record, class_path
from epctx_core.registry.guard import broken_by
from epctx_core.registry.records import PluginRecord, PluginState, record_of_class, simulates

_MARK = f"{PROJECT}_impl"


@dataclass(frozen=True, kw_only=True)
class MarkedMethod:
    """An attribute marked with `hookimpl`.

    Attributes:
        attribute: its name in the class.
        hook: the hook it means to implement.
        static: the attribute as it stands in the class, not bound.
        function: the function behind it.
        wrapper: whether it is marked as a hook wrapper.
    """

    attribute: str
    hook: str
    static: Any
    function: Callable[..., Any]
    wrapper: bool

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """What the core has to pass: everything but `self`.

        Raises:
            ValueError, TypeError: the function does not tell.
        """
        parameters = list(inspect.signature(self.function).parameters.values())
        return parameters if isinstance(self.static, staticmethod) else parameters[1:]


def marked_methods(cls: type) -> Iterator[MarkedMethod]:
    """Yield what a class marks with `hookimpl`; evaluates no property."""
    # As inspect.getmembers_static at a tenth of the time, which each new session spends on each EP.
    attributes = {name: static for base in reversed(cls.__mro__) for name, static in vars(base).items()}
    for attribute, static in sorted(attributes.items()):
        function = static.__func__ if isinstance(static, (staticmethod, classmethod)) else static
        mark = _mark(static) or _mark(function)
        if mark is not None and callable(function):
            yield MarkedMethod(
                attribute=attribute,
                hook=mark.get("specname") or attribute,
                static=static,
                function=function,
                wrapper=bool(mark.get("wrapper") or mark.get("hookwrapper")),
            )


def _mark(static: object) -> Mapping[str, Any] | None:
    if isinstance(static, FunctionType):
        mark = vars(static).get(_MARK)
    elif type(static).__module__ == "builtins" and not isinstance(static, (staticmethod, classmethod, type)):
        return None
    else:
        # Not getattr: an object with __getattr__, such as a logger proxy, would answer to any name.
        mark = inspect.getattr_static(static, _MARK, None)
    return mark if isinstance(mark, dict) else None


def implemented_hooks(cls: type[ExecutionProvider]) -> dict[str, MarkedMethod]:
    """Return the hooks that a valid class implements."""
    return {method.hook: method for method in marked_methods(cls)}


_OPTION_TYPES = (bool, int, float, str)


class Problem(NamedTuple):
    """One way in which a class breaks the contract: what, what to do, and the state that follows."""

    what: str
    hint: str
    state: PluginState = PluginState.BROKEN


def find_problems(cls: object, *, name: str | None = None) -> list[Problem]:
    """Return every way in which a class breaks the contract; empty for a valid one."""
    if not (inspect.isclass(cls) and issubclass(cls, ExecutionProvider)):
        but = "" if inspect.isclass(cls) else f", but an object of type {type(cls).__name__}"
        return [
            Problem(
                f"it is not a subclass of epctx_core.plugin.ExecutionProvider{but}",
                "Derive it from ExecutionProvider, and let the entry point name the class itself.",
            )
        ]
    version = list(_version_problems(cls))
    if version:  # a later API may have other hooks and rules, so nothing else would be true
        return version
    return [
        *_name_problems(cls, name),
        *_attribute_problems(cls),
        *_schema_problems("options", cls.options),
        *_schema_problems("dynamic_options", cls.dynamic_options),
        *_class_method_problems(cls),
        *_hook_problems(cls),
    ]


def _version_problems(cls: type[ExecutionProvider]) -> Iterator[Problem]:
    version: object = cls.api_version
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        yield Problem(
            f"api_version is {version!r}, not a whole number from 1",
            f"Write api_version = {PLUGIN_API}, the PLUGIN_API it was written for.",
        )
    elif version > PLUGIN_API:
        yield Problem(
            f"it was written for plugin API {version}, and this epctx-core has {PLUGIN_API}",
            "Upgrade epctx-core, or install an older version of the plugin.",
            state=PluginState.API_TOO_NEW,
        )


def _name_problems(cls: type[ExecutionProvider], expected: str | None) -> Iterator[Problem]:
    name: object = getattr(cls, "name", None)
    if not isinstance(name, str) or not EP_NAME.fullmatch(name):
        yield Problem(
            f"name is {name!r}, not a text of letters, digits, '_', '.' and '-'",
            'Give the class the EP type, such as name = "QNNExecutionProvider".',
        )
    elif expected is not None and name != expected:
        yield Problem(
            f"its name is {name!r}, but it was found as {expected!r}",
            "Make the entry point's name and the class's name equal: both are the EP type.",
        )


def _attribute_problems(cls: type[ExecutionProvider]) -> Iterator[Problem]:
    for attribute, holds, wanted, hint in _ATTRIBUTES:
        value = getattr(cls, attribute)
        if not holds(value):
            shown = f"{value!r:.80}" if wanted == _SWITCH else repr(value)
            yield Problem(f"{attribute} is {shown}, not {wanted}", hint)


def _each(value: object, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(holds, value))


def _is_function_id(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == len(("domain", "name")) and _each(item, _is_text)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_SWITCH = "True or False"
_ATTRIBUTES: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    ("vendor", _is_text, "text", 'Write vendor = "…", who is responsible for it.'),
    (
        "binary_suffix",
        lambda suffix: isinstance(suffix, str) and (not suffix or EP_NAME.fullmatch(suffix) is not None),
        "a text of letters, digits, '_', '.' and '-'",
        "It becomes part of a file's name; leave it out to use the EP type.",
    ),
    (
        "keeps_functions",
        lambda kept: _each(kept, _is_function_id),
        "a set of pairs (domain, name)",
        'Write keeps_functions = frozenset({("domain", "Name")}), with each pair in parentheses.',
    ),
    (
        "weightless_modes",
        lambda modes: modes is None or _each(modes, lambda mode: isinstance(mode, WeightlessMode)),
        "a set of WeightlessMode",
        "Write weightless_modes = (WeightlessMode.ALL,), or leave it out.",
    ),
    (
        "loads_without_device",
        lambda switch: isinstance(switch, bool),
        _SWITCH,
        "Write loads_without_device = True if load_context works under purpose EXPORT; else leave it out.",
    ),
    (
        "simulated",
        lambda switch: isinstance(switch, bool),
        _SWITCH,
        "Write simulated = True if it computes on this CPU in place of hardware; else leave it out.",
    ),
)
"""Attributes of a class: what holds for each value, in words, and what to write."""


def _schema_problems(attribute: str, options: object) -> Iterator[Problem]:
    if not isinstance(options, (list, tuple)):
        yield Problem(
            f"{attribute} is of type {type(options).__name__}, not a tuple",
            f"Write {attribute} = (ProviderOption(...),), with a comma after a single one.",
        )
        return
    seen: set[str] = set()
    for option in options:
        if not isinstance(option, ProviderOption):
            yield Problem(
                f"{attribute} holds {option!r}, which is not a ProviderOption",
                'Declare each option as ProviderOption("name", int, default=…, doc="…").',
            )
        elif not isinstance(option.name, str) or not option.name or option.name in seen:
            yield Problem(f"option name {option.name!r} is empty or used twice", "Name each option once.")
        elif option.type not in _OPTION_TYPES:
            yield Problem(
                f"option {option.name!r} has the type {option.type!r}", "Use bool, int, float or str."
            )
        else:
            seen.add(option.name)


def _class_method_problems(cls: type[ExecutionProvider]) -> Iterator[Problem]:
    for name in CLASS_METHODS:
        if not isinstance(inspect.getattr_static(cls, name), (classmethod, staticmethod)):
            yield Problem(
                f"{name} is not a class method", f"Write @classmethod above {name}: it is asked of the class."
            )


def _hook_problems(cls: type[ExecutionProvider]) -> Iterator[Problem]:
    marked = list(marked_methods(cls))
    implemented = [method.hook for method in marked]
    for method in marked:
        if method.hook in CLASS_METHODS:
            yield Problem(
                f"{method.attribute} is marked with @hookimpl but is no hook",
                f"{method.hook} is asked of the class: write @classmethod instead.",
            )
        elif method.hook not in HOOKS:
            yield Problem(
                f"{method.attribute} is marked with @hookimpl, but there is no hook {method.hook!r}",
                f"{suggestion(method.hook, HOOKS)} Hooks: {', '.join(HOOKS)}.".lstrip(),
            )
        elif implemented.count(method.hook) > 1:
            yield Problem(
                f"{method.attribute} is not the only implementation of {method.hook}",
                "Implement each hook once.",
            )
        else:
            yield from _implementation_problems(method)
    yield from _unmarked_problems(cls, implemented)


def _unmarked_problems(cls: type[ExecutionProvider], implemented: list[str]) -> Iterator[Problem]:
    for hook, row in HOOKS.items():
        if hook in implemented:
            continue
        if inspect.getattr_static(cls, hook, None) is not None:
            yield Problem(
                f"{hook} has a hook's name but no @hookimpl, so it would never be called",
                "Write @hookimpl above it, also above an override of a parent's method, or rename it.",
            )
        elif row.needed_to == "run" and row.unless not in implemented:
            yield Problem(f"the required hook {hook} is missing", f"Implement {hook}, marked with @hookimpl.")


def _implementation_problems(method: MarkedMethod) -> Iterator[Problem]:
    where = method.attribute
    if method.wrapper:
        yield Problem(f"{where} is a hook wrapper", "An EP implements hooks and wraps none.")
        return
    if not hasattr(type(method.static), "__get__"):
        yield Problem(f"{where} is no method", "Write it with def, in the class.")
        return
    function = inspect.unwrap(method.function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield Problem(f"{where} is async", "Hooks are plain functions; run your event loop inside.")
    elif inspect.isgeneratorfunction(function):
        yield Problem(f"{where} has a yield, so calling it would do nothing", "Return a list instead.")
    try:
        parameters = method.parameters
    except (ValueError, TypeError) as error:
        yield Problem(f"the arguments of {where} can't be read: {error}", "Wrap it in a Python function.")
        return
    for parameter in parameters:
        yield from _parameter_problems(where, method.hook, parameter)


def _parameter_problems(where: str, hook: str, parameter: inspect.Parameter) -> Iterator[Problem]:
    """Yield what is wrong with one argument of an implementation; the core passes by place what it names."""
    allowed = HOOKS[hook].arguments
    hint = f"Arguments of {hook}: {', '.join(allowed)}; leave out those not needed."
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        yield Problem(f"{where} takes {parameter}, which would stay empty", hint)
    elif parameter.name not in allowed:
        close = f"{suggestion(parameter.name, allowed)} {hint}".lstrip()
        yield Problem(
            f"{where} takes {parameter.name!r}, which the hook does not give (it gives {', '.join(allowed)})",
            close,
        )
    elif parameter.default is not parameter.empty:
        yield Problem(f"{where} has a default for {parameter.name!r}, so it might never be passed", hint)
    elif parameter.kind is parameter.KEYWORD_ONLY:
        yield Problem(f"{where} takes {parameter.name!r} by keyword only", hint)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of an import.

    Attributes:
        record: the EP's record as it stands now.
        cls: its class, or None if it can't be used.
        error: what the plugin raised, if it did.
    """

    record: PluginRecord
    cls: type[ExecutionProvider] | None = None
    error: BaseException | None = None


def import_provider(record: PluginRecord, *, any_name: bool = False) -> Outcome:
    """Import and check a class; raises nothing but KeyboardInterrupt.

    Args:
        record: says where it is, and the EP type that it has to have.
        any_name: whether only the class knows its EP type.
    """
    try:
        cls = EntryPoint(name=record.name, value=record.entry_point, group="").load()
        problems = find_problems(cls, name=None if any_name else record.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, SystemExit included
        return Outcome(record=broken_by(record, error, f"{record.entry_point} failed to import"), error=error)
    if problems:
        reason = "; ".join(problem.what for problem in problems)
        if problems[0].state is PluginState.BROKEN:
            # Its author reads this, too, who can do what the hints say.
            hints = " ".join(dict.fromkeys(problem.hint for problem in problems)).rstrip(".")
            reason = f"{record.entry_point} breaks the contract: {reason}. {hints}"
        return Outcome(record=replace(record, state=problems[0].state, reason=reason))
    loaded = replace(
        record, name=cls.name, vendor=cls.vendor or None, simulated=simulates(cls), availability={}
    )
    if record.state is not PluginState.RESTART_NEEDED:
        loaded = replace(loaded, state=PluginState.LOADED, reason="")
    return Outcome(record=loaded, cls=cls)


def import_class(path: str) -> Outcome:
    """Import and check a class without a package; where it cannot be used, its record has the path as its name.

    Args:
        path: as `module:Class`.
    """
    unknown = broken_record(path, None, None, f"{path!r} is not of the form module:Class")
    target = class_path(path)
    if target is None:
        return Outcome(record=unknown)
    record = replace(unknown, state=PluginState.DISCOVERED, reason="", entry_point=target)
    outcome = import_provider(record, any_name=True)
    if outcome.cls is None:
        return outcome
    return Outcome(record=record_of_class(outcome.cls, ()), cls=outcome.cls)
