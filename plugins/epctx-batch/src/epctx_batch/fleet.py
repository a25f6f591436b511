"""The file of a batch: models and targets, and the tasks that they make together."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.ext import read_small_file

T = TypeVar("T")

_KEYS: Final[Mapping[str, Mapping[str, type]]] = {
    "batch": {
        "output": str,
        "cache_dir": str,
        "shared_cache": str,
        "timeout": int,
        "workers": int,
        "config": dict,
        "allow_uncompiled": bool,
    },
    "model": {"path": str, "config": dict, "free_dimensions": dict},
    "target": {
        "name": str,
        "eps": list,
        "options": dict,
        "config": dict,
        "free_dimensions": dict,
        "resources": dict,
    },
}
"""Tables of the file, their keys and types."""
_FORMS: Final = {
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    dict: "a table",
    list: "a list",
}
_MOST_TASKS: Final = 4_000_000
_ID_DIGITS: Final = 16
_LONGEST_WORDS: Final = 80


@dataclass(frozen=True, kw_only=True)
class Task:
    """One compile: a model for a target.

    Attributes:
        id: name of its folder, unique in the batch, the same in each run.
        model: path of the model.
        target: name of the target.
        eps: names of the EPs, in order of priority.
        options: options of EPs, by EP.
        config: session options by their key.
        folder: path of its folder.
        cache_dir: folder of the compile cache; None for the user's.
        shared_cache: address of the cache that machines share; None for the one that
            the environment names.
        timeout: seconds that each EP may work on the compile; None for no limit.
        resources: what the task needs of a Dask worker, such as `{"NPU": 1}`.
        html: true to make a report page of the context model.
        free_dimensions: lengths of the model's open dimensions, by name.
    """

    id: str
    model: str
    target: str
    eps: Sequence[str]
    options: Mapping[str, Mapping[str, str]]
    config: Mapping[str, str]
    folder: str
    cache_dir: str | None
    shared_cache: str | None
    timeout: int | None
    resources: Mapping[str, float]
    html: bool = False
    free_dimensions: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the task as JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Models and targets of a batch.

    Attributes:
        tasks: each model for each target, in the order of the file.
        output: folder of the results.
        workers: number of processes; None for one for each processor.
        allow_uncompiled: true if a task may end with nothing compiled.
    """

    tasks: Sequence[Task]
    output: Path
    workers: int | None = None
    allow_uncompiled: bool = False


@dataclass(frozen=True, kw_only=True)
class _Target:
    name: str
    eps: Sequence[str]
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)


def read_fleet(path: Path) -> Fleet:
    """Return the fleet that a TOML file describes; `epctx docs batch` has the form.

    Raises:
        NoSuchFile: there is no such file, or no model of a path in it.
        InvalidArgument: it is not TOML, or a key, value or name in it is wrong.
    """
    try:
        data = tomllib.loads(read_small_file(path).decode())
    except FileNotFoundError as error:
        raise NoSuchFile(f"there is no file {str(path)!r}.", path=path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{str(path)!r} cannot be read as TOML: {error}.", path=path
        ) from error

    try:
        return _make_fleet(data, path)
    except _WrongValueError as error:
        raise InvalidArgument(f"{str(path)!r}: {error}", path=path) from error


class _WrongValueError(ValueError):
    """A value of the file is wrong."""


def _find_address(given: str | None, folder: Path) -> str | None:
    """Return the address of the shared cache; a path begins in the file's folder."""
    if not given or ":" in given:
        return given
    if "//" in given:
        raise _WrongValueError(
            f"batch.shared_cache is {given!r}, neither an address such as "
            "s3://bucket/folder nor a path."
        )
    return str(folder / Path(given).expanduser())


