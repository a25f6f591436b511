// The panel: all facts of the selected box or operator.

const MOST_LISTED = 100;

class Panel {
  constructor(view) {
    this.view = view;
    this.element = make("aside", { class: "panel", "aria-live": "polite", "aria-label": "Selected" });
  }

  get model() {
    return this.view.model;
  }

  show(chosen) {
    const content = chosen === null ? this.describeGraph()
      : chosen.kind === "box" ? this.describeBox(chosen.id) : this.describeNode(chosen.id);
    const { activeElement } = document;
    const held = this.element.contains(activeElement);
    const again = held && activeElement.classList.contains("expand");
    this.element.replaceChildren(...content.flat(Infinity).filter(Boolean));
    this.element.scrollTop = 0;
    // What had the keyboard's focus is gone: its successor has it, or the graph.
    if (held) ((again && this.element.querySelector(".expand")) || this.view.frame.element).focus({ preventScroll: true });
  }

  describeGraph() {
    const { scene, model } = this.view;
    const boxes = scene.contents.ids;
    let nodes = 0;
    for (const box of boxes) nodes += model.nodesOf.size(box);
    return [
      make("h3", {}, this.view.graphName(scene.graph)),
      make("p", {}, `${countOf(nodes, "node")} in ${countOf(boxes.length, "box", "boxes")}.`),
      make("p", { class: "hint keys" },
        "Select a box to see what crosses its border; click it again to collapse it. Keys: arrows move, Enter expands, + − 0 zoom, / searches, Esc goes back."),
    ];
  }

  describeBox(box) {
    const { model } = this;
    const nodes = model.nodesOf.of(box);
    const single = nodes.length === 1 ? nodes[0] : null;
    const ops = model.countOps(box);
    const seconds = model.boxSeconds?.[box];
    return [
      make("h3", {}, this.swatch(box), display(model.boxTitle(box), 60)),
      single === null ? this.expandButton(box) : null,
      this.facts([
        ["EP", data(model.ep(box).name)],
        ["Kind", this.kindOf(box)],
        ["Operators", single === null && formatCount(nodes.length)],
        // What was compiled holds its weights: those of the node say nothing.
        ["Weights", !model.boxContext[box] && formatBytes(model.boxWeights(box))],
        ["Time", seconds !== null && seconds !== undefined && formatSeconds(seconds)],
      ]),
      this.describeErrors(box),
      single === null ? null : this.describeNode(single, true),
      single === null && ops.length ? make("h4", {}, "Operators") : null,
      single === null ? make("p", {}, ops.slice(0, 30).map(([op, count]) =>
        make("span", { class: "chip" }, data(op, 40), ` ×${formatCount(count)}`)),
        ops.length > 30 ? ` and ${countOf(ops.length - 30, "other")}` : null) : null,
      single === null ? this.boxRefusals(nodes) : null,
      single === null ? this.values("Goes in", this.boxInputs(box), true) : null,
      single === null ? this.values("Comes out", this.boxOutputs(box), false) : null,
      single === null ? details(`Nodes (${formatCount(nodes.length)})`, () => this.view.nodeList(nodes)) : null,
    ];
  }

  describeErrors(box) {
    const rows = this.model.errors.get(box) ?? [];
    return rows.slice(0, MOST_LISTED).map((row) => [
      make("h4", {}, "Error of ", code(row.output, 80)),
      this.facts(["own", "inherited", "total"].map((kind) => [kind, describeError(row[kind])])),
    ]);
  }

  kindOf(box) {
    const { model } = this;
    if (model.boxContext[box]) return "EPContext node: compiled already";
    const ep = model.ep(box);
    if (ep.kind === "session") return "run by the session itself";
    if (ep.kind === "cpu") return "nodes that the CPU EP runs";
    return `partition ${formatCount(model.boxPartition[box])}${ep.simulated ? " of a simulated EP" : ""}`;
  }

  expandButton(box) {
    if (this.view.scene.graph !== (this.model.boxGraph[box] ?? 0)) return null;
    const open = this.view.scene.expanded.has(box);
    return make("button", { type: "button", class: "expand", onclick: () => this.view.toggle(box) }, open ? "Collapse" : "Expand");
  }

  swatch(box) {
    return make("span", { class: `swatch ${this.view.boxClasses[box]}` });
  }

