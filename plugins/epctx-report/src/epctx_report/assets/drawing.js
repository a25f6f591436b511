// Drawing of what lies in a window of the scene, as SVG.

const LABELS_FROM = 0.42; // the smallest scale at which texts can be read
const OPERATORS_FROM = 0.08; // the smallest one at which those of open boxes are drawn
const MOST_EDGES = 900;
const THICKNESS = [1.2, 2, 3.2, 4.8];

function edgeLabel(contents, edge) {
  return formatBytes(contents.bytes[edge]);
}

function thicknessOf(bytes) {
  if (bytes < 64 * 1024) return 0;
  if (bytes < 1024 * 1024) return 1;
  return bytes < 16 * 1024 * 1024 ? 2 : 3;
}

/** The elements for a window {x, y, w, h}; `chosen` is the selection. */
class Drawing {
  constructor(scene, area, scale, chosen, classes) {
    Object.assign(this, { scene, area, chosen, classes });
    this.texts = scale >= LABELS_FROM;
    this.operators = scale >= OPERATORS_FROM;
    this.model = scene.model;
    this.edges = [];
    this.items = [];
    this.labels = [];
  }

  make() {
    const { scene } = this;
    this.addEdges(scene.contents, scene.places, 0, 0, "box");
    scene.each(this.area, this.operators, (kind, id, at, left, top, places) => {
      const x = left + places.x[at] - this.area.x, y = top + places.y[at] - this.area.y;
      if (kind === "node") {
        this.items.push(this.makeNode(id, x, y, places.w[at], places.h[at]));
        return;
      }
      const open = scene.expanded.get(id);
      this.items.push(this.makeBox(id, x, y, places.w[at], places.h[at], Boolean(open)));
      if (!open || !this.operators) return;
      const [innerLeft, innerTop] = scene.innerOrigin(id, at);
      this.addEdges(this.model.boxContents(id), open, innerLeft, innerTop, "node", this.items, this.classes[id]);
    });
    return [...this.edges, ...this.items, ...this.labels];
  }

  isChosen(kind, id) {
    return this.chosen?.kind === kind && this.chosen.id === id;
  }

  makeBox(box, x, y, w, h, open) {
    const { model } = this;
    const nodes = model.nodesOf.size(box);
    const element = draw("svg", {
      x, y, width: w, height: h, id: `box-${box}`, "data-box": box, role: "img",
      class: `box ${this.classes[box]}${open ? " open" : ""}` +
        `${model.boxContext[box] ? " context" : ""}${this.isChosen("box", box) ? " chosen" : ""}`,
    });
    element.append(draw("rect", { x: 1.5, y: 1.5, width: Math.max(0, w - 3), height: Math.max(0, h - 3), rx: 5 }));
    if (model.boxContext[box]) {
      element.append(draw("rect", { x: 5, y: 5, width: Math.max(0, w - 10), height: Math.max(0, h - 10), rx: 3, class: "inset" }));
    }
    const single = nodes === 1 ? model.nodesOf.of(box)[0] : null;
    const head = display(model.boxTitle(box), 20);
    const size = single === null ? countOf(nodes, "operator") : display(model.op(single).replace(/^.*::/, ""), 16);
    element.setAttribute("aria-label", `${head}, ${size}`);
    if (!this.texts) return element;
    const mark = nodes > 1 ? (open ? "▾ " : "▸ ") : "";
    element.append(draw("text", { x: 12, y: 20, class: "head" }, mark + head));
    const seconds = model.boxSeconds?.[box];
    if (seconds !== null && seconds !== undefined) {
      // Beside the short second line; the first one is as long as the EP's name.
      const y = open || this.scene.large ? 20 : 37;
      element.append(draw("text", { x: w - 12, y, class: "end" }, formatSeconds(seconds)));
    }
    if (open) {
      if (seconds === null || seconds === undefined) {
        element.append(draw("text", { x: w - 12, y: 20, class: "end" }, size));
      }
      return element;
    }
    if (this.scene.large) {
      const number = `${formatCount(nodes)}: `;
      const text = single === null ? number + listOps(model.countOps(box), 24 - number.length) : size;
      element.append(draw("text", { x: 12, y: 36, class: "small" }, text));
    } else {
      element.append(draw("text", { x: 12, y: 37 }, size));
      const text = single === null ? listOps(model.countOps(box), 27) : display(model.nodeNames[single], 27);
      element.append(draw("text", { x: 12, y: 54, class: "small" }, text));
    }
    return element;
  }

  makeNode(node, x, y, w, h) {
    const { model } = this;
    const element = draw("svg", {
      x, y, width: w, height: h, id: `node-${node}`, "data-node": node, role: "img",
      class: `node${model.subgraphs.has(node) ? " owner" : ""}${this.isChosen("node", node) ? " chosen" : ""}`,
    });
    const op = display(model.op(node), 16);
    element.setAttribute("aria-label", `${op} ${display(model.nodeNames[node], 40)}`);
    element.append(draw("rect", { x: 1.5, y: 1.5, width: w - 3, height: h - 3, rx: 4 }));
    if (!this.texts) return element;
    element.append(draw("text", { x: 10, y: 17, class: "head" }, model.subgraphs.has(node) ? `${op} ⧉` : op));
    element.append(draw("text", { x: 10, y: 32, class: "small" }, display(model.nodeNames[node], 20)));
    return element;
  }

