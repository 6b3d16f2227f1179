import { $, badge, button, h, icon, me, pressed, quiet, render, rowLink, say, stateWords, table } from "../dom.js";
import { hasDraft } from "../forms.js";
import { filtering, LiveList } from "../list.js";
import { isActive, startRun } from "../runs.js";
import { openTask, taskForm } from "../task-dialog.js";
import { took, when } from "../time.js";

const summary = ({ params }) => params.argv?.join(" ") ?? params.url;

const view = (id, run) => `/tasks/${id}?run=${run.id}`;

/** The newest runs as a row of marks, the latest at the right. */
function history({ recent_runs: runs }) {
  if (!runs.length) return null;
  const marks = runs.toReversed().map(({ state }) => h("i", { class: state, title: stateWords(state) }));
  const states = runs.map(({ state }) => stateWords(state)).join(", ");
  return h("span", { class: "marks", role: "img", "aria-label": `Newest runs, the latest first: ${states}` }, marks);
}

const COLUMNS = [
  ["Name", (task) => [
    rowLink(task.id, `/tasks/${task.id}`, task.name),
    summary(task) && h("code", { class: "sub clip" }, summary(task)),
    task.last_run?.error && h("span", { class: "sub clip fault", title: task.last_run.error }, task.last_run.error),
  ], "main"],
  me.may("tasks:read_all") && ["Owner", ({ owner_name: owner }) => quiet(owner), "wrap"],
  ["Handler", ({ handler }) => h("code", { class: "quiet" }, handler)],
  ["Last run", ({ id, last_run: run }) => (run
    ? h("a", { href: view(id, run), "data-focus": `state:${id}` }, badge(run.state)) : quiet("Never"))],
  ["History", history],
  ["When", ({ last_run: run }) => run && quiet(when(run.created_at))],
  ["Duration", ({ last_run: run }) => run && quiet(took(run))],
  ["Actions", (task) => me.may("tasks:run") && me.manages(task) && button([icon("play"), "Run"], `run:${task.id}`, async () => {
    const run = await startRun(task.id);
    say(`${task.name} was started.`, false, view(task.id, run));
    await tasks.refresh();
  }, { "aria-label": `Run ${task.name}` }), "row-actions"],
].filter(Boolean);

const filter = $("#filter");
const chosen = filtering(filter, () => tasks.begin());
const tasks = new LiveList("/tasks", {
  query: () => ({ ...chosen(), recent_runs: 12 }),
  busy: () => tasks.items.some((task) => isActive(task.last_run)),
  draw(before) {
    // Without any tasks the page explains them; a filter may hide all tasks.
    const { sort, ...conditions } = chosen();
    const isFiltered = Object.keys(conditions).length > 0;
    const isEmpty = !tasks.items.length;
    filter.hidden = $("#none").hidden = isEmpty && !isFiltered;
    $("#none").hidden ||= !isEmpty;
    $("#empty").hidden = !isEmpty || isFiltered;
    render($("#list"), table("Tasks", COLUMNS, tasks.items));
    for (const { id, name, last_run: run } of tasks.items) {
      const old = before.find((task) => task.id === id)?.last_run;
      if (isActive(old) && old.id === run?.id && !isActive(run)) say(`${name}: ${stateWords(run.state)}.`, false, view(id, run));
    }
  },
});

const create = () => openTask(async ({ name }) => {
  await tasks.refresh();
  say(`${name} was created.`);
});

// Absent without the permission tasks:write.
$("#new")?.addEventListener("click", pressed(create));
await tasks.begin();
if (hasDraft(taskForm)) create();
