// Shows what /state.json says, again and again. All text enters as text, never as markup.
"use strict";

const SHOWN_EVERY_MS = 2000;
const HIDDEN_EVERY_MS = 30000;
const ANSWER_WITHIN_MS = 60000;
const TOKEN = "dropfed dashboard token";
const COLOURS = ["#0b57a4", "#a40e26", "#116329", "#7a4b00", "#6639ba", "#0f6570", "#8a2877", "#444c56"];
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const MARKERS = ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-4-4h8v8h-8z", "M0-5l5 9h-10z", "M0-5l5 5l-5 5l-5-5z", "M0 5l5-9h-10z"];  // around 0, 0
const MOST_MARKED = 40;  // of more aggregates than this no marker is drawn: they would hide the line
const MOST_NAMED = 12;  // of more lines than this the legend alone has the names
const NAME_LETTERS = 12;
const NAME_HEIGHT = 15;
const MEAN_COLOUR = "#1b1f24";
const SVG = "http://www.w3.org/2000/svg";

const part = (id) => document.getElementById(id);
let timer = 0;
let asking = false;
let seenAt = null;  // when the dashboard last answered, by its clock
let before = null;  // the overview that was shown last
const drawn = new Map();  // by part of the page: what it was made from, so that what is the same stays untouched

// --- making elements ------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// As all of dropfed shows a moment: by the reader's clock, with its zone, as in 2026-11-24 08:35:12+01:00.
function dayAndTime(text) {
  const told = new Date(text);
  const ahead = -told.getTimezoneOffset();  // in minutes
  const two = (number) => String(number).padStart(2, "0");
  const zone = `${ahead < 0 ? "-" : "+"}${two(Math.floor(Math.abs(ahead) / 60))}:${two(Math.abs(ahead) % 60)}`;
  const day = [told.getFullYear(), two(told.getMonth() + 1), two(told.getDate())].join("-");
  return `${day} ${[told.getHours(), told.getMinutes(), told.getSeconds()].map(two).join(":")}${zone}`;
}

function moment(text) {
  return element("time", { datetime: text }, dayAndTime(text));
}

function list(facts) {
  return facts.filter(([, value]) => value !== null && value !== "").flatMap(([name, value]) => [
    element("dt", {}, name),
    element("dd", {}, ...[value].flat()),
  ]);
}

function showIfNew(id, source, make) {
  const text = JSON.stringify(source);
  if (drawn.get(id) === text) return;
  drawn.set(id, text);
  const focused = document.activeElement.id;
  make(part(id));
  if (document.activeElement.id !== focused) part(focused)?.focus({ preventScroll: true });
}

function say(id, text) {
  const line = part(id);
  if (line.textContent !== text) line.textContent = text;
  line.hidden = text === "";
}

// --- asking ---------------------------------------------------------------------------------------------------

async function look() {
  if (asking || isPaused()) return;
  asking = true;
  clearTimeout(timer);
  try {
    const answer = await ask("state.json");
    if (isPaused()) return;
    if (answer.status === 401) {
      askForToken(sessionStorage.getItem(TOKEN) !== null);
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const state = await answer.json();
    if (!isPaused()) show(state);
  } catch (error) {
    if (!isPaused()) showCut();
  } finally {
    asking = false;
    if (part("login").hidden) timer = setTimeout(look, document.hidden ? HIDDEN_EVERY_MS : SHOWN_EVERY_MS);
  }
}

function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  return fetch(path, {
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    cache: "no-store",
    signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
  });
}

function askForToken(wasWrong) {
  sessionStorage.removeItem(TOKEN);
  part("shown").hidden = true;
  say("cut", "");
  part("seen").textContent = "";
  part("login").hidden = false;
  say("login-why", wasWrong ? "This is not the token." : "");
  part("token").focus();
}

part("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, part("token").value.trim());
  part("token").value = "";
  part("login").hidden = true;
  look();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && part("login").hidden) look();
});

part("pause").addEventListener("click", () => {
  part("pause").setAttribute("aria-pressed", String(!isPaused()));
  say("cut", "");
  look();
});

