// Colours of EPs: by their order among those that are neither the CPU EP nor the session.
// Colours of boxes: those of their EPs, or of their own errors where a comparison gives them.

const COLOURS = 7;

/** The class of each EP of a model: "ep0" … "ep6", "cpu", "session". */
function colourClasses(model) {
  let next = 0;
  return model.eps.map(({ kind }) => {
    if (kind === "cpu" || kind === "session") return kind;
    next += 1;
    return `ep${(next - 1) % COLOURS}`;
  });
}

/** The class of each box of a model: that of its EP, "own0" … "own6" by the largest error of
 * its own, or "uncompared". */
function boxClasses(model, classes) {
  return Array.from(model.boxEp, (ep, box) => {
    const rows = model.errors.get(box);
    if (rows) return `own${Math.max(...rows.map(({ step }) => step))}`;
    return model.raw.errors && model.boxContext[box] ? "uncompared" : classes[ep] ?? "session";
  });
}

/** The colour of a class as text, for a canvas. */
function colourValue(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#999";
}
