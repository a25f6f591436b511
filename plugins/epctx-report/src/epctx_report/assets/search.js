// Search over the names of nodes, operators and values: a scan, which is fast enough.

const MOST_RESULTS = 100;

class Search {
  constructor(view) {
    this.view = view;
    this.field = make("input", {
      type: "search", placeholder: "Search nodes, operators, values  ( / )", "aria-label": "Search",
      autocomplete: "off", spellcheck: "false",
    });
    this.list = make("div", { class: "results", hidden: true });
    this.element = make("div", { class: "search", role: "search" }, this.field, this.list);
    this.field.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.run(), 150);
    });
    this.field.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const links = [...this.list.querySelectorAll("button")];
    const at = links.indexOf(document.activeElement);
    if (event.key === "Escape") {
      this.clear();
      this.view.frame.element.focus({ preventScroll: true });
    } else if (event.key === "Enter" && at < 0) {
      clearTimeout(this.timer);
      this.run();
      this.list.querySelector("button")?.click();
    } else if (event.key === "ArrowDown" && links.length) {
      links[Math.min(at + 1, links.length - 1)].focus();
    } else if (event.key === "ArrowUp" && at >= 0) {
      (at === 0 ? this.field : links[at - 1]).focus();
    } else return;
    event.preventDefault();
  }

  clear() {
    this.field.value = "";
    this.list.hidden = true;
    this.list.replaceChildren();
  }

  run() {
    const text = this.field.value.trim().toLowerCase();
    if (!text) {
      this.list.hidden = true;
      return;
    }
    const { total, found } = findText(this.view.model, text);
    this.list.replaceChildren(
      make("p", {}, total > found.length
        ? `${countOf(total, "result")}, the first ${formatCount(found.length)}:` : countOf(total, "result")),
      make("ul", {}, found.map((result) => make("li", {}, this.describe(result)))));
    this.list.hidden = false;
  }

  describe({ node, value }) {
    const { model } = this.view;
    const text = value === null
      ? [make("b", {}, display(model.op(node), 30)), " ", data(model.nodeNames[node], 70)]
      : ["value ", data(model.valueName(value), 70)];
    return link(make("span", {}, text), () => {
      this.list.hidden = true;
      this.view.reveal({ kind: "node", id: node });
      this.view.frame.element.focus({ preventScroll: true });
    });
  }
}

function findText(model, text) {
  const matching = model.ops.map((op) => op.toLowerCase().includes(text));
  const found = [];
  let total = 0;
  for (let node = 0; node < model.nodeCount; node += 1) {
    if (!matching[model.opOf[node]] && !String(model.nodeNames[node]).toLowerCase().includes(text)) continue;
    total += 1;
    if (found.length < MOST_RESULTS) found.push({ node, value: null });
  }
  for (let value = 0; value < model.producer.length; value += 1) {
    if (!model.valueName(value).toLowerCase().includes(text)) continue;
    const node = model.producer[value] >= 0 ? model.producer[value] : model.readersOf.of(value)[0];
    if (node === undefined) continue;
    total += 1;
    if (found.length < MOST_RESULTS) found.push({ node, value });
  }
  return { total, found };
}
