"""Data of pages for tests and for looking at: a small model, hostile texts, and large
graphs in three shapes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

Data = dict[str, Any]

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "<!--<script>",
    "javascript:alert(1)",
    "right\u202eto left\u202c",
    "two\nlines\r\tand a NUL\u0000here",
    "\ud800 alone \udfff",
    "__proto__",
    "constructor",
    "toString",
    "{{title}} {{data}}",
    "#first",
    "\U0001d4a9" * 200,
    "long" * 25_000,
]


def delta(values: list[int]) -> dict[str, list[int]]:
    """A column as its first value and the differences after it."""
    return {"d": [second - first for first, second in pairwise([0, *values])]}


class Builder:
    """A model, node by node; a value has one producer and any readers."""

    def __init__(self, name: str) -> None:
        self.model: Data = {
            "name": name,
            "bytes": 4_812_544,
            "facts": [],
            "eps": [],
            "graphs": [{"name": "main", "owner": None}],
            "refusals": [],
            "files": [],
            "payloads": [],
            "verdict": None,
            "findings": [],
            "timings": None,
            "advice": [],
            "inner": None,
            "results": [],
        }
        self.names: list[str] = []
        self.ops: dict[str, int] = {}
        self.op_of: list[int] = []
        self.box_of: list[int] = []
        self.weights: list[int] = []
        self.boxes: list[Data] = []
        self.producers: list[int] = []
        self.value_names: list[str] = []
        self.value_types: list[int] = []
        self.types: dict[str, int | None] = {}
        self.uses: list[tuple[int, int]] = []

    def box(
        self,
        ep: int,
        partition: int = -1,
        graph: int = 0,
        context: int = 0,
        seconds: float | None = None,
        layer: int | None = None,
        x: int | None = None,
    ) -> int:
        self.boxes.append(
            {
                "graph": graph,
                "ep": ep,
                "partition": partition,
                "context": context,
                "seconds": seconds,
                "layer": layer,
                "x": x,
            }
        )
        return len(self.boxes) - 1

    def node(
        self, op: str, name: str, box: int, inputs: list[int], weights: int = 0
    ) -> int:
        node = len(self.names)
        self.names.append(name)
        self.op_of.append(self.ops.setdefault(op, len(self.ops)))
        self.box_of.append(box)
        self.weights.append(weights)
        self.uses += [(value, node) for value in inputs]
        return node

    def value(
        self,
        producer: int,
        name: str = "\u0000:0",
        type_: str = "float[1,64,56,56]",
        size: int | None = 802_816,
    ) -> int:
        self.producers.append(producer)
        self.value_names.append(name)
        self.types.setdefault(type_, size)
        self.value_types.append(list(self.types).index(type_))
        return len(self.producers) - 1

    def finish(self, *, deltas: bool = True) -> Data:
        column = delta if deltas else list
        boxes = {
            key: [box[key] for box in self.boxes] for key in self.boxes[0] if self.boxes
        }
        for key in ("graph", "ep", "partition", "context"):
            boxes[key] = column(boxes[key])
        for key in ("layer", "x"):
            boxes[key] = None if None in boxes[key] else column(boxes[key])
        if all(seconds is None for seconds in boxes["seconds"]):
            boxes["seconds"] = None
        nodes_by_ep = [0] * len(self.model["eps"])
        for box in self.box_of:
            nodes_by_ep[self.boxes[box]["ep"]] += 1
        for at, ep in enumerate(self.model["eps"]):
            ep["nodes"] = nodes_by_ep[at]
            ep["share"] = nodes_by_ep[at] / (sum(nodes_by_ep) or 1)
            ep["partitions"] = sum(
                box["ep"] == at and box["partition"] >= 0 for box in self.boxes
            )
        self.model |= {
            "share_of": "nodes",
            "total_nodes": sum(nodes_by_ep),
            "inside_nodes": 0,
            "folded_nodes": 0,
            "nodes": {
                "name": self.names,
                "op": column(self.op_of),
                "ops": list(self.ops),
                "box": column(self.box_of),
                "weight_bytes": column(self.weights),
            },
            "boxes": boxes,
            "values": {
                "producer": column(self.producers),
                "name": self.value_names,
                "type": column(self.value_types),
                "types": list(self.types),
                "type_bytes": list(self.types.values()),
            },
            "uses": {
                "value": column([value for value, _ in self.uses]),
                "node": column([node for _, node in self.uses]),
            },
        }
        return self.model


def make_page(*models: Data, title: str = "", **more: Any) -> Data:
    return {
        "schema": 1,
        "title": title or models[0]["name"],
        "tool": "epctx 0.1.0",
        "models": list(models),
        "differences": None,
        **more,
    }


def make_ep(name: str, kind: str = "ep", *, simulated: bool = False) -> Data:
    return {
        "name": name,
        "nodes": 0,
        "share": 0.0,
        "partitions": 0,
        "simulated": simulated,
        "kind": kind,
    }


def small_model(name: str = "shufflenet_int8_ctx.onnx") -> Data:
    """Two EPs, CPU nodes between them, an If of the session and an EPContext node."""
    b = Builder(name)
    b.model["eps"] = [
        make_ep("QNNExecutionProvider", simulated=True),
        make_ep("OpenVINOExecutionProvider"),
        make_ep("CPUExecutionProvider", "cpu"),
        make_ep("session", "session"),
    ]
    image = b.value(-1, "image", "float[1,3,224,224]", 602_112)
    last = image
    qnn = b.box(0, 0, seconds=0.00182)
    for at in range(6):
        conv = b.node("Conv", f"/stage1/conv.{at}", qnn, [last], 37_632)
        relu = b.node("Relu", f"/stage1/relu.{at}", qnn, [b.value(conv)])
        last = b.value(relu)
    branch = last
    cpu = b.box(2, seconds=0.0004)
    resize = b.node("Resize", "/stage1/resize", cpu, [last])
    cast = b.node("Cast", "/stage1/cast", cpu, [b.value(resize)])
    last = b.value(cast, type_="float[?,64,112,112]", size=None)
    vino = b.box(1, 0, seconds=0.0031)
    for at in range(3):
        left = b.node("MatMul", f"/stage2/left.{at}", vino, [last], 9_437_184)
        right = b.node("MatMul", f"/stage2/right.{at}", vino, [last, branch], 262_144)
        add = b.node("Add", f"/stage2/add.{at}", vino, [b.value(left), b.value(right)])
        last = b.value(add, type_="float[1,512,128,64]", size=16_777_216)
    session = b.box(3)
    choice = b.node("If", "/choose", session, [last])
    chosen = b.value(choice, type_="float[1,1000]", size=4_000)
    compiled = b.box(0, context=1)
    context = b.node(
        "EPContext", "QNNExecutionProvider_99ee88dd77cc66bb_1", compiled, [chosen]
    )
    b.model["results"] = [b.value(context, "probabilities", "float[1,1000]", 4_000)]
    for graph, branch_name in enumerate(("then_branch", "else_branch"), start=1):
        b.model["graphs"].append({"name": branch_name, "owner": choice})
        inner = b.box(2, graph=graph)
        soft = b.node("Softmax", f"/{branch_name}/softmax", inner, [last])
        done = b.node("Identity", f"/{branch_name}/identity", inner, [b.value(soft)])
        b.model["results"].append(b.value(done))
    add_refusals(b, resize, cast, choice)
    add_facts(b, name)
    add_timings(b)
    add_advice(b, [resize, cast], cpu)
    return b.finish()


def add_refusals(b: Builder, resize: int, cast: int, choice: int) -> None:
    b.model["refusals"] = [
        {
            "ep": "QNNExecutionProvider",
            "reason": "Resize with mode 'cubic' is not supported",
            "nodes": [resize],
            "follows": [],
        },
        {
            "ep": "QNNExecutionProvider",
            "reason": "dynamic shape of the first input",
            "nodes": [cast, *range(14, 23)],
            "follows": [cast],
        },
        {
            "ep": "OpenVINOExecutionProvider",
            "reason": "If is run by the session",
            "nodes": [choice],
            "follows": [],
        },
    ]


def add_facts(b: Builder, name: str) -> None:
    b.model["facts"] = [
        {"name": "Producer", "value": "pytorch 2.9"},
        {"name": "Opsets", "value": "ai.onnx 21, com.microsoft 1"},
        {"name": "Inputs", "value": "image: float[1,3,224,224]"},
        {"name": "Outputs", "value": "probabilities: float[1,1000]"},
    ]
    b.model["files"] = [
        {"name": name, "bytes": 4_812_544, "holds": "the graph"},
        {
            "name": "shufflenet_int8_qnn.bin",
            "bytes": 29_884_416,
            "holds": "2 payloads of QNN",
        },
    ]
    b.model["payloads"] = [
        {
            "node": "QNNExecutionProvider_99ee88dd77cc66bb_1",
            "source": "QNNExecutionProvider",
            "file": "shufflenet_int8_qnn.bin",
            "bytes": 29_884_416,
            "state": "checked",
        },
    ]
    b.model["verdict"] = "optimal: this machine runs every payload as it was compiled"
    b.model["findings"] = [
        {
            "severity": "warning",
            "code": "ep-simulated",
            "message": "QNNExecutionProvider is simulated here.",
            "hint": "Install onnxruntime-qnn for real hardware.",
        },
        {
            "severity": "error",
            "code": "payload-missing",
            "message": "shufflenet_int8_x.bin is missing.",
            "hint": "",
        },
    ]


def make_errors(box: int, text: str, *, step: int = 5) -> Data:
    """Errors of a box with one output, and of one that was not compared."""
    error = {"max_abs": 0.5, "mean_abs": 0.125, "max_rel": 0.0625, "snr_db": 24.0}
    equal = {"max_abs": 0.0, "mean_abs": 0.0, "max_rel": 0.0, "snr_db": None}
    row = {"box": box, "output": text, "step": step, "own": error | {"cosine": 0.98}}
    row |= {"inherited": equal | {"cosine": 1.0}, "total": error | {"cosine": 0.98}}
    return {
        "steps": [80, 60, 50, 40, 30, 20],
        "inputs": 3,
        "rows": [row],
        "uncompared": [{"box": box + 1, "reason": text}],
        "note": text,
    }


def add_timings(b: Builder) -> None:
    b.model["timings"] = {
        "rows": [
            {"name": "compile", "seconds": 1.92, "of": "model"},
            {"name": "load", "seconds": 0.0412, "of": "model"},
            {"name": "run", "seconds": 0.00548, "of": "median of 50"},
        ],
        "operators": [
            {"operator": "MatMul", "count": 6, "seconds": 0.0029},
            {"operator": "Conv", "count": 6, "seconds": 0.0017},
        ],
        "notes": ["Measured on 2 cores; the first run is left out."],
    }


def add_advice(b: Builder, nodes: list[int], box: int) -> None:
    b.model["advice"] = [
        {
            "title": "2 nodes between two partitions run on the CPU EP",
            "text": "Each run copies 784.0 KiB to the CPU and an unknown number of bytes back. Resize with mode 'linear' would be taken by QNN.",
            "nodes": nodes,
            "boxes": [box],
        },
    ]


def small_page() -> Data:
    return make_page(small_model())


def folder_page() -> Data:
    second = small_model("decoder_ctx.onnx")
    return make_page(
        small_model(),
        second,
        title="two models",
        differences={
            "first": "shufflenet_int8_ctx.onnx",
            "second": "decoder_ctx.onnx",
            "rows": [
                {
                    "part": "node",
                    "name": "/stage1/resize",
                    "first": "Resize",
                    "second": None,
                }
            ],
            "left_out": 3,
        },
    )


def hostile_page() -> Data:
    """Every text of the contract is one of `HOSTILE`, each in every place."""
    models = []
    for text in HOSTILE:
        b = Builder(text)
        b.model["eps"] = [make_ep(text), make_ep(text + "ExecutionProvider", "cpu")]
        first, second = b.box(0, 0, seconds=0.5), b.box(1)
        start = b.value(-1, text, text, None)
        one = b.node(text, text, first, [start])
        two = b.node(text, text, first, [b.value(one, "\u0000" + text, text, 4)])
        three = b.node("Relu", text, second, [b.value(two, text, text, 4)])
        b.model["graphs"] = [
            {"name": text, "owner": None},
            {"name": text, "owner": three},
        ]
        b.node(text, "", b.box(1, graph=1), [])
        b.model["facts"] = [{"name": text, "value": text}]
        b.model["refusals"] = [
            {"ep": text, "reason": text, "nodes": [one, three], "follows": [three]}
        ]
        b.model["files"] = [{"name": text, "bytes": None, "holds": text}]
        b.model["payloads"] = [
            {"node": text, "source": text, "file": text, "bytes": None, "state": text}
        ]
        b.model["verdict"] = text
        b.model["findings"] = [
            {"severity": text, "code": text, "message": text, "hint": text}
        ]
        b.model["errors"] = make_errors(first, text)
        b.model["timings"] = {
            "rows": [{"name": text, "seconds": 1.0, "of": text}],
            "operators": [{"operator": text, "count": 1, "seconds": 1.0}],
            "notes": [text],
        }
        b.model["advice"] = [
            {"title": text, "text": text, "nodes": [one], "boxes": [second]}
        ]
        b.model["contexts"] = [{"node": one, "facts": [{"name": text, "value": text}]}]
        b.model["label"] = text
        models.append(b.finish(deltas=False))
    models.append({"name": HOSTILE[0], "bytes": 1, "error": HOSTILE[0]})
    differences = {
        "summary": [
            {"name": text, "first": text, "second": text, "change": text}
            for text in HOSTILE
        ],
        "first": HOSTILE[0],
        "second": HOSTILE[1],
        "rows": [
            {"part": text, "name": text, "first": text, "second": text}
            for text in HOSTILE
        ],
        "left_out": 0,
    }
    return make_page(*models, title=HOSTILE[0], differences=differences)


def chain_page(count: int = 100_000) -> Data:
    """One chain in one box."""
    b = Builder("chain.onnx")
    b.model["eps"] = [
        make_ep("QNNExecutionProvider"),
        make_ep("CPUExecutionProvider", "cpu"),
    ]
    box = b.box(0, 0)
    value = b.value(-1, "x")
    for at in range(count):
        node = b.node(("Conv", "Relu", "Add")[at % 3], f"layer.{at}", box, [value])
        value = b.value(node)
    numbers = list(range(count))
    b.model["inner"] = {
        "node": delta(numbers),
        "layer": delta(numbers),
        "x": delta([0] * count),
    }
    return make_page(b.finish())


def alternating_page(count: int = 100_000) -> Data:
    """Boxes of two nodes, by turns of an EP and of the CPU EP."""
    b = Builder("alternating.onnx")
    b.model["eps"] = [
        make_ep("QNNExecutionProvider"),
        make_ep("CPUExecutionProvider", "cpu"),
    ]
    value = b.value(-1, "x")
    for at in range(count // 2):
        box = b.box(at % 2, at // 2 if at % 2 == 0 else -1, layer=at, x=0)
        for op in ("Conv", "Relu"):
            value = b.value(b.node(op, f"{op}.{at}", box, [value]))
    b.model["refusals"] = [
        {
            "ep": "QNNExecutionProvider",
            "reason": "every second one",
            "nodes": delta(list(range(2, count, 4))),
            "follows": [],
        }
    ]
    return make_page(b.finish())


def fan_out_page(count: int = 100_000) -> Data:
    """One node whose value all others read, each a box of its own."""
    b = Builder("fan_out.onnx")
    b.model["eps"] = [
        make_ep("QNNExecutionProvider"),
        make_ep("CPUExecutionProvider", "cpu"),
    ]
    first = b.box(0, 0, layer=0, x=0)
    value = b.value(b.node("Conv", "first", first, [b.value(-1, "x")]))
    for at in range(1, count):
        box = b.box(1, layer=1, x=at - 1)
        b.value(b.node("Relu", f"reader.{at}", box, [value]))
    return make_page(b.finish())


PAGES = {
    "small": small_page,
    "folder": folder_page,
    "hostile": hostile_page,
    "chain": chain_page,
    "alternating": alternating_page,
    "fan_out": fan_out_page,
}
