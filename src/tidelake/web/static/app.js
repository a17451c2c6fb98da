// The page: an overview of the lake, and a view of one collection. Everything shown comes from /api as JSON, and is
// put into the page as text.

import { ago, bytes, count, el, figure, parsed, spine, timeline, written } from "/draw.js";
import { address, graph, lag, table as viewTable } from "/views.js";

const main = document.getElementById("main");
const TABS = ["rows", "changes", "key", "storage", "holds", "log", "schema"];
const NAMES = { rows: "Rows", changes: "Changes", key: "History of a key", storage: "Storage", holds: "Holds & writers", log: "Log", schema: "Schema" };
const STEPS = 1000;
let writable = false;
let view = null; // what is on the page now
let events = null;

async function ask(path, given = {}, options = {}) {
  const url = new URL(`/api/${path}`, location.origin);
  for (const [name, value] of Object.entries(given)) if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  const answer = await fetch(url, options);
  if (answer.status === 401) { location.reload(); return new Promise(() => {}); }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ?? answer.statusText);
  return found;
}

function failed(error) {
  return el("div", { class: "error", role: "alert" }, error.message);
}

function many(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

function user(text, kind = "") {
  return el("span", { class: `user ${kind}`, dir: "auto" }, text);
}

// --- the overview ---

async function overview() {
  document.title = "Tidelake";
  const find = el("input", { type: "search", placeholder: "Find a collection  ( / )", "aria-label": "Find a collection", id: "find" });
  const body = el("tbody");
  const more = el("button", { type: "button", hidden: true }, "More");
  const total = el("span", { class: "soft", id: "total" });
  let last = null, round = 0;

  async function load(fresh) {
    const mine = fresh ? ++round : round;
    const found = await ask("names", { find: find.value, after: fresh ? null : last });
    if (mine !== round) return;
    if (fresh) body.replaceChildren();
    const rows = found.names.map(({ name, shown }) => {
      const link = el("a", { href: address(name) }, user(shown));
      const row = el("tr", { class: "go", onclick: (event) => { if (!link.contains(event.target)) link.click(); } },
        el("td", {}, link), ...Array.from({ length: 6 }, (_, i) => el("td", { class: `${i > 0 && i < 4 ? "num" : ""} ${i === 0 || i === 3 || i === 4 ? "wide" : ""} ${i > 0 ? "whole" : ""}` }, "…")));
      row.dataset.name = name;
      return row;
    });
    body.append(...rows);
    last = found.names.at(-1)?.name ?? last;
    more.hidden = !found.more;
    total.textContent = `${count(found.found)} ${found.found === 1 ? "collection" : "collections"}`;
    watch(rows);
    if (!body.children.length) body.append(el("tr", {}, el("td", { colspan: 7, class: "soft" }, find.value ? "No name has this text." : "No collections yet: make one with tidelake create.")));
  }

  // Sizes are asked for as rows come into sight, fifty at a time.
  const waiting = new Set();
  let timer = null;
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { waiting.add(entry.target); seen.unobserve(entry.target); }
    if (waiting.size && timer === null) timer = setTimeout(fill, 30);
  }, { rootMargin: "200px" });
  const watch = (rows) => rows.forEach((row) => seen.observe(row));

  async function fill() {
    const rows = [...waiting].slice(0, 50);
    rows.forEach((row) => waiting.delete(row));
    const { summaries } = await ask("summaries", { names: JSON.stringify(rows.map((row) => row.dataset.name)) });
    for (const row of rows) {
      const found = summaries[row.dataset.name];
      const cells = [...row.children].slice(1);
      if (!found || found.error) { cells[0].textContent = found?.error ?? "gone"; cells.slice(1).forEach((cell) => { cell.textContent = ""; }); continue; }
      const g = found.gauges;
      [found.unit, count(g.updates), bytes(g.bytes), count(g.runs)].forEach((text, i) => { cells[i].textContent = text; });
      cells[4].textContent = found.empty ? "no time closed yet" : `${found.since.value === "0" ? "start" : found.since.text} → ${found.upper.text}`;
      cells[5].replaceChildren(...states(g, found.kind));
    }
    timer = waiting.size ? setTimeout(fill, 30) : null;
  }

  let typing = null;
  find.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => load(true), 150); });
  more.addEventListener("click", () => load(false));
  main.replaceChildren(
    el("div", { class: "bar" }, find, total),
    el("div", { class: "scroll", id: "collections" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}, "collection"), el("th", { class: "wide" }, "time"), el("th", { class: "num" }, "updates"), el("th", { class: "num" }, "bytes"), el("th", { class: "num wide" }, "runs"), el("th", { class: "wide" }, "since → upper"), el("th", {}, "state"))), body)),
    el("div", { class: "bar" }, more));
  await load(true);
  listen("", () => load(true));
}