function isPaused() {
  return part("pause").getAttribute("aria-pressed") === "true";
}

function showCut() {
  const seen = seenAt === null ? "It was not seen yet." : `What is below was last seen ${dayAndTime(seenAt)}.`;
  say("cut", `The dashboard does not answer; this page tries again and again. ${seen}`);
}

// --- showing --------------------------------------------------------------------------------------------------

function show(state) {
  seenAt = state.now;
  part("shown").hidden = false;
  say("cut", "");
  part("seen").replaceChildren("Seen at ", moment(state.now));
  say("problem", state.problem ?? "");
  part("run").hidden = state.run === null;
  if (state.run !== null) showRun(state.run);
  showIfNew("runs-body", state.runs, (target) => showRuns(target, state.runs));
  showIfNew("lines", state.log, showLog);
  say("no-log", state.log.length ? "" : "There is no log yet.");
}

function showRun({ overview, about, words, rounds, curves }) {
  const heading = document.querySelector("h1");
  if (heading.textContent !== `Run ${overview.run}`) heading.textContent = `Run ${overview.run}`;
  const title = `${overview.state} · ${overview.run} · dropfed`;
  if (document.title !== title) document.title = title;
  const command = `dropfed-aggregator launch ${overview.configuration} --work ${overview.work}`;
  say("stopped", overview.running || overview.next === null ? "" : `The aggregator is not running. To go on with the run: ${command}`);
  showIfNew("facts", [{ ...overview, now: null, sites: null }, about], (target) => {
    target.replaceChildren(...list(facts(overview, about)));
  });
  tellNews(overview);
  showIfNew("cards", [overview.waits_for, overview.sites, words], (target) => {
    const names = Object.keys(overview.sites);
    target.replaceChildren(...names.map((name) => card(name, overview, words[name])));
  });
  showIfNew("rounds-body", [Object.keys(overview.sites), rounds], () => showRounds(Object.keys(overview.sites), rounds));
  drawCurves(curves);
}

function showRuns(target, runs) {
  part("no-runs").hidden = runs.length > 0;
  part("runs-table").hidden = runs.length === 0;
  target.replaceChildren(...runs.map((run) => {
    const button = element("button", { type: "button", id: `report-of-${run.run}`, "aria-label": `Show the report of run ${run.run}` }, "Show");
    button.addEventListener("click", () => showReport(run.run));
    return element("tr", {},
      element("th", { scope: "row" }, run.run),
      element("td", {}, moment(run.began)),
      element("td", {}, run.task === null ? "–" : `${run.task} by ${run.method}`),
      element("td", { class: "state" }, run.state),
      element("td", {}, button));
  }));
}

async function showReport(run) {
  part("report").hidden = false;
  part("report-title").textContent = `Report of run ${run}`;
  part("report-command").textContent = `dropfed-aggregator report ${run} --pages DIR`;
  part("report-text").textContent = "Being made …";
  part("report-title").focus();
  try {
    const answer = await ask(`report/${run}`);
    part("report-text").textContent = answer.ok ? await answer.text() : "There is no such report here any more.";
  } catch (error) {
    part("report-text").textContent = "The dashboard does not answer; try again.";
  }
}

function where(overview) {
  if (overview.is_closing_round && overview.final_model === null) return "the closing round, which trains nothing";
  return overview.round === 0 && overview.rounds ? `before round 1 of ${overview.rounds}` : `round ${overview.round} of ${overview.rounds}`;
}

function facts(overview, about) {
  const waits = overview.waits_for.length ? overview.waits_for.join(", ") : null;
  return [
    ["Outcome", overview.outcome && element("strong", {}, overview.outcome.text)],
    ["Trouble", overview.trouble.length ? overview.trouble.map((text) => element("p", { class: "bad" }, text)) : null],
    ["Federation", about.federation],
    ["Task", `${about.task} by ${about.method}`],
    ["Began", about.began && [moment(about.began)]],
    ["State", `${overview.state}, ${where(overview)}`],
    ["Waits for", waits && [`${waits}, since `, moment(overview.since)]],
    ["Why", overview.why],
    ["Next", overview.next],
    ["Ends about", overview.expected_end && [moment(overview.expected_end), " (an estimate: if rounds go on as they went)"]],
    ["Chosen", overview.final_model && `${overview.chosen}: ${overview.final_model}`],
    ["Reason", overview.reason],
    ["Then", overview.waiting.length ? overview.waiting.map((text) => element("p", {}, text)) : null],
    ["Software", overview.software],
  ];
}

