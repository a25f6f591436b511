// The page: title, the choice of a model, the graph with its panel, the sections.

class View {
  constructor(model) {
    this.model = model;
    this.classes = colourClasses(model);
    this.boxClasses = boxClasses(model, this.classes);
    this.chosen = null;
    this.scenes = new Map();
    this.frame = new Frame(this);
    this.overview = new Overview(this);
    this.panel = new Panel(this);
    this.search = new Search(this);
    this.paper = make("div", { class: "paper" });
    this.crumbs = make("nav", { class: "crumbs", "aria-label": "Graphs" });
    const button = (label, text, act) => make("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    this.element = make("div", { class: "cut" },
      make("div", { class: "tools" }, this.search.element,
        make("div", { class: "zoom" },
          button("Zoom out", "−", () => this.frame.zoom(this.frame.scale / 1.25)),
          button("Zoom in", "+", () => this.frame.zoom(this.frame.scale * 1.25)),
          button("Fit the graph", "fit", () => this.frame.fit()))),
      this.crumbs,
      this.paper,
      make("div", { class: "stage" }, make("div", { class: "framed" }, this.overview.element, this.frame.element, this.frame.head), this.panel.element));
    bindKeys(this);
  }

  /** Shows a graph for the first time; the element is in the document by then. */
  start() {
    this.openGraph(0);
  }

  openGraph(graph) {
    if (!this.scenes.has(graph)) this.scenes.set(graph, new Scene(this.model, graph));
    this.scene = this.scenes.get(graph);
    this.chosen = null;
    delete this.frame.head.dataset.of;
    this.setHeight(260);
    this.showCrumbs();
    this.panel.show(null);
    this.frame.start();
    this.overview.paint();
  }

  /** As high as the graph, within limits. */
  setHeight(least) {
    this.tall = Math.max(least, Math.min(this.scene.height + 4, innerHeight * 0.72));
    this.element.style.setProperty("--frame-height", `${Math.round(this.tall)}px`);
  }

  graphName(graph) {
    const { name } = this.model.graphs[graph];
    return name ? display(name, 60) : graph === 0 ? "main graph" : `graph ${graph}`;
  }

  showCrumbs() {
    const path = [this.scene.graph];
    for (let owner = this.model.graphs[path[0]].owner; owner !== null && owner !== undefined && path.length < 64;) {
      path.unshift(this.model.graphOf(owner));
      owner = this.model.graphs[path[0]].owner;
    }
    this.crumbs.hidden = path.length < 2;
    this.crumbs.replaceChildren(...path.flatMap((graph, at) => {
      const last = at === path.length - 1;
      const name = this.graphName(graph);
      return [at ? " › " : "", last ? make("span", { "aria-current": "page" }, name) : link(name, () => {
        const owner = this.model.graphs[path[at + 1]].owner;
        this.openGraph(graph);
        this.reveal({ kind: "node", id: owner });
        this.frame.element.focus({ preventScroll: true });
      })];
    }));
  }

  moved() {
    this.frame.showHead();
    this.overview.move();
  }

  /** Whether an item is in the graph that is shown, and its box expanded if need be. */
  isShown({ kind, id }) {
    const box = kind === "box" ? id : this.model.boxOf[id];
    return this.scene.contents.local.has(box) && (kind === "box" || this.scene.expanded.has(box));
  }

  choose(item) {
    this.chosen = item;
    this.panel.show(item);
    this.frame.redraw();
  }

  toggle(box) {
    const item = { kind: "box", id: box };
    this.chosen = item;
    this.frame.holding(item, () => {
      this.scene.toggle(box);
      // It grows only: what was clicked stays where it is.
      this.setHeight(this.tall);
    });
    this.panel.show(item);
    this.overview.paint();
  }

  /** Does what Enter does: expands or collapses a box, opens the subgraph of a node. */
  activate() {
    const { chosen } = this;
    if (!chosen) return;
    const node = chosen.kind === "node" ? chosen.id
      : this.scene.isExpandable(chosen.id) ? null : this.model.nodesOf.of(chosen.id)[0] ?? null;
    const subgraph = node === null ? undefined : this.model.subgraphs.get(node)?.[0];
    if (subgraph !== undefined) this.openGraph(subgraph);
    else if (chosen.kind === "box") this.toggle(chosen.id);
  }

  /** Goes from an operator to its box, from a box to nothing, from there to the owner. */
  leave() {
    const { chosen } = this;
    if (chosen) {
      this.choose(chosen.kind === "node" ? { kind: "box", id: this.model.boxOf[chosen.id] } : null);
      return;
    }
    const { owner } = this.model.graphs[this.scene.graph];
    if (owner !== null && owner !== undefined) this.reveal({ kind: "node", id: owner });
  }

  /** Selects an item wherever it is, and scrolls to it. */
  reveal({ kind, id }) {
    const box = kind === "box" ? id : this.model.boxOf[id];
    const graph = this.model.boxGraph[box];
    if (graph === undefined) return;
    if (graph !== this.scene.graph) this.openGraph(graph);
    let item = { kind: "box", id: box };
    if (kind === "node" && this.scene.isExpandable(box)) {
      if (!this.scene.expanded.has(box)) this.toggle(box);
      item = { kind, id };
    }
    if (this.frame.scale < LABELS_FROM) this.frame.zoom(0.8);
    this.choose(item);
    this.frame.reveal(this.scene.rectangle(item), true);
  }

