import { $, badge, h, me, quiet, render, rowLink, table } from "../dom.js";
import { filtering, LiveList } from "../list.js";
import { isActive } from "../runs.js";
import { took, when } from "../time.js";

const HOURS = { "24h": 24, "7d": 7 * 24 };

const by = ({ requested_by: { username, credential: { key_id: key, key_name: keyName } } }) =>
  [username, key && h("span", { title: key }, ` with key ${keyName ?? key}`)];

const COLUMNS = [
  ["Run", ({ id, task_id: task, task_name: name, number, error }) => [
    rowLink(id, `/tasks/${task}?run=${id}`, number === null ? name : `${name} #${number}`),
    error && h("span", { class: "sub clip fault", title: error }, error),
  ], "main"],
  ["State", ({ state }) => badge(state)],
  me.may("tasks:read_all") && ["Owner", ({ owner_name: owner }) => quiet(owner), "wrap", true],
  ["Requested by", (run) => quiet(by(run)), "wrap", true],
  ["When", (run) => quiet(when(run.created_at))],
  ["Duration", (run) => quiet(took(run))],
].filter(Boolean);

const chosen = filtering($("#filter"), () => runs.begin());
// A list read page by page must keep its beginning.
let since;

function query() {
  const { state, period, ...rest } = chosen();
  since = period && new Date(Math.floor(Date.now() / 60_000) * 60_000 - HOURS[period] * 3_600_000).toISOString();
  return { ...rest, ...(state && { state: state.split(" ") }), ...(since && { since }) };
}

const runs = new LiveList("/runs", {
  query,
  busy: () => runs.items.some(isActive),
  draw() {
    const isFiltered = Object.keys(chosen()).length > 0;
    $("#none").hidden = runs.items.length > 0 || !isFiltered;
    $("#empty").hidden = runs.items.length > 0 || isFiltered;
    render($("#list"), table("Runs", COLUMNS, runs.items));
  },
});

await runs.begin();