  /** Edges as one path for each thickness: thousands of them are a few elements. */
  addEdges(contents, places, left, top, kind, target = this.edges, ground = "") {
    const { area } = this;
    const paths = new Map();
    for (const edge of this.chooseEdges(contents, places, left, top)) {
      const points = places.points?.[edge] ?? straight(contents, places, edge);
      const near = this.chosen?.kind === kind &&
        (contents.ids[contents.from[edge]] === this.chosen.id || contents.ids[contents.to[edge]] === this.chosen.id);
      const style = `edge${kind === "node" ? " inner-edge" : ""} t${thicknessOf(contents.bytes[edge])}${near ? " near" : ""}`;
      if (!paths.has(style)) paths.set(style, { lines: [], arrows: [] });
      const moved = points.map((point) => [point.x + left - area.x, point.y + top - area.y]);
      const { lines, arrows } = paths.get(style);
      lines.push(curve(moved));
      arrows.push(arrow(moved.at(-1), THICKNESS[thicknessOf(contents.bytes[edge])]));
      if (this.texts && this.labels.length < 600) this.addLabel(contents, places, edge, moved, left, top, `${near ? " near" : ""}${ground ? ` inner ${ground}` : ""}`);
    }
    for (const [style, { lines, arrows }] of paths) {
      target.push(draw("path", { class: style, d: lines.join("") }));
      target.push(draw("path", { class: `${style} arrow`, d: arrows.join("") }));
    }
  }

  /** The edges in the window; of too many, those with both ends in it go first. */
  chooseEdges(contents, places, left, top) {
    const { area } = this;
    const { x, w } = places;
    const within = (item) => x[item] + left <= area.x + area.w && x[item] + w[item] + left >= area.x;
    const inner = [], passing = [];
    places.edgeIndex.each(area.y - top, area.y + area.h - top, (edge) => {
      const from = contents.from[edge], to = contents.to[edge];
      if (within(from) && within(to)) inner.push(edge);
      else if (meets(contents, places, edge, area.x - left, area.x + area.w - left)) passing.push(edge);
    });
    if (inner.length > MOST_EDGES) return inner.slice(0, MOST_EDGES);
    const step = Math.max(1, Math.ceil(passing.length / (MOST_EDGES - inner.length + 1)));
    return inner.concat(step === 1 ? passing : passing.filter((_, at) => at % step === 0));
  }

  addLabel(contents, places, edge, moved, left, top, style) {
    const { area } = this;
    const given = places.labels?.[edge];
    let x, y;
    if (given) {
      [x, y] = [given.x + left - area.x, given.y + top - area.y + 4];
    } else {
      // Beside the end of a long edge; in the middle of one between neighbouring layers.
      const [[fromX, fromY], [toX, toY]] = [moved[0], moved.at(-1)];
      const long = toY - fromY > GAP_Y + 2;
      [x, y] = moved.length > 2 ? [moved[2][0], moved[2][1] + 4] : long ? [toX, toY - 14] : [(fromX + toX) / 2, (fromY + toY) / 2 + 4];
    }
    if (x < -60 || y < -20 || x > area.w + 60 || y > area.h + 20) return;
    const label = draw("text", { x, y, class: `bytes${style}` }, edgeLabel(contents, edge));
    this.labels.push(label);
  }
}

function meets(contents, { points, x, w }, edge, first, last) {
  const path = points?.[edge];
  if (path) return path.some((point) => point.x <= last) && path.some((point) => point.x >= first);
  const from = contents.from[edge], to = contents.to[edge];
  const start = x[from] + w[from] / 2, end = x[to] + w[to] / 2;
  const side = Math.max(x[from] + w[from], x[to] + w[to]) + 50;
  return Math.min(start, end) <= last && Math.max(start, end, side) >= first;
}

/** A line between neighbouring layers; a longer edge goes beside what is between. */
function straight(contents, { x, y, w, h }, edge) {
  const from = contents.from[edge], to = contents.to[edge];
  const start = { x: x[from] + w[from] / 2, y: y[from] + h[from] };
  const end = { x: x[to] + w[to] / 2, y: y[to] };
  if (end.y - start.y < 1.5 * GAP_Y || Math.abs(end.x - start.x) > w[to]) return [start, end];
  const side = Math.max(x[from] + w[from], x[to] + w[to]) + 12 + 10 * (edge % 4);
  return [start, { x: side, y: start.y + 22 }, { x: side, y: start.y + 44 }, { x: side, y: end.y - 44 }, { x: side, y: end.y - 22 }, end];
}

function curve(points) {
  const at = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const [first, ...rest] = points;
  const last = points.at(-1);
  if (points.length < 3) {
    const bend = Math.min(60, Math.abs(last[1] - first[1]) / 2);
    return `M${at(first)}C${at([first[0], first[1] + bend])} ${at([last[0], last[1] - bend])} ${at(last)}`;
  }
  let path = `M${at(first)}`;
  for (let index = 0; index < rest.length - 1; index += 1) {
    const [x, y] = rest[index], [nextX, nextY] = rest[index + 1];
    const end = index === rest.length - 2 ? rest[index + 1] : [(x + nextX) / 2, (y + nextY) / 2];
    path += `Q${at([x, y])} ${at(end)}`;
  }
  return path;
}

function arrow([x, y], thickness) {
  const half = 2.8 + thickness / 2;
  return `M${(x - half).toFixed(1)} ${(y - 2.2 * half).toFixed(1)}l${half.toFixed(1)} ${(2.2 * half + 1).toFixed(1)}l${half.toFixed(1)} ${(-2.2 * half - 1).toFixed(1)}z`;
}
