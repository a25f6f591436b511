"""A model whose files are replaced while it is read is the old one or the new one."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx
from epctx_core.errors import InvalidGraph
from epctx_core.plugin import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VERSIONS = {"old": 1.0, "new": 3.0}
"""Each version's weights are all this number, so one row of a result says whose they
are.
"""
LOADS = 100
"""Before epctx compared the files, some of them gave a mixture in each test."""
REPLACED = "were replaced while it was read"
SIZE = 64
REPLACER = """
import itertools, os, shutil, sys, time
target, *versions = sys.argv[1:]

def copy(number, version):
    fresh = f"{target}.{number}"
    shutil.copytree(version, fresh, copy_function=shutil.copyfile)
    return fresh

is_link = os.path.islink(target)
folders = [copy(number, versions[number % 2]) for number in range(20 * is_link)]
log = open(f"{target}.log", "w", buffering=1)
print("ready", flush=True)
for number in itertools.count():
    if is_link:
        os.symlink(folders[number % len(folders)], f"{target}.new")
        os.replace(f"{target}.new", target)
    else:
        fresh = copy(number, versions[number % 2])
        started = time.monotonic()
        for name in sorted(os.listdir(fresh), reverse=True):
            os.replace(f"{fresh}/{name}", f"{target}/{name}")
        print(started, time.monotonic(), file=log)
        os.rmdir(fresh)
    time.sleep(number % 7 / 1000)
"""
"""Replaces a link to a folder by one to another folder, or the files in a folder one
after the other, the model last, and logs when it began and ended. The same file comes
back late or never: nobody can see that it was gone meanwhile.
"""
LONGEST_NOTICED = 0.04
"""Seconds between two renames that epctx notices in any case: it waits for 0.05 s after
the first. On a busy machine the replacer may stand still for longer.
"""


def write_model(path: Path, value: float, **external: object) -> Path:
    """Write a model of three products; that of n is n times 64 ** 3 for ones."""
    names = ("first", "second", "third")
    nodes = [
        helper.make_node("MatMul", [before, name], [f"{name} product"])
        for before, name in zip(
            ("x", "first product", "second product"), names, strict=True
        )
    ]
    square = helper.make_tensor_value_info("x", TensorProto.FLOAT, [SIZE, SIZE])
    result = helper.make_tensor_value_info(
        "third product", TensorProto.FLOAT, [SIZE, SIZE]
    )
    weights = [
        numpy_helper.from_array(np.full((SIZE, SIZE), value, np.float32), name)
        for name in names
    ]
    graph = helper.make_graph(nodes, f"of {value}", [square], [result], weights)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        doc_string=f"of {value}",
    )
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path, size_threshold=0, **external)
    return path


def write_versions(folder: Path, **external: object) -> None:
    """Write each version into a folder of its own, its weights in files beside it."""
    for version, value in VERSIONS.items():
        path = folder / version / "model.onnx"
        write_model(path, value, save_as_external_data=True, **external)


def write_context_models(folder: Path) -> None:
    """Write each version into a folder of its own as a context model without digests,
    its binary beside it.
    """
    for version, value in VERSIONS.items():
        source = write_model(folder / version / "model.onnx", value)
        options = epctx.SessionOptions()
        options.add_session_config_entry("ep.context_embed_mode", "0")
        options.add_provider("QNN")
        target = folder / version / "model_ctx.onnx"
        epctx.ModelCompiler(options, source).compile_to_file(target)
        model = onnx.load(target, load_external_data=False)
        del model.metadata_props[:]
        onnx.save(model, target)


@contextmanager
def replaced(target: Path, versions: list[Path]) -> Iterator[None]:
    """Replace a link to a folder, or a folder's files, over and over by another process."""
    with subprocess.Popen(
        [sys.executable, "-c", REPLACER, str(target), *map(str, versions)],
        stdout=subprocess.PIPE,
    ) as replacer:
        try:
            assert replacer.stdout is not None
            replacer.stdout.readline()
            yield
        finally:
            replacer.kill()


def version_of(session: epctx.InferenceSession) -> str:
    """Return the version that a session computes and describes, or both."""
    ones = np.ones((SIZE, SIZE), np.float32)
    (result,) = session.run(None, {"x": ones})
    numbers = {float(number) for number in np.unique(result)}
    described = session.get_modelmeta().description
    for version, value in VERSIONS.items():
        if numbers == {(SIZE * value) ** 3} and described in {"", f"of {value}"}:
            return version
    return f"a mixture: {numbers}, {described!r}"


def load_repeatedly(load: Callable[[], str]) -> set[str]:
    """Return what was seen in loads, as many as are needed to see both versions."""
    seen: set[str] = set()
    until = time.monotonic() + 30
    for number in itertools.count():
        if number >= LOADS and (seen >= set(VERSIONS) or time.monotonic() > until):
            break
        try:
            seen.add(load())
        except InvalidGraph as error:
            # On a busy machine they may be replaced during each attempt.
            if REPLACED not in error.message:
                raise
    return seen


def load(model: Path | bytes) -> str:
    with epctx.InferenceSession(model) as session:
        return version_of(session)


