// Times in words, with the exact time as a tooltip, updated while the page is open.

const DAY = 86_400;
const UNITS = [["year", 365 * DAY, 2], ["month", 30 * DAY, 2], ["day", DAY, 1], ["hour", 3600, 1], ["minute", 60, 1]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const exact = new Intl.DateTimeFormat("en", { dateStyle: "long", timeStyle: "long" });

/** Days from now until a time; negative if it is past. */
export const daysTo = (iso) => (new Date(iso) - Date.now()) / 1000 / DAY;

function words(iso) {
  const seconds = daysTo(iso) * DAY;
  const [unit, size] = UNITS.find(([, length, least]) => Math.abs(seconds) >= length * least) ?? [];
  if (!unit) return seconds > 5 ? "in less than a minute" : "just now";
  return relative.format(seconds < 0 ? Math.trunc(seconds / size) : Math.round(seconds / size), unit);
}

/** A `<time>`, or `none` without a time. */
export function when(iso, none = "Never") {
  if (!iso) return none;
  const element = document.createElement("time");
  element.dateTime = iso;
  element.title = exact.format(new Date(iso));
  element.textContent = words(iso);
  return element;
}

/** The seconds that a run took, or takes so far. */
export const secondsOf = ({ started_at: start, finished_at: end }) =>
  Math.max(0, ((end ? new Date(end) : Date.now()) - new Date(start)) / 1000);

/** How long a run took, or takes so far. */
export function took(run) {
  return run.started_at ? lasted(secondsOf(run), run.finished_at) : "";
}

/** A time span in words; `isOver` if it will not grow. */
export function lasted(seconds, isOver = true) {
  if (isOver && seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(isOver && seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

setInterval(() => {
  for (const element of document.querySelectorAll("time")) {
    const text = words(element.dateTime);
    if (element.textContent !== text) element.textContent = text;
  }
}, 10_000);