  describeNode(node, within = false) {
    const { model, view } = this;
    const box = model.boxOf[node];
    const refusals = model.refusalsOf(node);
    const subgraphs = model.subgraphs.get(node) ?? [];
    return [
      within ? null : make("h3", {}, this.swatch(box), display(model.op(node), 60)),
      this.facts([
        [within ? "Node" : "Name", model.nodeNames[node] ? code(model.nodeNames[node]) : make("i", {}, "(no name)")],
        ["Operator", within && data(model.op(node))],
        ["EP", !within && data(model.ep(box).name)],
        ["Box", !within && link(display(model.boxTitle(box), 40), () => view.reveal({ kind: "box", id: box }))],
        ["Weights", !within && !model.boxContext[box] && formatBytes(model.weights[node] ?? null)],
      ]),
      this.describeContext(node),
      subgraphs.map((graph) => make("p", {}, make("button", { type: "button", class: "subgraph", onclick: () => view.openGraph(graph) },
        `Open the subgraph ${display(model.graphs[graph].name, 60)}`))),
      refusals.length ? make("h4", {}, "Refused") : null,
      refusals.length ? make("ul", {}, refusals.map(({ ep, reason, follows }) =>
        make("li", {}, make("b", {}, display(shortName(ep), 60)), ": ", data(reason), follows ? make("i", {}, " (because a node that it serves is refused)") : null))) : null,
      this.values("Inputs", [...new Set(model.inputsOf.of(node))], true),
      this.values("Outputs", [...model.outputsOf.of(node)], false),
    ].flat();
  }

  describeContext(node) {
    const facts = this.model.contextFacts.get(node) ?? [];
    if (!facts.length) return null;
    return [make("h4", {}, "Compiled"), this.facts(facts.map(({ name, value }) => [data(name, 80), data(value, 1000)]))];
  }

  facts(rows) {
    return make("dl", {}, rows.filter(([, value]) => value).map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  }

  boxRefusals(nodes) {
    const { model } = this;
    const counts = new Map();
    for (const node of nodes) {
      for (const { ep, reason } of model.refusalsOf(node)) {
        const key = JSON.stringify([ep, reason]);
        counts.set(key, (counts.get(key) ?? 0) + 1);
      }
    }
    if (!counts.size) return null;
    const sorted = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 10);
    return [make("h4", {}, "Refused"), make("ul", {}, sorted.map(([key, count]) => {
      const [ep, reason] = JSON.parse(key);
      return make("li", {}, make("b", {}, display(shortName(ep), 60)), ": ", data(reason), ` (${countOf(count, "node")})`);
    }))];
  }

  boxInputs(box) {
    const { model } = this;
    const found = new Set();
    for (const node of model.nodesOf.of(box)) {
      for (const value of model.inputsOf.of(node)) {
        const producer = model.producer[value];
        if (producer < 0 || model.boxOf[producer] !== box) found.add(value);
      }
    }
    return [...found];
  }

  boxOutputs(box) {
    const { model } = this;
    const found = [];
    for (const node of model.nodesOf.of(box)) {
      for (const value of model.outputsOf.of(node)) {
        if (model.results.has(value) || model.readersOf.of(value).some((reader) => model.boxOf[reader] !== box)) found.push(value);
      }
    }
    return found;
  }

  values(head, values, incoming) {
    if (!values.length) return null;
    const { model } = this;
    const rows = values.slice(0, MOST_LISTED).map((value) => make("li", {},
      code(model.valueName(value), 80), " ",
      make("span", { class: "type" }, data(model.types[model.typeOf[value]] ?? "?", 80), ` · ${formatBytes(model.bytesOf(value))}`),
      make("div", { class: "ends" }, incoming ? this.source(value) : this.targets(value))));
    if (values.length > MOST_LISTED) rows.push(make("li", {}, `… and ${formatCount(values.length - MOST_LISTED)} more`));
    return [make("h4", {}, `${head} (${formatCount(values.length)})`), make("ul", { class: "values" }, rows)];
  }

  source(value) {
    const producer = this.model.producer[value];
    return producer < 0 ? "from an input of the graph" : ["from ", this.view.nodeLink(producer)];
  }

  targets(value) {
    const readers = [...new Set(this.model.readersOf.of(value))];
    const links = readers.slice(0, 8).flatMap((reader, at) => [at ? ", " : "to ", this.view.nodeLink(reader)]);
    if (readers.length > 8) links.push(` and ${countOf(readers.length - 8, "other")}`);
    if (this.model.results.has(value)) links.push(links.length ? "; an output of the graph" : "an output of the graph");
    return links.length ? links : "read by no node";
  }
}