/** What is to be said of a collection at once. */
function states(gauges, kind) {
  const chip = (colour, text) => el("span", { class: `chip ${colour}` }, text);
  return [
    kind ? chip("", kind) : null,
    gauges["staged.updates"] ? chip("warn", `${figure(gauges["staged.updates"])} staged`) : null,
    gauges["merges.running"] ? chip("warn", `${gauges["merges.running"]} merging`)
      : gauges["merges.due"] ? chip("warn", `${gauges["merges.due"]} due`) : chip("good", "compact"),
  ].filter(Boolean).flatMap((one, i) => (i ? [" ", one] : [one]));
}

// --- views ---

async function views() {
  document.title = "Views – Tidelake";
  const found = await ask("views");
  const there = found.nodes.length > 0;
  main.replaceChildren(el("h1", {}, "Views"),
    there ? el("div", { class: "card pan", id: "graph" }, graph(found),
      el("div", { class: "legend" }, el("span", {}, el("i", { class: "view" }), "view"), el("span", {}, el("i", { class: "input" }), "collection"),
        el("span", {}, el("i", { class: "late" }), "not seen by the view yet; tidelake refresh brings it up")))
      : el("p", { class: "soft", id: "note" }, "No views yet: lake.view(name, sql) makes one."),
    there ? viewTable(found, user) : "",
    found.more ? el("p", { class: "soft" }, "Only the first 1,000 collections were looked at.") : "");
  listen("", views);
}

// --- one collection ---

class CollectionView {
  constructor(name) {
    this.name = name;
    this.tab = "rows";
    this.at = null; // BigInt; null: the newest closed time
    this.before = null;
    this.follows = true; // whether the slider stays at the newest time
    this.panel = el("div", { role: "tabpanel", tabindex: 0, id: "panel" });
    this.head = el("div");
    this.line = el("div", { class: "card time" });
    this.where = "";
    this.placed = {}; // what puts a slider where its time is
    this.round = 0;
  }

  async open() {
    await this.refresh();
    document.title = `${this.found.shown} – Tidelake`;
    this.tabs = el("div", { role: "tablist", "aria-label": "Views" }, TABS.map((tab, i) => el("button", {
      role: "tab", type: "button", id: `tab-${tab}`, title: `${NAMES[tab]} (${i + 1})`, onclick: () => this.show(tab),
    }, NAMES[tab])));
    main.replaceChildren(this.head, this.line, this.tabs, this.panel);
    this.drawHead();
    this.drawLine();
    this.show(this.tab);
    listen(this.name, (news) => this.news(news));
  }

  async refresh() {
    const [found, { commits }] = await Promise.all([ask("collection", { name: this.name }), ask("log", { name: this.name, limit: 200 })]);
    this.found = found;
    this.commits = commits;
    const whole = (frontier) => frontier.value !== null && /^\d+$/.test(frontier.value);
    this.linear = whole(found.since) && whole(found.upper) && BigInt(found.upper.value) > BigInt(found.since.value);
    if (this.linear) {
      const last = BigInt(found.upper.value) - 1n, since = BigInt((found.first ?? found.since).value);
      this.begin = since > last ? last : since;
      if (this.follows || this.at === null || this.at > last) this.at = last;
      if (this.at < since) this.at = since;
      if (this.before === null) this.before = this.previous(this.at);
      if (this.before < since) this.before = since;
    }
  }

