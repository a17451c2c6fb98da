// Pictures of a collection as SVG. Texts are set as texts: no part of them is read as markup.

const SVG = "http://www.w3.org/2000/svg";
// As wide as the place of the picture, so that its texts have the size of other texts.
let WIDTH = 1000;

/** An element of the page with attributes and children; texts stay texts. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function shape(tag, attributes, title) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (title) {
    const tip = document.createElementNS(SVG, "title");
    tip.textContent = title;
    made.append(tip);
  }
  return made;
}

export function words(x, y, text, anchor = "middle") {
  const made = shape("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

/** An empty picture, with so much more height where it is narrow. */
function picture(height, more, label) {
  WIDTH = Math.max(240, Math.min(1200, document.getElementById("main").clientWidth - 66));
  if (WIDTH <= 560) height += more;
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label });
}

/** Two times at the ends of a picture, one line each; on a narrow one the hour is below the day. */
function ends(svg, y, first, last) {
  const wide = WIDTH > 560;
  for (const [x, text, anchor] of [[2, first, "start"], [WIDTH - 2, last, "end"]]) {
    (wide ? [text] : text.split(" ")).forEach((line, i) => svg.append(words(x, y + 16 * i, line, anchor)));
  }
}

/** Where a time lies between two others, from 0 to 1. Times are BigInt: they may be larger than 2^53. */
export function share(time, first, last) {
  if (last <= first) return 0;
  const part = Number(((time - first) * 1000000n) / (last - first)) / 1000000;
  return Math.min(1, Math.max(0, part));
}

/** The history that can be read, as a line from since to upper, with commits, and the times that are looked at. */
export function timeline(collection, commits, at, before) {
  const svg = picture(66, 16, `History of ${collection.shown} from since ${collection.since.text} to upper ${collection.upper.text}`);
  const since = BigInt((collection.first ?? collection.since).value), upper = BigInt(collection.upper.value);
  const x = (time) => 20 + share(time, since, upper) * (WIDTH - 40);
  svg.append(shape("line", { class: "axis", x1: 0, x2: WIDTH, y1: 24, y2: 24 }));
  svg.append(shape("line", { class: "closed", x1: 20, x2: WIDTH - 20, y1: 24, y2: 24 }, "every time here can be read"));
  for (const commit of commits) {
    if (commit.upper?.value == null) continue;
    const time = BigInt(commit.upper.value);
    if (time < since || time > upper) continue;
    svg.append(shape("line", { class: "tick mark", x1: x(time), x2: x(time), y1: 30, y2: 39 },
      `${commit.what} ${commit.seqno}: ${count(commit.rows ?? 0)} updates, upper ${commit.upper.text}`));
  }
  if (before !== null) svg.append(shape("line", { class: "before", x1: x(before), x2: x(before), y1: 6, y2: 42 }, "changes after this time"));
  if (at !== null) {
    svg.append(shape("line", { class: "now", x1: x(at), x2: x(at), y1: 6, y2: 42 }));
    svg.append(shape("circle", { cx: x(at), cy: 24, r: 6, class: "base" }, "as of this time"));
  }
  const wide = WIDTH > 560;
  const begin = collection.first && collection.first.value !== collection.since.value ? `${wide ? "first update " : ""}${collection.first.text}` : `${wide ? "since " : ""}${collection.since.text}`;
  ends(svg, 60, begin, `${wide ? "upper " : ""}${collection.upper.text}`);
  return svg;
}

