// Printing: the whole graph if it can be read on paper, else its boxes as a table; every
// list opened.

const PRINTABLE = 400; // boxes and operators
// Pixels that become a page's width and height: texts are half their size then.
const WIDEST = 1400;
const TALLEST = 1900;

function isReadable(scene) {
  return scene.width <= WIDEST && scene.height <= TALLEST &&
    scene.count({ x: 0, y: 0, w: scene.width, h: scene.height }) <= PRINTABLE;
}

function unbroken(text) {
  return text.replaceAll(" ", "\u00a0");
}

/** The boxes of a graph, numbered, with what each reads from which. */
function boxTable({ scene, model }) {
  const { contents } = scene;
  const timed = contents.ids.some((box) => typeof model.boxSeconds?.[box] === "number");
  const rows = Array.from(contents.ids.slice(0, PRINTABLE), (box, at) => {
    const edges = [...contents.before.of(at)];
    const sources = edges.slice(0, 8).map((edge) => unbroken(`${formatCount(contents.from[edge] + 1)} (${edgeLabel(contents, edge)})`));
    if (edges.length > 8) sources.push(`${formatCount(edges.length - 8)} more`);
    return [
      formatCount(at + 1), data(unbroken(model.boxTitle(box)), 60), formatCount(model.nodesOf.size(box)),
      data(listOps(model.countOps(box), 60)), sources.join(", "),
      ...(timed ? [formatSeconds(model.boxSeconds[box])] : []),
    ];
  });
  const left = contents.ids.length - rows.length;
  return [
    table("Boxes", ["##", "Box", "#Operators", "Most frequent", "Reads from", ...(timed ? ["#Time"] : [])], rows),
    left ? make("p", {}, `… and ${countOf(left, "further box", "further boxes")}.`) : null,
  ];
}

function bindPrint(page) {
  const paper = matchMedia("print");
  let closed = null, scale = null;

  function prepare() {
    if (closed !== null) return;
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const element of closed) {
      fillDetails(element);
      element.open = true;
    }
    const { view } = page;
    if (!view) return;
    const { scene, frame } = view;
    const whole = isReadable(scene);
    view.element.classList.toggle("whole", whole);
    view.element.classList.toggle("large", scene.large);
    frame.printing = whole;
    if (whole) {
      scale = frame.scale;
      frame.scale = Math.max(scale, LABELS_FROM);
      frame.drawArea({ x: 0, y: 0, w: scene.width, h: scene.height });
    } else append(view.paper, [boxTable(view)]);
  }

  function restore() {
    if (closed === null) return;
    for (const element of closed) element.open = false;
    closed = null;
    if (!page.view) return;
    page.view.element.classList.remove("whole");
    page.view.paper.replaceChildren();
    page.view.frame.printing = false;
    page.view.frame.scale = scale ?? page.view.frame.scale;
    scale = null;
    page.view.frame.redraw();
  }

  paper.addEventListener("change", () => (paper.matches ? prepare() : restore()));
  addEventListener("beforeprint", prepare);
  addEventListener("afterprint", restore);
}