  /** The time of the last commit but one at or before a time, so that the changes of one commit lie between; or the first time. */
  previous(time) {
    const closed = this.commits.filter((one) => one.rows && /^\d+$/.test(one.upper?.value ?? "")).map((one) => BigInt(one.upper.value) - 1n);
    const times = closed.filter((one) => one <= time && one >= this.begin).sort((a, b) => (a < b ? 1 : -1));
    return times[1] ?? this.begin;
  }

  async news(news) {
    if (news.error) { this.head.append(failed(new Error(news.error))); return; }
    if (news.seqno === this.found.seqno) return;
    await this.refresh();
    this.drawHead();
    this.drawLine();
    if (this.follows || !["rows", "changes"].includes(this.tab)) this.show(this.tab, true);
  }

  drawHead() {
    const { found } = this, g = found.gauges;
    const tile = (label, number, title = "", shown = figure(number)) => el("div", { class: "tile", title: title || `${count(number)} ${label}` }, el("b", { "data-gauge": label }, shown), el("span", {}, label));
    const link = (one) => (one.name === null ? user(one.shown) : el("a", { href: address(one.name) }, user(one.shown)));
    const links = (all) => all.flatMap((one, i) => [i ? ", " : "", link(one)]);
    this.head.replaceChildren(
      el("h1", {}, user(found.shown), " ", ...states(g, found.kind), " ", found.group ? el("span", { class: "chip" }, "in a group") : null),
      found.view ? el("p", { class: "soft", id: "made-of" }, found.view.error ?? ["made of ", ...links(found.view.inputs), "; ", lag(found.view), ". ", el("a", { href: "#/views" }, "All views")]) : "",
      found.origin ? el("p", { class: "soft", id: "origin" }, "forked from ", link(found.origin), found.origin.freed ? "" : ", with which it still shares parts") : "",
      found.forks.length ? el("p", { class: "soft", id: "forks" }, "forks: ", ...links(found.forks)) : "",
      el("div", { class: "tiles" },
        tile("updates", g.updates), tile("stored", g.bytes, `${count(g.bytes)} bytes`, bytes(g.bytes)), tile("staged", g["staged.updates"], `${count(g["staged.updates"])} updates at times that are not closed yet`),
        tile("runs", g.runs, "a read merges at most so many"), tile("slices", g.slices), tile("bases", g.bases), tile("merges due", g["merges.due"]),
        tile("merging", g["merges.running"], "merges that living processes carry out now"), tile("holds", g.holds + g["holds.critical"]), tile("garbage", g.garbage, `${count(g.garbage)} objects that wait to be deleted`)));
  }

