// Views as a graph: inputs on the left, what is made of them on the right, a click to each collection.

import { el, shape, words } from "/draw.js";

const WIDE = 210, HIGH = 54, GAP_X = 90, GAP_Y = 22, MARGIN = 12;

/** The address of a collection on this page. */
export function address(name) {
  return `#/c/${encodeURIComponent(name)}`;
}

/** How many steps each node is from those that are made of nothing, at most. */
function depths(nodes, edges) {
  const found = new Map();
  const into = new Map(nodes.map((one) => [one.name, edges.filter((edge) => edge.to === one.name)]));
  const depth = (name, above) => {
    if (found.has(name)) return found.get(name);
    if (above.has(name)) return 0; // names that were swapped: no view stands on itself
    const under = (into.get(name) ?? []).map((edge) => depth(edge.from, new Set([...above, name])));
    found.set(name, under.length ? 1 + Math.max(...under) : 0);
    return found.get(name);
  };
  nodes.forEach((one) => depth(one.name, new Set()));
  return found;
}

/** A text of at most so many characters. */
function cut(text, most) {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}

export function graph(found) {
  const { nodes } = found;
  const edges = nodes.flatMap((node) => (node.inputs ?? []).map((input) => ({ from: input.name, to: node.name, late: node.behind })));
  const depth = depths(nodes, edges);
  const columns = [];
  for (const node of nodes) (columns[depth.get(node.name)] ??= []).push(node);
  const at = new Map();
  columns.forEach((column, x) => {
    // Beside what it is made of, so that few lines cross.
    const middle = (node) => {
      const ys = edges.filter((edge) => edge.to === node.name && at.has(edge.from)).map((edge) => at.get(edge.from).y);
      return ys.length ? ys.reduce((sum, y) => sum + y, 0) / ys.length : 0;
    };
    const order = x ? column.map((node) => [middle(node), node]).sort((a, b) => a[0] - b[0]) : column.map((node) => [0, node]);
    let next = MARGIN;
    for (const [wanted, node] of order) {
      const y = Math.max(next, wanted);
      at.set(node.name, { x: MARGIN + x * (WIDE + GAP_X), y });
      next = y + HIGH + GAP_Y;
    }
  });
  const width = 2 * MARGIN + columns.length * (WIDE + GAP_X) - GAP_X;
  const height = MARGIN + Math.max(...[...at.values()].map((place) => place.y)) + HIGH;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "graph", role: "img", "aria-label": `${nodes.filter((one) => one.view).length} views and what they are made of` });
  for (const edge of edges) {
    const from = at.get(edge.from), to = at.get(edge.to);
    const [x1, y1, x2, y2] = [from.x + WIDE, from.y + HIGH / 2, to.x - 7, to.y + HIGH / 2];
    const bend = Math.max(40, (x2 - x1) / 2);
    svg.append(shape("path", { class: `edge ${edge.late ? "late" : ""}`, d: `M ${x1} ${y1} C ${x1 + bend} ${y1}, ${x2 - bend} ${y2}, ${x2} ${y2}` }, `${edge.to} is made of ${edge.from}${edge.late ? `, and ${edge.late} behind` : ""}`));
    svg.append(shape("path", { class: `tip ${edge.late ? "late" : ""}`, d: `M ${x2 + 7} ${y2} l -9 -5 v 10 z` }));
  }
  for (const node of nodes) {
    const place = at.get(node.name);
    const link = shape("a", { href: address(node.name), class: `node ${node.view ? "view" : ""} ${node.error ? "bad" : ""}` }, node.error ?? node.sql ?? node.shown);
    link.append(shape("rect", { x: place.x, y: place.y, width: WIDE, height: HIGH, rx: 9 }));
    const name = words(place.x + 12, place.y + 22, cut(node.shown, 25), "start");
    name.setAttribute("class", "name");
    link.append(name, words(place.x + 12, place.y + 42, cut(node.error ? "cannot be read" : node.view ? lag(node, nodes) : node.upper, 26), "start"));
    svg.append(link);
  }
  return svg;
}

/** How far a view is behind what it is made of; or whether it waits for a view that is. */
export function lag(view, nodes = []) {
  if (view.behind) return `${view.behind} behind`;
  const late = (node, above) => !above.has(node.name) && (node.inputs ?? []).some((input) => {
    const under = nodes.find((one) => one.name === input.name);
    return under && (under.behind || late(under, new Set([...above, node.name])));
  });
  return late(view, new Set()) ? "as far as its inputs" : "up to date";
}

/** A table of the views: what each is made of, and how far behind it is. */
export function table(found, user) {
  const rows = found.nodes.filter((one) => one.view).map((one) => el("tr", {},
    el("td", {}, el("a", { href: address(one.name) }, user(one.shown))),
    el("td", {}, one.error ? el("span", { class: "chip bad" }, "cannot be read") : el("span", { class: `chip ${one.behind ? "warn" : "good"}` }, lag(one, found.nodes))),
    el("td", { class: "whole" }, one.upper ?? ""),
    el("td", {}, (one.inputs ?? []).flatMap((input, i) => [i ? ", " : "", el("a", { href: address(input.name) }, user(input.shown))])),
    el("td", { class: "long" }, one.error ? user(one.error) : el("code", {}, user(one.sql)))));
  const head = ["view", "state", "upper", "made of", "query"].map((name) => el("th", {}, name));
  return el("div", { class: "scroll" }, el("table", { id: "views" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}
