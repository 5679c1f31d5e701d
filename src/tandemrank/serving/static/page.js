"use strict";
// Every word from outside goes into the page as text, never as markup.
const $ = id => document.getElementById(id);
let last = null, past = null, asked = 0;

function put(parent, name, words, attributes = {}) {
  const made = document.createElement(name);
  if (words !== undefined && words !== null) made.textContent = String(words);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}
const empty = element => { element.replaceChildren(); return element; };
const percent = x => (100 * x).toFixed(x < 0.1 && x > 0 ? 1 : 0) + "%";
const three = x => x === null || x === undefined ? "–" : Number(x).toFixed(3);
const folderOf = policy => last.names[policy] || policy;

async function call(path, body) {
  const headers = {"Content-Type": "application/json"};
  const token = $("token").value.trim();
  if (token) headers["Authorization"] = "Bearer " + token;
  const answer = await fetch(path, body === undefined ? {headers} : {method: "POST", headers, body: JSON.stringify(body)});
  if (answer.ok && !answer.headers.get("content-type").startsWith("application/json")) return answer.text();
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.status);
  return found;
}

function complain(error) {
  $("problem").hidden = !error;
  $("problem").textContent = error ? error.message : "";
}

async function act(work) {
  for (const button of document.querySelectorAll("button")) button.disabled = true;
  try { await work(); complain(null); } catch (error) { complain(error); }
  for (const button of document.querySelectorAll("button")) button.disabled = false;
  await refresh();
}

// --- charts ------------------------------------------------------------------------------------------------------------

const COLOURS = ["--old", "--new", "--third", "--fourth"];
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// The old policy of a test has the first colour and the new one the second, everywhere.
function colourOf(policy, n) {
  const arms = last.traffic.arms.map(arm => arm.policy), at = arms.indexOf(policy);
  if (last.verdict && policy === last.verdict.old) return COLOURS[0];
  if (last.verdict && policy === last.verdict.new) return COLOURS[1];
  return COLOURS[at >= 0 ? at : 2 + n % 2];
}
const see = (name, alpha) => `color-mix(in srgb, ${colour(name)} ${alpha}%, transparent)`;

const plots = {};
// Times of day in one line: uPlot's own, with the date below, are cut at the edges of a phone.
const clock = (plot, times, at, space, step) => times.map(t =>
  new Date(1000 * t).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", hour12: false, ...step < 60 && {second: "2-digit"}}));
// A chart is made anew when its lines or the size of its place change; else it gets new numbers. `read(n)`: its numbers at a
// point, in words, for whoever points at it.
function draw(id, key, series, data, {read, x, y, bands, hooks, height = 180}) {
  const place = $(id), width = Math.floor(place.clientWidth), whole = JSON.stringify([key, width, colour("--ink")]);
  const is = plots[id] && plots[id].whole === whole ? plots[id] : null;
  if (is) { is.read = read; is.plot.setData(data); return; }
  if (plots[id]) plots[id].plot.destroy();
  const axis = {stroke: colour("--muted"), grid: {stroke: colour("--line"), width: 0.5}, ticks: {stroke: colour("--line"), width: 0.5}};
  const say = plot => { const n = plot.cursor.idx; $(id + "-read").textContent = n === null || n === undefined ? "" : plots[id].read(n); };
  plots[id] = {whole, read, plot: new uPlot({
    width, height, series: [{}, ...series], bands, scales: {x: {time: !x, range: x && x.range}, y: {range: y}}, hooks: {...hooks, setCursor: [say]},
    axes: [{...axis, size: 34, ...x ? x.axis : {values: clock, space: 70}}, {...axis, size: 52}], padding: [8, 28, 0, 0], legend: {show: false}, cursor: {y: false},
  }, data, empty(place))};
}
const fromZero = (plot, low, high) => [0, high > 0 ? high * 1.08 : 1];

// A 95% interval of a mean: plus and minus 1.96 standard errors; for people, the verdict has its own.
function interval(t) {
  if (t.impressions < 2) return "–";
  const mean = t.clicks / t.impressions, variance = (t.squares - t.impressions * mean * mean) / (t.impressions - 1);
  const half = 1.96 * Math.sqrt(Math.max(variance, 0) / t.impressions);
  return `${three(mean - half)} to ${three(mean + half)}`;
}

// The share of impressions with a click at a rank, 95%, by Wilson: right for few clicks too.
function share(x, n) {
  if (!n) return [0, 0];
  const z = 1.96, p = x / n, middle = p + z * z / (2 * n), half = z * Math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)), all = 1 + z * z / n;
  return [Math.max(0, (middle - half) / all), (middle + half) / all];
}

