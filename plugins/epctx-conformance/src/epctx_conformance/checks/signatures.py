"""Class of an EP before there is an instance: attributes, options, sources,
compatibility.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from epctx_conformance.class_rules import find_mistakes
from epctx_conformance.models import BLOCKS, single
from epctx_conformance.table import CheckFailed, Skipped, check
from epctx_core import Registry
from epctx_core.errors import InvalidArgument, PluginError
from epctx_core.plugin import Availability, Compatibility, Purpose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_conformance.harness import Harness
    from epctx_core.plugin import Partition

FOREIGN_SOURCES = (
    "SomebodyElsesExecutionProvider",
    "",
    "ExecutionProvider",
    "CPUExecutionProvider",
)
FOREIGN_INFOS = (
    "written by another EP",
    "",
    "{}",
    '{"version": 999999}',
    "\x00\ufffd" * 50,
)


@check("signatures", "the class, its options and its hooks follow the contract")
def check_class(harness: Harness) -> None:
    """Compare the class with the contract."""
    cls = harness.provider
    try:
        Registry(entry_points=False).register(cls)
    except PluginError as error:
        raise CheckFailed(error.message, hint=error.hint or "") from error
    for mistake, hint in find_mistakes(cls):
        raise CheckFailed(f"{cls.__qualname__}: {mistake}.", hint=hint)


@check("signatures", "it names its vendor")
def check_vendor(harness: Harness) -> None:
    """Shown to everybody who installs the EP."""
    if not str(harness.provider.vendor).strip():
        raise CheckFailed(
            "vendor is empty.",
            hint='Write vendor = "...", the name of the EP\'s maker.',
        )


@check("signatures", "it sets simulated if its vendor says so")
def check_simulated(harness: Harness) -> None:
    """Hosts prefer a real EP to a simulated one of the same name, by `simulated`."""
    vendor = harness.provider.vendor
    simulated = harness.provider.simulated
    if "simulated" in vendor.lower() and simulated is not True:
        raise CheckFailed(
            f"its vendor is {vendor!r}, and simulated is {simulated!r}.",
            hint="Write simulated = True.",
        )


def _format_value(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


@check("signatures", "each option has a doc, a valid default and valid choices")
def check_options(harness: Harness) -> None:
    """Users read the doc in errors and lists.

    A host gives options as text, so each value, as text, has to come back.
    """
    options = (*harness.provider.options, *harness.provider.dynamic_options)
    if not options:
        raise Skipped("the EP has no options")
    for option in options:
        if not isinstance(option.doc, str) or not option.doc.strip():
            raise CheckFailed(
                f"the option {option.name!r} has no doc.",
                hint="Write one sentence for users.",
            )
        if not isinstance(option.secret, bool) or not isinstance(option.effect, bool):
            raise CheckFailed(
                f"the option {option.name!r} has neither True nor False as secret or "
                "effect.",
                hint="Write secret=True, or leave it out.",
            )
        if option.name == "*" and option.secret:
            raise CheckFailed(
                "the option '*' is secret, which hides none of the options that it is "
                "for.",
                hint="Declare each secret option by its name.",
            )
        for value in (
            *option.choices,
            *([] if option.default is None else [option.default]),
        ):
            try:
                parsed = option.parse(harness.provider.name, _format_value(value))
            except InvalidArgument as error:
                parsed = error.message
            if parsed != value:
                raise CheckFailed(
                    f"the value {value!r} of the option {option.name!r}, given by a "
                    f"host, becomes: {parsed!r}",
                    hint=(
                        "Give a default and choices of the option's type; the default "
                        "is one of the choices."
                    ),
                )


@check("signatures", "it declares its availability for each purpose")
def check_availability(harness: Harness) -> None:
    """The same each time, and with a reason if it is not available."""
    for purpose in Purpose:
        first, second = (harness.provider.availability(purpose) for _ in range(2))
        if not isinstance(first, Availability):
            raise CheckFailed(
                f"availability({purpose}) gave {first!r} instead of an Availability."
            )
        if first != second:
            raise CheckFailed(f"availability({purpose}) gave {first}, then {second}.")
        if not first.available and not first.reason:
            raise CheckFailed(
                f"it is not available for {purpose.value} and gives no reason."
            )


@check("signatures", "it is available on this machine")
def check_available(harness: Harness) -> None:
    """Without this no later check can run; each is skipped and says so."""
    for purpose in [Purpose.RUN] + [
        Purpose.EXPORT,
        Purpose.LOAD,
    ] * harness.requirements.export:
        availability = harness.provider.availability(purpose)
        if not availability.available:
            harness.unavailable = (
                f"it cannot {purpose.value} here: {availability.reason}"
            )
            raise CheckFailed(harness.unavailable, hint=availability.hint)


@check("signatures", "it accepts each choice of an option, or refuses it with a reason")
def check_every_choice(harness: Harness) -> None:
    """An instance is made with each choice; any error but InvalidArgument is a bug."""
    model = harness.network
    choices = [
        (o.name, choice) for o in harness.provider.options for choice in o.choices
    ]
    if not choices:
        raise Skipped("no option of the EP has choices")
    for name, choice in choices:
        try:
            harness.like(
                options={**harness.options, name: _format_value(choice)}
            ).explain(model)
        except InvalidArgument:
            continue


@check("signatures", "it accepts its own name as a source")
def check_own_source(harness: Harness) -> None:
    """The core writes the EP name into every node that it makes."""
    name = harness.provider.name
    if harness.provider.accepts_source(name) is not True:
        raise CheckFailed(
            f"accepts_source({name!r}) is not True, so what it compiles could not be "
            "loaded.",
            hint="Return True for the EP's name, exactly as in `name`.",
        )


@check("signatures", "it does not accept the sources of other EPs")
def check_foreign_sources(harness: Harness) -> None:
    """An EP that takes another's nodes breaks another's models."""
    for source in FOREIGN_SOURCES:
        if harness.provider.accepts_source(source):
            raise CheckFailed(
                f"accepts_source({source!r}) is true.",
                hint="Accept the EP's own names, whole, and no other.",
            )


def _validate(harness: Harness, info: str) -> Compatibility:
    other, watch = harness.observed()
    # Of any model: an EP that takes nothing of it has options all the same.
    other.explain(single(BLOCKS[0]))
    return harness.provider.validate_compatibility(info, watch.contexts[0].options)


def _ask_info(harness: Harness) -> str:
    """Return what the EP writes about its own work."""
    infos: list[Any] = []

    def twice(honest: Any, partitions: Sequence[Partition], **_others: Any) -> Any:
        options: Mapping[str, Any] = watch.contexts[0].options
        infos.extend(
            harness.provider.get_compatibility_info(partitions, options)
            for _ in range(2)
        )
        return honest()

    other, watch = harness.observed(compile=twice)
    other.compile(harness.network)
    first, second = infos[:2]
    if not isinstance(first, str):
        raise CheckFailed(
            f"get_compatibility_info gave {first!r}, not a text.",
            hint='Return "" for nothing.',
        )
    if first != second:
        raise CheckFailed(
            f"get_compatibility_info gave {first!r}, then {second!r}, for the same "
            "partitions."
        )
    described = (
        node for call in watch.of("get_ep_context_nodes") for node in call.result or ()
    )
    if (node_info := next(described).compatibility_info) is not None:
        return str(node_info)
    if not first:
        raise Skipped("the EP writes no compatibility info")
    return first


@check(
    "signatures",
    "it supports what it compiled itself",
    needs=("partitions", "export", "compatibility"),
)
def check_info_comes_back(harness: Harness) -> None:
    """Its own verdict on its own text, which is the same each time."""
    info = _ask_info(harness)
    verdict = _validate(harness, info)
    supported = (
        Compatibility.EP_SUPPORTED_OPTIMAL,
        Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION,
    )
    if verdict not in supported:
        raise CheckFailed(
            f"validate_compatibility says {verdict!r} to the compatibility text that "
            f"it wrote just now: {info!r:.120}"
        )


@check("signatures", "it does not claim to support what it cannot read")
def check_foreign_infos(harness: Harness) -> None:
    """Texts that it never wrote: a verdict, no exception, and none that lets the model
    pass as its own.
    """
    for info in FOREIGN_INFOS:
        verdict = _validate(harness, info)
        if verdict not in (
            Compatibility.EP_NOT_APPLICABLE,
            Compatibility.EP_UNSUPPORTED,
        ):
            raise CheckFailed(
                f"validate_compatibility({info!r:.40}) is {verdict!r}.",
                hint=(
                    "Return EP_NOT_APPLICABLE for a text that is not the EP's, "
                    "EP_UNSUPPORTED for one it cannot judge."
                ),
            )


@check(
    "signatures",
    "it has a verdict on its own text with any other numbers",
    needs=("partitions", "export", "compatibility"),
)
def check_altered_infos(harness: Harness) -> None:
    """A text out of a model that anybody may have made; Python itself refuses to
    convert numbers of more than 4,300 digits.
    """
    info = _ask_info(harness)
    for number in ("0", "9" * 20, "9" * 5000):
        altered = re.sub("[0-9]+", number, info)
        try:
            verdict = _validate(harness, altered)
        except Exception as error:
            raise CheckFailed(
                f"validate_compatibility({altered!r:.40}) raised "
                f"{type(error).__name__}: {error}",
                hint="Return EP_UNSUPPORTED for a number that no version has.",
            ) from error
        if not isinstance(verdict, Compatibility):
            raise CheckFailed(
                f"validate_compatibility({altered!r:.40}) is {verdict!r}."
            )