  drawLine() {
    const { found } = this;
    if (found.empty) { this.line.replaceChildren(el("p", { class: "soft" }, "No time is closed yet.")); return; }
    if (!this.linear) {
      const text = el("input", { type: "text", "aria-label": "As of", placeholder: "as of: a time, such as 3 or 1,2", id: "as-of", onchange: (event) => { this.asked = event.target.value; this.show(this.tab); } });
      this.line.replaceChildren(el("p", {}, "since ", el("b", {}, found.since.text), ", upper ", el("b", {}, found.upper.text)), el("label", {}, "as of", el("span"), text));
      return;
    }
    const since = this.begin, last = BigInt(found.upper.value) - 1n;
    const drawn = el("div", { id: "timeline" });
    this.placed = {};
    const draw = () => drawn.replaceChildren(timeline(found, this.commits, this.at, this.tab === "changes" ? this.before : null));
    const steps = last - since > BigInt(STEPS) ? STEPS : Number(last - since);
    const slider = (which, label) => {
      const position = () => (last === since ? 0 : Number(((this[which] - since) * BigInt(steps)) / (last - since)));
      const text = el("input", { type: "text", value: written(this[which], found.unit), "aria-label": `${label}, as a time`, id: `${which}-text` });
      const range = el("input", { type: "range", min: 0, max: steps, value: position(), "aria-label": label, id: `${which}-slider`, disabled: steps === 0 });
      range.addEventListener("input", () => {
        this[which] = steps ? since + ((last - since) * BigInt(range.value)) / BigInt(steps) : since;
        if (which === "at") this.follows = this.at === last;
        text.value = written(this[which], found.unit);
        draw();
        this.later();
      });
      text.addEventListener("change", () => {
        const time = parsed(text.value, found.unit);
        if (time !== null) {
          this[which] = time < since ? since : time > last ? last : time;
          if (which === "at") this.follows = this.at === last;
          this.placed[which]();
          this.show(this.tab);
        } else { this.panel.replaceChildren(failed(new Error(`${text.value} is no time of unit ${found.unit}`))); }
      });
      this.placed[which] = () => { text.value = written(this[which], found.unit); range.value = position(); draw(); };
      return el("label", {}, el("span", {}, label), range, text);
    };
    this.line.replaceChildren(drawn, slider("at", this.tab === "changes" ? "through" : "as of"), ...(this.tab === "changes" ? [slider("before", "after")] : []));
    draw();
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.show(this.tab, true), 120);
  }

  async show(tab, quietly = false) {
    const changed = tab !== this.tab;
    this.tab = tab;
    if (tab === "changes" && this.linear && this.before >= this.at && this.at > this.begin) {
      this.before = this.previous(this.at);
      this.placed.before?.();
    }
    for (const button of this.tabs.children) {
      button.setAttribute("aria-selected", String(button.id === `tab-${tab}`));
      button.tabIndex = button.id === `tab-${tab}` ? 0 : -1;
      if (button.id === `tab-${tab}`) this.tabs.scrollLeft = button.offsetLeft - (this.tabs.clientWidth - button.offsetWidth) / 2;
    }
    if (changed) this.drawLine();
    const mine = ++this.round;
    if (!quietly) this.panel.setAttribute("aria-busy", "true");
    let content;
    try { content = await this[tab](); } catch (error) { content = [failed(error)]; }
    if (mine !== this.round) return;
    this.panel.removeAttribute("aria-busy");
    this.panel.replaceChildren(...content);
    this.panel.dataset.shown = tab;
  }

  get time() { return this.linear ? String(this.at) : this.asked ?? null; }

  filter() {
    const input = el("input", { type: "text", id: "filter", value: this.where, placeholder: "Filter in SQL, such as price > 10  ( / )", "aria-label": "Filter, an SQL condition", spellcheck: "false", autocomplete: "off" });
    const go = () => { this.where = input.value; this.show(this.tab); };
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
    return el("div", { class: "bar" }, input, el("button", { type: "button", id: "go", onclick: go }, "Filter"));
  }

  rows() {
    if (this.found.empty) return [el("p", { class: "soft", id: "note" }, "There is nothing to read.")];
    return this.paged("rows", () => ({ as_of: this.time }));
  }

  changes() {
    if (!this.linear) return this.between();
    return this.paged("changes", () => ({ after: String(this.before), through: String(this.at) }));
  }

  /** Changes of times without an order to slide along: two times are asked for. */
  async between() {
    const field = (id, label) => el("input", { type: "text", id, value: this[id] ?? "", placeholder: `${label}, such as 0,0`, "aria-label": label, autocomplete: "off" });
    const after = field("after", "after"), through = field("through", "through");
    const go = () => { this.after = after.value; this.through = through.value; this.show("changes"); };
    for (const input of [after, through]) input.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
    const bar = el("div", { class: "bar" }, after, through, el("button", { type: "button", id: "between", onclick: go }, "Show"));
    if (!this.after || !this.through) return [bar, el("p", { class: "soft", id: "note" }, "Times of this collection have no order to slide along: give two of them.")];
    return [bar, ...await this.paged("changes", () => ({ after: this.after, through: this.through }))];
  }

  async paged(path, times) {
    const asked = { name: this.name, where: this.where, ...times() };
    const pages = []; // cursors of the pages before this one
    const out = el("div", { id: "page" });
    const state = { from: null };
    const turn = async () => {
      let found;
      try { found = await ask(path, { ...asked, from: state.from }); } catch (error) { out.replaceChildren(failed(error)); return; }
      const back = el("button", { type: "button", id: "back", disabled: !pages.length, onclick: () => { state.from = pages.pop(); turn(); } }, "← Back");
      const next = el("button", { type: "button", id: "next", disabled: !found.next, onclick: () => { pages.push(state.from); state.from = found.next; turn(); } }, found.whole ? "Next →" : "Look further →");
      const diff = found.columns.indexOf("_diff");
      const negative = path === "rows" ? found.rows.filter((row) => String(row[diff]).startsWith("-")).length : 0;
      const less = negative ? el("span", { class: "chip bad", id: "negative" }, `${many(negative, "row")} with a negative count: removed more often than added`) : null;
      const note = found.rows.length ? `page ${pages.length + 1}, ${many(found.rows.length, "row")}` : found.next ? "nothing found in this part" : path === "changes" ? "no changes" : "no rows";
      out.replaceChildren(table(found, path === "changes", true), el("div", { class: "bar" }, back, next, el("span", { class: "soft", id: "note" }, note), less));
    };
    await turn();
    const file = (format, text) => el("a", { href: `/api/download?${new URLSearchParams(Object.entries({ ...asked, format }).filter(([, value]) => value !== null && value !== undefined && value !== ""))}`, download: "", id: `download-${format}`, class: "button", title: `All ${path} as a file` }, text);
    return [this.filter(), out, el("div", { class: "bar" }, el("span", { class: "soft" }, "Download all:"), file("csv", "CSV"), file("parquet", "Parquet"))];
  }

  async key() {
    const keys = this.found.columns.filter((column) => column.role === "key");
    const inputs = keys.map((column) => el("input", { type: "text", class: "key-value", placeholder: `${column.name}: ${column.type}`, "aria-label": column.name }));
    const out = el("div", { id: "page" });
    const go = async () => {
      try {
        const found = await ask("history", { name: this.name, key: JSON.stringify(inputs.map((input) => input.value)) });
        out.replaceChildren(table(found, true), el("p", { class: "soft", id: "note" }, found.more ? "the first 500 updates" : many(found.rows.length, "update")));
      } catch (error) { out.replaceChildren(failed(error)); }
    };
    inputs.forEach((input) => input.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); }));
    return [el("div", { class: "bar" }, inputs, el("button", { type: "button", id: "go", onclick: go }, "Show")), out];
  }

  storage() {
    const { found } = this;
    const legend = (kind, text) => el("span", {}, el("i", { class: kind }), text);
    const due = found.due.map((one) => el("tr", {}, el("td", {}, one.base ? "base" : "merge"), el("td", { class: "num" }, count(one.rows)), el("td", { class: "num" }, bytes(one.bytes)), el("td", { class: "num" }, count(one.runs))));
    const running = found.running.map((one) => el("tr", {}, el("td", {}, one.base ? "base" : "merge"), el("td", {}, `${one.done} of ${one.chunks} key ranges`), el("td", {}, one.runner)));
    const maintain = el("button", { type: "button", id: "maintain", onclick: async () => {
      maintain.disabled = true;
      try {
        const report = await ask("maintain", { name: this.name }, { method: "POST" });
        this.report = `${new Date().toLocaleTimeString()}: ${many(report.merges, "merge")}, ${many(report.rows_read, "update")} became ${count(report.rows_written)}`;
      } catch (error) { this.report = failed(error); }
      // The commits of the maintenance draw this view anew: the report stays with the collection.
      this.show("storage", true);
    } }, "Maintain now");
    const result = el("span", { class: "soft", id: "report", role: "status" }, this.report ?? "");
    return [
      el("div", { class: "card", id: "spine" }, spine(found),
        el("div", { class: "legend" }, legend("slice", "slice"), legend("level", "level"), legend("base", "base"),
          el("span", {}, "oldest on the left; height and width by updates", found.spine.together > 1 ? `; ${found.spine.together} batches drawn as one` : ""))),
      found.spine.staged.batches ? el("p", { id: "staged" }, `Staged: ${many(found.spine.staged.updates, "update")} in ${many(found.spine.staged.batches, "batch", "batches")}, which readers see once their times are closed.`) : null,
      el("h2", {}, "Merges running"), running.length ? list(["what", "done", "by"], running) : el("p", { class: "soft" }, "none"),
      el("h2", {}, "Merges due"), due.length ? list(["what", "updates", "bytes", "runs"], due, [1, 2, 3]) : el("p", { class: "soft" }, "none"),
      el("p", {}, `${many(found.garbage.waiting, "object")} to be deleted later, ${count(found.garbage.being_deleted)} now.`),
      writable ? el("div", { class: "bar" }, maintain, result) : null,
    ].filter(Boolean);
  }

  holds() {
    const { found } = this;
    const holds = found.holds.map((one) => el("tr", {}, el("td", {}, one.view ? el("a", { href: address(one.view) }, user(one.purpose)) : user(one.purpose || "–")), el("td", {}, one.kind), el("td", {}, one.since.text), el("td", {}, ago(one.opened_ms)), el("td", {}, one.expires_ms ? new Date(one.expires_ms).toISOString().slice(0, 19).replace("T", " ") : "when dropped")));
    const writers = found.writers.map((one) => el("tr", {}, el("td", {}, user(one.name)), el("td", { class: "num" }, String(one.epoch)), el("td", { class: "num" }, String(one.sequence ?? "–")), el("td", {}, user(one.owner || "–"))));
    const when = (ms) => (ms ? new Date(ms).toISOString().slice(0, 16).replace("T", " ") : "not yet");
    const erasures = found.erasures.map((one) => el("tr", {}, el("td", {}, user(one.reason)), el("td", { class: "num" }, count(one.keys)), el("td", { class: "num" }, count(one.updates)), ...[one.asked_ms, one.erased_ms, one.gone_ms].map((ms) => el("td", { class: "whole" }, when(ms)))));
    return [
      el("h2", {}, "Holds: who keeps history"), holds.length ? list(["purpose", "kind", "since", "opened", "expires (UTC)"], holds) : el("p", { class: "soft" }, "none"),
      el("h2", {}, "Writers and tokens"), writers.length ? list(["name", "epoch", "sequence", "owner"], writers, [1, 2]) : el("p", { class: "soft" }, "none"),
      el("h2", {}, "Erasures (UTC)"), erasures.length ? list(["reason", "keys", "updates", "asked", "out of all reads", "bytes gone"], erasures, [1, 2]) : el("p", { class: "soft" }, "none"),
    ];
  }

  log() {
    const rows = this.commits.map((one) => el("tr", {}, el("td", { class: "num" }, String(one.seqno)), el("td", { class: "whole", title: new Date(one.committed_ms).toISOString() }, ago(one.committed_ms)), el("td", {}, one.what), el("td", {}, one.writers.map((name) => user(name))), el("td", { class: "num" }, one.rows === null ? "–" : count(one.rows)), el("td", { class: "num" }, one.bytes === null ? "–" : bytes(one.bytes)), el("td", { class: "whole" }, one.upper?.text ?? "–"), el("td", {}, user(one.author)), el("td", {}, user(one.message))));
    return [rows.length ? list(["seqno", "when", "what", "writer", "updates", "bytes", "upper", "author", "message"], rows, [0, 4, 5]) : el("p", { class: "soft" }, "no commits are left in the log")];
  }

  schema() {
    const { found } = this;
    const rows = found.columns.map((one) => el("tr", {}, el("td", {}, user(one.name)), el("td", {}, one.type), el("td", {}, one.role), el("td", {}, one.nullable ? "yes" : "no")));
    return [list(["column", "type", "role", "nullable"], rows), found.view?.sql ? el("pre", { class: "card" }, user(found.view.sql)) : "", el("p", { class: "soft" }, `Times are counted in: ${this.found.unit}. Retention: ${this.found.retention ?? "all history"}. Id: ${this.found.id}`)];
  }
}

