// The overview: the whole height of a large graph, each row in the colours of its boxes.

class Overview {
  constructor(view) {
    this.view = view;
    this.canvas = make("canvas", { width: 28, height: 10 });
    this.mark = make("div", { class: "mark" });
    this.element = make("div", { class: "overview", title: "The whole graph; click to go there" }, this.canvas, this.mark);
    const go = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const share = (event.clientY - box.top) / box.height;
      const { frame } = view;
      frame.element.scrollTop = share * view.scene.height * frame.scale - frame.element.clientHeight / 2;
      frame.scheduleDraw();
    };
    this.element.addEventListener("pointerdown", (event) => {
      this.element.setPointerCapture(event.pointerId);
      go(event);
    });
    this.element.addEventListener("pointermove", (event) => event.buttons && go(event));
  }

  paint() {
    const { scene, boxClasses: classes } = this.view;
    this.element.hidden = !scene.large && scene.height < 8000;
    if (this.element.hidden) return;
    const rows = Math.max(100, this.view.frame.element.clientHeight);
    const kinds = [...new Set(classes)];
    const shares = new Float64Array(rows * kinds.length);
    const { y, w, h } = scene.places;
    scene.contents.ids.forEach((box, at) => {
      const kind = Math.max(0, kinds.indexOf(classes[box]));
      const first = Math.floor((y[at] / scene.height) * rows);
      const last = Math.min(rows - 1, Math.floor(((y[at] + h[at]) / scene.height) * rows));
      for (let row = first; row <= last; row += 1) shares[row * kinds.length + kind] += w[at];
    });
    const { canvas } = this;
    canvas.height = rows;
    const context = canvas.getContext("2d");
    const colours = kinds.map(colourValue);
    for (let row = 0; row < rows; row += 1) {
      const parts = shares.subarray(row * kinds.length, (row + 1) * kinds.length);
      const sum = parts.reduce((a, b) => a + b, 0);
      let x = 0;
      parts.forEach((part, kind) => {
        if (!part) return;
        context.fillStyle = colours[kind];
        context.fillRect(x, row, (28 * part) / sum, 1);
        x += (28 * part) / sum;
      });
    }
    this.move();
  }

  move() {
    if (this.element.hidden) return;
    const { scene, frame } = this.view;
    const { y, h } = frame.area();
    this.mark.style.top = `${(100 * Math.max(0, y)) / scene.height}%`;
    this.mark.style.height = `${Math.max(0.6, Math.min(100, (100 * h) / scene.height))}%`;
  }
}
