"""The archive format by itself: what Python's own tar module reads, and what is
refused.
"""

from __future__ import annotations

import io
import tarfile

import pytest
from epctx_sim_vitisai import tar
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.internal


def packed(*files):
    return (
        b"".join(tar.header(n, len(c)) + c + tar.padding(len(c)) for n, c in files)
        + tar.END
    )


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,9}(/[a-z]{1,9})?", fullmatch=True),
        st.binary(max_size=1500),
        max_size=5,
    )
)
def test_what_is_written_is_read_again_here_and_by_python(files):
    content = packed(*files.items())

    assert {
        name: bytes(found)
        for name, found in tar.members(memoryview(content), tuple(files)).items()
    } == files
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert {
            info.name: archive.extractfile(info).read() for info in archive
        } == files


def test_members_are_views_over_the_archive():
    content = memoryview(packed(("a", b"abc")))

    assert tar.members(content, ["a"])["a"].obj is content.obj


@given(st.binary(max_size=3000))
def test_other_bytes_are_refused_or_read_and_never_more(content):
    try:
        found = tar.members(memoryview(content), ["a"])
    except tar.BadTarError:
        return
    assert sum(map(len, found.values())) <= len(content)


@pytest.mark.parametrize("names", [[], ["a"], ["b", "a"], ["a", "b", "c"]])
def test_an_archive_of_other_members_is_refused(names):
    content = packed(*((name, b"abc") for name in names))

    with pytest.raises(tar.BadTarError):
        tar.members(memoryview(content), ["a", "b"])


@pytest.mark.parametrize(
    "size",
    [b"77777777777\0", b"\x80" + bytes(10) + b"\xff", b"\xff" * 12, b"-0000000001\0"],
)
def test_a_size_that_the_archive_does_not_hold_is_refused(size):
    block = bytearray(tar.header("a", 0))
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)

    with pytest.raises(tar.BadTarError, match=r"truncated|damaged"):
        tar.members(memoryview(bytes(block) + tar.END), ["a"])


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_SPARSE,
    ],
)
def test_extensions_of_the_format_are_refused(kind):
    info = tarfile.TarInfo("a")
    info.type = kind

    with pytest.raises(tar.BadTarError, match="not that of a file"):
        tar.members(memoryview(info.tobuf(tarfile.USTAR_FORMAT) + tar.END), ["a"])


@pytest.mark.parametrize(
    "field", [{"mtime": 5}, {"uid": 7}, {"mode": 0o777}, {"uname": "me"}]
)
def test_a_header_that_says_more_than_name_and_size_is_refused(field):
    info = tarfile.TarInfo("a")
    for name, value in field.items():
        setattr(info, name, value)

    with pytest.raises(tar.BadTarError, match="its size and nothing else"):
        tar.members(memoryview(info.tobuf(tarfile.USTAR_FORMAT) + tar.END), ["a"])