function list(names, rows, numbers = []) {
  const head = names.map((name, i) => el("th", { class: numbers.includes(i) ? "num" : "" }, name));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

/** Rows as a table; without the time of each, where all have the one that was asked for. */
function table(found, signed, oneTime = false) {
  const diff = found.columns.indexOf("_diff");
  const keys = new Set(found.key ?? []);
  const side = (i) => (found.numeric[i] && !keys.has(found.columns[i]) ? "num" : "");
  const kept = (_, i) => !(oneTime && /^_time(_\d+)?$/.test(found.columns[i]));
  const head = found.columns.map((name, i) => el("th", { class: `${keys.has(name) ? "key" : ""} ${side(i)}` }, user(name))).filter(kept);
  const body = found.rows.map((row) => {
    const plus = !String(row[diff]).startsWith("-");
    const details = () => {
      document.getElementById("dialog-body").replaceChildren(el("dl", {}, row.flatMap((value, i) => [el("dt", {}, user(found.columns[i])), el("dd", {}, cell(value))])));
      document.getElementById("dialog").showModal();
    };
    // In contents, a row that is there less than no times is an error of the one who wrote it.
    return el("tr", { tabindex: 0, class: signed ? (plus ? "plus" : "minus") : plus ? "" : "minus", title: signed || plus ? null : "a negative count: removed more often than added", onclick: details, onkeydown: (event) => { if (event.key === "Enter") details(); } },
      signed ? el("td", { class: "sign" }, plus ? "+" : "−") : null, row.map((value, i) => el("td", { class: side(i) }, el("span", { class: "cut" }, cell(value)))).filter(kept));
  });
  return el("div", { class: "scroll" }, el("table", { class: "data" }, el("thead", {}, el("tr", {}, signed ? el("th", {}, "") : null, head)), el("tbody", {}, body)));
}

function cell(value) {
  return value === null ? el("span", { class: "null" }, "null") : user(value);
}

// --- what is new ---

function listen(name, then) {
  events?.close();
  const live = document.getElementById("live");
  let first = true;
  events = new EventSource(`/api/events?name=${encodeURIComponent(name)}`);
  events.onopen = () => { live.className = "on"; live.textContent = "live"; };
  events.onerror = () => { live.className = "off"; live.textContent = "not live"; };
  events.onmessage = async (event) => {
    const news = JSON.parse(event.data);
    // The first message tells what is on the page already, unless something came in between.
    if (first && !("seqno" in news)) { first = false; return; }
    first = false;
    await then(news);
  };
}

// --- keys, theme, places ---

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

const stored = localStorage.getItem("tidelake-theme");
theme(stored ? stored === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
document.getElementById("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme !== "dark";
  localStorage.setItem("tidelake-theme", dark ? "dark" : "light");
  theme(dark);
});

function help() {
  const keys = [["/", "filter or find"], ["g", "all collections"], ["v", "views"], ["1 to 7", "views of a collection"], ["← →", "on a slider: step through time"], ["t", "dark or light"], ["?", "this list"], ["Esc", "leave a field or this list"]];
  document.getElementById("dialog-body").replaceChildren(el("dl", {}, keys.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])));
  document.getElementById("dialog").showModal();
}
document.getElementById("help").addEventListener("click", help);

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input[type=text], input[type=search]");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  if (event.key === "/") { event.preventDefault(); document.querySelector("#filter, #find, .key-value")?.focus(); }
  else if (event.key === "g") location.hash = "#/";
  else if (event.key === "v") location.hash = "#/views";
  else if (event.key === "t") document.getElementById("theme").click();
  else if (event.key === "?") help();
  else if (view?.tabs && /^[1-7]$/.test(event.key)) view.show(TABS[Number(event.key) - 1]);
});

async function route() {
  events?.close();
  const [, place, name] = location.hash.match(/^#\/(c)\/(.+)$/) ?? [];
  try {
    const lake = await ask("lake");
    writable = !lake.read_only;
    document.getElementById("place").textContent = lake.place;
    view = place ? new CollectionView(decodeURIComponent(name)) : null;
    document.getElementById("to-list").toggleAttribute("aria-current", location.hash !== "#/views" && !place);
    document.getElementById("to-views").toggleAttribute("aria-current", location.hash === "#/views");
    await (view ? view.open() : location.hash === "#/views" ? views() : overview());
  } catch (error) { main.replaceChildren(failed(error)); }
}
addEventListener("resize", () => { if (view?.tabs) { view.drawLine(); if (view.tab === "storage") view.show("storage", true); } });
addEventListener("hashchange", route);
route();
