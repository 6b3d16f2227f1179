// A run's output as numbered lines. Text becomes text nodes; colours (ANSI, ECMA-48 SGR) become classes.

import { api } from "./api.js";
import { $, counted, h, pressed, say } from "./dom.js";

const view = $("#log");
const tools = $("#log-tools").elements;
// More lines would make the page slow; the download has them all.
const MOST_LINES = 10_000;
// A title or a link ends on its line, so that one without its end hides no output.
const ESCAPE = /\x1b\[([0-9;:]*)m|\x1b\[[0-9;:?]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)/;
const BEGUN = /\x1b(?:\[[0-9;:?]*|\][^\x07\x1b\n]*)?$/;

let runId, line, count, shown, stream, states, target, isScrolled, frame, digits = 4;

/** The state of the text after a sequence such as `1;31`. */
function styled(before, codes) {
  let { colour, marks } = before;
  const numbers = codes.split(/[;:]/).map(Number);
  for (let code = numbers.shift(); code !== undefined; code = numbers.shift()) {
    if (code === 0) [colour, marks] = [null, []];
    else if ([1, 2, 3, 4].includes(code)) marks = [...marks, code];
    else if (code >= 22 && code <= 24) marks = marks.filter((mark) => (code === 22 ? mark > 2 : mark !== code - 20));
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = code % 10;
    else if (code === 39) colour = null;
    else if (code === 38 || code === 48) {
      // Of 256 colours the first sixteen have names; others are shown as plain text.
      const [kind, number] = numbers.splice(0, numbers[0] === 5 ? 2 : 4);
      if (code === 38) colour = kind === 5 && number < 16 ? number % 8 : null;
    }
  }
  return { colour, marks };
}

function newLine(at) {
  count += 1;
  const id = `L${count}`;
  if (count >= 10 ** digits) {
    digits = String(count).length;
    view.style.setProperty("--digits", digits);
  }
  line = h("span", { class: "line", "data-at": at.slice(11, 23) },
    h("a", { class: "number", href: `?run=${runId}#${id}`, "aria-label": `Line ${count}`, "data-number": count, tabindex: -1 }));
  line.id = id;
  // The address's line stays in the middle of the view.
  if (target && count > target + MOST_LINES / 2 && shown >= MOST_LINES) {
    $("#log-later").hidden = false;
    return;
  }
  view.append(line);
  if (shown < MOST_LINES) shown += 1;
  else {
    view.firstChild.remove();
    $("#log-earlier").hidden = false;
  }
  if (count === target) point(line);
}

function point(one) {
  $(".pointed", view)?.classList.remove("pointed");
  one.classList.add("pointed");
  tools.follow.checked = false;
  one.scrollIntoView({ block: "center" });
}

function add(text, at) {
  const { style } = states[stream];
  for (const part of text.split(/(?<=\n)/)) {
    if (!part) continue;
    if (!line) newLine(at);
    const classes = [stream, style.colour !== null && `colour-${style.colour}`, ...style.marks.map((mark) => `mark-${mark}`)];
    line.append(h("span", { class: classes.filter(Boolean).join(" ") }, part));
    if (part.endsWith("\n")) {
      mark(line);
      line = null;
    }
  }
}

/** Show a piece of output. */
export function write({ at, stream: from, text }) {
  if (from !== stream && line) add("\n", at);
  stream = from;
  // Each stream has its own colours, and a sequence may continue in its next piece.
  const its = states[from] ??= { held: "", style: { colour: null, marks: [] } };
  let rest = its.held + text;
  its.held = BEGUN.exec(rest)?.[0] ?? "";
  rest = rest.slice(0, rest.length - its.held.length);
  for (let found = ESCAPE.exec(rest); found; found = ESCAPE.exec(rest)) {
    add(rest.slice(0, found.index), at);
    if (found[1] !== undefined) its.style = styled(its.style, found[1]);
    rest = rest.slice(found.index + found[0].length);
  }
  add(rest, at);
  frame ??= requestAnimationFrame(scroll);
}

function scroll() {
  frame = null;
  if (wanted) sayFound();
  if (tools.follow.checked) view.scrollTop = view.scrollHeight;
  // Later lines move the address's line to the middle.
  else if (!isScrolled) $(".pointed", view)?.scrollIntoView({ block: "center" });
}

/** Show a note in place of output. */
export const note = (text) => view.append(h("span", { class: "system" }, text));

/** Show how much output the service has not kept, in its place. Its lines are counted, too. */
export function noteMissing({ log_missing_bytes: bytes, log_missing_lines: lines }) {
  // The missing part begins and ends in the middle of a line.
  count += line ? lines - 1 : lines;
  line = null;
  note(`${inBytes(bytes)} of the output (lines: ${lines.toLocaleString("en")}) are not kept.\n`);
}

const inBytes = (size) => (size < 2 ** 20 ? `${Math.ceil(size / 1024)} KiB` : `${(size / 2 ** 20).toFixed(1)} MiB`);

/** Begin with the output of a run. */
export function clear({ id }) {
  [runId, line, count, shown, stream, states] = [id, null, 0, 0, null, {}];
  target = Number(/^#L(\d+)$/.exec(location.hash)?.[1] ?? 0);
  isScrolled = false;
  view.replaceChildren();
  $("#log-earlier").hidden = $("#log-later").hidden = true;
  tools.follow.checked = true;
  find();
}

export const isEmpty = () => !view.childNodes.length;

// Search: lines with the text are marked, and Enter goes to the next.

let wanted = "";
const mark = (one) => one.classList.toggle("found", wanted !== "" && one.textContent.toLowerCase().includes(wanted));

function find() {
  wanted = tools.find.value.trim().toLowerCase();
  for (const one of view.querySelectorAll(".line")) mark(one);
  sayFound();
}

function sayFound() {
  const number = view.querySelectorAll(".found").length;
  const isAll = $("#log-earlier").hidden && $("#log-later").hidden && !$(":scope > .system", view);
  $("#log-found").textContent = wanted && `${counted(number, "line")}${isAll ? "" : " of those shown"}`;
}

tools.find.addEventListener("input", find);
$("#log-tools").addEventListener("submit", (event) => {
  event.preventDefault();
  const found = [...view.querySelectorAll(".found")];
  if (found.length) point(found[(found.indexOf($(".pointed", view)) + 1) % found.length]);
});

for (const name of ["times", "wrap"]) {
  tools[name].addEventListener("change", () => view.classList.toggle(name, tools[name].checked));
}
tools.follow.addEventListener("change", () => { if (tools.follow.checked) view.scrollTop = view.scrollHeight; });
// Scrolling up stops following, and scrolling to the end goes on.
for (const type of ["wheel", "touchmove", "keyup", "pointerup"]) {
  view.addEventListener(type, () => setTimeout(() => {
    isScrolled = true;
    tools.follow.checked = view.scrollHeight - view.scrollTop - view.clientHeight < 24;
  }, 100), { passive: true });
}

view.addEventListener("click", (event) => {
  const number = event.target.closest(".number");
  if (!number) return;
  event.preventDefault();
  history.replaceState(null, "", number.href);
  point(number.parentElement);
});

$("#log-download").addEventListener("click", pressed(async () => {
  const text = await api(`/runs/${runId}/log`, { headers: { Accept: "text/plain" }, raw: true });
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  h("a", { href: url, download: `${runId}.txt` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
  say("The output was downloaded.");
}));
