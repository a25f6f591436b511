// Printing: the whole graph if it is small, and every list opened.

const PRINTABLE = 400; // boxes and operators

function bindPrint(page) {
  const paper = matchMedia("print");
  let closed = null;

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
    const area = { x: 0, y: 0, w: scene.width, h: scene.height };
    const whole = scene.count(area) <= PRINTABLE;
    view.element.classList.toggle("whole", whole);
    frame.printing = whole;
    if (whole) {
      frame.scale = Math.max(frame.scale, LABELS_FROM);
      frame.drawArea(area);
    }
  }

  function restore() {
    if (closed === null) return;
    for (const element of closed) element.open = false;
    closed = null;
    if (!page.view) return;
    page.view.element.classList.remove("whole");
    page.view.frame.printing = false;
    page.view.frame.redraw();
  }

  paper.addEventListener("change", () => (paper.matches ? prepare() : restore()));
  addEventListener("beforeprint", prepare);
  addEventListener("afterprint", restore);
}
