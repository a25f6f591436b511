"""Configuration of a folder for GenAI: its stages, and the files that it names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from epctx_core.errors import InvalidGraph, NoSuchFile
from epctx_core.ext import ModelFolder, parse_json, read_small_file

if TYPE_CHECKING:
    from epctx_core import ModelInfo

CONFIG = "genai_config.json"
_NAME = re.compile(r"\w[\w.-]*")
"""Name of a stage, which its folder gets."""

Json: TypeAlias = "dict[str, Any]"
PathInput: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Stage of a folder: one model, with a session of its own.

    Attributes:
        name: the name of a stage of the decoder's pipeline, else that of the part,
            such as `embedding`, or of both, such as `vision.patch_embed`.
        file: name of its model relative to the folder.
        inputs: names that a pipeline gives it; empty outside of pipelines.
        outputs: names that it gives back.
        on_prompt: whether it runs for the prompt.
        on_tokens: whether it runs for each token after that.
        keys: keys and indices that lead to it in the configuration.
    """

    name: str
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    on_prompt: bool
    on_tokens: bool
    keys: tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class GenaiFolder:
    """Folder that GenAI loads.

    Attributes:
        path: the folder.
        config: its configuration, as JSON has it.
        stages: its stages, in the order of the configuration.
    """

    path: Path
    config: Json
    stages: tuple[Stage, ...]

    def get_session_options(self, stage: Stage) -> Json:
        """Return the session options that GenAI gives a stage: its own, else those of
        the decoder; or both, if it says so.
        """
        facts = get_at(self.config, stage.keys)
        options: Json = (
            self.config["model"].get("decoder", {}).get("session_options", {})
        )
        own: Json | None = facts.get("session_options")
        if own is None:
            return options
        return {**options, **own} if facts.get("inherit_session_options") else own

    def list_eps(self, stage: Stage) -> dict[str, dict[str, str]]:
        """Return the EPs of a stage as GenAI calls them, with their options."""
        listed = self.get_session_options(stage).get("provider_options") or []
        return {
            name: {key: _write_value(value) for key, value in options.items()}
            for each in listed
            for name, options in each.items()
        }

    def change(self, changes: Mapping[Stage, Json]) -> Json:
        """Return the configuration with other values in stages."""
        config = deepcopy(self.config)
        for stage, values in changes.items():
            get_at(config, stage.keys).update(values)
        return config


def read_folder(folder: PathInput) -> GenaiFolder:
    """Return a folder with its stages.

    Raises:
        NoSuchFile: it has no `genai_config.json`.
        InvalidGraph: that is no configuration with models, or has a file name that
            leaves the folder.
    """
    path = Path(folder)
    file = path / CONFIG
    try:
        config = parse_json(read_small_file(file))
        stages = tuple(_list_stages(config["model"]))
        problem = "" if stages else "it names no model"
        if len({stage.name for stage in stages}) < len(stages):
            problem = "two stages have one name"
        found = GenaiFolder(path=path, config=config, stages=stages)
        for stage in stages:
            found.list_eps(stage)
    except FileNotFoundError as error:
        raise NoSuchFile(
            f"the folder {str(path)!r} has no {CONFIG}, by which GenAI loads it.",
            path=file,
            hint="Give the folder of a model for onnxruntime-genai.",
        ) from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error!s:.200}"
    if problem:
        raise InvalidGraph(
            f"{str(file)!r} is not a configuration of GenAI: {problem}.", path=file
        )
    for stage in stages:
        open_file(path, stage.file).close()
    return found


def _write_value(value: object) -> str:
    """Return the value of an option as JSON has it, without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _list_stages(model: Json) -> Iterator[Stage]:
    """Yield the models that a configuration names."""
    for part, facts in model.items():
        if not isinstance(facts, dict):
            continue
        for index, entry in enumerate(facts.get("pipeline", ())):
            for key, stage in entry.items():
                name = key if part == "decoder" else f"{part}.{key}"
                yield _make_stage(name, stage, ("model", part, "pipeline", index, key))
        if "pipeline" not in facts and "filename" in facts:
            yield _make_stage(part, facts, ("model", part))


def _make_stage(name: str, facts: Json, keys: tuple[str | int, ...]) -> Stage:
    """Return a stage.

    Raises:
        ValueError: its name cannot be that of a folder.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of the stage {name!r} cannot be that of a folder")
    is_listed = "pipeline" in keys
    return Stage(
        name=name,
        file=str(facts["filename"]),
        # Those of other parts are names by which GenAI calls them.
        inputs=tuple(map(str, facts["inputs"])) if is_listed else (),
        outputs=tuple(map(str, facts["outputs"])) if is_listed else (),
        on_prompt=bool(facts.get("run_on_prompt", True)),
        on_tokens=bool(facts.get("run_on_token_gen", True)),
        keys=keys,
    )


def get_at(config: Json, keys: Sequence[str | int]) -> Json:
    """Return the object to which keys lead."""
    found: Any = config
    for key in keys:
        found = found[key]
    value: Json = found
    return value


def open_file(folder: Path, name: str) -> BinaryIO:
    """Open a file of a folder.

    A link may lead to where the configuration itself is, too, as in caches of hubs.

    Raises:
        InvalidGraph: the name or a link leaves the folder, or there is no such regular
            file.
    """
    file: BinaryIO = ModelFolder(folder, folder / CONFIG).open(
        name,
        what="the file",
        node=folder.name,
        hint=f"Put a copy of it into {str(folder)!r}; packages with shared files "
        "(`sha256:`) are not supported.",
    )
    return file


def refuse_dlc(stage: Stage, info: ModelInfo) -> None:
    """Raise InvalidGraph for a payload of Qualcomm's Genie, which onnxruntime does not
    load.
    """
    for node in info.ep_contexts:
        if node.attributes.get("ep_context_type") == "dlc":
            raise InvalidGraph(
                f"the stage {stage.name!r} has a payload of the type 'dlc' (node "
                f"{node.name!r}), which is for Qualcomm's Genie and no EP of "
                "onnxruntime.",
                path=info.path,
                hint="Compile the stage from its source model.",
            )
