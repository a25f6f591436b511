// Texts as they are shown. Names come from models: anything may be in them.

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** The text with control characters, bidi controls and lone surrogates made visible. */
function showControls(text) {
  return text.replace(INVISIBLE, (char) => {
    const code = char.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

/** The text for display: visible characters only, its middle left out if it is long. */
function display(text, most = 120) {
  text = String(text ?? "");
  if (text.length > most) {
    let head = Math.ceil(most * 0.6);
    let tail = text.length - Math.floor(most * 0.4) + 1;
    // No pair of surrogates is cut in two.
    if (isLead(text.charCodeAt(head - 1))) head -= 1;
    if (isLead(text.charCodeAt(tail - 1))) tail += 1;
    text = `${text.slice(0, head)}…${text.slice(tail)}`;
  }
  return showControls(text);
}

function isLead(code) {
  return code >= 0xd800 && code < 0xdc00;
}

const WHOLE = new Intl.NumberFormat("en-US");

function formatCount(number) {
  return WHOLE.format(number);
}

/** "1 node", "1,200 nodes". */
function countOf(number, singular, plural = `${singular}s`) {
  return `${formatCount(number)} ${number === 1 ? singular : plural}`;
}

function formatBytes(bytes) {
  if (bytes === null || bytes === undefined || bytes < 0) return "?";
  if (bytes < 1024) return `${bytes} B`;
  let unit = -1;
  do {
    bytes /= 1024;
    unit += 1;
  } while (bytes >= 1023.95 && unit < 4);
  return `${bytes.toFixed(1)} ${["KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toFixed(seconds >= 0.1 ? 0 : 2)} ms`;
  return `${(seconds * 1e6).toFixed(seconds >= 1e-5 ? 0 : 1)} µs`;
}

/** A number of a comparison in few digits; null is an infinite one. */
function formatNumber(number) {
  return number === null || number === undefined ? "inf" : String(Number(number.toPrecision(6)));
}

/** A signal-to-noise ratio in dB: infinite for equal values, minus infinite for an infinite error. */
function formatRatio({ snr_db: ratio, max_abs: most }) {
  if (ratio === null || ratio === undefined) return most === null ? "-inf" : "inf";
  return ratio.toFixed(1);
}

function describeError(error) {
  const { max_abs: most, mean_abs: mean, max_rel: relative, cosine } = error;
  return `${formatNumber(relative)} relative, ${formatNumber(most)} at most, ${formatNumber(mean)} in the mean; ` +
    `SNR ${formatRatio(error)} dB, cosine ${formatNumber(cosine)}`;
}

function formatShare(part, whole) {
  if (!whole) return "0%";
  const share = (100 * part) / whole;
  if (part && share < 0.1) return "<0.1%";
  if (part < whole && share > 99.9) return ">99.9%";
  return `${share.toFixed(share === 100 || share === 0 ? 0 : 1)}%`;
}

/** As many operators with their numbers as fit into `most` characters, whole ones only. */
function listOps(counts, most) {
  let text = "";
  for (const [at, [op, count]] of counts.entries()) {
    const times = count > 1 ? ` ×${formatCount(count)}` : "";
    const item = `${display(op.replace(/^.*::/, ""), Math.max(8, most - times.length - 3))}${times}`;
    const added = at ? `${text}, ${item}` : item;
    const rest = at < counts.length - 1 ? ", …".length : 0;
    if (at && added.length + rest > most) return `${text}, …`;
    text = added;
  }
  return text;
}

function shortName(ep) {
  const short = ep.replace(/ExecutionProvider$/, "");
  return short || ep;
}
