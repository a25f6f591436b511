"""EPs that a damaged payload could crash (`needs_verified_payloads`): they get no byte
in this process that was not checked.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.engine_eps import Beta
from support.foreign_models import from_other_process
from support.fragile_eps import PART, Fragile, FragileWithoutDevice
from support.install_commands import pip_install
from support.isolation import children, nothing_left, options_for, registry_of
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core.errors import PackageMissing, PluginError
from epctx_core.plugin import Finding, Severity

EPS = (Fragile, FragileWithoutDevice, Beta)
CHAIN = ("Add", "Sigmoid", "Relu")
"""Two partitions with one payload: the second node refers to that of the first."""
UNSEEN = PART // 12 * 2 + 77
"""Place of a byte in a block that a look at the head and some blocks does not cover."""


@pytest.fixture(autouse=True)
def forgotten():
    """Forget what earlier tests did."""
    for noted in (Fragile.loads, Fragile.looks, Fragile.died):
        noted.clear()


@pytest.fixture(autouse=True)
def receipts(tmp_path, monkeypatch):
    folder = tmp_path / "receipts"
    monkeypatch.setenv("EPCTX_RECEIPTS", str(folder))
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Context models of the fragile EP, its payload in a file or embedded, and of two
    EPs.
    """
    folder = tmp_path_factory.mktemp("written")
    for name, embedded, operators, eps in (
        ("file", False, CHAIN, (Fragile,)),
        ("embedded", True, CHAIN, (Fragile,)),
        ("two", False, ("Add", "Neg"), (Fragile, Beta)),
        ("whole", False, CHAIN, (FragileWithoutDevice,)),
    ):
        model = saved(chain(operators), folder / "m.onnx")
        compiler = epctx.ModelCompiler(
            options_for(*eps, isolate=""), model, embedded, registry=registry_of(*EPS)
        )
        (folder / name).mkdir()
        compiler.compile_to_file(folder / name / "m_ctx.onnx")
    return folder


@pytest.fixture
def make(written, tmp_path):
    """Return a function that copies a context model, without its manifest or with a
    damaged byte, if so wished.
    """

    def make(name="file", *, bare=False, damaged=False):
        folder = Path(
            shutil.copytree(
                written / name, tmp_path / "copy", copy_function=shutil.copy
            )
        )
        path = folder / "m_ctx.onnx"
        if damaged:
            damage(path if name == "embedded" else next(folder.glob("*fragile*")))
        for file in folder.iterdir():
            os.utime(file, (1_700_000_000, 1_700_000_000))
        return from_other_process(path) if bare else path

    return make


def damage(path):
    content = bytearray(path.read_bytes())
    start = content.index(bytes(PART))
    content[start + UNSEEN] = 1
    path.write_bytes(content)


def load(path, *, eps=(), isolate="", **entries):
    return epctx.InferenceSession(
        path, options_for(*eps, isolate=isolate, **entries), registry=registry_of(*EPS)
    )


def answer(session):
    (result,) = session.run(None, {"x": example()})
    return result


def expected(operators=CHAIN):
    with epctx.InferenceSession(chain(operators).SerializeToString()) as session:
        return answer(session)


# --- with digests ---------------------------------------------------------------------

MODES = ("once", "head", "lazy", "full")
WAYS = ("file", "embedded", "callback")


def options_of(path, way, **entries):
    """Return options for a load from a file, or from bytes with a callback that reads
    the binary.
    """
    options = options_for(isolate="", **entries)
    if way == "callback":

        def read(name, buffer):
            content = (path.parent / name).read_bytes()
            buffer.allocate(len(content))
            buffer.write(content)

        options.set_ep_context_data_read_func(read, 1 << 25)
    return options


