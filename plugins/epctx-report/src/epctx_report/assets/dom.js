// Elements. Texts become text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** An element of HTML: make("p", {class: "hint"}, "text", child, …). */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  return append(element, children);
}

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A text of the model, kept apart from the direction of the text around it. */
function data(text, most = 400) {
  return make("bdi", { class: "data" }, display(text, most));
}

const LONG_NAME = 32;

/** A name or path; a long one may be broken after its separators, not within words. */
function code(text, most = 400) {
  const shown = display(text, most);
  const parts = shown.length > LONG_NAME ? shown.split(/(?<=\w[/\\_.:-]+)(?=\w{6})/) : [shown];
  return make("code", {}, parts.map((part, at) => [at ? make("wbr") : null, part]));
}

function link(content, onclick) {
  return make("button", { type: "button", class: "link", onclick }, content);
}

/** Tables that are wider than their place are tab stops, so that keys scroll them. */
const overflow = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const wrapper = target.closest(".scrolled");
    if (wrapper.scrollWidth > wrapper.clientWidth) wrapper.setAttribute("tabindex", "0");
    else wrapper.removeAttribute("tabindex");
  }
});

/** A table with a label; heads are texts, those of numbers begin with "#". */
function table(label, heads, rows) {
  const isNumber = heads.map((head) => head.startsWith("#"));
  const cell = (content, column) =>
    make("td", { class: isNumber[column] ? "number" : null }, content);
  const content = make("table", { class: heads.length > 3 && heads.at(-1) ? "wide" : null, "aria-label": label },
    make("thead", {}, make("tr", {},
      heads.map((head, column) =>
        make("th", { scope: "col", class: isNumber[column] ? "number" : null }, head.replace("#", ""))))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map(cell)))));
  const wrapper = make("div", { class: "scrolled", role: "group", "aria-label": label }, content);
  overflow.observe(wrapper);
  overflow.observe(content);
  return wrapper;
}

const fillers = new WeakMap();

/** A <details> whose content is made when it is first opened. */
function details(summary, fill, open = false) {
  const element = make("details", {}, make("summary", {}, summary));
  fillers.set(element, fill);
  element.addEventListener("toggle", () => element.open && fillDetails(element));
  if (open) {
    element.open = true;
    fillDetails(element);
  }
  return element;
}

function fillDetails(element) {
  const fill = fillers.get(element);
  fillers.delete(element);
  if (fill) append(element, [fill()]);
}