def _make_fleet(data: Mapping[str, Any], path: Path) -> Fleet:
    unknown = data.keys() - _KEYS.keys()
    if unknown:
        raise _WrongValueError(
            f"unknown table {min(unknown)!r}; there are [batch], [[model]] and "
            "[[target]]."
        )
    batch = _check_table("batch", data.get("batch", {}))
    models = [_check_table("model", each) for each in _check_list("model", data)]
    targets = _list_targets(data)

    # Workers of other machines work in other folders.
    folder = path.parent.absolute()
    output = folder / Path(batch.get("output", f"{path.stem}-results")).expanduser()
    cache = (
        folder / Path(batch["cache_dir"]).expanduser() if "cache_dir" in batch else None
    )
    address = _find_address(batch.get("shared_cache"), folder)
    shared = _to_texts("batch.config", batch.get("config", {}))
    tasks = []
    located = list(_find_models(models, folder))
    _check_count(len(located) * len(targets), "tasks")
    for model, own, lengths in located:
        # A pattern may find what the batch itself has written.
        if any(model.is_relative_to(made) for made in (output, cache) if made):
            continue
        # The same wherever the folder of the file lies.
        named = model.relative_to(folder) if model.is_relative_to(folder) else model
        for target in targets:
            task_id = _make_id(named, target.name)
            task = Task(
                id=task_id,
                model=str(model),
                target=target.name,
                eps=target.eps,
                options=target.options,
                config={**shared, **own, **target.config},
                folder=str(output / task_id),
                cache_dir=None if cache is None else str(cache),
                shared_cache=address,
                timeout=batch.get("timeout"),
                resources=target.resources,
                free_dimensions={**lengths, **target.free_dimensions},
            )
            tasks.append(task)
    if not tasks:
        raise NoSuchFile(
            f"there is no model in {str(folder)!r} but what the batch itself wrote.",
            path=folder,
        )
    if twice := _find_twice((task.model, task.target) for task in tasks):
        raise _WrongValueError(f"the model {twice[0]!r} is listed twice.")
    return Fleet(
        tasks=tasks,
        output=output,
        workers=batch.get("workers"),
        allow_uncompiled=batch.get("allow_uncompiled", False),
    )


def _list_targets(data: Mapping[str, Any]) -> list[_Target]:
    tables = [_check_table("target", each) for each in _check_list("target", data)]
    _check_count(sum(map(_count_combinations, tables)), "targets")
    targets = list(itertools.chain.from_iterable(map(_expand_target, tables)))
    if twice := _find_twice(target.name for target in targets):
        raise _WrongValueError(f"two targets are called {twice!r}.")
    return targets


def _find_twice(values: Iterable[T]) -> T | None:
    """Return the first value that there is more than once; None without one."""
    return next((value for value, n in Counter(values).items() if n > 1), None)


def _count_combinations(table: Mapping[str, Any]) -> int:
    """Return the number of targets that the lists among a table's options make."""
    return math.prod(
        len(value)
        for options in table.get("options", {}).values()
        if isinstance(options, dict)
        for value in options.values()
        if isinstance(value, list)
    )


def _check_count(count: int, things: str) -> None:
    if count > _MOST_TASKS:
        raise _WrongValueError(
            f"it makes {count:,} {things}; a batch has at most {_MOST_TASKS:,} tasks. "
            "Leave out values of options, or make several batches."
        )


def _check_list(name: str, data: Mapping[str, Any]) -> list[Any]:
    values = data.get(name, [])
    if not isinstance(values, list) or not values:
        raise _WrongValueError(f"there is no [[{name}]]; give one at least.")
    return values


def _check_table(name: str, table: object) -> dict[str, Any]:
    """Return a table whose keys and types are known."""
    if not isinstance(table, dict):
        raise _WrongValueError(f"{name!r} is no table; write [{name}] or [[{name}]].")
    known = _KEYS[name]
    written = "[batch]" if name == "batch" else f"[[{name}]]"
    for key, value in table.items():
        if key not in known:
            raise _WrongValueError(
                f"{written} has no key {key!r}; there are {', '.join(known)}."
            )
        if type(value) is not known[key]:
            raise _WrongValueError(
                f"{key!r} of {written} is {value!r:.80}, expected {_FORMS[known[key]]}."
            )
        if type(value) is int and value <= 0:
            raise _WrongValueError(f"{key!r} is {value}, expected more than 0.")
    for dimension, length in table.get("free_dimensions", {}).items():
        if type(length) is not int or length < 0:
            raise _WrongValueError(
                f"the length of {dimension!r} in 'free_dimensions' of {written} is "
                f"{length!r:.80}, expected a whole number from 0."
            )
    needed = {"model": ["path"], "target": ["name", "eps"]}.get(name, [])
    for key in needed:
        if not table.get(key):
            raise _WrongValueError(f"a [[{name}]] has no {key!r}.")
    return table