def was_unnoticeable(log: Path, since: float) -> bool:
    """Whether a publication that ended after a time took too long to be noticed."""
    now = time.monotonic()
    while True:
        lines = log.read_text().splitlines()
        times = [tuple(map(float, line.split())) for line in lines]
        if times and times[-1][1] > now:
            break
        time.sleep(0.01)
    return any(
        ended > since and ended - started > LONGEST_NOTICED for started, ended in times
    )


@pytest.fixture
def folders(tmp_path):
    """A link `current` to one of two folders, each with its version of a model."""
    (tmp_path / "current").symlink_to(tmp_path / "old")
    return tmp_path


def test_an_ort_file_gives_the_weights_that_came_with_its_structure(tmp_path):
    for version, value in VERSIONS.items():
        (tmp_path / version).mkdir()
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / version / "model.ort")
        options.add_session_config_entry("session.save_model_format", "ORT")
        onnxruntime.InferenceSession(
            write_model(tmp_path / f"{version}.onnx", value),
            options,
            providers=["CPUExecutionProvider"],
        )
    target = shutil.copytree(tmp_path / "old", tmp_path / "current")

    with replaced(target, [tmp_path / "new", tmp_path / "old"]):
        assert load_repeatedly(lambda: load(target / "model.ort")) == set(VERSIONS)


def test_a_model_and_its_data_that_are_renamed_one_after_the_other_are_one_version(
    tmp_path,
):
    write_versions(tmp_path, location="weights.bin")
    target = shutil.copytree(tmp_path / "old", tmp_path / "current")

    def load_noticeable() -> str:
        while True:
            since = time.monotonic()
            version = load(target / "model.onnx")
            log = tmp_path / "current.log"
            if version in VERSIONS or not was_unnoticeable(log, since):
                return version

    with replaced(target, [tmp_path / "new", tmp_path / "old"]):
        assert load_repeatedly(load_noticeable) == set(VERSIONS)


@pytest.mark.parametrize("files", [1, 3], ids=["one file", "a file for each weight"])
def test_external_data_are_those_of_the_folder_that_the_model_came_from(folders, files):
    write_versions(
        folders,
        all_tensors_to_one_file=files == 1,
        location="weights.bin" if files == 1 else None,
    )

    versions = [folders / "new", folders / "old"]
    with replaced(folders / "current", versions):
        path = folders / "current" / "model.onnx"
        assert load_repeatedly(lambda: load(path)) == set(VERSIONS)


def test_a_compile_takes_the_weights_of_the_folder_that_the_model_came_from(folders):
    write_versions(folders, location="weights.bin")

    def compile_and_load() -> str:
        compiler = epctx.ModelCompiler(
            epctx.SessionOptions(),
            folders / "current" / "model.onnx",
            embed_compiled_data_into_model=True,
        )
        return load(compiler.compile_to_bytes())

    with replaced(folders / "current", [folders / "new", folders / "old"]):
        assert load_repeatedly(compile_and_load) == set(VERSIONS)


def test_binaries_without_digests_are_those_of_the_folder_of_their_model(folders):
    write_context_models(folders)

    with replaced(folders / "current", [folders / "new", folders / "old"]):
        path = folders / "current" / "model_ctx.onnx"
        assert load_repeatedly(lambda: load(path)) == set(VERSIONS)
        reports = [epctx.verify_model(path) for _ in range(LOADS)]
        texts = [str(r.findings) for r in reports if not r.ok]
        assert all(REPLACED in text for text in texts)
        assert len(texts) < LOADS


def test_weights_that_are_gone_with_their_model_are_those_of_the_next(tmp_path):
    target = tmp_path / "model.onnx"
    for version, value in VERSIONS.items():
        write_model(
            tmp_path / f"{version}.onnx",
            value,
            save_as_external_data=True,
            location=f"{version}.bin",
        )
    # The new version is published, and what the old one named is removed, between the
    # reading of the model and that of its weights.
    shutil.copy(tmp_path / "old.onnx", target)
    opened = os.open
    done = []

    def publish_new(path: object, *arguments: int, **more: int) -> int:
        if str(path).endswith("old.bin") and not done:
            done.append(path)
            (tmp_path / "old.bin").unlink()
            (tmp_path / "new.onnx").replace(target)
        return opened(path, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", publish_new)
        assert load(target) == "new"
    assert done


def test_each_ep_of_an_attempt_that_is_given_up_is_shut_down_once(tmp_path):
    write_context_models(tmp_path)
    target = shutil.copytree(tmp_path / "old", tmp_path / "current")
    calls = []

    class Replaces:
        @hookimpl(wrapper=True)
        def load_context(self, ep):
            calls.append("load")
            if calls.count("load") == 1:
                for path in (tmp_path / "new").iterdir():
                    path.replace(target / path.name)
            return (yield)

        @hookimpl(wrapper=True)
        def shutdown(self, ep):
            calls.append("shutdown")
            return (yield)

    options = epctx.SessionOptions()
    options.add_host_plugin(Replaces())
    with epctx.InferenceSession(target / "model_ctx.onnx", options) as session:
        assert version_of(session) == "new"
        assert calls == ["load", "shutdown", "load"]

    assert calls == ["load", "shutdown", "load", "shutdown"]
