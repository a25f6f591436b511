// Positions: dagre for small views, given or computed layers for large ones.

const SMALL = 400;
const DAGRE_COST = 50_000; // some 0.3 s
const GAP_X = 26;
const GAP_Y = 48;

/** Places for the items of `contents`, whose sizes are given: {x, y, w, h, …}. */
function layOut(contents, w, h, slot) {
  const count = contents.ids.length;
  const small = count <= SMALL && contents.from.length <= 3 * SMALL;
  const result = (small && isCheapForDagre(contents) && layOutByDagre(contents, w, h)) || layOutByLayers(contents, w, h, slot);
  result.itemIndex = new BandIndex(result.y, result.y.map((y, at) => y + h[at]), result.height);
  const [tops, bottoms] = edgeSpans(contents, result);
  result.edgeIndex = new BandIndex(tops, bottoms, result.height);
  return result;
}

/** dagre's time grows with layers times the nodes that it makes of long edges. */
function isCheapForDagre(contents) {
  const { layer } = contents.longest ??= makeLayers(contents);
  let layers = 1, nodes = contents.ids.length;
  for (const at of layer) layers = Math.max(layers, at + 1);
  contents.from.forEach((from, edge) => (nodes += layer[contents.to[edge]] - layer[from]));
  return layers * nodes <= DAGRE_COST;
}

function layOutByDagre(contents, w, h) {
  const count = contents.ids.length;
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({
    rankdir: "TB", nodesep: GAP_X, edgesep: 14, ranksep: 20, marginx: 8, marginy: 8,
    ranker: contents.from.length > 300 ? "tight-tree" : "network-simplex",
  });
  for (let at = 0; at < count; at += 1) graph.setNode(String(at), { width: w[at], height: h[at] });
  contents.from.forEach((from, edge) => {
    graph.setEdge(String(from), String(contents.to[edge]),
      { edge, width: edgeLabel(contents, edge).length * 6.4 + 10, height: 16, labelpos: "c" });
  });
  try {
    dagre.layout(graph);
  } catch (error) {
    console.warn("dagre failed; the graph is laid out by layers", error);
    return null;
  }
  const x = new Float64Array(count), y = new Float64Array(count);
  for (let at = 0; at < count; at += 1) {
    const place = graph.node(String(at));
    x[at] = place.x - w[at] / 2;
    y[at] = place.y - h[at] / 2;
  }
  const points = [], labels = [];
  for (const key of graph.edges()) {
    const label = graph.edge(key);
    points[label.edge] = label.points;
    labels[label.edge] = { x: label.x, y: label.y };
  }
  const { width, height } = graph.graph();
  return { x, y, w, h, points, labels, width: Math.max(width, 1) || 1, height: Math.max(height, 1) || 1 };
}

/** Layers below each other; within a layer x in slots, pushed right where items overlap. */
function layOutByLayers(contents, w, h, slot) {
  const count = contents.ids.length;
  const { layer, x: slots } = contents.layer ? contents : contents.longest ??= makeLayers(contents);
  const x = new Float64Array(count), y = new Float64Array(count);
  const order = Array.from({ length: count }, (_, at) => at)
    .sort((a, b) => layer[a] - layer[b] || slots[a] - slots[b] || a - b);
  const least = order.reduce((found, at) => Math.min(found, slots[at]), Infinity);
  let top = 8, width = 1;
  for (let first = 0; first < count;) {
    let last = first, tallest = 0, free = 8;
    for (; last < count && layer[order[last]] === layer[order[first]]; last += 1) {
      const at = order[last];
      x[at] = Math.max(free, 8 + (slots[at] - least) * (slot + GAP_X));
      y[at] = top;
      free = x[at] + w[at] + GAP_X;
      tallest = Math.max(tallest, h[at]);
    }
    width = Math.max(width, free - GAP_X + 8);
    top += tallest + GAP_Y;
    first = last;
  }
  // Edges over several layers go beside the items, with their labels.
  if (contents.from.some((from, edge) => layer[contents.to[edge]] - layer[from] > 1)) width += 84;
  return { x, y, w, h, points: null, labels: null, width, height: Math.max(1, top - GAP_Y + 8) };
}