function card(name, overview, words) {
  const site = overview.sites[name];
  const isAwaited = overview.waits_for.includes(name);
  const isFinished = site.phase === "finished";
  const heartbeat = isFinished ? null : site.heartbeat;
  const training = heartbeat !== null && heartbeat.phase === "training" && heartbeat.run === overview.run;
  const percent = training ? heartbeat.progress_percent : 0;
  return element("article", { class: isAwaited ? "card awaited" : "card", "aria-label": name },
    element("h3", {}, name),
    element("p", {}, isAwaited ? `${site.phase} (waited for)` : site.phase),
    element("dl", {}, ...list([
      ["Says", heartbeat && words.says],
      ["Heard", heartbeat && words.heard],
      ["Progress", training ? [element("progress", { max: "100", value: percent, "aria-label": `${name}: progress` }), ` ${percent} %`] : null],
      ["Answer", site.expected && ["about ", moment(site.expected), " (an estimate: if it takes as long as it did)"]],
      ["On its way", words.transfer],
      ["New key", site.new_key],
      ["Software", site.software !== null && site.software !== overview.software ? site.software : null],
      ["Score", words.score],
      ["Verdict", words.score ? null : site.last_verdict],
      ["Says", heartbeat && heartbeat.trouble],
      ["Trouble", site.trouble && element("span", { class: "bad" }, site.trouble, " (since ", moment(site.trouble_since), ")")],
    ])));
}

function showRounds(sites, rounds) {
  const titles = ["Round", ...sites, "Began", "Took"];
  part("rounds-head").replaceChildren(element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title))));
  part("rounds-body").replaceChildren(...rounds.map((round) => element("tr", {},
    element("th", { scope: "row" }, round.name),
    ...sites.map((site) => verdict(round.sites[site])),
    element("td", {}, round.began === null ? "–" : moment(round.began)),
    element("td", {}, round.took ?? "–"))));
  if (!rounds.length) {
    part("rounds-body").append(element("tr", {}, element("td", { colspan: titles.length }, "No round was opened yet.")));
  }
}

function verdict(found) {
  if (found === undefined) return element("td", { class: "soft" }, "not asked");
  const classes = { accepted: "good", validated: "good", omitted: "bad", late: "warn", withdrawn: "warn" };
  const isCounted = found.reason?.startsWith("counted in round") || found.weight !== null;
  const isPlain = found.reason === null || ["accepted", "validated"].includes(found.status)
    || (found.status === "late" && !isCounted);
  return element("td", {},
    element("span", { class: classes[found.status] ?? "soft" }, found.status),
    found.score === null ? null : ` ${found.score.toFixed(3)}`,
    found.weight === null ? null : element("span", { class: "why soft" }, `weight ${found.weight.toFixed(3)}`),
    isPlain ? null : element("span", { class: "why soft" }, found.reason));
}

function showLog(target) {
  const lines = JSON.parse(drawn.get("lines"));
  const wasAtEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 20;
  target.hidden = !lines.length;
  target.replaceChildren(...lines.map((line) => {
    const level = /\b(WARNING|ERROR|CRITICAL)\b/.exec(line.slice(0, 80));
    const kind = level === null ? null : level[1] === "WARNING" ? "warn" : "bad";
    return element("div", kind ? { class: kind } : {}, line);
  }));
  if (wasAtEnd) target.scrollTop = target.scrollHeight;
}

