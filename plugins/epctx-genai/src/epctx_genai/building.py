"""`build_folder`: a folder for GenAI whose stages are context models."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from epctx_files import seal_folder

from epctx_core import (
    SessionOptions,
    ShareGroup,
    compile_cached,
    default_registry,
    inspect_model,
)
from epctx_core.errors import InvalidArgument, convert_errors
from epctx_core.ext import Publication
from epctx_genai.configuration import (
    CONFIG,
    GenaiFolder,
    Json,
    PathInput,
    Stage,
    open_file,
    read_folder,
    refuse_dlc,
)
from epctx_genai.inspection import StageInfo, inspect_folder, list_files
from epctx_genai.libraries import load_native, name_for_genai
from epctx_genai.replacement import DIGEST, replace_folder, require_build

Progress: TypeAlias = "Callable[[str, int, int], None]"
"""Called with the name of a stage, the finished ones, and all."""

STAGES = "epctx"
"""Folder in the result with a folder of each compiled stage."""
_SHARED = "shared"
"""Folder in that of stages that share a binary."""
_SMALLEST = 1 << 10
"""Bytes of a weight by which stages are found to have equal ones."""
_OF_SOURCE = (DIGEST, "model.sig")
"""Files that describe the source, not the result."""


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Settings of `build_folder`.

    Attributes:
        stages: names of those to compile; empty for all.
        share: whether stages with equal weights get one binary. Qualcomm's simulator
            loads none.
        local: whether `genai_config.json` gets the options that an EP of onnxruntime
            adds on this machine, such as the path of its back end. GenAI needs them
            where the EP's library finds none, as without an NPU.
    """

    stages: Sequence[str] = ()
    share: bool = False
    local: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """Result of `build_folder`.

    Attributes:
        folder: the folder that was written.
        stages: its stages, in the order of the configuration.
    """

    folder: Path
    stages: tuple[StageInfo, ...]