@pytest.mark.parametrize("trust", ["0", "1"], ids=["", "trusting what has no digests"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_load_gives_the_ep_a_byte_of_a_damaged_payload(
    make, way, mode, trust
):
    path = make("embedded" if way == "embedded" else "file", damaged=True)
    options = options_of(path, way, context_verify=mode, context_trust_unverified=trust)

    with pytest.raises(
        epctx.InvalidGraph, match="is not the one that the model was written with"
    ):
        epctx.InferenceSession(path, options, registry=registry_of(*EPS))

    assert (Fragile.loads, Fragile.died) == ([], [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_good_payload_is_checked_whole_before_the_ep_gets_it_and_stays_in_this_process(
    make, way, mode
):
    path, before = make("embedded" if way == "embedded" else "file"), children()

    with epctx.InferenceSession(
        path, options_of(path, way, context_verify=mode), registry=registry_of(*EPS)
    ) as session:
        assert np.array_equal(answer(session), expected())
        assert children() == before

    assert Fragile.loads == [True]


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
@pytest.mark.parametrize("way", ["file", "embedded"])
def test_a_sealed_model_of_another_tool_stays_in_this_process(make, way, beside):
    path, before = make(way, bare=True), children()
    epctx.seal_model(path, beside=beside)

    with load(path) as session:
        assert np.array_equal(answer(session), expected())
        assert children() == before

    assert Fragile.loads == [True]


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_a_damaged_byte_of_a_sealed_model_never_reaches_the_ep(make, beside):
    path = make(bare=True)
    epctx.seal_model(path, beside=beside)
    damage(next(path.parent.glob("*fragile*")))

    with pytest.raises(
        epctx.InvalidGraph, match="is not the one that the model was written with"
    ):
        load(path)

    assert (Fragile.loads, Fragile.died) == ([], [])


def digested(monkeypatch):
    """Return a list that gets the length of all that is digested."""
    lengths, honest = [], hashlib.sha256

    class Counting:
        def __init__(self, data=b"", **options):
            self._sha = honest(**options)
            self.update(data)

        def update(self, data):
            lengths.append(len(data))
            self._sha.update(data)

        def __getattr__(self, name):
            return getattr(self._sha, name)

    monkeypatch.setattr(hashlib, "sha256", Counting)
    return lengths


@pytest.mark.parametrize(("name", "models"), [("file", 0), ("embedded", 1)])
def test_the_second_load_on_a_machine_relies_on_the_receipt_of_the_first(
    make, name, models, monkeypatch, settle_after
):
    path, lengths = make(name), digested(monkeypatch)
    time.sleep(settle_after(0.3) + 0.1)  # a younger file gets no receipt
    load(path).close()
    assert sum(lengths) > (models + 1) * PART
    lengths.clear()

    load(path).close()

    # The model itself is digested at each load.
    assert sum(lengths) < (models + 0.5) * PART
    assert Fragile.loads == [True, True]


def test_where_a_host_looks_at_heads_alone_the_payload_is_digested_at_each_load_and_no_receipt_left(
    make, receipts, monkeypatch
):
    path, lengths = make(), digested(monkeypatch)

    for _ in range(2):
        lengths.clear()
        load(path, context_verify="head").close()
        assert sum(lengths) > PART

    assert not receipts.exists()


def test_what_was_just_compiled_is_read_back_in_this_process(tmp_path, caplog):
    before = children()
    model = saved(chain(CHAIN), tmp_path / "m.onnx")

    with caplog.at_level(logging.INFO, "epctx"):
        epctx.ModelCompiler(
            options_for(FragileWithoutDevice, isolate=""),
            model,
            registry=registry_of(*EPS),
        ).compile_to_file()

    assert len(Fragile.loads) == 1
    assert children() == before
    assert "its own process" not in caplog.text


# --- without digests ------------------------------------------------------------------


@pytest.mark.parametrize("isolate", ["", "compile"])
@pytest.mark.parametrize("way", WAYS)
def test_a_payload_without_digests_is_loaded_and_run_in_a_process_of_its_own(
    make, way, isolate, temporary, caplog
):
    path, before = (
        make("embedded" if way == "embedded" else "file", bare=True),
        children(),
    )
    options = options_of(path, way)
    options.add_session_config_entry("ep.isolate", isolate)

    with (
        caplog.at_level(logging.INFO, "epctx.providers"),
        nothing_left(temporary),
        epctx.InferenceSession(path, options, registry=registry_of(*EPS)) as session,
    ):
        assert len(children() - before) == 1
        assert np.array_equal(answer(session), expected())

    assert Fragile.loads == []
    (record,) = [
        record for record in caplog.records if "its own process" in record.message
    ]
    assert record.levelno == logging.INFO
    assert (
        "FragileExecutionProvider works in its own process unless "
        "ep.context_trust_unverified=1: a payload"
    ) in caplog.text
    assert "ep.context_trust_unverified=1" in record.message


def test_a_damaged_payload_without_digests_ends_that_process_and_the_host_goes_on(
    make, temporary
):
    path = make(bare=True, damaged=True)

    with (
        nothing_left(temporary),
        pytest.raises(PluginError, match="its process is gone") as caught,
    ):
        load(path)

    assert (caught.value.ep, caught.value.hook) == (Fragile.name, "load_context")
    assert Fragile.died == []


def test_a_manifest_that_does_not_list_the_payload_is_as_none(make):
    path, before = make(), children()
    model = onnx.load(path)
    (entry,) = [
        entry for entry in model.metadata_props if entry.key == "epctx.manifest"
    ]
    entry.value = entry.value.replace('"name":"m_', '"name":"n_')
    assert "n_fragile" in entry.value
    onnx.save(model, path)

    with load(path) as session:
        assert len(children() - before) == 1
        assert np.array_equal(answer(session), expected())

    assert Fragile.loads == []


def test_other_eps_of_the_session_work_in_that_process_too(make, monkeypatch):
    path, before = make("two", bare=True), children()
    loaded, honest = [], Beta._runnable
    monkeypatch.setattr(
        Beta,
        "_runnable",
        lambda self, model: loaded.append(self) or honest(self, model),
    )

    with load(path) as session:
        assert len(children() - before) == 1
        assert np.array_equal(answer(session), expected(("Add", "Neg")))

    assert loaded == []
    assert Fragile.loads == []


def test_a_session_that_also_writes_loads_what_it_carries_over_in_a_process_of_its_own(
    make, tmp_path
):
    path, before = make(bare=True), children()
    target = tmp_path / "out" / "again_ctx.onnx"
    target.parent.mkdir()

    with load(
        path, eps=(Fragile,), context_enable="1", context_file_path=target
    ) as session:
        assert len(children() - before) == 1
        assert np.array_equal(answer(session), expected())

    assert Fragile.loads == []


def test_sessions_that_share_contexts_have_one_process_for_it(make):
    path, before = make(bare=True), children()

    with (
        load(path, share_ep_contexts="1") as first,
        load(path, share_ep_contexts="1") as second,
    ):
        assert len(children() - before) == 1
        assert np.array_equal(answer(first), expected())
        assert np.array_equal(answer(second), expected())

    assert Fragile.loads == []


def test_a_host_that_trusts_it_has_it_loaded_in_this_process(make, caplog):
    path, before = make(bare=True), children()

    with (
        caplog.at_level(logging.INFO, "epctx.providers"),
        load(path, context_trust_unverified="1") as session,
    ):
        assert children() == before
        assert np.array_equal(answer(session), expected())

    assert Fragile.loads == [False]
    assert "its own process" not in caplog.text


def test_a_host_that_trusts_a_damaged_one_ends_with_it(make):
    path = make(bare=True, damaged=True)
    code = """
        import sys, epctx_core as epctx
        from support.fragile_eps import Fragile
        registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
        registry.register(Fragile)
        options.add_session_config_entry("ep.context_trust_unverified", "1")
        epctx.InferenceSession(sys.argv[1], options, registry=registry)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )

    assert done.returncode < 0


def test_a_host_that_isolates_every_ep_anyway_reads_nothing_of_it_in_the_log(
    make, caplog
):
    path, before = make("two", bare=True), children()

    with caplog.at_level(logging.INFO, "epctx"), load(path, isolate="all") as session:
        assert len(children() - before) == 1
        assert np.array_equal(answer(session), expected(("Add", "Neg")))

    assert "context_trust_unverified" not in caplog.text


class Absent:
    """Python's own answer where epctx-isolation is not installed."""

    @staticmethod
    def find_spec(name, *_):
        if name == "epctx_isolation":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def absent(monkeypatch):
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "epctx_isolation"
    ]:
        monkeypatch.delitem(sys.modules, name)
    # In place: what is imported meanwhile may add a finder that is to stay.
    sys.meta_path.insert(0, Absent)
    yield
    sys.meta_path.remove(Absent)


@pytest.mark.usefixtures("absent")
def test_without_the_package_the_error_names_it_and_the_option(make):
    with pytest.raises(
        PackageMissing, match="needs the package epctx-isolation"
    ) as caught:
        load(make(bare=True))

    assert "FragileExecutionProvider" in caught.value.message
    assert "ep.context_trust_unverified=1" in caught.value.message
    assert caught.value.hint == pip_install("epctx-isolation")
    assert Fragile.loads == []


@pytest.mark.usefixtures("absent")
def test_with_digests_nothing_needs_the_package(make):
    with load(make()) as session:
        assert np.array_equal(answer(session), expected())


# --- verification ---------------------------------------------------------------------


def verify(path, **entries):
    return epctx.verify_model(
        path, options_for(isolate="", **entries), registry=registry_of(*EPS)
    )


@pytest.mark.parametrize("name", ["file", "embedded", "whole"])
@pytest.mark.parametrize("as_bytes", [False, True], ids=["file", "bytes"])
def test_a_verification_gives_the_ep_a_payload_without_digests_in_another_process(
    make, name, as_bytes
):
    path = make(name, bare=True)
    options = options_for(isolate="", context_file_path=str(path))
    model = path.read_bytes() if as_bytes else path

    report = epctx.verify_model(model, options, registry=registry_of(*EPS))

    assert [finding.code for finding in report.findings] == ["manifest-missing"]
    (payload,) = report.payloads
    assert payload.looked_into_by is not None
    assert (report.ok, report.checked) == (True, True)
    assert (Fragile.loads, Fragile.looks) == ([], [])


@pytest.mark.parametrize("name", ["file", "embedded", "whole"])
def test_a_verification_whose_ep_ends_its_process_at_a_payload_refuses_that(make, name):
    report = verify(make(name, bare=True, damaged=True))

    (refused,) = [f for f in report.findings if f.code == "container-refused"]
    assert not report.ok
    assert "FragileE" in refused.message or "FragileW" in refused.message
    assert "it was ended by SIGSEGV" in refused.message
    assert (Fragile.loads, Fragile.looks) == ([], [])


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("name", ["file", "whole"])
def test_a_verification_that_can_start_no_process_gives_the_ep_no_payload_without_digests(
    make, name
):
    report = verify(make(name, bare=True))

    codes = [finding.code for finding in report.findings]
    assert codes == ["manifest-missing", "container-not-checked", "not-checked"]
    (said,) = [f for f in report.findings if f.code == "container-not-checked"]
    assert "gets no payload without digests in this process" in said.message
    assert "epctx seal" in said.hint
    assert (report.ok, report.checked) == (True, False)
    assert (Fragile.loads, Fragile.looks) == ([], [])


@pytest.mark.usefixtures("absent")
def test_a_verification_that_can_start_no_process_spares_each_ep_that_could_end_this_one(
    tmp_path,
):
    eps = (Fragile, Beta, FragileWithoutDevice)
    model = saved(chain(("Add", "Neg", "Dropout")), tmp_path / "m.onnx")
    context = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(
        options_for(*eps, isolate=""), model, registry=registry_of(*eps)
    ).compile_to_file(context)
    Fragile.loads.clear()
    Fragile.looks.clear()

    report = verify(from_other_process(context))

    assert report.ok
    assert (Fragile.loads, Fragile.looks) == ([], [])


def test_no_number_of_findings_of_another_ep_has_a_verification_give_it_one_without_digests(
    tmp_path,
):
    class Noisy(Beta):
        """Finds more of one code than are listed."""

        name = "NoisyExecutionProvider"

        @classmethod
        def verify_payloads(cls, context, nodes, reader):
            return [
                Finding(Severity.INFO, "container-not-checked", f"part {n}")
                for n in range(1001)
            ]

    eps = (Noisy, FragileWithoutDevice)
    model, context = (
        saved(chain(("Neg", "Add")), tmp_path / "m.onnx"),
        tmp_path / "m_ctx.onnx",
    )
    epctx.ModelCompiler(
        options_for(*eps, isolate=""), model, registry=registry_of(*eps)
    ).compile_to_file(context)
    bare = from_other_process(context)
    Fragile.loads.clear()

    epctx.verify_model(bare, options_for(*eps, isolate=""), registry=registry_of(*eps))

    assert Fragile.loads == []


@pytest.mark.parametrize("name", ["file", "whole"])
def test_a_verification_gives_it_one_that_the_host_trusts(make, name):
    report = verify(make(name, bare=True), context_trust_unverified="1")

    assert [finding.code for finding in report.findings] == ["manifest-missing"]
    assert report.checked
    assert Fragile.looks == [False] * 2  # each node
    assert Fragile.loads == ([False] if name == "whole" else [])


@pytest.mark.parametrize("name", ["file", "whole"])
def test_a_verification_gives_it_one_whose_digests_are_right(make, name):
    report = verify(make(name))

    assert (report.ok, report.checked) == (True, True)
    assert Fragile.looks == [True] * 2  # each node
    assert Fragile.loads == ([True] if name == "whole" else [])


def test_a_verification_does_not_give_it_one_whose_digests_are_wrong(make):
    report = verify(make("whole", damaged=True))

    assert [finding.code for finding in report.findings] == ["digest-mismatch"]
    assert (Fragile.loads, Fragile.looks) == ([], [])