// What changed since the last look, in a sentence that a screen reader tells when it comes to it.
function tellNews(overview) {
  const news = [];
  if (before !== null && before.run === overview.run) {
    if (before.state !== overview.state || where(before) !== where(overview)) news.push(`the run is ${overview.state}, ${where(overview)}`);
    if (before.outcome === null && overview.outcome !== null) news.unshift(overview.outcome.text);
    if (before.running !== overview.running) news.push(overview.running ? "the aggregator runs again" : "the aggregator is not running");
    for (const [name, site] of Object.entries(overview.sites)) {
      const old = before.sites[name];
      if (old === undefined || old.phase !== site.phase) news.push(`${name}: ${site.phase}`);
      if (old !== undefined && site.last_verdict !== null && old.last_verdict !== site.last_verdict) news.push(`${name}: ${site.last_verdict}`);
      if (old !== undefined && site.trouble !== null && old.trouble !== site.trouble) news.push(`${name}: trouble: ${site.trouble}`);
    }
  }
  before = overview;
  if (news.length) part("news").textContent = `${dayAndTime(overview.now)}: ${news.join("; ")}`;
}

// --- curves ---------------------------------------------------------------------------------------------------

let shownCurves = [];

function drawCurves(curves) {
  shownCurves = curves;
  const columns = getComputedStyle(part("charts")).gridTemplateColumns;
  const width = Math.max(240, Math.floor(parseFloat(columns)) || 480);
  showIfNew("charts", [width, curves], (target) => {
    const open = new Set([...target.querySelectorAll("details[open]")].map((found) => found.dataset.name));
    target.replaceChildren(...curves.map((curve) => chart(curve, width, open.has(curve.name))));
    if (!curves.length) target.append(element("p", { class: "soft" }, "No site has reported a score yet."));
  });
}

window.addEventListener("resize", () => {
  if (!part("run").hidden) drawCurves(shownCurves);
});

function linesOf(curve) {
  const lines = Object.entries(curve.sites).map(([name, values], number) => ({
    name, values, marker: MARKERS[number % MARKERS.length],
    look: { class: "line", stroke: COLOURS[number % COLOURS.length], "stroke-dasharray": DASHES[(number + Math.floor(number / COLOURS.length)) % DASHES.length] },
  }));
  if (curve.mean) lines.push({ name: "mean", values: curve.mean, marker: "", look: { class: "line mean", stroke: MEAN_COLOUR } });
  return lines;
}

function chart(curve, width, isOpen) {
  const lines = linesOf(curve);
  const caption = `${curve.name} by round of the aggregate`;
  const table = element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...["Aggregate", ...lines.map((line) => line.name)].map((title, column) => element("th", column ? { scope: "col", class: "number" } : { scope: "col" }, title)))),
    element("tbody", {}, ...curve.aggregates.map((of, row) => element("tr", {},
      element("th", { scope: "row" }, String(of)),
      ...lines.map((line) => element("td", { class: "number" }, line.values[row] === null ? "–" : line.values[row].toFixed(3)))))));
  const details = element("details", { "data-name": curve.name },
    element("summary", { id: `numbers-of-${curve.name}` }, `The numbers of ${curve.name}`),
    element("div", { id: `table-of-${curve.name}`, class: "wide", tabindex: "0", role: "region", "aria-label": `Table of ${curve.name}` }, table));
  details.open = isOpen;
  return element("figure", {},
    element("h3", {}, curve.name),
    plot(curve, lines, caption, width),
    isMeanOverOthers(curve) ? element("p", { class: "soft" }, "The mean is over the sites that reported the score, not the same ones for each aggregate.") : "",
    element("ul", { class: "legend" }, ...lines.map((line) => element("li", {},
      shape("svg", { width: 28, height: 10, "aria-hidden": "true" }, shape("line", { ...line.look, x1: 0, y1: 5, x2: 28, y2: 5 }), markerAt(line, 14, 5)), line.name))),
    details);
}

// Whether the mean joins aggregates of which different sites reported the score.
function isMeanOverOthers(curve) {
  const toldBy = curve.aggregates.map((_, row) => Object.keys(curve.sites).filter((name) => curve.sites[name][row] !== null).join());
  return curve.mean !== null && new Set(toldBy.filter(Boolean)).size > 1;
}

