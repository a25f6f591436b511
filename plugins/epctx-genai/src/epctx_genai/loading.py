"""`load_folder` and `load_or_compile`: a folder as a model of GenAI, its stages
compiled first if necessary.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import epctx_files

from epctx_core import (
    SessionOptions,
    __version__,
    default_registry,
    get_model_compatibility,
    inspect_model,
)
from epctx_core.errors import (
    EpctxError,
    Fail,
    InvalidArgument,
    InvalidGraph,
    ModelRequiresCompilation,
    convert_errors,
)
from epctx_core.plugin import Compatibility
from epctx_genai.building import (
    STAGES,
    BuildSettings,
    Progress,
    build_folder,
    list_names,
)
from epctx_genai.configuration import (
    GenaiFolder,
    PathInput,
    read_folder,
    refuse_dlc,
)
from epctx_genai.libraries import import_genai, name_in_epctx, register

if TYPE_CHECKING:
    import onnxruntime_genai
    from model_signing import verifying

    from epctx_core import ModelInfo

_log = logging.getLogger("epctx.genai")
_DIGITS = 16


@convert_errors("loading the folder")
def load_folder(
    folder: PathInput, *, verifier: verifying.Config | None = None
) -> onnxruntime_genai.Model:
    """Return a folder as a model of GenAI, with the libraries of its EPs registered.

    Args:
        folder: the folder, as it is.
        verifier: a configured `model_signing.verifying.Config`, to load a signed folder
            alone, whose files are those that were signed.

    Raises:
        NoSuchFile, InvalidGraph: there is no such folder, or its configuration or a
            model is wrong.
        ModelRequiresCompilation: the EP of a stage does not run what was compiled.
        InvalidArgument: an EP is not installed, or the signature is missing or wrong.
        PackageMissing: onnxruntime-genai is not installed.
        Fail: GenAI does not load it.
    """
    if verifier is not None:
        _require_signed(Path(folder), verifier)
    import_genai()  # before models are read
    found = read_folder(folder)
    return _load(found, _check_contexts(found))


def _load(folder: GenaiFolder, eps: Sequence[str]) -> onnxruntime_genai.Model:
    """Return a folder as a model of GenAI, after the verdicts of its EPs."""
    register(eps)
    try:
        return import_genai().Model(str(folder.path))
    except Exception as error:
        raise Fail(
            f"onnxruntime-genai does not load {str(folder.path)!r}: {error!s:.600}",
            path=folder.path,
            hint="Where no device of the EP is found, build the folder with `--local` "
            "(`BuildSettings(local=True)`).",
        ) from error


def _require_signed(folder: Path, verifier: verifying.Config) -> None:
    """Raise an error for a folder that is not as it was signed."""
    findings = epctx_files.verify_folder(folder, verifier=verifier).findings
    if findings:
        names = ", ".join(f"{each.name} ({each.problem})" for each in findings[:5])
        raise InvalidGraph(
            f"the folder {str(folder)!r} is not as it was signed: {names}.",
            path=folder,
            hint="Fetch the folder again.",
        )


def _check_contexts(folder: GenaiFolder) -> list[str]:
    """Return the EPs of all stages, after their verdicts on what was compiled.

    Raises:
        ModelRequiresCompilation: one does not run it.
    """
    eps: dict[str, None] = {}
    for stage in folder.stages:
        path = folder.path / stage.file
        info = inspect_model(path)
        refuse_dlc(stage, info)
        listed = folder.list_eps(stage)
        for name in listed:
            ep = name_in_epctx(name)
            if not default_registry.find(ep):
                # GenAI itself may have it.
                continue
            maker = _name_maker(info, ep)
            eps[maker] = None
            if not info.ep_contexts:
                continue
            verdict = get_model_compatibility(path, maker, listed[name])
            if verdict == Compatibility.EP_UNSUPPORTED:
                raise ModelRequiresCompilation(
                    f"the stage {stage.name!r} was compiled for another version or "
                    f"device than {ep} has here.",
                    path=path,
                    hint="Build the folder again from its source.",
                )
    return list(eps)


def _name_maker(info: ModelInfo, ep: str) -> str:
    """Return an EP after the distribution that compiled a model, if that is here."""
    distribution = info.compiled_by.get(ep, {}).get("distribution")
    installed = {record.distribution for record in default_registry.find(ep)}
    return f"{distribution}:{ep}" if distribution in installed else ep


@convert_errors("loading or compiling the folder")
def load_or_compile(
    folder: PathInput,
    sess_options: SessionOptions,
    *,
    cache_dir: PathInput | None = None,
    progress: Progress | None = None,
) -> onnxruntime_genai.Model:
    """Return a folder as a model of GenAI; its stages are compiled once, and not again
    while the folder, the EPs and their options stay the same.

    A folder with context models is loaded as it is. The logger `epctx.genai` names each
    stage that no EP takes, which runs from its source.

    Args:
        folder: the folder with the source.
        sess_options: EPs and session options, as for `build_folder`.
        cache_dir: folder of what was built; None for EPCTX_GENAI_CACHE or
            `~/.cache/epctx-genai`. It keeps the last build of each source
            for an EP.
        progress: as for `build_folder`.

    Raises:
        EpctxError: see `build_folder` and `load_folder`.

    Examples:
        >>> options = SessionOptions()
        >>> options.add_provider("QNN")
        >>> model = load_or_compile("phi", options)
    """
    source = read_folder(folder)
    if not sess_options.has_providers():
        return load_folder(source.path)

    cache = _open_cache(cache_dir)
    family, key = _make_key(source, sess_options)
    target = cache / f"{family}-{key}"
    found = _read_build(target)
    if found is None:
        # Models of the source are read only if there is no build of it.
        models = (inspect_model(source.path / stage.file) for stage in source.stages)
        if any(model.ep_contexts for model in models):
            return load_folder(source.path)
        shutil.rmtree(target, ignore_errors=True)
        build_folder(
            source.path,
            target,
            sess_options,
            settings=BuildSettings(local=True),
            progress=progress,
        )
        for other in cache.glob(f"{family}-*"):
            if other != target:
                shutil.rmtree(other, ignore_errors=True)
        built = read_folder(target)
        found = built, _check_contexts(built)
    built, eps = found
    left = [s.name for s in built.stages if not s.file.startswith(f"{STAGES}/")]
    if left:
        _log.info("the EPs take nothing of %s", ", ".join(left))
    return _load(built, eps)


def _open_cache(folder: PathInput | None) -> Path:
    """Return the folder of builds, which is made if necessary.

    Raises:
        InvalidArgument: others can write into it.
    """
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    named = folder or os.environ.get("EPCTX_GENAI_CACHE")
    cache = Path(named or Path(user, "epctx-genai"))
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = cache.stat()
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise InvalidArgument(
            f"the cache {str(cache)!r} belongs to another user, or others can write "
            "into it.",
            path=cache,
            hint="Give a folder of yours (EPCTX_GENAI_CACHE).",
        )
    return cache


def _make_key(source: GenaiFolder, options: SessionOptions) -> tuple[str, str]:
    """Return digits for the source's path with the EPs, and for all that a build
    depends on.

    The time of the last change of a file's state cannot be set by a program, so files
    are not read.
    """
    files = []
    for name in list_names(source.path):
        state = (source.path / name).stat()
        times = (state.st_mtime_ns, state.st_ctime_ns)
        files.append((name, state.st_dev, state.st_ino, state.st_size, *times))
    eps = []
    for name, given in options.providers:
        record = default_registry.resolve(name)
        eps.append((record.name, record.distribution, record.version, given))
    settings = (
        dict(options.config_entries),
        dict(options.model_overrides.dimensions),
        __version__,
    )
    family = [str(source.path.resolve()), [ep[:2] for ep in eps]]
    texts = (json.dumps(family), json.dumps([sorted(files), eps, settings]))
    path, key = (hashlib.sha256(each.encode()).hexdigest()[:_DIGITS] for each in texts)
    return path, key


def _read_build(folder: Path) -> tuple[GenaiFolder, list[str]] | None:
    """Return a build with its EPs; None unless it is whole, and they still run it."""
    if not folder.exists():
        return None
    try:
        findings = epctx_files.verify_folder(folder).findings
        built = read_folder(folder)
        eps = _check_contexts(built)
    except EpctxError as error:
        _log.warning("%s is built again: %s", folder, error.message)
        return None
    for finding in findings:
        _log.warning("%s is built again: %s: %s", folder, finding.name, finding.problem)
    return None if findings else (built, eps)