/** Slices, levels and bases: where in time each batch lies, and how many updates it has (as areas, roots of counts). */
export function spine(collection) {
  const { members, bases } = collection.spine;
  const svg = picture(190, 16, `${members.length} batches and ${bases.length} bases`);
  if (!members.length) {
    svg.append(words(WIDTH / 2, 95, "no batches yet"));
    return svg;
  }
  const most = Math.max(...members.map((one) => one.rows), 1);
  // Each batch gets a width of its own, so that short ones can be seen, and at least a part by its rows.
  const weights = members.map((one) => 0.35 + Math.sqrt(one.rows / most));
  const total = weights.reduce((sum, one) => sum + one, 0);
  const edges = new Map();
  let at = 10;
  members.forEach((one, i) => {
    const wide = (weights[i] / total) * (WIDTH - 20);
    const high = 8 + 130 * Math.sqrt(one.rows / most);
    if (one.lower.value !== null) edges.set(one.lower.value, at);
    const what = one.kind === "slice" ? (one.count > 1 ? `${one.count} slices` : "slice") : `level ${one.level}`;
    svg.append(shape("rect", { class: `${one.kind} mark`, x: at, y: 140 - high, width: Math.max(1, wide - 2), height: high, rx: 2 },
      `${what}: ${one.lower.text} to ${one.upper.text}\n${count(one.rows)} updates, ${bytes(one.bytes)}, ${one.runs} runs`));
    at += wide;
    if (one.upper.value !== null) edges.set(one.upper.value, at);
  });
  svg.append(shape("line", { class: "axis", x1: 10, x2: WIDTH - 10, y1: 141, y2: 141 }));
  for (const base of bases) {
    const x = edges.get(base.at.value);
    if (x === undefined) continue;
    svg.append(shape("circle", { class: "base mark", cx: x - 1, cy: 156, r: 4 + Math.min(9, 6 * Math.sqrt(base.rows / most)) },
      `base at ${base.at.text}: ${count(base.rows)} rows`));
  }
  const first = collection.first ?? members[0].lower;
  ends(svg, 186, first.text, members.at(-1).upper.text);
  return svg;
}

export function count(number) {
  return number.toLocaleString("en-US");
}

/** A number that fits a card: from a million on in short, as 12.3M. */
export function figure(number) {
  return number < 1e6 ? count(number) : new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: number < 1e15 ? 1 : 0 }).format(number);
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) { number /= 1024; at += 1; }
  return `${at && number < 10 ? number.toFixed(1) : Math.round(number)} ${units[at]}`;
}

export function ago(ms) {
  const seconds = Math.max(0, (Date.now() - ms) / 1000);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return `${Math.floor(seconds)} s ago`;
}

const PER_S = { ms: 1000n, us: 1000000n };
const DAY_MS = 86400000;

/** A time as people write it, as the server does: to the minute, or as exact as it is. */
export function written(time, unit) {
  if (unit === "date") return time <= 2932896n ? new Date(Number(time) * DAY_MS).toISOString().slice(0, 10) : String(time);
  const per = PER_S[unit];
  if (!per || time / per > 8640000000000n) return String(time);
  const seconds = time / per, rest = time % per;
  const date = new Date(Number(seconds) * 1000).toISOString();
  const digits = per === 1000n ? 3 : 6;
  const fraction = rest ? `.${String(rest).padStart(digits, "0").replace(/0+$/, "")}` : "";
  const day = `${date.slice(0, 10)} ${date.slice(11, 16)}`;
  return seconds % 60n || fraction ? `${day}:${date.slice(17, 19)}${fraction}Z` : `${day}Z`;
}

/** The time of a text: a whole number or, for clocks, what `written` gives; null: it is none. */
export function parsed(text, unit) {
  const given = text.trim();
  if (/^\d{1,19}$/.test(given)) return BigInt(given);
  if (unit === "date") {
    const ms = /^\d{4}-\d\d-\d\d$/.test(given) ? Date.parse(`${given}T00:00Z`) : NaN;
    return Number.isNaN(ms) ? null : BigInt(ms / DAY_MS);
  }
  const per = PER_S[unit];
  const found = given.match(/^(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?Z?$/);
  if (!per || !found) return null;
  const ms = Date.parse(`${found[1]}T${found[2] ?? "00:00"}:${found[3] ?? "00"}Z`);
  if (Number.isNaN(ms)) return null;
  const digits = per === 1000n ? 3 : 6;
  return BigInt(ms / 1000) * per + BigInt((found[4] ?? "").padEnd(digits, "0").slice(0, digits) || "0");
}
