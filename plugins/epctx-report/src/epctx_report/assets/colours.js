// Colours of EPs: by their order among those that are neither the CPU EP nor the session.

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

/** The colour of a class as text, for a canvas. */
function colourValue(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#999";
}
