"""What the class says of itself before there is an instance: attributes, options, sources, compatibility."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epctx_conformance.models.blocks import BLOCKS
from epctx_conformance.models.structures import single
from epctx_conformance.table import CheckFailed, Skipped, check
from epctx_core.errors import InvalidArgument, PluginError
from epctx_core.ext import find_problems
from epctx_core.plugin import PLUGIN_API, Availability, Compatibility, ProviderOption, Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epctx_conformance.scene import Scene
    from epctx_core.plugin import Partition

FOREIGN_SOURCES = ("SomebodyElsesExecutionProvider", "", "ExecutionProvider", "CPUExecutionProvider")
FOREIGN_INFOS = ("written by another EP", "", "{}", '{"version": 999999}', "\x00\ufffd" * 50)


@check("signatures", "the class, its options and its hooks are as the contract has them")
def check_class(scene: Scene) -> None:
    """Hold the class against the contract."""
    for what, hint in find_problems(scene.provider):
        raise CheckFailed(f"{scene.provider.__qualname__}: {what}.", hint=hint)


@check("signatures", "it is written for a plugin API that this core has")
def check_api_version(scene: Scene) -> None:
    """Compare versions; another version makes all other results meaningless."""
    version = getattr(scene.provider, "api_version", None)
    if type(version) is not int or not 1 <= version <= PLUGIN_API:
        raise CheckFailed(
            f"api_version is {version!r}, and this core has {PLUGIN_API}.",
            hint="Declare the PLUGIN_API that the EP was written for.",
        )


@check("signatures", "it can be registered beside nothing else")
def check_registration(scene: Scene) -> None:
    """Register it in an empty registry, as a host would."""
    try:
        records = scene.registry.records()
    except PluginError as error:
        raise CheckFailed(error.message, hint=error.hint or "") from error
    names = [record.name for record in records]
    if names != [scene.provider.name]:
        raise CheckFailed(f"a registry with this EP alone has {names}.")


@check("signatures", "its vendor is named")
def check_vendor(scene: Scene) -> None:
    """Who installs an EP wants to know whose it is."""
    if not str(scene.provider.vendor).strip():
        raise CheckFailed("vendor is empty.", hint='Write vendor = "…": who is responsible for the EP.')


@check("signatures", "it is simulated where its vendor says so")
def check_simulated(scene: Scene) -> None:
    """Of a real and a simulated EP of one name hosts use the real one, and go by `simulated`."""
    if "simulated" in scene.provider.vendor.lower() and scene.provider.simulated is not True:
        raise CheckFailed(
            f"its vendor is {scene.provider.vendor!r}, and simulated is {scene.provider.simulated!r}.",
            hint="Write simulated = True.",
        )


def _options(scene: Scene) -> Iterator[ProviderOption]:
    found = (*scene.provider.options, *scene.provider.dynamic_options)
    if not found:
        raise Skipped("the EP has no options")
    yield from found


@check("signatures", "each option says in a sentence what it does")
def check_option_docs(scene: Scene) -> None:
    """Users read it in errors and lists."""
    for option in _options(scene):
        if not option.doc.strip():
            raise CheckFailed(f"the option {option.name!r} has no doc.", hint="Write one sentence for users.")


@check("signatures", "each option's default is a value that a host could give")
def check_option_defaults(scene: Scene) -> None:
    """Options arrive as text, so the default, as text, has to come back."""
    for option in _options(scene):
        if option.default is None:
            continue
        given = str(int(option.default)) if option.type is bool else str(option.default)
        try:
            parsed = option.parse(scene.provider.name, given)
        except InvalidArgument as error:
            raise CheckFailed(
                f"the default {option.default!r} of {option.name!r} is refused: {error.message}",
                hint="Give a default of the option's type, and one of its choices.",
            ) from error
        if parsed != option.default:
            raise CheckFailed(
                f"the default {option.default!r} of {option.name!r} comes back as {parsed!r} when a host gives it."
            )


@check("signatures", "each choice of an option is of the option's type")
def check_option_choices(scene: Scene) -> None:
    """A choice of another type could never be given."""
    for option in _options(scene):
        for choice in option.choices:
            if not isinstance(choice, option.type):
                raise CheckFailed(
                    f"the choice {choice!r} of {option.name!r} is no {option.type.__name__}, so no host can give it."
                )


@check("signatures", "each choice of an option makes an instance, or is refused with a reason")
def check_every_choice(scene: Scene) -> None:
    """An instance is made with each choice; what raises something else than InvalidArgument is a bug."""
    model = scene.network
    choices = [
        (o.name, choice) for o in _options(scene) for choice in o.choices if o in scene.provider.options
    ]
    if not choices:
        raise Skipped("no option of the EP has choices")
    for name, choice in choices:
        text = str(int(choice)) if isinstance(choice, bool) else str(choice)
        try:
            scene.with_options({name: text}).explain(model)
        except InvalidArgument:
            continue


@check("signatures", "it accepts its own EP type as a source")
def check_own_source(scene: Scene) -> None:
    """The core writes the EP type into every node that it makes."""
    name = scene.provider.name
    if scene.provider.accepts_source(name) is not True:
        raise CheckFailed(
            f"accepts_source({name!r}) is not True, so what it compiles could not be loaded.",
            hint="Return True for the EP type, exactly as in `name`.",
        )


@check("signatures", "it leaves the sources of other EPs to them")
def check_foreign_sources(scene: Scene) -> None:
    """An EP that takes what is not its own breaks another's models."""
    for source in FOREIGN_SOURCES:
        if scene.provider.accepts_source(source):
            raise CheckFailed(
                f"accepts_source({source!r}) is true.", hint="Accept the EP's own names, whole, and no other."
            )


