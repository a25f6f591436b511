"""The wheels of programs are pinned, under known licences, and downloaded or named;
inputs are the same each time.

Needs no network, and none of the wheels: those run in `make conformance`.
"""

from __future__ import annotations

import pytest
from conformance import samples, wheels
from conformance.programs import NETWORKS, load_programs
from epctx_onnxruntime.checking.comparison import compute_digest

PERMISSIVE = {"Apache-2.0", "BSD-2-Clause", "MIT"}


def test_every_pinned_wheel_has_a_permissive_licence_and_a_network_that_is_run():
    pinned = wheels.read_pinned()

    assert {wheel.license for wheel in pinned.values()} <= PERMISSIVE
    assert {network.wheel for network in NETWORKS.values()} == set(pinned)
    assert set(NETWORKS) < set(load_programs())


@pytest.mark.parametrize(
    "line", ["magika==1.0.3  # MIT", f"magika==1.0.3 --hash=sha256:{'0' * 64}", ""]
)
def test_a_line_without_digest_or_licence_is_refused(line, tmp_path):
    pinned = tmp_path / "pinned.txt"
    pinned.write_text(line + "\n")

    with pytest.raises(ValueError, match=r"pinned.txt: '.*' is not 'name==version"):
        wheels.read_pinned(pinned)


def test_without_the_package_index_the_wheels_that_are_missing_are_named_and_what_to_do(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    (tmp_path / "magika-1.0.3-py3-none-any.whl").write_bytes(
        b"another file than the pinned one"
    )

    with pytest.raises(
        wheels.WheelsMissing,
        match=r"cannot download the wheels of .*magika, .*rapidocr",
    ) as found:
        wheels.download(folder=tmp_path)

    assert "Run this where the package index can be reached" in str(found.value)
    assert str(tmp_path) in str(found.value)


def test_inputs_of_networks_are_the_same_each_time():
    first, second = (
        compute_digest(
            [
                samples.draw_digits("0123456789", 64, 320),
                samples.make_sound(1, 8000),
                samples.make_spectrum(samples.make_sound(1, 16000), 80, 100),
                *samples.make_files(),
            ]
        )
        for _ in range(2)
    )

    assert first == second
