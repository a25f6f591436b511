// The sections of the document besides the graph. Each gives its content, or null.

const MOST_NODES = 200;
/** Differences that are shown without a click. */
const MOST_OPEN = 40;

function section(title, id, content) {
  if (!content) return null;
  return make("section", { id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, title), content);
}

function labelOf(model) {
  return model.label || model.name || "?";
}

/** All models of the page, one to a row. */
function modelTable(models, choose) {
  return table("All models", ["Model", "#Nodes", "#Partitions", "EPs", "#Size", "State"], models.map((model, at) => {
    const eps = (model.eps ?? []).filter(({ nodes }) => nodes);
    const sum = (key) => formatCount(eps.reduce((total, ep) => total + ep[key], 0));
    return [
      link(code(labelOf(model), 120), () => choose(at)),
      model.error ? "" : formatCount(model.total_nodes ?? 0), model.error ? "" : sum("partitions"),
      make("span", {}, eps.map((ep, index) => [index ? ", " : "", data(shortName(ep.name), 40), `\u00a0${formatCount(ep.nodes)}`])),
      formatBytes(model.bytes), stateOf(model),
    ];
  }));
}

/** Why a model could not be read; else what its checks say. */
function stateOf({ error, verdict, findings = [] }) {
  if (error) return make("span", { class: "failure" }, data(error, 300));
  const counts = ["error", "warning"].map((severity) => [severity, findings.filter((finding) => finding.severity === severity).length]);
  const found = counts.filter(([, count]) => count).map(([severity, count]) => countOf(count, severity)).join(", ");
  return make("span", {}, verdict ? data(verdict, 200) : null, verdict && found ? "; " : null, found);
}

const SHARES = { "source nodes": " (of the source's nodes)", bytes: " (of the bytes of payloads and weights)" };

/** One sentence: how many nodes, where they run, in how many partitions. */
function summarise(model) {
  const { total_nodes: total = 0, inside_nodes: inside = 0, folded_nodes: folded = 0, share_of: unit = null } = model.raw;
  const parts = [countOf(total, "node")];
  if (inside) parts.push(`${formatCount(inside)} of them inside subgraphs and functions`);
  if (folded) parts.push(`${formatCount(folded)} of them folded`);
  const shares = model.eps.filter(({ share, nodes }) => (unit ? share : nodes))
    .map((ep) => `${unit ? formatShare(ep.share, 1) : formatCount(ep.nodes)} ${ep.kind === "session" ? "run by the session" : `on ${ep.kind === "cpu" ? "the CPU EP" : display(shortName(ep.name), 40)}`}`);
  const partitions = model.eps.reduce((sum, ep) => sum + ep.partitions, 0);
  return `${parts.join(", ")}${shares.length ? `: ${shares.join(", ")}${SHARES[unit] ?? ""}` : ""}; ${countOf(partitions, "partition")}.`;
}

function makeLegend(model, classes) {
  const shown = model.eps.map((ep, at) => [ep, classes[at]]);
  const bar = make("div", { class: "share", "aria-hidden": "true" }, shown.filter(([ep]) => ep.share).map(([ep, name]) => {
    const part = make("div", { class: name, title: `${display(ep.name, 60)}: ${formatShare(ep.share, 1)}` });
    part.style.flexGrow = String(ep.share);
    return part;
  }));
  return [bar, make("ul", { class: "legend" }, shown.map(([ep, name]) => make("li", {},
    make("span", { class: `swatch ${name}` }),
    make("b", {}, data(shortName(ep.name), 60)),
    ` ${countOf(ep.nodes, "node")}`,
    ep.kind === "ep" || ep.partitions ? `, ${countOf(ep.partitions, "partition")}` : null,
    ep.simulated ? make("span", { class: "simulated" }, "simulated") : null)))];
}

function adviceSection(view) {
  const advice = view.model.raw.advice ?? [];
  if (!advice.length) return null;
  return advice.map(({ title, text, nodes, boxes }) => {
    const links = [
      ...Array.from(column(boxes), (box) => () => view.boxLink(box)),
      ...Array.from(column(nodes), (node) => () => view.nodeLink(node)),
    ];
    return make("div", { class: "advice" },
      make("h3", {}, data(title)), make("p", {}, data(text, 2000)),
      links.length ? make("p", { class: "links" }, links.slice(0, 20).map((show) => show()),
        links.length > 20 ? ` and ${formatCount(links.length - 20)} more` : null) : null);
  });
}

