import { $, render, table } from "../dom.js";
import { filtering, LiveList } from "../list.js";
import { TRAIL } from "../trail.js";

const chosen = filtering($("#filter"), changed);
// Filters in force are shown.
$("#filter details").open = [...document.querySelectorAll("details input")].some(({ value }) => value);

/** The beginning of a local day, for the API. */
function dayStart(day, later = 0) {
  const date = new Date(`${day}T00:00`);
  date.setDate(date.getDate() + later);
  return date.toISOString();
}

function query() {
  const { since, until, ...rest } = chosen();
  return { ...rest, ...(since && { since: dayStart(since) }), ...(until && { until: dayStart(until, 1) }) };
}

const entries = new LiveList("/admin/audit", {
  query,
  rest: 30_000,
  draw: () => render($("#list"), table("Audit log", TRAIL, entries.items)),
});

function changed() {
  for (const link of document.querySelectorAll("[data-format]")) {
    link.href = `/api/admin/audit/export?${new URLSearchParams({ ...query(), format: link.dataset.format })}`;
  }
  return entries.begin();
}

await changed();
