// A run's output as numbered lines. Text becomes text nodes; colours (ANSI, ECMA-48 SGR) become classes.

import { api } from "./api.js";
import { $, h, pressed, say } from "./dom.js";

const view = $("#log");
const tools = $("#log-tools").elements;
// More lines would make the page slow; the download has all.
const MOST_LINES = 10_000;
const ESCAPE = /\x1b\[([0-9;:]*)m|\x1b\[[0-9;:?]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)/;
const BEGUN = /\x1b(?:\[[0-9;:?]*|\][^\x07\x1b]*)?$/;

let runId, line, first, count, stream, held, style;

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
  line = h("span", { class: "line", "data-at": at.slice(11, 23) },
    h("a", { class: "number", href: `?run=${runId}#${id}`, "aria-label": `Line ${count}`, "data-number": count, tabindex: -1 }));
  line.id = id;
  view.append(line);
  if (view.childElementCount > MOST_LINES) view.firstChild.remove();
  $("#log-cut").hidden = count - first <= MOST_LINES;
  if (location.hash === `#${id}`) point(line);
}

function point(target) {
  $(".pointed", view)?.classList.remove("pointed");
  target.classList.add("pointed");
  tools.follow.checked = false;
  target.scrollIntoView({ block: "nearest" });
}

function add(text, at) {
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
  if (from !== stream) {
    if (line) add("\n", at);
    [stream, held, style] = [from, "", { colour: null, marks: [] }];
  }
  let rest = held + text;
  // A sequence may go on in the next piece.
  held = BEGUN.exec(rest)?.[0] ?? "";
  rest = rest.slice(0, rest.length - held.length);
  for (let found = ESCAPE.exec(rest); found; found = ESCAPE.exec(rest)) {
    add(rest.slice(0, found.index), at);
    if (found[1] !== undefined) style = styled(style, found[1]);
    rest = rest.slice(found.index + found[0].length);
  }
  add(rest, at);
  if (tools.follow.checked) view.scrollTop = view.scrollHeight;
}

/** Say something in the place of output. */
export const note = (text) => view.append(h("span", { class: "system" }, text));

/** Say how much of the beginning the service has not kept. */
export function showMissing({ log_missing_bytes: bytes, log_missing_lines: lines }) {
  const missing = $("#log-missing");
  missing.hidden = !bytes;
  missing.textContent = `The first ${inBytes(bytes)} of the output (lines: ${lines.toLocaleString("en")}) are not kept.`;
}

const inBytes = (size) => (size < 2 ** 20 ? `${Math.ceil(size / 1024)} KiB` : `${(size / 2 ** 20).toFixed(1)} MiB`);

/** Begin with the output of a run. Its lines are counted from the one that was written first, kept or not. */
export function clear({ id, log_missing_lines: missing }) {
  [runId, line, first, count, stream, held, style] = [id, null, missing, missing, null, "", { colour: null, marks: [] }];
  view.replaceChildren();
  $("#log-cut").hidden = true;
  tools.follow.checked = true;
  find();
}

export const isEmpty = () => !view.childNodes.length;

// Search: lines with the text are marked, and Enter goes from one to the next.

let wanted = "";
const mark = (one) => one.classList.toggle("found", wanted !== "" && one.textContent.toLowerCase().includes(wanted));

function find() {
  wanted = tools.find.value.trim().toLowerCase();
  for (const one of view.querySelectorAll(".line")) mark(one);
  const number = view.querySelectorAll(".found").length;
  $("#log-found").textContent = wanted && (number === 1 ? "1 line" : `${number} lines`);
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
