"""`merge`: several models as one, joined where one's output is another's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epctx_core.errors import InvalidArgument, convert_errors
from epctx_files.bundle import Bundle, FilesReport, PathInput, publish, read_bundle
from epctx_files.names import list_bound_values, list_values, rename_values
from epctx_files.union import Union, get_opsets

_FEWEST = 2


@convert_errors("merging the models")
def merge(
    models: Sequence[PathInput],
    output: PathInput,
    *,
    joins: Mapping[str, str | Sequence[str]] | None = None,
    prefixes: Mapping[str, str] | None = None,
) -> FilesReport:
    """Write one model that computes what several do.

    An output of a model that a later one has as an input is that input, and no output
    of the whole any more; inputs of one name are one input. Further names that two
    models have are changed in one of them, never at an EPContext node: what a vendor
    compiled may know its tensors by their names. Weights and context binaries are
    linked, or copied by the system, and never read.

    Args:
        models: plain models and context models, in the order of their work.
        output: the merged model; files that it names go into its folder.
        joins: further joins, from an output to the input that it is:
            `{"encoder.hidden": "decoder.state"}`, each with the stem of its model's
            file (without `_ctx`), or with the model's number from 1. A list for an
            output that is several inputs.
        prefixes: for all names of a model's values, by its stem or its number.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: a model, or a file of it, is missing
            or damaged.
        InvalidArgument: fewer than two models; a join of what is not there, or of
            unlike types; a name that two models need; unlike opsets; EPs that
            compiled the models unlike.
        Fail: the files cannot be written.

    Examples:
        >>> merge(["encoder_ctx.onnx", "head.onnx"], "whole.onnx").files[0].name
        'whole.onnx'
    """
    if len(models) < _FEWEST:
        raise InvalidArgument("fewer than two models were given to merge.")

    parts = [read_bundle(model) for model in models]
    pairs = [
        _find_join(parts, source, target)
        for source, targets in (joins or {}).items()
        for target in ([targets] if isinstance(targets, str) else targets)
    ]
    for name, prefix in (prefixes or {}).items():
        part = _find_part(parts, name)
        renamed = _add_prefix(part, prefix)
        pairs = [
            (
                renamed.get(source, source) if giver is part else source,
                giver,
                renamed.get(target, target) if taker is part else target,
                taker,
            )
            for source, giver, target, taker in pairs
        ]
    _check_opsets(parts)

    union = Union(parts[0])
    for part in parts[1:]:
        union.add(
            part,
            {to: (giver, source) for source, giver, to, by in pairs if by is part},
        )
    return publish(union.finish(), output, notes=union.notes)


def _add_prefix(part: Bundle, prefix: str) -> Mapping[str, str]:
    """Rename all values of a model; return the names.

    Raises:
        InvalidArgument: one is at an EPContext node.
    """
    graphs = part.parts.graphs
    names = {name: f"{prefix}{name}" for name in list_values(graphs)}
    bound = sorted(names.keys() & list_bound_values(graphs))
    if bound:
        raise InvalidArgument(
            f"{part.path.name} cannot get the prefix {prefix!r}: its value "
            f"{bound[0]!r} is at an EPContext node, whose binary may know it by its "
            "name.",
            path=part.path,
            hint="Give the other models prefixes, or the plain model before it is "
            "compiled.",
        )
    rename_values(graphs, names)
    return names


def _find_part(parts: Sequence[Bundle], name: str) -> Bundle:
    """Return the model with this stem or number.

    Raises:
        InvalidArgument: none or several have it.
    """
    found = [
        part for number, part in enumerate(parts, 1) if name in {part.stem, str(number)}
    ]
    if len(found) != 1:
        stems = [f"{part.stem} ({number})" for number, part in enumerate(parts, 1)]
        raise InvalidArgument(
            f"{'several models are' if found else 'no model is'} called {name!r}.",
            hint=f"The models are {', '.join(stems)}."
            + (" Give the number of one of them." if found else ""),
        )
    return found[0]


def _find_join(
    parts: Sequence[Bundle], source: str, target: str
) -> tuple[str, Bundle, str, Bundle]:
    """Return an output, the model that has it, the input that it is, and its model.

    Raises:
        InvalidArgument: there are no such values, or the input's model comes first.
    """
    given, giver = _find_value(parts, source, "output")
    taken, taker = _find_value(parts, target, "input")
    order = [id(part) for part in parts]
    if order.index(id(giver)) >= order.index(id(taker)):
        raise InvalidArgument(
            f"{source!r} cannot be {target!r}: it is not computed before.",
            hint="Give the models in the order of their work.",
        )
    return given, giver, taken, taker


def _find_value(parts: Sequence[Bundle], text: str, role: str) -> tuple[str, Bundle]:
    """Return the value `MODEL.VALUE` and its model; both names may have dots.

    Raises:
        InvalidArgument: there is none.
    """
    stems = {part.stem for part in parts}
    stems |= {str(number) for number, _ in enumerate(parts, 1)}
    for position in (index for index, letter in enumerate(text) if letter == "."):
        stem = text[:position]
        value = text[position + 1 :]
        if stem not in stems:
            continue
        part = _find_part(parts, stem)
        names = [each.name for each in getattr(part.model.graph, role)]
        if value in names:
            return value, part
        raise InvalidArgument(
            f"{part.path.name} has no {role} {value!r}.",
            path=part.path,
            hint=f"It has {', '.join(map(repr, names))}.",
        )
    raise InvalidArgument(
        f"{text!r} does not begin with a model and a dot.",
        hint=f"Write MODEL.{role.upper()}; the models are {', '.join(sorted(stems))}.",
    )


def _check_opsets(parts: Sequence[Bundle]) -> None:
    """Check that models with a domain have one version of it.

    Raises:
        InvalidArgument: they have several.
    """
    known: dict[str, tuple[int, Bundle]] = {}
    for part in parts:
        for domain, version in get_opsets(part.model).items():
            first, other = known.setdefault(domain, (version, part))
            if version != first:
                raise InvalidArgument(
                    f"{part.path.name} has opset {version} of "
                    f"{domain or 'ai.onnx'!r}, and {other.path.name} has {first}.",
                    path=part.path,
                    hint="Export or compile both with one opset; "
                    "onnx.version_converter converts plain models.",
                )