/** Longest paths from the sources, where the data has no layers. */
function makeLayers(contents) {
  const count = contents.ids.length;
  const layer = new Float64Array(count), x = new Float64Array(count);
  const waiting = Int32Array.from({ length: count }, (_, at) => contents.before.size(at));
  const ready = [];
  for (let at = 0; at < count; at += 1) if (waiting[at] === 0) ready.push(at);
  for (let next = 0; next < ready.length; next += 1) {
    const from = ready[next];
    for (const edge of contents.after.of(from)) {
      const to = contents.to[edge];
      layer[to] = Math.max(layer[to], layer[from] + 1);
      if (--waiting[to] === 0) ready.push(to);
    }
  }
  alignLayers(contents, layer, x);
  return { layer, x };
}

/** Sets x in slots: below the middle of what an item reads, without overlaps. */
function alignLayers(contents, layer, x) {
  const rows = [];
  layer.forEach((row, at) => (rows[row] ??= []).push(at));
  for (const row of rows) {
    const aims = new Map(row.map((at) => {
      const before = contents.before.of(at);
      let sum = 0;
      for (const edge of before) sum += x[contents.from[edge]];
      return [at, before.length ? sum / before.length : 0];
    }));
    row.sort((a, b) => aims.get(a) - aims.get(b) || a - b);
    let free = -Infinity, off = 0;
    for (const at of row) {
      x[at] = Math.max(aims.get(at), free);
      free = x[at] + 1;
      off += x[at] - aims.get(at);
    }
    // What was pushed right is moved back by half of it on average.
    for (const at of row) x[at] -= off / row.length;
  }
}

function edgeSpans(contents, { y, h, points }) {
  const tops = new Float64Array(contents.from.length), bottoms = new Float64Array(tops.length);
  for (let edge = 0; edge < tops.length; edge += 1) {
    const path = points?.[edge];
    const start = path ? path[0].y : y[contents.from[edge]] + h[contents.from[edge]];
    const end = path ? path.at(-1).y : y[contents.to[edge]];
    tops[edge] = Math.min(start, end);
    bottoms[edge] = Math.max(start, end);
  }
  return [tops, bottoms];
}

/** Intervals of y, found by the bands of equal height that they lie in. */
class BandIndex {
  constructor(tops, bottoms, height) {
    this.tops = tops;
    this.bottoms = bottoms;
    this.band = Math.max(256, height / 4096);
    this.count = Math.floor(height / this.band) + 1;
    this.long = [];
    const bands = [], members = [];
    for (let at = 0; at < tops.length; at += 1) {
      const first = this.bandOf(tops[at]), last = this.bandOf(bottoms[at]);
      if (last - first > 16) this.long.push(at);
      else for (let band = first; band <= last; band += 1) {
        bands.push(band);
        members.push(at);
      }
    }
    this.members = new Groups(bands, this.count, members);
  }

  bandOf(y) {
    return Math.min(this.count - 1, Math.max(0, Math.floor(y / this.band)));
  }

  /** Calls `visit` once for each interval that meets top..bottom. */
  each(top, bottom, visit) {
    if (bottom < 0) return;
    const first = this.bandOf(top);
    const last = this.bandOf(bottom);
    for (let band = first; band <= last; band += 1) {
      for (const at of this.members.of(band)) {
        // In several bands it is visited in the first of them.
        if (band > first && this.bandOf(this.tops[at]) < band) continue;
        if (this.tops[at] <= bottom && this.bottoms[at] >= top) visit(at);
      }
    }
    for (const at of this.long) {
      if (this.tops[at] <= bottom && this.bottoms[at] >= top) visit(at);
    }
  }
}