function fill(body, tallies) {
  empty(body);
  tallies.forEach(([policy, t], n) => {
    const row = put(body, "tr"), name = put(row, "td");
    put(name, "span", null, {class: "mark"}).style.background = colour(colourOf(policy, n));
    put(name, "span", folderOf(policy));
    for (const words of [t.impressions, three(t.impressions ? t.clicks / t.impressions : null), interval(t)]) put(row, "td", words, {class: "n"});
  });
  if (!tallies.length) put(put(body, "tr"), "td", "no impression is settled yet", {colspan: 4});
}

// --- the panels --------------------------------------------------------------------------------------------------------

const newest = () => last.traffic.arms[last.traffic.arms.length - 1];
async function start() {
  const loaded = await call("policies", {folder: $("folder").value});
  await call("split", {policy: loaded.policy, share: Number($("share").value)});
}

// What is asked before a policy gets everything; a roll back is for emergencies, and asks nothing.
function promote() {
  const arms = last.traffic.arms, v = last.verdict;
  if (arms.length < 2) { complain(new Error("one policy answers: there is none to promote. Start a test first.")); return; }
  $("sure-words").textContent = `${newest().folder} gets all the traffic, and the test ends. ${arms[0].folder} stays loaded for a roll back. ` +
    (v && v.decision === "promote" ? "The test says that the new policy is better." : "The test has not shown that the new policy is better.");
  $("sure").showModal();
}

function showTraffic() {
  const body = empty($("arms")), bar = empty($("shares"));
  last.traffic.arms.forEach((arm, n) => {
    const row = put(body, "tr");
    put(row, "td", arm.folder); put(row, "td", arm.policy); put(row, "td", percent(arm.share), {class: "n"});
    put(bar, "i", null, {class: n ? "new" : "old"}).style.width = 100 * arm.share + "%";
  });
  const folder = $("folder"), chosen = folder.value;
  if (folder.options.length !== last.folders.length) {
    empty(folder);
    for (const name of last.folders) put(folder, "option", name, {value: name});
    const live = last.traffic.arms[0].folder;
    folder.value = last.folders.includes(chosen) ? chosen : last.folders.find(x => x !== live) || live;
  }
  const list = empty($("changes"));
  for (const change of last.changes.slice(-20).reverse())
    put(list, "li", new Date(1000 * change.time).toLocaleTimeString() + " " + change.words);
  $("state").textContent = (last.ready ? "ready" : "warming") + ", exploration " + last.exploration + (last.log === "ok" ? "" : ", log: " + last.log);
}

function showSpeed() {
  const list = empty($("latency")), seen = last.latency_ms;
  const rows = {"requests per second": seen.per_second.toFixed(1), "half are answered in": seen.p50.toFixed(2) + " ms",
    "90% in": seen.p90.toFixed(2) + " ms", "99% in": seen.p99.toFixed(2) + " ms", "not logged": last.unlogged};
  for (const [name, value] of Object.entries(rows)) { put(list, "dt", name); put(list, "dd", value); }
}

// All steps of a range of time, those in which nothing happened as well: a line must not hide them.
function grid() {
  const width = past.seconds_per_step, end = Math.floor(past.now / width) * width, found = new Map(past.steps.map(s => [s.time, s]));
  const begin = Math.ceil((past.now - Number($("range").value)) / width) * width;
  const first = Math.max(begin, Math.min(past.steps.length ? past.steps[0].time : end, end - 6 * width));
  const times = [];
  for (let t = first; t <= end; t += width) times.push(t);
  return times.map(t => found.get(t) || {time: t, lists: 0, tallies: {}});
}

function added(steps) {
  const all = {};
  for (const step of steps) for (const [policy, t] of Object.entries(step.tallies)) {
    const sum = all[policy] ||= {impressions: 0, clicks: 0, squares: 0, by_rank: t.by_rank.map(() => 0)};
    for (const name of ["impressions", "clicks", "squares"]) sum[name] += t[name];
    t.by_rank.forEach((x, k) => { sum.by_rank[k] += x; });
  }
  return Object.entries(all);
}

