"use strict";
// Every word from outside goes into the page as text, never as markup.
const $ = id => document.getElementById(id);
const rates = [];
let last = null;

function put(parent, name, words, attributes = {}) {
  const svg = parent.namespaceURI === "http://www.w3.org/2000/svg";
  const made = svg ? document.createElementNS(parent.namespaceURI, name) : document.createElement(name);
  if (words !== undefined && words !== null) made.textContent = String(words);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}
const empty = element => { element.replaceChildren(); return element; };
const percent = x => (100 * x).toFixed(x < 0.1 && x > 0 ? 1 : 0) + "%";
const three = x => x === null || x === undefined ? "–" : Number(x).toFixed(3);

async function call(path, body) {
  const headers = {"Content-Type": "application/json"};
  const token = $("token").value.trim();
  if (token) headers["Authorization"] = "Bearer " + token;
  const answer = await fetch(path, body === undefined ? {headers} : {method: "POST", headers, body: JSON.stringify(body)});
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

const newest = () => last.traffic.arms[last.traffic.arms.length - 1];
async function start() {
  const loaded = await call("policies", {folder: $("folder").value});
  await call("split", {policy: loaded.policy, share: Number($("share").value)});
}

function names() {
  return Object.fromEntries(last.policies.map(one => [one.policy, one.folder]));
}

function showTraffic() {
  const body = empty($("arms")), bar = empty($("shares"));
  last.traffic.arms.forEach((arm, n) => {
    const row = put(body, "tr");
    put(row, "td", arm.folder); put(row, "td", arm.policy); put(row, "td", percent(arm.share));
    const part = put(bar, "i", null, {class: n ? "new" : "old"});
    part.style.width = 100 * arm.share + "%";
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
  $("state").textContent = last.ready ? "ready, " + last.exploration : "warming";
}

function showSpeed() {
  const list = empty($("latency")), seen = last.latency_ms;
  const rows = {"requests per second": seen.per_second.toFixed(1), "p50": seen.p50.toFixed(2) + " ms", "p90": seen.p90.toFixed(2) + " ms",
    "p99": seen.p99.toFixed(2) + " ms", "not logged": last.unlogged};
  for (const [name, value] of Object.entries(rows)) { put(list, "dt", name); put(list, "dd", value); }
  rates.push(seen.per_second);
  if (rates.length > 60) rates.shift();
  const svg = empty($("rates")), most = Math.max(1, ...rates);
  put(svg, "polyline", null, {class: "line", points: rates.map((x, n) => `${5 * n},${55 - 50 * x / most}`).join(" ")});
  put(svg, "text", most.toFixed(0) + " per second", {x: 295, y: 10, "text-anchor": "end"});
}

// 95%: mean plus and minus 1.96 standard errors; for people, the verdict has its own.
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

function showClicks() {
  const body = empty($("tallies")), svg = empty($("ranks")), key = empty($("key")), called = names();
  const entries = Object.entries(last.tallies), old = last.traffic.arms[0].policy;
  const K = Math.max(1, ...entries.map(([, t]) => t.by_rank.length));
  const shown = entries.slice(-4), width = 280 / K;
  const most = Math.max(1e-9, ...shown.flatMap(([, t]) => t.by_rank.map(x => share(x, t.impressions)[1])));
  shown.forEach(([policy, t], n) => {
    const row = put(body, "tr"), kind = policy === old ? "old" : "new";
    put(row, "td", called[policy] || policy); put(row, "td", t.impressions);
    put(row, "td", three(t.impressions ? t.clicks / t.impressions : null)); put(row, "td", interval(t));
    t.by_rank.forEach((x, k) => {
      const height = 90 * x / Math.max(1, t.impressions) / most, wide = width / (shown.length + 0.5);
      const left = 10 + k * width + n * wide, [low, high] = share(x, t.impressions).map(u => 100 - 90 * u / most);
      put(svg, "rect", null, {class: kind, x: left, y: 100 - height, width: wide * 0.9, height});
      put(svg, "path", null, {class: "whisker", d: `M${left + wide * 0.45},${low}V${high}m${-wide * 0.15},0h${wide * 0.3}M${left + wide * 0.3},${low}h${wide * 0.3}`});
    });
    put(key, "b", called[policy] || policy, {class: kind});
  });
  for (let k = 0; k < K; k++) put(svg, "text", k + 1, {x: 10 + (k + 0.35) * width, y: 112});
  put(svg, "text", three(most), {x: 295, y: 10, "text-anchor": "end"});
}

// What the chart of a test shows: every difference, and the intervals of its later half. The first ones are as wide as lists
// are long; they go beyond the panel.
function chartRange(points) {
  const later = points.slice(Math.floor(points.length / 2));
  const ends = [...points.map(p => p.difference), ...later.flatMap(p => [p.low, p.high])];
  const low = Math.min(...ends), high = Math.max(...ends), room = 0.05 * (high - low || 1);
  return [low - room, high + room];
}

function showVerdict() {
  const v = last.verdict, svg = empty($("history"));
  $("words").textContent = v ? (last.running ? "" : "last test: ") + v.words : "no test: one policy answers";
  $("words").className = v && v.decision === "roll back" ? "worse" : "";
  $("numbers").textContent = v ? `${three(v.difference)} clicks per impression, ${percent(v.level)} at all times: ${three(v.low)} to ${three(v.high)}; what decides: at least ${three(v.at_least)}, at most ${three(v.at_most)}; ` +
    `${v.impressions_new} impressions of the new policy, ${v.impressions_old} of the old` : "";
  const points = last.history;
  if (points.length < 2) return;
  const [low, high] = chartRange(points);
  const lastN = points[points.length - 1].impressions;
  const x = p => 5 + 290 * p.impressions / lastN, y = u => 110 - 100 * (Math.min(high, Math.max(low, u)) - low) / (high - low);
  put(svg, "polygon", null, {class: "band", points: [...points.map(p => `${x(p)},${y(p.high)}`), ...points.slice().reverse().map(p => `${x(p)},${y(p.low)}`)].join(" ")});
  put(svg, "polyline", null, {class: "line", points: points.map(p => `${x(p)},${y(p.difference)}`).join(" ")});
  if (low < 0 && high > 0) put(svg, "line", null, {class: "axis", x1: 5, x2: 295, y1: y(0), y2: y(0)});
  put(svg, "text", high.toFixed(2), {x: 5, y: 10}); put(svg, "text", low.toFixed(2), {x: 5, y: 118});
  put(svg, "text", lastN + " impressions", {x: 295, y: 118, "text-anchor": "end"});
}

function showAnswers(found) {
  const place = empty($("answers"));
  for (const policy of found.policies) {
    const part = put(place, "div"), table = put(part, "table");
    put(part, "p", `${policy.candidates_total} items, ${policy.K2} candidates; exposure of all others: ${three(policy.others_exposure)}`);
    part.prepend(put(part, "h2", `${policy.folder} (${policy.source})`));
    const head = put(put(table, "thead"), "tr");
    for (const name of ["item", "generator", "its rank", "re-ranker", "place", "exposure"]) put(head, "th", name);
    const body = put(table, "tbody");
    for (const c of policy.candidates) {
      const row = put(body, "tr");
      put(row, "td", c.item); put(row, "td", three(c.generator)); put(row, "td", c.generator_rank);
      put(row, "td", three(c.ranker)); put(row, "td", c.place === null ? "–" : c.place); put(row, "td", three(c.exposure));
    }
  }
}

async function refresh() {
  try {
    last = await call("status");
    showTraffic(); showSpeed(); showClicks(); showVerdict();
    document.body.dataset.refreshed = Number(document.body.dataset.refreshed || 0) + 1;
    if (!$("problem").hidden && $("problem").dataset.kind === "status") complain(null);
    delete $("problem").dataset.kind;
  } catch (error) { complain(error); $("problem").dataset.kind = "status"; }
}

$("token").value = sessionStorage.getItem("token") || "";
$("token").addEventListener("change", () => { sessionStorage.setItem("token", $("token").value); refresh(); });
$("canary").addEventListener("click", () => act(start));
$("promote").addEventListener("click", () => act(() => call("split", {policy: newest().policy, share: 1})));
$("rollback").addEventListener("click", () => act(() => call("rollback", {})));
$("ask").addEventListener("submit", event => {
  event.preventDefault();
  act(async () => showAnswers(await call("explain", {query_id: $("query").value || null})));
});
refresh();
setInterval(refresh, 1000);
