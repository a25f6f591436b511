"""`epctx_bench.bench` with a vendor's EP: beside it stands onnxruntime's own session
with the vendor's library.
"""

from __future__ import annotations

from epctx_bench import BenchSettings, bench
from support.vendors_onnxruntime import qnn_options
from vendors.vendor_networks import network

EP = "epctx-onnxruntime:QNN"


def test_a_vendors_own_session_is_a_column(tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(network("resnet").model)

    report = bench(
        model,
        eps=[EP],
        provider_options={EP: qnn_options()},
        settings=BenchSettings(turns=1, runs=2),
    )

    ours, theirs, cpu = report.columns
    assert [c.column.engine for c in report.columns] == [
        "epctx",
        "vendor",
        "onnxruntime",
    ]
    assert [c.error for c in report.columns] == [None, None, None]
    assert ours.peer == theirs.peer == cpu.name
    # epctx makes the options of the vendor's own session, and imports would count.
    assert set(ours.rows) - set(theirs.rows) == {"first_result_from_start"}
    assert set(theirs.rows) >= {"compile", "load_warm", "run"}
    assert theirs.rows["compile"].facts["bytes_written"] > 0
    assert theirs.column.heading == "QNN in onnxruntime"