function showTime() {
  const steps = grid(), width = past.seconds_per_step, tallies = added(steps), times = steps.map(s => s.time);
  fill($("tallies"), tallies);
  const shown = tallies.slice(-4), when = n => new Date(1000 * times[n]).toLocaleTimeString(), key = [$("range").value, shown.map(([policy]) => policy)];
  const rates = steps.map((s, n) => s.lists / (n === steps.length - 1 ? Math.max(1, past.now - s.time) : width));
  const clicks = shown.map(([policy]) => steps.map(s => s.tallies[policy] ? s.tallies[policy].clicks / s.tallies[policy].impressions : null));
  draw("rate-chart", key, [{stroke: colour("--ink"), width: 1.5, fill: see("--muted", 15)}], [times, rates],
    {y: fromZero, height: 130, read: n => `${when(n)}: ${rates[n].toFixed(1)} lists per second`});
  $("clicks-time").hidden = !tallies.length;
  if (tallies.length) draw("clicks-chart", key, shown.map(([policy], n) => ({stroke: colour(colourOf(policy, n)), width: 1.5, points: {show: true, size: 4}})), [times, ...clicks],
    {y: fromZero, read: n => `${when(n)}: ` + shown.map(([policy], k) => `${folderOf(policy)} ${three(clicks[k][n])}`).join(", ")});
}

// Clicks by rank of the test, where there is one: traffic before it would be compared with other users.
function showRanks() {
  const inTest = last.test !== null, tallies = (inTest ? Object.entries(last.test.tallies) : added(grid())).slice(-4);
  $("places-words").textContent = (inTest ? (last.test.running ? "Of this test alone" : "Of the last test alone") : "Of the time that is chosen under Traffic") +
    ": clicks per impression at each rank; the shade is a 95% interval.";
  const K = Math.max(0, ...tallies.map(([, t]) => t.by_rank.length)), series = [], rows = [], bands = [];
  tallies.forEach(([policy, t], n) => {
    const name = colourOf(policy, n), ends = t.by_rank.map(x => share(x, t.impressions)), at = series.length + 1;
    const edge = {stroke: see(name, 40), width: 1, points: {show: false}};
    series.push({stroke: colour(name), width: 1.5, points: {show: true, size: 6}}, edge, edge);
    bands.push({series: [at + 2, at + 1], fill: see(name, 18)});
    rows.push(t.by_rank.map(x => x / Math.max(1, t.impressions)), ends.map(e => e[0]), ends.map(e => e[1]));
  });
  if (!K) return;
  const ranks = Array.from({length: K}, (_, k) => k + 1);
  const read = k => `rank ${k + 1}: ` + tallies.map(([policy], n) => `${folderOf(policy)} ${three(rows[3 * n][k])} (${three(rows[3 * n + 1][k])} to ${three(rows[3 * n + 2][k])})`).join(", ");
  draw("rank-chart", [K, tallies.map(([policy]) => policy)], series, [ranks, ...rows],
    {y: fromZero, bands, height: 220, read, x: {range: () => [0.5, K + 0.5], axis: {incrs: [1, 2, 5, 10, 20, 50, 100], space: 25}}});
}

// The first intervals are as wide as lists are long. Nothing is cut: the later half of the points has a height of its own.
function testPoints(points, part) { return part === "all" || points.length < 4 ? points : points.slice(Math.floor(points.length / 2)); }

function showTest() {
  const v = last.verdict, place = $("tested");
  $("words").textContent = v ? (last.test.running ? "" : "last test: ") + v.words : "no test: one policy answers";
  $("words").className = v && v.decision === "roll back" ? "worse" : "";
  place.hidden = !v;
  if (!v) return;
  fill(place.tBodies[0], [v.old, v.new].filter(policy => last.test.tallies[policy]).map(policy => [policy, last.test.tallies[policy]]));
  $("numbers").textContent = v.difference === null ? "" : `Difference ${three(v.difference)} clicks per impression, ${percent(v.level)} at all times: ${three(v.low)} to ${three(v.high)}. ` +
    `What decides: at least ${three(v.at_least)}, at most ${three(v.at_most)}.`;
  const points = testPoints(last.history, $("part").value);
  $("test-range").hidden = last.history.length < 4;
  if (points.length < 2) { if (plots["test-chart"]) { plots["test-chart"].plot.destroy(); delete plots["test-chart"]; } return; }
  const edge = {stroke: see("--new", 40), width: 1, points: {show: false}};
  const zero = plot => {
    const {left, width, top, height} = plot.bbox, y = plot.valToPos(0, "y", true);
    if (y < top || y > top + height) return;
    plot.ctx.save(); plot.ctx.strokeStyle = colour("--ink"); plot.ctx.beginPath(); plot.ctx.moveTo(left, y); plot.ctx.lineTo(left + width, y); plot.ctx.stroke(); plot.ctx.restore();
  };
  const read = n => `${points[n].impressions} impressions: ${three(points[n].difference)} (${three(points[n].low)} to ${three(points[n].high)})`;
  draw("test-chart", [v.new, $("part").value], [{stroke: colour("--new"), width: 1.5}, edge, edge],
    ["impressions", "difference", "low", "high"].map(name => points.map(p => p[name])),
    {x: {}, bands: [{series: [3, 2], fill: see("--new", 18)}], hooks: {draw: [zero]}, height: 200, read});
}

