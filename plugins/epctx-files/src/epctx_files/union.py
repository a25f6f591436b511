"""Union of several models: the graph, the files, the functions and the metadata of one
after the other are added to those of the first.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from epctx_core.errors import InvalidArgument
from epctx_files.bundle import are_one_file
from epctx_files.contexts import list_contexts, separate_contexts
from epctx_files.manifests import index_payloads, merge_manifests
from epctx_files.names import (
    get_key,
    list_bound_values,
    list_nodes,
    list_values,
    make_free,
    rename_functions,
    rename_nodes,
    rename_values,
)
from epctx_files.structure import (
    COMPATIBILITY,
    INITIALIZERS,
    remove_metadata,
    spell_type,
)

if TYPE_CHECKING:
    from onnx import TypeProto, ValueInfoProto

    from epctx_files.bundle import Bundle
    from epctx_files.structure import FunctionKey

DEFAULT_DOMAINS = ("", "ai.onnx")


def get_opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Return the version of each domain, ONNX's under the empty one."""
    return {
        "" if each.domain in DEFAULT_DOMAINS else each.domain: each.version
        for each in model.opset_import
    }


class Union:
    """Union of models, which begins as the first one.

    Args:
        whole: the first model; it is changed.

    Attributes:
        notes: sentences about what was left out.
    """

    def __init__(self, whole: Bundle) -> None:
        self.notes: list[str] = []
        self._whole = whole
        self._graph = whole.model.graph
        self._graphs = whole.parts.graphs
        self._values = set(list_values(self._graphs))
        self._nodes = set(list_nodes(self._graphs))
        self._manifests = [(whole.path.name, whole.manifest)]
        self._contexts = list_contexts(whole)
        self._joined: set[str] = set()
        """Outputs of models that are inputs of later ones."""
        self._outputs: dict[tuple[int, str], str] = {}
        """Name of each output in the union, by its model and its name there."""
        self._note_outputs(whole)
        self._drop_training(whole)

    def _note_outputs(self, part: Bundle) -> None:
        """Note the outputs of a model, which have the same names in the union now."""
        for value in part.model.graph.output:
            self._outputs[id(part), value.name] = value.name

    def _drop_training(self, part: Bundle) -> None:
        """Remove the training information of a model, whose names are its own."""
        if part.model.training_info:
            part.model.ClearField("training_info")
            part.refresh()
            self.notes.append(
                f"the training information of {part.path.name} is left out"
            )

    def add(self, part: Bundle, joins: Mapping[str, tuple[Bundle, str]]) -> None:
        """Add a model, which is changed.

        Args:
            part: the model.
            joins: inputs of the model, each with the earlier model and the output there
                that it is.

        Raises:
            InvalidArgument: types of a join exclude each other, a name cannot be
                changed, or EPs compiled the models unlike.
        """
        self._drop_training(part)
        for target, (giver, output) in joins.items():
            self._give_one_name(part, self._outputs[id(giver), output], target)
        self._check_defaults(part)
        self._note_joins(part)
        self._rename_clashes(part)
        self._rename_nodes(part)

        self._add_files(part)
        self._add_functions(part)
        self._add_metadata(part)
        self._add_graph(part)
        self._note_outputs(part)
        self._manifests.append((part.path.name, part.manifest))
        self._contexts += list_contexts(part)

    def finish(self) -> Bundle:
        """Return the union."""
        outputs = self._graph.output
        for index in reversed(range(len(outputs))):
            if self._is_joined(outputs[index]):
                del outputs[index]
        separate_contexts(self._whole, self._contexts)
        self._whole.manifest = merge_manifests(self._manifests)
        return self._whole

    def _is_joined(self, value: ValueInfoProto) -> bool:
        return value.name in self._joined

    def _give_one_name(self, part: Bundle, source: str, target: str) -> None:
        """Have an input of a model and what it is have one name: that of the latter if
        the input's may change, else that of the input, else an Identity gives it.
        """
        graphs = part.parts.graphs
        theirs = set(list_values(graphs))
        if source == target:
            return

        if target not in list_bound_values(graphs) and source not in theirs:
            rename_values(graphs, {target: source})
            return

        if target in self._values:
            raise InvalidArgument(
                f"{source!r} cannot be the input {target!r} of {part.path.name}: the "
                f"models before it have another value {target!r}.",
                path=part.path,
                hint=f"Give one of the models a prefix, {self._suggest_prefix(part)}.",
            )
        if source not in list_bound_values(self._graphs):
            self._rename({source: target})
        else:
            name = make_free(f"{source}_is_{target}", "", self._nodes)
            bridge = helper.make_node("Identity", [source], [target], name=name)
            self._graph.node.append(bridge)
            given = next(each for each in self._graph.output if each.name == source)
            added = self._graph.output.add()
            added.CopyFrom(given)
            added.name = target
            self._joined.add(source)
        self._values = set(list_values(self._graphs))

    def _suggest_prefix(self, part: Bundle) -> str:
        """Return an example of a prefix that tells the model that is added from those
        before it; by number, as several may have one stem.
        """
        number = len(self._manifests) + 1
        stem = part.stem
        words = "such as"
        if part.parts.contexts:
            # Names at its EPContext nodes stay.
            number = 1
            stem = self._whole.stem
            words = "with the number of the model that has it, such as"
        return f"{words} --prefix {shlex.quote(f'{number}={stem}{number}/')}"

    def _rename(self, names: Mapping[str, str]) -> None:
        """Rename values of the union."""
        rename_values(self._graphs, names)
        self._joined = {names.get(name, name) for name in self._joined}
        for key, name in self._outputs.items():
            self._outputs[key] = names.get(name, name)

    def _check_defaults(self, part: Bundle) -> None:
        """Check that no input with a default, an initializer of its name, is a value of
        both: which of them may be left out of a run is not said anywhere.

        Raises:
            InvalidArgument: one is.
        """
        values = chain(self._graph.input, self._graph.output)
        shared = {v.name for v in values} & {v.name for v in part.model.graph.input}
        for bundle in (self._whole, part):
            for tensor in bundle.model.graph.initializer:
                if tensor.name in shared:
                    raise InvalidArgument(
                        f"{tensor.name!r} is an input of {part.path.name} and a value "
                        "of a model before it, and one of them gives it a default.",
                        path=part.path,
                        hint=f"Give one a prefix, {self._suggest_prefix(part)}, or "
                        "remove the input or its initializer.",
                    )

    def _note_joins(self, part: Bundle) -> None:
        """Check the types of values that inputs of a model are."""
        outputs = {value.name: value for value in self._graph.output}
        inputs = {value.name: value for value in self._graph.input}
        for value in part.model.graph.input:
            known = outputs.get(value.name) or inputs.get(value.name)
            if known is not None:
                _check_types(known, value, part)
            if value.name in outputs:
                self._joined.add(value.name)

    def _rename_clashes(self, part: Bundle) -> None:
        """Change names that both have and that do not mean one value: in the model, or
        in the union where it cannot be done there.
        """
        graph = part.model.graph
        graphs = part.parts.graphs
        inputs = {v.name for v in graph.input}
        mine = {v.name for v in chain(self._graph.input, self._graph.output)}
        apart = self._values - (inputs & mine)
        theirs = dict.fromkeys(list_values(graphs))
        clashes = [each for each in theirs if each in apart]

        fixed = list_bound_values(graphs) | inputs | {v.name for v in graph.output}
        mine = (mine - self._joined) | list_bound_values(self._graphs)
        both = fixed & mine
        stuck = next((name for name in clashes if name in both), None)
        if stuck is not None:
            is_late = stuck in {v.name for v in self._graph.input}
            raise InvalidArgument(
                f"{stuck!r} is a value of {part.path.name} and another one of a model "
                "before it, and neither can get another name: each is an input, an "
                "output, or at an EPContext node, whose binary may know its name.",
                path=part.path,
                hint=(
                    "Give the models in the order of their work."
                    if is_late
                    else "Give one of the models a prefix, "
                    f"{self._suggest_prefix(part)}, or rename the value before the "
                    "model is compiled."
                ),
            )

        taken = self._values | theirs.keys()
        for owner, stem, is_fixed in (
            (graphs, part.stem, False),
            (self._graphs, self._whole.stem, True),
        ):
            names = [name for name in clashes if (name in fixed) is is_fixed]
            free = {name: make_free(name, f"{stem}_", taken) for name in names}
            if is_fixed:
                self._rename(free)
            else:
                rename_values(owner, free)

    def _rename_nodes(self, part: Bundle) -> None:
        """Change names of a model's nodes that the union has; its manifest knows
        embedded payloads by them.
        """
        graphs = part.parts.graphs
        taken = self._nodes | set(list_nodes(graphs))
        names = {
            name: make_free(name, f"{part.stem}_", taken)
            for name in dict.fromkeys(list_nodes(graphs))
            if name in self._nodes
        }
        rename_nodes(graphs, names)
        payloads = index_payloads(part.manifest)
        for name, new in names.items():
            if payload := payloads.get((name, True)):
                payload["name"] = new

    def _add_files(self, part: Bundle) -> None:
        """Take over the files of a model, renamed where the union has another one of
        that name.
        """
        mine = self._whole.files
        names: dict[str, str] = {}
        for name in part.files:
            new = name
            file = part.get_file(name)
            while (new != name and new in part.files) or (
                new in mine and not are_one_file(file, mine[new])
            ):
                new = f"{part.stem}_{new}"
            names[name] = new
        part.rename_files(names)
        mine |= part.files

    def _add_functions(self, part: Bundle) -> None:
        """Take over the functions of a model, renamed where the union has another one
        of that name.
        """
        functions = self._whole.model.functions
        mine = {get_key(each): each for each in functions}
        taken: dict[str, set[str]] = {}
        for function in chain(functions, part.model.functions):
            taken.setdefault(function.domain, set()).add(function.name)
        # All overloads of a function keep one name, and a call finds its own.
        clashes = {
            (each.domain, each.name): ""
            for each in part.model.functions
            if mine.get(get_key(each), each) != each
        }
        for domain, name in clashes:
            clashes[domain, name] = make_free(name, f"{part.stem}_", taken[domain])
        names: dict[FunctionKey, str] = {
            get_key(each): clashes[each.domain, each.name]
            for each in part.model.functions
            if (each.domain, each.name) in clashes
        }
        rename_functions(part.model, names)
        for function in part.model.functions:
            if get_key(function) not in mine:
                functions.add().CopyFrom(function)

    def _add_metadata(self, part: Bundle) -> None:
        """Take over the opsets and the metadata of a model.

        Raises:
            InvalidArgument: an EP compiled the models for different targets.
        """
        whole = self._whole.model
        known = get_opsets(whole)
        for domain, version in get_opsets(part.model).items():
            if domain not in known:
                whole.opset_import.add(domain=domain, version=version)
        whole.ir_version = max(whole.ir_version, part.model.ir_version)

        stated = {entry.key: entry.value for entry in whole.metadata_props}
        for entry in part.model.metadata_props:
            if entry.key not in stated:
                whole.metadata_props.add().CopyFrom(entry)
            elif stated[entry.key] != entry.value:
                self._settle(part, entry.key, entry.value, stated[entry.key])

    def _settle(self, part: Bundle, key: str, text: str, mine: str) -> None:
        """Note that a metadata entry is of one model alone, or refuse that."""
        if key.startswith(COMPATIBILITY):
            raise InvalidArgument(
                f"{part.path.name} and a model before it were compiled unlike by "
                f"{key.removeprefix(COMPATIBILITY)}: {text!r:.80} and {mine!r:.80}.",
                path=part.path,
                hint="Compile both with the same versions and options.",
            )
        if key == INITIALIZERS:
            # The key has room for one file.
            remove_metadata(self._whole.model, {INITIALIZERS})
            self.notes.append(
                "the files of initializers lose their checksum: a model has room for "
                "that of one file"
            )
        elif key != "external_dependencies":
            self.notes.append(f"the metadata {key!r} of {part.path.name} is left out")

    def _add_graph(self, part: Bundle) -> None:
        """Append the graph of a model."""
        graph = part.model.graph
        mine = self._graph
        known = {value.name for value in chain(mine.input, mine.output)}
        mine.node.MergeFrom(graph.node)
        mine.initializer.MergeFrom(graph.initializer)
        mine.sparse_initializer.MergeFrom(graph.sparse_initializer)
        mine.quantization_annotation.MergeFrom(graph.quantization_annotation)
        mine.value_info.MergeFrom(graph.value_info)
        mine.input.extend(value for value in graph.input if value.name not in known)
        mine.output.extend(graph.output)

        # What is no output any more keeps its type, which EPContext nodes need.
        typed = {value.name for value in mine.value_info}
        mine.value_info.extend(
            value
            for value in mine.output
            if self._is_joined(value) and value.name not in typed
        )
        self._whole.refresh()
        self._graphs = self._whole.parts.graphs
        self._values.update(list_values(part.parts.graphs))
        self._nodes.update(list_nodes(part.parts.graphs))


