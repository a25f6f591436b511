// The data of the page: decoding, columns, and the indexes over nodes, boxes and values.

async function readData() {
  const packed = atob(document.getElementById("data").textContent);
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at += 1) bytes[at] = packed.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** The values of a column: an array, or integers as {d: [first, difference, …]}. */
function column(raw, length = 0, missing = 0) {
  if (Array.isArray(raw)) return raw;
  if (raw && Array.isArray(raw.d)) {
    const values = new Float64Array(raw.d.length);
    let value = 0;
    for (let at = 0; at < values.length; at += 1) values[at] = value += raw.d[at];
    return values;
  }
  return new Array(length).fill(missing);
}

/** For each key of 0..count-1 the positions at which it stands in `keys`. */
class Groups {
  constructor(keys, count, values = null) {
    this.start = new Int32Array(count + 1);
    for (let at = 0; at < keys.length; at += 1) if (keys[at] >= 0) this.start[keys[at] + 1] += 1;
    for (let key = 0; key < count; key += 1) this.start[key + 1] += this.start[key];
    this.items = new Int32Array(this.start[count]);
    const next = this.start.slice();
    for (let at = 0; at < keys.length; at += 1) {
      if (keys[at] >= 0) this.items[next[keys[at]]++] = values ? values[at] : at;
    }
  }

  of(key) {
    return this.items.subarray(this.start[key], this.start[key + 1]);
  }

  size(key) {
    return this.start[key + 1] - this.start[key];
  }
}

/** The index of each of some ids: a map of few, an array of many. */
class Locals {
  constructor(ids, at) {
    this.dense = ids.length > 1000 ? at : null;
    this.map = this.dense ? null : new Map(Array.from(ids, (id, index) => [id, index]));
  }

  get(id) {
    if (this.map) return this.map.get(id);
    return this.dense[id] >= 0 ? this.dense[id] : undefined;
  }

  has(id) {
    return this.get(id) !== undefined;
  }
}

/** One model, read from its columns. Nodes, boxes and values are numbers. */
class Model {
  constructor(raw) {
    this.raw = raw;
    this.eps = raw.eps ?? [];
    this.graphs = raw.graphs?.length ? raw.graphs : [{ name: "", owner: null }];
    this.readNodes(raw.nodes ?? {});
    this.readBoxes(raw.boxes ?? {});
    this.readValues(raw.values ?? {}, raw.uses ?? {});
    this.subgraphs = new Map();
    this.graphs.forEach(({ owner }, graph) => {
      if (owner === null || owner === undefined) return;
      this.subgraphs.set(owner, [...(this.subgraphs.get(owner) ?? []), graph]);
    });
    this.contextFacts = new Map((raw.contexts ?? []).map(({ node, facts }) => [node, facts ?? []]));
    this.contents = new Map();
    this.errors = new Map();
    for (const row of raw.errors?.rows ?? []) this.errors.set(row.box, [...(this.errors.get(row.box) ?? []), row]);
  }

  readNodes(nodes) {
    this.nodeNames = column(nodes.name);
    this.nodeCount = this.nodeNames.length;
    this.ops = nodes.ops ?? [];
    this.opOf = column(nodes.op, this.nodeCount);
    this.boxOf = column(nodes.box, this.nodeCount);
    this.weights = column(nodes.weight_bytes, this.nodeCount);
  }

  readBoxes(boxes) {
    this.boxGraph = column(boxes.graph);
    const count = this.boxGraph.length;
    this.boxCount = count;
    this.boxEp = column(boxes.ep, count);
    this.boxPartition = column(boxes.partition, count, -1);
    this.boxContext = column(boxes.context, count);
    this.boxSeconds = boxes.seconds ? column(boxes.seconds) : null;
    this.boxLayer = boxes.layer ? column(boxes.layer) : null;
    this.boxX = boxes.x ? column(boxes.x) : null;
    this.nodesOf = new Groups(this.boxOf, count);
    this.boxesOf = new Groups(this.boxGraph, this.graphs.length);
  }

  readValues(values, uses) {
    this.producer = column(values.producer);
    this.valueNames = column(values.name);
    this.types = values.types ?? [];
    this.typeBytes = values.type_bytes ?? [];
    this.typeOf = column(values.type, this.producer.length);
    this.results = new Set(this.raw.results ?? []);
    const [value, node] = this.liftUses(column(uses.value), column(uses.node));
    this.readersOf = new Groups(value, this.producer.length, node);
    this.inputsOf = new Groups(node, this.nodeCount, value);
    this.outputsOf = new Groups(this.producer, this.nodeCount);
  }

  /** Uses, and for each use in a subgraph of a value from without that of its owner. */
  liftUses(value, node) {
    if (this.graphs.length === 1) return [value, node];
    const values = Array.from(value);
    const nodes = Array.from(node);
    const seen = new Set();
    for (let at = 0; at < value.length; at += 1) {
      const producer = this.producer[value[at]];
      if (producer < 0) continue;
      const target = this.graphOf(producer);
      let reader = node[at];
      for (let depth = 0; depth < 64 && this.graphOf(reader) !== target; depth += 1) {
        reader = this.graphs[this.graphOf(reader)]?.owner;
        if (reader === null || reader === undefined) break;
        const key = value[at] * this.nodeCount + reader;
        if (!seen.has(key)) {
          seen.add(key);
          values.push(value[at]);
          nodes.push(reader);
        }
      }
    }
    return [values, nodes];
  }