function refusalSection(view) {
  const byEp = new Map();
  for (const refusal of view.model.raw.refusals ?? []) {
    if (!byEp.has(refusal.ep)) byEp.set(refusal.ep, []);
    byEp.get(refusal.ep).push({ reason: refusal.reason, nodes: column(refusal.nodes), follows: new Set(column(refusal.follows)) });
  }
  if (!byEp.size) return null;
  return [...byEp].map(([ep, refusals]) => [
    make("h3", {}, data(shortName(ep), 80)),
    refusals.sort((a, b) => b.nodes.length - a.nodes.length).map(({ reason, nodes, follows }) => details(
      [data(reason), make("span", { class: "count" }, ` ${countOf(nodes.length, "node")}`,
        follows.size ? `, ${formatCount(follows.size)} of them because a node that they serve is refused` : null)],
      () => view.nodeList(nodes, (node) => (follows.has(node) ? make("i", {}, " follows") : null)))),
  ]);
}

function sizeSection({ model }) {
  const { files = [], payloads = [] } = model.raw;
  if (!files.length && !payloads.length) return null;
  return [
    files.length ? [make("h3", {}, "Files"), table("Files", ["File", "#Size", "Holds"],
      files.map(({ name, bytes, holds }) => [code(name, 120), formatBytes(bytes), data(holds)]))] : null,
    payloads.length ? [make("h3", {}, "Payloads"), table("Payloads", ["Node", "Source", "File", "#Size", "State"],
      payloads.map(({ node, source, file, bytes, state }) =>
        [code(node, 80), data(shortName(source), 60), code(file, 120), formatBytes(bytes), data(state, 600)]))] : null,
  ];
}

function withBars(rows, secondsOf, cells) {
  const most = rows.reduce((found, row) => Math.max(found, secondsOf(row) ?? 0), 0);
  return rows.map((row) => {
    const meter = make("span", { class: "meter" });
    meter.style.width = `${(most ? (100 * (secondsOf(row) ?? 0)) / most : 0).toFixed(1)}%`;
    return [...cells(row), formatSeconds(secondsOf(row)), make("span", { class: "track" }, meter)];
  });
}

function timeSection(view) {
  const { raw: { timings }, boxSeconds } = view.model;
  if (!timings) return null;
  const { rows = [], operators = [], notes = [] } = timings;
  const partitions = Array.from(boxSeconds ?? [], (time, box) => ({ box, seconds: time })).filter((row) => row.seconds !== null);
  if (!rows.length && !partitions.length && !operators.length && !notes.length) return null;
  const seconds = (row) => row.seconds;
  const slowest = (list) => [...list].sort((a, b) => b.seconds - a.seconds).slice(0, MOST_NODES);
  const rest = (list) => list.length > MOST_NODES ? make("p", { class: "hint" }, `The slowest ${MOST_NODES} of ${formatCount(list.length)}.`) : null;
  return [
    notes.map((note) => make("p", {}, data(note, 2000))),
    rows.length ? table("Times", ["Step", "Of", "#Time", ""], withBars(rows, seconds, (row) => [data(row.name, 80), data(row.of, 80)])) : null,
    partitions.length ? [make("h3", {}, "Partitions"), rest(partitions),
      table("Partitions", ["Partition", "#Time", ""], withBars(slowest(partitions), seconds, (row) => [view.boxLink(row.box)]))] : null,
    operators.length ? [make("h3", {}, "Operators"), rest(operators),
      table("Operators", ["Operator", "#Count", "#Time", ""], withBars(slowest(operators), seconds, (row) => [data(row.operator, 60), formatCount(row.count)]))] : null,
  ];
}

/** The steps of own errors, as the boxes are coloured. */
function makeErrorLegend({ model, boxClasses: used }) {
  const { errors } = model.raw;
  if (!errors) return null;
  const { steps } = errors;
  const label = (step) => step === 0 ? `${steps[0]} dB or more` : step === steps.length ? `less than ${steps.at(-1)} dB`
    : `${steps[step]} to ${steps[step - 1]} dB`;
  const shown = [...steps.map((_, step) => step), steps.length].map((step) => [`own${step}`, label(step)]);
  if (used.includes("uncompared")) shown.push(["uncompared", "not compared"]);
  return make("ul", { class: "legend", "aria-label": "Own errors" }, make("li", {}, "Partitions by the SNR of their own error:"),
    shown.map(([name, text]) => make("li", {}, make("span", { class: `swatch ${name}` }), text)));
}

