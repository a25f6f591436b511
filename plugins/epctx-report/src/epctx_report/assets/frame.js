// The frame: a scrolled area of which only the visible part and a margin are drawn.

const MOST_ITEMS = 900; // boxes and operators of a window: bounds the elements of the page
const SMALLEST = 0.02; // the scale at which boxes are lines; larger graphs have the overview
const LARGEST = 30_000_000; // pixels: browsers cannot scroll over more

class Frame {
  constructor(view) {
    this.view = view;
    this.scale = 1;
    this.svg = draw("svg", { class: "cut-drawing" });
    this.space = make("div", { class: "space" });
    this.space.append(this.svg);
    this.element = make("div", {
      class: "frame", tabindex: 0, role: "group",
      "aria-label": "The cut as a graph. Arrow keys move, Enter expands, plus and minus zoom.",
    }, this.space);
    this.element.addEventListener("scroll", () => this.scheduleDraw(), { passive: true });
    this.element.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const box = this.element.getBoundingClientRect();
      this.zoom(this.scale * Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    this.svg.addEventListener("click", (event) => this.click(event));
    // Its button by keyboard is that of the panel.
    this.head = make("button", {
      type: "button", class: "open-head", hidden: true, tabindex: -1, title: "Collapse",
      onclick: () => {
        this.view.toggle(Number(this.head.dataset.of));
        this.element.focus({ preventScroll: true });
      },
    });
    new ResizeObserver(() => {
      const size = `${this.element.clientWidth} ${this.element.clientHeight}`;
      if (size !== this.drawnSize) this.redraw();
    }).observe(this.element);
  }

  get scene() {
    return this.view.scene;
  }

  get offset() {
    return Math.max(0, (this.element.clientWidth - this.scene.width * this.scale) / 2);
  }

  /** The visible part of the scene, larger by a share of itself on each side. */
  area(margin = 0, scale = this.scale) {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.element;
    const w = clientWidth / scale, h = clientHeight / scale;
    return {
      x: (scrollLeft - this.offset) / scale - margin * w, y: scrollTop / scale - margin * h,
      w: w * (1 + 2 * margin), h: h * (1 + 2 * margin),
    };
  }

  scheduleDraw() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      const seen = this.area();
      const drawn = this.drawn;
      const inside = drawn && seen.x >= drawn.x && seen.y >= drawn.y &&
        seen.x + seen.w <= drawn.x + drawn.w && seen.y + seen.h <= drawn.y + drawn.h;
      if (!inside) this.redraw();
      this.view.moved();
    });
  }

  redraw() {
    // Printing has drawn the whole graph.
    if (!this.scene || this.printing) return;
    const { scene } = this;
    this.resize();
    this.drawnSize = `${this.element.clientWidth} ${this.element.clientHeight}`;
    let area = this.area(0.4);
    // Dense places have no margin.
    if (scene.count(area, this.scale) > MOST_ITEMS) area = this.area(0.02);
    this.drawArea(area);
    this.view.moved();
  }

  /** Gives the scrolled area the size of the scene. */
  resize() {
    const { scene, scale, element, space } = this;
    space.style.width = `${Math.max(element.clientWidth, scene.width * scale)}px`;
    space.style.height = `${scene.height * scale}px`;
  }

  drawArea(area) {
    const { svg, scale } = this;
    this.drawn = area;
    svg.style.left = `${this.offset + area.x * scale}px`;
    svg.style.top = `${area.y * scale}px`;
    svg.style.width = `${area.w * scale}px`;
    svg.style.height = `${area.h * scale}px`;
    svg.setAttribute("viewBox", `0 0 ${area.w} ${area.h}`);
    const drawing = new Drawing(this.scene, area, scale, this.view.chosen, this.view.boxClasses);
    svg.replaceChildren(...drawing.make());
    const { chosen } = this.view;
    const id = chosen ? `${chosen.kind}-${chosen.id}` : "";
    if (id && document.getElementById(id)) this.element.setAttribute("aria-activedescendant", id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  /** Sets the scale; the point of the frame at (x, y) stays where it is. */
  zoom(scale, x = this.element.clientWidth / 2, y = this.element.clientHeight / 2) {
    const { element } = this;
    const pointX = (element.scrollLeft + x - this.offset) / this.scale;
    const pointY = (element.scrollTop + y) / this.scale;
    this.scale = this.bounded(scale, pointX, pointY);
    this.resize();
    element.scrollLeft = pointX * this.scale + this.offset - x;
    element.scrollTop = pointY * this.scale - y;
    this.redraw();
  }

  bounded(scale, x, y) {
    const { scene, element } = this;
    const whole = this.wholeScale();
    const least = whole >= SMALLEST ? Math.min(whole, OPERATORS_FROM) : OPERATORS_FROM;
    scale = Math.min(Math.max(scale, least), 3, LARGEST / Math.max(scene.width, scene.height));
    for (; scale < 1; scale *= 1.15) {
      const w = element.clientWidth / scale, h = element.clientHeight / scale;
      if (scene.count({ x: x - w / 2, y: y - h / 2, w, h }, scale) <= MOST_ITEMS) break;
    }
    return scale;
  }

  wholeScale() {
    const { scene, element } = this;
    return Math.min((element.clientWidth - 2) / scene.width, (element.clientHeight - 2) / scene.height);
  }

  /** Shows the whole graph, or as much of a large one as can be drawn at once. */
  fit() {
    this.zoom(Math.min(1.25, this.wholeScale()));
  }

  /** The head of the open box in view stays there while its own one is out of view. */
  showHead() {
    const { scene, scale, head } = this;
    const area = this.area();
    const box = scene.openWithin(area);
    const place = box === null ? null : scene.rectangle({ kind: "box", id: box });
    head.hidden = !place || (scale >= LABELS_FROM && place.x >= area.x - 1 && place.y >= area.y - 1);
    if (head.hidden || head.dataset.of === String(box)) return;
    head.dataset.of = String(box);
    head.className = `open-head ${this.view.boxClasses[box]}`;
    head.textContent = `▾ ${display(this.view.model.boxTitle(box), 40)}, ${countOf(this.view.model.nodesOf.size(box), "operator")}`;
  }

  /** A first view: the whole width if its texts can be read then, the top in the middle. */
  start() {
    const { scene, element } = this;
    this.scale = 1;
    element.scrollTop = 0;
    const share = element.clientWidth / scene.width;
    if (share < 1 && share > 0.6) this.scale = share;
    this.resize();
    if (scene.contents.ids.length) {
      const first = scene.places.y.indexOf(scene.places.y.reduce((a, b) => Math.min(a, b), Infinity));
      const middle = (scene.places.x[first] + scene.places.w[first] / 2) * this.scale;
      element.scrollLeft = middle - element.clientWidth / 2;
    }
    this.redraw();
  }

  /** Scrolls so that a rectangle of the scene is seen. */
  reveal({ x, y, w, h }, centre = false) {
    const { element, scale } = this;
    const within = (from, size, seen, shown) => {
      if (!centre && from >= seen && from + size <= seen + shown) return seen;
      return size > shown ? from - 20 : from + size / 2 - shown / 2;
    };
    element.scrollLeft = within(x * scale + this.offset, w * scale, element.scrollLeft, element.clientWidth);
    element.scrollTop = within(y * scale, h * scale, element.scrollTop, element.clientHeight);
    this.redraw();
  }

  /** Does `change`, after which the rectangle of `item` begins where it did on the screen. */
  holding(item, change) {
    const before = this.scene.rectangle(item);
    const left = before.x * this.scale + this.offset - this.element.scrollLeft;
    const top = before.y * this.scale - this.element.scrollTop;
    change();
    const after = this.scene.rectangle(item);
    this.scale = this.bounded(this.scale, after.x, after.y);
    this.resize();
    const middle = (after.w - before.w) / 2;
    this.element.scrollLeft = (after.x + middle) * this.scale + this.offset - left;
    this.element.scrollTop = after.y * this.scale - top;
    this.redraw();
  }

  click(event) {
    const target = event.target.closest?.("[data-box], [data-node]");
    if (!target) return;
    if (target.dataset.node !== undefined) {
      this.view.choose({ kind: "node", id: Number(target.dataset.node) });
      return;
    }
    const box = Number(target.dataset.box);
    const head = event.clientY - target.getBoundingClientRect().top < HEAD * this.scale;
    // Within an expanded box only the head collapses it: a missed operator must not.
    if (!this.scene.expanded.has(box) || head) this.view.toggle(box);
    else this.view.choose({ kind: "box", id: box });
  }
}