  /** Does what a link anywhere on the page asks for; the graph is in view and has the focus then. */
  follow(item) {
    this.reveal(item);
    this.frame.element.focus({ preventScroll: true });
    this.frame.element.scrollIntoView({ block: "nearest" });
  }

  nodeLink(node) {
    if (!(node >= 0 && node < this.model.nodeCount)) return "?";
    return link(display(this.model.nodeLabel(node), 70), () => this.follow({ kind: "node", id: node }));
  }

  boxLink(box) {
    if (!(box >= 0 && box < this.model.boxCount)) return "?";
    const single = this.model.nodesOf.size(box) === 1 ? this.model.nodesOf.of(box)[0] : null;
    const text = single === null ? `${this.model.boxTitle(box)} (${countOf(this.model.nodesOf.size(box), "operator")})`
      : `${this.model.boxTitle(box)}: ${display(this.model.nodeLabel(single), 50)}`;
    return link(display(text, 90), () => this.follow({ kind: "box", id: box }));
  }

  nodeList(nodes, remark = () => null) {
    const shown = Array.from(nodes.slice(0, MOST_NODES));
    return make("ul", { class: "nodes" },
      shown.map((node) => make("li", {}, this.nodeLink(node), " ",
        this.model.nodeNames[node] ? make("span", { class: "type" }, data(this.model.op(node), 40)) : null, remark(node))),
      nodes.length > shown.length ? make("li", {}, `… and ${formatCount(nodes.length - shown.length)} more`) : null);
  }
}

class Page {
  constructor(raw) {
    this.raw = raw;
    this.body = make("div", { class: "model", tabindex: -1 });
    this.views = new Map();
  }

  show() {
    const { raw } = this;
    const models = raw.models ?? [];
    document.getElementById("page").replaceChildren(
      make("header", {}, make("h1", {}, data(raw.title, 200)), models.length > 1 ? this.makeChoice(models) : null),
      section("Overview", "overview", models.length > 1 ? modelTable(models, (index) => this.visit(index)) : null) ?? "",
      this.body,
      append(make("div", {}), [section("Differences", "differences", differenceSection(raw.differences))]),
      make("footer", {}, "Written by ", data(raw.tool ?? "epctx", 60), "."));
    bindPrint(this);
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches?.("input, select, textarea")) return;
      event.preventDefault();
      this.view?.search.field.focus();
      this.view?.search.field.scrollIntoView({ block: "nearest" });
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.view?.overview.paint());
    if (models.length) this.choose(0);
  }

  makeName(raw) {
    if (this.raw.models.length < 2 && raw.name === this.raw.title) return null;
    return make("p", { class: "model-name" }, code(raw.label || raw.name, 200));
  }

  makeChoice(models) {
    const select = make("select", { id: "model" }, models.map((model, at) => make("option", { value: at }, display(labelOf(model), 80))));
    select.addEventListener("change", () => this.choose(Number(select.value)));
    this.select = select;
    return make("p", {}, make("label", { for: "model" }, "Model "), select);
  }

  /** Shows a model, and leads the keyboard to it. */
  visit(index) {
    this.select.value = String(index);
    this.choose(index);
    this.body.focus({ preventScroll: true });
    this.body.scrollIntoView();
  }

  choose(index) {
    const raw = this.raw.models[index];
    if (raw.error) {
      this.view = null;
      this.body.replaceChildren(this.makeName(raw) ?? "",
        make("p", { class: "failure" }, `This model (${formatBytes(raw.bytes)}) could not be read: `, data(raw.error, 4000)));
      return;
    }
    if (!this.views.has(index)) this.views.set(index, new View(new Model(raw)));
    const view = this.view = this.views.get(index);
    const { model } = view;
    const size = raw.bytes === null || raw.bytes === undefined ? null : ` ${formatBytes(raw.bytes)}.`;
    this.body.replaceChildren();
    append(this.body, [
      this.makeName(raw),
      make("p", { class: "summary" }, summarise(model), size),
      makeLegend(model, view.classes),
      makeErrorLegend(view),
      section("The cut", "cut", model.boxCount ? view.element : null),
      section("Worth a look", "advice", adviceSection(view)),
      section("Refused", "refused", refusalSection(view)),
      section("Sizes", "sizes", sizeSection(view)),
      section("Errors", "errors", errorSection(view)),
      section("Times", "times", timeSection(view)),
      section(checkTitle(view), "checks", checkSection(view)),
    ]);
    if (!model.boxCount) this.view = null;
    else if (view.scene) view.openGraph(view.scene.graph);
    else view.start();
  }
}

async function start() {
  const main = document.getElementById("page");
  try {
    main.replaceChildren(make("p", { class: "hint" }, "Reading the data …"));
    const raw = await readData();
    performance.mark("data read");
    new Page(raw).show();
    performance.mark("cut drawn");
    requestAnimationFrame(() => setTimeout(() => {
      performance.mark("cut painted");
      document.documentElement.dataset.ready = "true";
    }));
  } catch (error) {
    console.error(error);
    main.replaceChildren(make("p", { class: "failure" },
      `This page could not be drawn: ${error}. It needs a browser of 2023 or newer.`));
  }
}

start();