def _expand_target(table: Mapping[str, Any]) -> Iterator[_Target]:
    """Yield a target for each combination of the values of options that are lists."""
    eps = table["eps"]
    if not all(isinstance(ep, str) and ep for ep in eps):
        raise _WrongValueError(f"'eps' of target {table['name']!r} are {eps!r:.80}.")
    pairs: list[tuple[str, str]] = []
    choices: list[Sequence[object]] = []
    for ep, options in table.get("options", {}).items():
        if ep not in eps or not isinstance(options, dict):
            raise _WrongValueError(
                f"target {table['name']!r} has options of {ep!r}, which is none of its "
                f"EPs: {', '.join(eps)}."
            )
        for key, value in options.items():
            pairs.append((ep, key))
            choices.append(_list_choices(f"{key!r} of target {table['name']!r}", value))

    config = _to_texts("target.config", table.get("config", {}))
    resources = table.get("resources", {})
    for name, amount in resources.items():
        if type(amount) not in {int, float} or not amount > 0:
            raise _WrongValueError(
                f"resource {name!r} of target {table['name']!r} is {amount!r:.80}, "
                "expected a number above 0."
            )

    for values in itertools.product(*choices):
        made: dict[str, dict[str, str]] = {}
        name = table["name"]
        for (ep, key), value, several in zip(pairs, values, choices, strict=True):
            text = _to_text(f"{ep}.{key}", value)
            made.setdefault(ep, {})[key] = text
            if len(several) > 1:
                name += f" {key}={text}"
        yield _Target(
            name=name,
            eps=list(eps),
            options=made,
            config=config,
            free_dimensions=table.get("free_dimensions", {}),
            resources=resources,
        )


def _list_choices(option: str, value: object) -> list[object]:
    if value == []:
        raise _WrongValueError(f"option {option} has no values.")
    return value if isinstance(value, list) else [value]


def _to_texts(where: str, table: Mapping[str, object]) -> dict[str, str]:
    return {key: _to_text(f"{where}.{key}", value) for key, value in table.items()}


def _to_text(where: str, value: object) -> str:
    """Return the value of an option as sessions take it."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str | int | float):
        return str(value)
    raise _WrongValueError(f"{where} is {value!r:.80}, expected a text or a number.")


def _find_models(
    tables: Sequence[Mapping[str, Any]], folder: Path
) -> Iterator[tuple[Path, dict[str, str], dict[str, int]]]:
    """Yield the files of each pattern with their options and lengths of dimensions, in
    the order of names.

    Raises:
        NoSuchFile: a pattern has no file.
    """
    for table in tables:
        pattern = Path(table["path"]).expanduser()
        base = Path(pattern.anchor) if pattern.is_absolute() else folder
        below = str(pattern.relative_to(pattern.anchor))
        try:
            if (base / below).is_file():  # its name may have brackets
                found = [base / below]
            else:
                found = sorted(base.glob(below)) if below != "." else []
        except (OSError, ValueError) as error:
            raise _WrongValueError(f"'path' is {str(pattern)!r}: {error}.") from error
        if not found:
            raise NoSuchFile(
                f"there is no model {str(pattern)!r} in {str(base)!r}.",
                path=base / pattern,
            )
        config = _to_texts("model.config", table.get("config", {}))
        for path in found:
            yield path, config, table.get("free_dimensions", {})


def _make_id(model: Path, target: str) -> str:
    identity = json.dumps([model.as_posix(), target])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_ID_DIGITS]
    words = re.sub(r"[^A-Za-z0-9._=-]+", "_", f"{model.stem}-{target}")
    return f"{words[:_LONGEST_WORDS]}-{digest}"