@check("signatures", "it says for each purpose whether this machine will do")
def check_availability(scene: Scene) -> None:
    """Asked of the class; a no needs a reason."""
    for purpose in Purpose:
        answers = [scene.provider.availability(purpose) for _ in range(2)]
        if not all(isinstance(answer, Availability) for answer in answers):
            raise CheckFailed(f"availability({purpose}) gave {answers[0]!r} instead of an Availability.")
        if answers[0] != answers[1]:
            raise CheckFailed(f"availability({purpose}) gave {answers[0]}, then {answers[1]}.")
        if not answers[0].available and not answers[0].reason:
            raise CheckFailed(f"it is not available for {purpose.value}, and gives no reason.")


@check("signatures", "it is available here for what it is checked on")
def check_available(scene: Scene) -> None:
    """Without this nothing else was looked at, and the reader should know why."""
    purposes = [Purpose.RUN] + [Purpose.EXPORT, Purpose.LOAD] * scene.requirements.export
    for purpose in purposes:
        answer = scene.provider.availability(purpose)
        if not answer.available:
            raise CheckFailed(f"it cannot {purpose.value} here: {answer.reason}", hint=answer.hint)


def _typed_options(scene: Scene) -> Mapping[str, Any]:
    watched, watch = scene.observed()
    # Of any model: an EP that takes nothing of it has options all the same.
    watched.explain(single(BLOCKS[0]))
    return watch.contexts[0].options


def _info(scene: Scene) -> str:
    """Return what the EP writes about its own work."""
    infos: list[str] = []

    def asked_twice(honest: Any, partitions: Sequence[Partition], **_others: Any) -> Any:
        options = watch.contexts[0].options
        infos.extend(scene.provider.get_compatibility_info(partitions, options) for _ in range(2))
        return honest()

    watched, watch = scene.observed(compile=asked_twice)
    watched.compile(scene.network)
    if not all(isinstance(info, str) for info in infos):
        raise CheckFailed(
            f"get_compatibility_info gave {infos[0]!r}, which is no text.", hint='"" for nothing.'
        )
    if infos[0] != infos[1]:
        raise CheckFailed(
            f"get_compatibility_info gave {infos[0]!r}, then {infos[1]!r}, for the same partitions."
        )
    if not infos[0]:
        raise Skipped("the EP writes no compatibility info")
    return infos[0]


@check(
    "signatures",
    "what it writes about compatibility is text, and the same each time",
    needs=("partitions", "export", "compatibility"),
)
def check_info(scene: Scene) -> None:
    """Ask twice."""
    _info(scene)


@check("signatures", "it supports what it compiled itself", needs=("partitions", "export", "compatibility"))
def check_info_comes_back(scene: Scene) -> None:
    """Its own verdict on its own text."""
    info = _info(scene)
    verdict = scene.provider.validate_compatibility(info, _typed_options(scene))
    supported = (Compatibility.EP_SUPPORTED_OPTIMAL, Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION)
    if verdict not in supported:
        raise CheckFailed(
            f"validate_compatibility says {verdict!r} to what get_compatibility_info wrote just now: {info!r:.120}"
        )


@check("signatures", "it does not claim to support what it cannot read")
def check_foreign_infos(scene: Scene) -> None:
    """Texts that it never wrote: a verdict, no exception, and none that lets the model pass as its own."""
    unsupported = (Compatibility.EP_NOT_APPLICABLE, Compatibility.EP_UNSUPPORTED)
    for info in FOREIGN_INFOS:
        verdict = scene.provider.validate_compatibility(info, _typed_options(scene))
        if verdict not in unsupported:
            raise CheckFailed(
                f"validate_compatibility({info!r:.40}) is {verdict!r}.",
                hint="Return EP_NOT_APPLICABLE for a text that is not the EP's, EP_UNSUPPORTED for one it cannot judge.",
            )
