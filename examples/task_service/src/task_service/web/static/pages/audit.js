import { $, render, table } from "../dom.js";
import { LiveList } from "../list.js";
import { TRAIL } from "../trail.js";

const form = $("#filter");
const address = new URLSearchParams(location.search);
for (const control of form.elements) if (control.name) control.value = address.get(control.name) ?? "";

const chosen = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));

/** The beginning of a day of this place, as the API wants it. */
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
  history.replaceState(null, "", `?${new URLSearchParams(chosen())}`);
  for (const link of document.querySelectorAll("[data-format]")) {
    link.href = `/api/admin/audit/export?${new URLSearchParams({ ...query(), format: link.dataset.format })}`;
  }
  return entries.begin();
}

form.addEventListener("change", changed);
// Once the fields are empty.
form.addEventListener("reset", () => setTimeout(changed));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  changed();
});
await changed();