function showAnswers(found) {
  const place = empty($("answers")), words = found.title ? `${$("query").value}: ${found.title}` : $("query").value;
  for (const policy of found.policies) {
    const part = put(place, "div");
    put(part, "h2", `${policy.folder}${words ? " for " + words : ""}`);
    const how = {policy: "", features: ", answered by its features", popular: ", a query that it does not know: the average one"}[policy.source];
    put(part, "p", `${policy.candidates.length} of its ${policy.K2} candidates, out of ${policy.candidates_total} items${how}. All others together have an exposure of ${three(policy.others_exposure)}.`, {class: "small"});
    const table = put(part, "table"), head = put(put(table, "thead"), "tr");
    for (const name of ["item", "place", "exposure", "re-ranker", "generator", "its rank"]) put(head, "th", name, name === "item" ? {} : {class: "n"});
    const body = put(table, "tbody");
    for (const c of policy.candidates) {
      const row = put(body, "tr"), cell = put(row, "td"), title = found.titles[c.item];
      if (title && title.url.includes("://")) put(cell, "a", title.title || c.item, {href: title.url, rel: "noopener noreferrer", target: "_blank"});
      else put(cell, "span", title && title.title || c.item);
      if (title && title.title) put(cell, "span", " " + c.item, {class: "id"});
      for (const value of [c.place === null ? "–" : c.place, three(c.exposure), three(c.ranker), three(c.generator), c.generator_rank]) put(row, "td", value, {class: "n"});
    }
  }
}

const ask = query => act(async () => {
  empty($("found"));
  showAnswers(await call("explain", {query_id: query || null}));
});

async function find() {
  const number = ++asked;
  try {
    const found = await call("search", {words: $("query").value, most: 12});
    if (number !== asked) return;  // a later search is under way
    const list = empty($("found"));
    for (const one of found.queries) {
      const button = put(put(list, "li"), "button", one.title ? `${one.query_id}: ${one.title}` : one.query_id);
      button.addEventListener("click", () => { $("query").value = one.query_id; asked++; ask(String(one.query_id)); });
    }
  } catch (error) { complain(error); }
}

async function save(path) {
  const found = await call(path), words = typeof found === "string" ? found : JSON.stringify(found, null, 2);
  const link = put(document.body, "a", null, {href: URL.createObjectURL(new Blob([words])), download: "tandemrank-" + path});
  link.click(); link.remove(); URL.revokeObjectURL(link.href);
}

async function refresh() {
  try {
    const range = Number($("range").value);
    [last, past] = await Promise.all([call("status"), call("history", {seconds: range})]);
    showTraffic(); showSpeed(); showTime(); showRanks(); showTest();
    document.body.dataset.refreshed = Number(document.body.dataset.refreshed || 0) + 1;
    if (!$("problem").hidden && $("problem").dataset.kind === "status") complain(null);
    delete $("problem").dataset.kind;
  } catch (error) { complain(error); $("problem").dataset.kind = "status"; }
}

$("token").value = sessionStorage.getItem("token") || "";
$("token").addEventListener("change", () => { sessionStorage.setItem("token", $("token").value); refresh(); });
$("canary").addEventListener("click", () => act(start));
$("promote").addEventListener("click", promote);
$("yes").addEventListener("click", () => { $("sure").close(); act(() => call("split", {policy: newest().policy, share: 1})); });
$("no").addEventListener("click", () => $("sure").close());
$("rollback").addEventListener("click", () => act(() => call("rollback", {})));
$("json").addEventListener("click", () => act(() => save("summary.json")));
$("csv").addEventListener("click", () => act(() => save("summary.csv")));
$("range").addEventListener("change", refresh);
$("part").addEventListener("change", refresh);
$("query").addEventListener("input", find);
$("ask").addEventListener("submit", event => { event.preventDefault(); asked++; ask($("query").value); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
refresh();
setInterval(refresh, 2000);