function plot(curve, lines, caption, width) {
  const named = lines.length > MOST_NAMED ? [] : lines.filter((line) => line.values.some((value) => value !== null));
  const letters = Math.max(0, ...named.map((line) => Math.min(NAME_LETTERS, line.name.length)));
  const [height, left, right, top, bottom] = [256, 48, 14 + 8 * letters, 10, 46];
  const marks = ticks(lines.flatMap((line) => line.values).filter((value) => value !== null));
  const [low, high] = [Number(marks[0]), Number(marks[marks.length - 1])];
  const first = curve.aggregates[0];
  const last = Math.max(curve.aggregates[curve.aggregates.length - 1], first + 1);
  const x = (of) => left + ((of - first) / (last - first)) * (width - left - right);
  const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
  const drawing = shape("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Curve: ${caption}; the numbers stand in the table below` });
  for (const mark of marks) {
    drawing.append(
      shape("line", { class: "grid", x1: left, x2: width - right, y1: y(Number(mark)), y2: y(Number(mark)) }),
      shape("text", { x: left - 6, y: y(Number(mark)) + 4, "text-anchor": "end" }, mark));
  }
  const every = Math.max(1, Math.ceil((last - first) / Math.max(1, Math.floor((width - left) / 60))));
  for (let of = first; of <= last; of += every) {
    drawing.append(shape("text", { x: x(of), y: height - bottom + 18, "text-anchor": "middle" }, String(of)));
  }
  drawing.append(shape("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "aggregate of round"));
  drawing.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  for (const line of lines) {
    for (const run of unbroken(curve.aggregates, line.values)) {
      drawing.append(shape("polyline", { ...line.look, points: run.map(([of, value]) => `${x(of).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
      if (run.length === 1 && !line.marker) drawing.append(shape("circle", { cx: x(run[0][0]), cy: y(run[0][1]), r: 3, fill: line.look.stroke }));
      if (run.length === 1 || curve.aggregates.length <= MOST_MARKED) drawing.append(...run.map(([of, value]) => markerAt(line, x(of), y(value))));
    }
  }
  const endOf = (line) => {
    const row = line.values.findLastIndex((value) => value !== null);
    return { across: x(curve.aggregates[row]) + 8, down: y(line.values[row]) };
  };
  drawing.append(...namesBeside(named, endOf, height - bottom));
  return drawing;
}

function markerAt(line, across, down) {
  return shape("path", { d: line.marker, transform: `translate(${across.toFixed(1)} ${down.toFixed(1)})`, fill: line.look.stroke });
}

// The name of each line beside its end, one below the other where ends lie closer than a name is high.
function namesBeside(lines, endOf, lowest) {
  const placed = lines.map((line) => ({ line, ...endOf(line) })).sort((one, other) => one.down - other.down);
  placed.forEach((each, row) => {
    if (row) each.down = Math.max(each.down, placed[row - 1].down + NAME_HEIGHT);
  });
  placed.reverse().forEach((each, row) => {
    each.down = Math.min(each.down, row ? placed[row - 1].down - NAME_HEIGHT : lowest);
  });
  return placed.map(({ line, across, down }) => {
    const shown = line.name.length > NAME_LETTERS ? `${line.name.slice(0, NAME_LETTERS - 1)}…` : line.name;
    return shape("text", { x: across, y: (down + 4).toFixed(1) }, shown);
  });
}

// Round numbers below, between and above the values.
function ticks(values) {
  // Not Math.min(...values): so many arguments as a long run has values are too many.
  const low = values.reduce((one, other) => Math.min(one, other), Infinity);
  const high = values.reduce((one, other) => Math.max(one, other), -Infinity);
  const rough = Math.max(high - low, 0.01) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const first = Math.floor(low / step);
  const count = Math.max(1, Math.ceil(high / step) - first);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return Array.from({ length: count + 1 }, (_, each) => ((first + each) * step).toFixed(digits));
}

// A value that was not reported breaks the line: nothing is drawn where nothing is known.
function unbroken(aggregates, values) {
  const runs = [[]];
  aggregates.forEach((of, row) => {
    if (values[row] === null) runs.push([]);
    else runs[runs.length - 1].push([of, values[row]]);
  });
  return runs.filter((run) => run.length);
}

look();