function errorSection(view) {
  const { errors } = view.model.raw;
  if (!errors) return null;
  const { inputs, rows = [], uncompared = [], note } = errors;
  const cosine = ({ cosine: value }) => value === null ? "?" : value.toFixed(6);
  return [
    note ? make("p", { class: "failure" }, data(note, 2000)) : null,
    rows.length ? make("p", {}, `Relative errors of partitions, the worst of ${countOf(inputs, "input")}: own ones, of the partition alone, and inherited ones, from its inputs.`) : null,
    rows.length > MOST_NODES ? make("p", { class: "hint" }, `The first ${MOST_NODES} of ${formatCount(rows.length)}.`) : null,
    rows.length ? table("Errors", ["Partition", "Output", "#Own", "#SNR dB", "#Cosine", "#Inherited", "#Total"],
      rows.slice(0, MOST_NODES).map(({ box, output, step, own, inherited, total }) => [
        [make("span", { class: `swatch own${step}` }), view.boxLink(box)], code(output, 80), formatNumber(own.max_rel),
        formatRatio(own), cosine(own), formatNumber(inherited.max_rel), formatNumber(total.max_rel)])) : null,
    uncompared.length ? details(`${countOf(uncompared.length, "partition")} could not be compared`, () => make("ul", {},
      uncompared.slice(0, MOST_NODES).map(({ box, reason }) => make("li", {}, view.boxLink(box), ": ", data(reason))))) : null,
  ];
}

function checkTitle({ model }) {
  const { verdict, findings = [] } = model.raw;
  return verdict || findings.length ? "Model and checks" : "Model";
}

function checkSection({ model }) {
  const { verdict, facts = [], findings = [] } = model.raw;
  if (!verdict && !facts.length && !findings.length) return null;
  return [
    verdict ? make("p", { class: "verdict" }, data(verdict, 600)) : null,
    findings.length ? make("ul", { class: "findings" }, findings.map(({ severity, code: name, message, hint }) => make("li", {},
      make("span", { class: `severity ${["error", "warning"].includes(severity) ? severity : "hint"}` }, display(severity, 20)), " ",
      code(name, 60), " ", data(message, 2000), hint ? make("div", { class: "hint" }, data(hint, 2000)) : null))) : null,
    facts.length ? make("dl", { class: "facts" }, facts.map(({ name, value }) => [
      make("dt", {}, data(name, 80)), make("dd", {}, data(value, 1000))])) : null,
  ];
}

function differenceSection(differences) {
  if (!differences) return null;
  const { first, second, summary = [], rows = [], left_out: leftOut, notes = [] } = differences;
  const byPart = new Map();
  for (const row of rows) byPart.set(row.part, [...(byPart.get(row.part) ?? []), row]);
  const heads = ["Name", ...[first, second].map((name) => display(name, 40).replace(/^#/, "﹟"))];
  const changed = summary.some(({ change }) => change);
  const side = (text) => (text === null || text === undefined ? make("i", {}, "none") : data(text, 300));
  return [
    make("p", {}, code(first, 120), " and ", code(second, 120), rows.length || leftOut || changed ? "" : " do not differ."),
    summary.length ? table("Comparison", ["", ...heads.slice(1), "Change"],
      summary.map((row) => [data(row.name, 80), data(row.first, 300), data(row.second, 300), data(row.change, 300)])) : null,
    [...byPart].map(([part, own]) => details(
      [data(part, 60), make("span", { class: "count" }, ` ${countOf(own.length, "difference")}`)],
      () => table(display(part, 60), heads, own.map((row) => [code(row.name, 100), side(row.first), side(row.second)])),
      rows.length <= MOST_OPEN)),
    leftOut ? make("p", { class: "hint" }, `${countOf(leftOut, "further difference")} left out.`) : null,
    notes.map((note) => make("p", { class: "hint" }, data(note, 300))),
  ];
}