  graphOf(node) {
    return this.boxGraph[this.boxOf[node]] ?? 0;
  }

  op(node) {
    return this.ops[this.opOf[node]] ?? "?";
  }

  /** The node's name, or its operator in brackets. */
  nodeLabel(node) {
    return this.nodeNames[node] || `(${this.op(node)})`;
  }

  valueName(value) {
    const name = this.valueNames[value] ?? "";
    if (name.charCodeAt(0) !== 0 || this.producer[value] < 0) return name;
    return this.nodeNames[this.producer[value]] + name.slice(1);
  }

  bytesOf(value) {
    return this.typeBytes[this.typeOf[value]] ?? null;
  }

  ep(box) {
    return this.eps[this.boxEp[box]] ?? { name: "?", kind: "session" };
  }

  /** "QNN 3", "CPU", "session". */
  boxTitle(box) {
    const ep = this.ep(box);
    const name = shortName(ep.name);
    if (this.boxPartition[box] >= 0) return `${name} ${formatCount(this.boxPartition[box])}`;
    return this.boxContext[box] ? `${name}, compiled` : name;
  }

  /** Operators of a box with their numbers, most frequent first. */
  countOps(box) {
    const counts = new Map();
    for (const node of this.nodesOf.of(box)) {
      counts.set(this.opOf[node], (counts.get(this.opOf[node]) ?? 0) + 1);
    }
    return [...counts].sort((a, b) => b[1] - a[1]).map(([op, count]) => [this.ops[op] ?? "?", count]);
  }

  boxWeights(box) {
    let bytes = 0;
    for (const node of this.nodesOf.of(box)) bytes += this.weights[node] ?? 0;
    return bytes;
  }

  /** Refusals by node, made when first asked for. */
  refusalsOf(node) {
    if (!this.refusals) {
      this.refusals = new Map();
      for (const refusal of this.raw.refusals ?? []) {
        const follows = new Set(column(refusal.follows));
        for (const refused of column(refusal.nodes)) {
          if (!this.refusals.has(refused)) this.refusals.set(refused, []);
          this.refusals.get(refused).push({ ...refusal, follows: follows.has(refused) });
        }
      }
    }
    return this.refusals.get(node) ?? [];
  }

  /** The boxes of a graph and the edges between them, with the bytes that cross. */
  graphContents(graph) {
    return this.cached(`graph ${graph}`, () => {
      const ids = this.boxesOf.of(graph);
      const given = ids.length > 400 && this.boxLayer && this.boxX;
      const positions = given ? { layer: this.boxLayer, x: this.boxX } : null;
      const nodes = (box) => this.nodesOf.of(box);
      const place = (node) => this.boxOf[node];
      return this.collect("box", ids, nodes, place, positions);
    });
  }

  /** The operators of a box and the edges between them. */
  boxContents(box) {
    const inner = this.raw.inner;
    return this.cached(`box ${box}`, () => {
      const members = this.nodesOf.of(box);
      let positions = null;
      if (inner && members.length > 400) {
        const [nodes, layers, xs] = this.innerColumns ??= [inner.node, inner.layer, inner.x].map((raw) => column(raw));
        const layer = new Float64Array(this.nodeCount).fill(-1), x = new Float64Array(this.nodeCount);
        for (let at = 0; at < nodes.length; at += 1) {
          layer[nodes[at]] = layers[at];
          x[nodes[at]] = xs[at];
        }
        if (members.every((node) => layer[node] >= 0)) positions = { layer, x };
      }
      return this.collect("node", members, (node) => [node], (node) => node, positions);
    });
  }

  cached(key, make_) {
    if (!this.contents.has(key)) this.contents.set(key, make_());
    return this.contents.get(key);
  }

  collect(kind, ids, nodesOf, place, positions) {
    const size = ids.length;
    const at = new Int32Array(kind === "box" ? this.boxCount : this.nodeCount).fill(-1);
    for (let index = 0; index < size; index += 1) at[ids[index]] = index;
    const from = [], to = [], bytes = [];
    // By target: the source and the value seen last, and the edge from that source.
    const lastSource = new Int32Array(size).fill(-1);
    const lastValue = new Int32Array(size).fill(-1);
    const lastEdge = new Int32Array(size);
    for (let source = 0; source < size; source += 1) {
      for (const node of nodesOf(ids[source])) {
        for (const value of this.outputsOf.of(node)) {
          const added = this.bytesOf(value);
          for (const reader of this.readersOf.of(value)) {
            const target = at[place(reader)] ?? -1;
            if (target < 0 || target === source || lastValue[target] === value) continue;
            lastValue[target] = value;
            if (lastSource[target] !== source) {
              lastSource[target] = source;
              lastEdge[target] = from.length;
              from.push(source);
              to.push(target);
              bytes.push(0);
            }
            const edge = lastEdge[target];
            // One unknown size makes the sum unknown.
            bytes[edge] = added === null || bytes[edge] < 0 ? -1 : bytes[edge] + added;
          }
        }
      }
    }
    const read = (source) => {
      const found = new Float64Array(size);
      for (let index = 0; index < size; index += 1) found[index] = source[ids[index]] ?? 0;
      return found;
    };
    return {
      kind, ids, local: new Locals(ids, at), from: new Int32Array(from), to: new Int32Array(to),
      bytes: new Float64Array(bytes),
      layer: positions && read(positions.layer), x: positions && read(positions.x),
      after: new Groups(from, size), before: new Groups(to, size),
    };
  }
}