@convert_errors("building the folder")
def build_folder(
    folder: PathInput,
    output: PathInput,
    sess_options: SessionOptions,
    *,
    settings: BuildSettings | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Compile the stages of a folder for GenAI, and write a folder that GenAI loads.

    Each stage is compiled in a process of its own, into the compile cache; a stage of
    which the EPs take nothing stays as it is. Everything else of the folder is copied,
    but the sources of compiled stages. `genai_config.json` names the context models,
    and the EPs with their options. The result has the digest of a folder, and takes the
    place of an earlier one in one step.

    Args:
        folder: the folder with the source.
        output: the folder to write.
        sess_options: EPs and session options, as for `ModelCompiler`. Options of an EP
            in the configuration count, too; these go before.
        settings: which stages are compiled, and how; None for the defaults.
        progress: called with the name of a stage, the finished ones, and all.

    Raises:
        NoSuchFile, InvalidGraph: there is no such folder, or its configuration or a
            model is wrong.
        InvalidArgument: there is no EP, no such stage, or no stage of which an EP takes
            anything; or the output lies in the source, or has files of others.
        Fail: the output cannot be written.

    Examples:
        >>> options = SessionOptions()
        >>> options.add_provider("QNN", {"soc_model": "60"})
        >>> build_folder("phi", "phi-qnn", options).stages[1].file
        'epctx/prefill/model_ctx.onnx'
    """
    settings = settings or BuildSettings()
    source = read_folder(folder)
    target = Path(output)
    _check_arguments(source, target, sess_options, settings.stages)
    compiled = _compile_stages(source, sess_options, settings.stages, progress)
    with replace_folder(target) as staging:
        _copy_rest(source, compiled, staging)
        files = {
            stage: _copy_stage(stage, path, staging) for stage, path in compiled.items()
        }
        if settings.share:
            for group in _group_by_weights(source, list(compiled)):
                files |= _share(source, group, sess_options, staging)
        changes = {
            stage: _make_values(source, stage, file, sess_options, local=settings.local)
            for stage, file in files.items()
        }
        config = json.dumps(source.change(changes), indent=2)
        (staging / CONFIG).write_text(config, encoding="utf-8")
        seal_folder(staging, purpose=f"onnxruntime-genai: {_name_eps(sess_options)}")
        built = inspect_folder(staging).stages
    return BuildReport(folder=target, stages=built)


def _check_arguments(
    source: GenaiFolder, target: Path, options: SessionOptions, stages: Sequence[str]
) -> None:
    if not options.has_providers():
        raise InvalidArgument(
            "there is no EP to compile the stages for.",
            hint="Add one to the options, `--ep` on the command line.",
        )
    folders = (target.resolve(), source.path.resolve())
    if folders[0].is_relative_to(folders[1]) or folders[1].is_relative_to(folders[0]):
        raise InvalidArgument(
            f"the output {str(target)!r} is the source, in it or around it.",
            path=target,
            hint="Give another folder.",
        )
    # Before minutes of compiling.
    require_build(target)
    Publication.check_folder(target.absolute().parent)
    names = {stage.name for stage in source.stages}
    for name in stages:
        if name not in names:
            raise InvalidArgument(
                f"there is no stage {name!r}; the folder has {', '.join(names)}.",
                path=source.path,
            )


def _name_eps(options: SessionOptions) -> str:
    return ", ".join(
        default_registry.resolve(name).name for name, _ in options.providers
    )


def _make_options(
    source: GenaiFolder, stage: Stage, options: SessionOptions
) -> SessionOptions:
    """Return the options of a stage: those of its EPs in the configuration, under those
    that the host gives.
    """
    made = options.copy()
    listed = source.list_eps(stage)
    made.providers = [
        (name, {**_find_options(name, listed), **given})
        for name, given in options.providers
    ]
    if not any("ep.isolate" in key for key in options.config_entries):
        made.add_session_config_entry("ep.isolate", "compile")
    return made


def _find_options(name: str, listed: Mapping[str, Json]) -> dict[str, str]:
    """Return the options that a configuration has for an EP."""
    for known in (default_registry.resolve(name).name, name_for_genai(name)):
        if known in listed:
            return {key: str(value) for key, value in listed[known].items()}
    return {}


def _compile_stages(
    source: GenaiFolder,
    options: SessionOptions,
    names: Sequence[str],
    progress: Progress | None,
) -> dict[Stage, Path]:
    """Return the context model of each stage of which an EP takes a part.

    Raises:
        InvalidArgument: there is none.
    """
    chosen = [stage for stage in source.stages if not names or stage.name in names]
    compiled = {}
    for index, stage in enumerate(chosen):
        if progress is not None:
            progress(stage.name, index, len(chosen))
        path = _compile_stage(source, stage, options)
        if path is not None:
            compiled[stage] = path
    if progress is not None:
        progress("", len(chosen), len(chosen))
    if not compiled:
        raise InvalidArgument(
            f"no EP takes a node of {', '.join(stage.name for stage in chosen)}; "
            "nothing is written.",
            path=source.path,
            hint="`epctx explain MODEL --ep EP` shows the reasons.",
        )
    return compiled


def _compile_stage(
    source: GenaiFolder, stage: Stage, options: SessionOptions
) -> Path | None:
    """Return the context model of a stage in the cache; None if it is one already, or
    if no EP takes a part of it.

    Raises:
        InvalidGraph: its payload is one that GenAI itself cannot load.
    """
    file = source.path / stage.file
    info = inspect_model(file)
    refuse_dlc(stage, info)
    if info.ep_contexts:
        return None
    path = compile_cached(file, _make_options(source, stage, options))
    return path if inspect_model(path).ep_contexts else None


def _copy_rest(
    source: GenaiFolder, compiled: Mapping[Stage, Path], staging: Path
) -> None:
    """Copy all files but those that only compiled stages need."""
    needed: set[str] = set()
    dropped: set[str] = set()
    for stage in source.stages:
        files = list_files(source.path, stage.file)
        (dropped if stage in compiled else needed).update(files)
    for name in list_names(source.path):
        if name not in dropped - needed and name not in _OF_SOURCE:
            with open_file(source.path, name) as file:
                _copy(file, staging / name)


def list_names(folder: Path) -> Iterator[str]:
    """Yield the names of all files of a folder but hidden ones."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield os.path.relpath(f"{parent}/{name}", folder)


def _copy(file: BinaryIO, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as copy:
        shutil.copyfileobj(file, copy)


def _copy_stage(stage: Stage, path: Path, staging: Path) -> str:
    """Copy a context model with its files into a folder of its own; return its name."""
    folder = f"{STAGES}/{stage.name}"
    for name in (path.name, *inspect_model(path).required_files):
        with (path.parent / name).open("rb") as file:
            _copy(file, staging / folder / name)
    return f"{folder}/{path.name}"


def _group_by_weights(
    source: GenaiFolder, stages: Sequence[Stage]
) -> Iterator[list[Stage]]:
    """Yield the stages that have equal weights, in groups of two at least."""
    digests = {stage: _digest_weights(source.path / stage.file) for stage in stages}
    groups: list[list[Stage]] = []
    for stage in stages:
        equal = [
            group
            for group in groups
            if any(digests[stage] & digests[other] for other in group)
        ]
        merged = [other for group in equal for other in group]
        groups = [*(group for group in groups if group not in equal), [*merged, stage]]
    for group in groups:
        if len(group) > 1:
            yield group


def _digest_weights(path: Path) -> set[bytes]:
    """Return the digests of a model's larger weights."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    found = set()
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        array = numpy_helper.to_array(tensor, str(path.parent))
        if array.nbytes >= _SMALLEST:
            # Types of ml_dtypes have no buffer of their own.
            content = np.ascontiguousarray(array).view(np.uint8)
            found.add(hashlib.sha256(content.data).digest())
    return found


def _share(
    source: GenaiFolder,
    stages: Sequence[Stage],
    options: SessionOptions,
    staging: Path,
) -> dict[Stage, str]:
    """Compile stages into one binary; return the names of their models."""
    folder = f"{STAGES}/{_SHARED}-{stages[0].name}"
    with ShareGroup(output_dir=staging / folder) as group:
        for stage in stages:
            made = _make_options(source, stage, options)
            group.compile(source.path / stage.file, made, name=stage.name)
    for stage in stages:
        shutil.rmtree(staging / STAGES / stage.name)
    return {stage: f"{folder}/{stage.name}_ctx.onnx" for stage in stages}


def _make_values(
    source: GenaiFolder,
    stage: Stage,
    file: str,
    options: SessionOptions,
    *,
    local: bool,
) -> Json:
    """Return the values of a stage in the configuration; secret options are not
    written.
    """
    providers = []
    for name, given in _make_options(source, stage, options).providers:
        cls = default_registry.load(default_registry.resolve(name))
        secret = {option.name for option in cls.options if option.secret}
        values = {key: given[key] for key in given if key not in secret}
        native: Any = load_native(name) if local else None
        if native is not None:
            values = native.vendor_options(values)
        providers.append({name_for_genai(name): values})
    session = {**source.get_session_options(stage), "provider_options": providers}
    return {"filename": file, "session_options": session}
