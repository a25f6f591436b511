// Keys of the frame: arrows go to neighbours in the graph.

/** The item that an arrow key leads to, or null. */
function neighbour(scene, chosen, key) {
  const { model } = scene;
  if (chosen.kind === "box") {
    if (key === "ArrowDown" && scene.expanded.has(chosen.id)) {
      const inner = scene.expanded.get(chosen.id);
      const first = inner.y.indexOf(inner.y.reduce((a, b) => Math.min(a, b), Infinity));
      return { kind: "node", id: model.boxContents(chosen.id).ids[first] };
    }
    const box = along(scene.contents, scene.places, chosen.id, key);
    return box === null ? null : { kind: "box", id: box };
  }
  const box = model.boxOf[chosen.id];
  const node = along(model.boxContents(box), scene.expanded.get(box), chosen.id, key);
  if (node !== null) return { kind: "node", id: node };
  if (key === "ArrowUp") return { kind: "box", id: box };
  if (key !== "ArrowDown") return null;
  const next = along(scene.contents, scene.places, box, key);
  return next === null ? null : { kind: "box", id: next };
}

/** The neighbour of an item along an edge, or beside it at the same height. */
function along(contents, places, id, key) {
  const at = contents.local.get(id);
  const { x, y, w, h } = places;
  const middle = (item) => x[item] + w[item] / 2;
  let candidates;
  if (key === "ArrowDown") candidates = Array.from(contents.after.of(at), (edge) => contents.to[edge]);
  else if (key === "ArrowUp") candidates = Array.from(contents.before.of(at), (edge) => contents.from[edge]);
  else {
    candidates = [];
    const side = key === "ArrowRight" ? 1 : -1;
    places.itemIndex.each(y[at], y[at] + h[at], (item) => {
      if (item !== at && side * (middle(item) - middle(at)) > 0) candidates.push(item);
    });
  }
  let best = null, least = Infinity;
  for (const item of candidates) {
    const distance = Math.abs(middle(item) - middle(at)) + Math.abs(y[item] - y[at]);
    if (distance < least) [best, least] = [item, distance];
  }
  return best === null ? null : contents.ids[best];
}

function bindKeys(view) {
  const { frame } = view;
  const actions = {
    "+": () => frame.zoom(frame.scale * 1.25),
    "=": () => frame.zoom(frame.scale * 1.25),
    "-": () => frame.zoom(frame.scale / 1.25),
    0: () => frame.fit(),
    Enter: () => view.activate(),
    " ": () => view.activate(),
    Escape: () => view.leave(),
  };
  frame.element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) {
      const first = view.scene.contents.ids[0];
      const target = view.chosen && view.isShown(view.chosen) ? neighbour(view.scene, view.chosen, event.key)
        : first === undefined ? null : { kind: "box", id: first };
      // Without a neighbour the frame scrolls as any other does.
      if (!target) return;
      event.preventDefault();
      view.choose(target);
      frame.reveal(view.scene.rectangle(target));
    } else if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  });
}
