// The scene: which graph is shown, which boxes are expanded, and where everything is.

const HEAD = 34;
const PADDING = 12;

/** A graph of a model as boxes, some of which are expanded to their operators. */
class Scene {
  constructor(model, graph) {
    this.model = model;
    this.graph = graph;
    this.contents = model.graphContents(graph);
    this.large = this.contents.ids.length > SMALL;
    this.expanded = new Map();
    this.place();
  }

  get width() {
    return this.places.width;
  }

  get height() {
    return this.places.height;
  }

  isExpandable(box) {
    return this.model.nodesOf.size(box) > 1;
  }

  place() {
    const { ids } = this.contents;
    const [width, height] = this.large ? [184, 46] : [204, 66];
    const w = new Float64Array(ids.length).fill(width);
    const h = new Float64Array(ids.length).fill(height);
    for (const [box, inner] of this.expanded) {
      const at = this.contents.local.get(box);
      w[at] = Math.max(inner.width + 2 * PADDING, 230);
      h[at] = inner.height + HEAD + PADDING;
    }
    this.places = layOut(this.contents, w, h, width);
  }

  toggle(box) {
    if (this.expanded.has(box)) this.expanded.delete(box);
    else if (this.isExpandable(box)) this.expanded.set(box, this.layOutInner(box));
    else return;
    this.place();
  }

  layOutInner(box) {
    const contents = this.model.boxContents(box);
    contents.inner ??= layOut(contents,
      new Float64Array(contents.ids.length).fill(152), new Float64Array(contents.ids.length).fill(40), 152);
    return contents.inner;
  }

  /** The rectangle of a box, or of an operator of an expanded box. */
  rectangle({ kind, id }) {
    const box = kind === "box" ? id : this.model.boxOf[id];
    const at = this.contents.local.get(box);
    const { x, y, w, h } = this.places;
    const inner = this.expanded.get(box);
    if (kind === "box" || !inner) return { x: x[at], y: y[at], w: w[at], h: h[at] };
    const node = this.model.boxContents(box).local.get(id);
    const [left, top] = this.innerOrigin(box, at);
    return { x: left + inner.x[node], y: top + inner.y[node], w: inner.w[node], h: inner.h[node] };
  }

  innerOrigin(box, at = this.contents.local.get(box)) {
    const inner = this.expanded.get(box);
    return [this.places.x[at] + (this.places.w[at] - inner.width) / 2, this.places.y[at] + HEAD];
  }

  /** Boxes within a rectangle, and operators unless they are too small to be drawn. */
  count(area, scale = 1) {
    let found = 0;
    this.each(area, scale >= OPERATORS_FROM, () => (found += 1));
    return found;
  }

  /** The open box that has most of `area`, or null. */
  openWithin(area) {
    let best = null, most = 0;
    for (const box of this.expanded.keys()) {
      const { x, y, w, h } = this.rectangle({ kind: "box", id: box });
      const width = Math.min(x + w, area.x + area.w) - Math.max(x, area.x);
      const height = Math.min(y + h, area.y + area.h) - Math.max(y, area.y);
      if (width > 0 && height > 0 && width * height > most) [best, most] = [box, width * height];
    }
    return best;
  }

  /** Calls `visit(kind, id, at, left, top, places)` for each box that meets `area`, and for
   * each operator of open ones if `operators`. */
  each(area, operators, visit) {
    const { ids } = this.contents;
    eachItem(this.places, area, 0, 0, (at) => {
      visit("box", ids[at], at, 0, 0, this.places);
      const inner = this.expanded.get(ids[at]);
      if (!inner || !operators) return;
      const [left, top] = this.innerOrigin(ids[at], at);
      const nodes = this.model.boxContents(ids[at]).ids;
      eachItem(inner, area, left, top, (node) => visit("node", nodes[node], node, left, top, inner));
    });
  }
}

function eachItem(places, area, left, top, visit) {
  const { x, w } = places;
  places.itemIndex.each(area.y - top, area.y + area.h - top, (at) => {
    if (x[at] + left <= area.x + area.w && x[at] + w[at] + left >= area.x) visit(at);
  });
}