def _check_types(given: ValueInfoProto, taken: ValueInfoProto, part: Bundle) -> None:
    """Check that a value can be an input.

    Raises:
        InvalidArgument: types or shapes exclude each other.
    """
    one = given.type
    other = taken.type
    kinds = (one.WhichOneof("value"), other.WhichOneof("value"))
    if None in kinds:
        return
    alike = kinds[0] == kinds[1]
    if alike and one.HasField("tensor_type"):
        alike = _fit(one.tensor_type, other.tensor_type)
    if not alike:
        raise InvalidArgument(
            f"the input {taken.name!r} of {part.path.name} is {spell_type(other)}, and "
            f"a model before it has {spell_type(one)} under that name.",
            path=part.path,
            hint="Give one of the models a prefix, or join other values.",
        )


def _fit(one: TypeProto.Tensor, other: TypeProto.Tensor) -> bool:
    """Return whether a tensor of one type can be of the other; open dimensions fit
    every length.
    """
    if one.elem_type != other.elem_type:
        return False
    if not (one.HasField("shape") and other.HasField("shape")):
        return True
    if len(one.shape.dim) != len(other.shape.dim):
        return False
    return all(
        a.dim_value == b.dim_value
        for a, b in zip(one.shape.dim, other.shape.dim, strict=True)
        if a.HasField("dim_value") and b.HasField("dim_value")
    )
