"""OVEP_BIN, the container of Intel's OpenVINO EP: a header, a table in BSON, and
blobs at multiples of 64 KiB.

Everything to import is here. Neither `openvino` nor `onnxruntime` is needed.
"""

from __future__ import annotations

from epctx_openvino_container.container import (
    ALIGNMENT,
    TABLE_VERSION,
    Table,
    align,
    decode_table,
    encode_head,
    is_container,
    lay_out,
    make_error,
)

__version__ = "0.1.0"
__all__ = [
    "ALIGNMENT",
    "TABLE_VERSION",
    "Table",
    "__version__",
    "align",
    "decode_table",
    "encode_head",
    "is_container",
    "lay_out",
    "make_error",
]
