import { api, Problem } from "../api.js";
import { barChart } from "../bar-chart.js";
import { $, badge, button, cannotShow, fill, h, icon, me, pressed, quiet, render, say, stateWords } from "../dom.js";
import { confirm, onSubmit, open } from "../dialogs.js";
import { hasDraft } from "../forms.js";
import { LiveList } from "../list.js";
import { clear, isEmpty, note, noteMissing, write } from "../log-view.js";
import { followLog, isActive, rerun, startRun } from "../runs.js";
import { isMasked, schemaFields } from "../schema-form.js";
import { allHandlers, openTask, taskForm } from "../task-dialog.js";
import { lasted, secondsOf, took, when } from "../time.js";
import { plain } from "../trail.js";

const page = $("#task");
const { taskId } = page.dataset;
const path = `/tasks/${encodeURIComponent(taskId)}`;
let task, handlers, followed;
let isUnused = false;
let selected = new URLSearchParams(location.search).get("run");
// The selected run, even if the list does not show it.
let shown;
let stopFollowing = () => {};

// Parameters up to this length are side by side.
const SHORT = 16;
const bare = /^[\w./:=@%+,-]+$/;

/** A parameter's value as it would be typed. */
function typed(value) {
  if (Array.isArray(value)) return value.map((one) => (bare.test(one) ? one : JSON.stringify(one))).join(" ");
  const pairs = Object.entries(value);
  return typeof value === "object" && pairs.every(([, one]) => typeof one === "string") ? pairs.map((pair) => pair.join(": ")).join("\n") : plain(value);
}

function drawTask() {
  document.title = `${task.name} · Task Service`;
  $("#name").textContent = task.name;
  $("#actions").hidden = !me.manages(task);
  $("#actions").classList.remove("waiting");
  const { properties } = handlers.find(({ name }) => name === task.handler)?.params_schema ?? {};
  const params = Object.entries(task.params).filter(([, value]) => value !== null && typed(value));
  $("details").hidden = false;
  fill($("#known"), task, {
    timeout_seconds: (seconds) => (seconds ? `${seconds} s` : "Service limit"),
    created_at: when,
    updated_at: when,
  });
  $("#params").replaceChildren(...params.map(([name, value]) => {
    const { title = name, ...schema } = properties?.[name] ?? {};
    const isSecret = isMasked(schema, value);
    return h("div", { class: !isSecret && typed(value).length > SHORT && "whole" }, h("dt", {}, title),
      h("dd", {}, isSecret ? quiet("A secret is set.") : h("pre", {}, typed(value))));
  }));
}

const state = $("#state");
const progress = $("#progress");

const runs = new LiveList(`${path}/runs`, {
  limit: 25,
  busy: () => runs.items.some(isActive),
  query: () => state.value && { state: state.value },
  draw: drawRuns,
});

/** The ended runs, the oldest at the left: each bar is as high as its run was long, and a run that did not succeed has
 *  a colour and a mark below. */
function drawChart() {
  const over = runs.items.filter(({ started_at: start, finished_at: end }) => start && end).toReversed();
  $("#chart").hidden = over.length < 2;
  if (over.length < 2) return;
  const seconds = over.map(secondsOf);
  const longest = Math.max(...seconds);
  const bars = over.map((run, index) => ({
    title: `${numbered(run)}: ${stateWords(run.state)}, ${took(run)}`,
    parts: [[run.state, seconds[index]]],
    marked: run.state !== "succeeded" && run.state,
  }));
  const good = over.filter(({ state: its }) => its === "succeeded").length;
  const median = seconds.toSorted((one, other) => one - other)[Math.floor(seconds.length / 2)];
  $("#chart").replaceChildren(
    barChart("Duration and outcome of these runs, the oldest at the left", bars),
    h("figcaption", { class: "quiet" }, `${good} of ${over.length} succeeded · median ${lasted(median)} · longest ${lasted(longest)}`));
}

function drawRuns() {
  $("#history").hidden = false;
  if (!state.value) drawChart();
  $("#empty").textContent = state.value ? "No runs in this state." : "No runs yet.";
  // A new task shows how to run it.
  const unused = !state.value && !runs.items.length;
  if (unused !== isUnused) $("details").open = isUnused = unused;
  selected ??= runs.items[0]?.id;
  shown = runs.items.find(({ id }) => id === selected) ?? (shown?.id === selected ? shown : undefined);
  render($("#list"),
    h("ul", { class: "list runs" }, runs.items.map((run) => h("li", {}, h("a", {
      href: `?run=${run.id}`, "data-focus": `run:${run.id}`, "aria-current": run.id === selected && "true",
      onclick: (event) => {
        event.preventDefault();
        select(run.id);
      },
    }, h("span", {}, badge(run.state), " ", quiet(numbered(run))), quiet(took(run)), quiet(when(run.created_at)))))));
  $("#selected").hidden = !shown;
  if (shown) drawRun(shown);
}

/** Read the run of a permalink if it is older than what the list shows. */
async function readSelected() {
  if (shown || !selected) return;
  try {
    const run = await api(`/runs/${encodeURIComponent(selected)}`);
    if (run.task_id !== taskId) throw new Problem(404, { detail: "This run belongs to another task." });
    shown = run;
  } catch (problem) {
    selected = null;
    say(problem.message);
  }
  drawRuns();
}

const numbered = ({ number }) => (number === null ? "Run" : `#${number}`);

function drawRun(run) {
  const { key_id: key, key_name: keyName } = run.requested_by.credential ?? {};
  const by = [run.requested_by.username, key && h("span", { title: key }, ` with key ${keyName ?? key}`)];
  render($("#run-head"),
    h("div", { class: "run-head" },
      [badge(run.state), numbered(run), took(run), run.exit_code !== null && `Exit ${run.exit_code}`, run.attempt > 1 && `Attempt ${run.attempt}`, by]
        .filter(Boolean).map((part) => quiet(part)),
      me.may("tasks:run") && me.manages(task) && h("div", { class: "actions" }, isActive(run) ? button([icon("stop"), "Cancel"], "cancel", async () => {
        await api(`/runs/${run.id}/cancel`, { method: "POST" });
        await runs.refresh();
        if (isActive(shown)) say("Cancelling the run.");
      }) : [
        me.may("tasks:write") && button("Change and re-run", "change", () => change(run)),
        button("Re-run", "rerun", async () => started(await rerun(run.id))),
      ])),
    run.error && h("p", { class: "notice bad" }, run.error));
  if (followed === run.id) return;
  stopFollowing();
  followed = run.id;
  progress.hidden = true;
  clear(run);
  let isWhole = true;
  // The end of the output stays in view.
  $("#log").classList.toggle("live", isActive(run));
  if (isActive(run)) $("#selected").scrollIntoView({ block: "nearest" });
  stopFollowing = followLog(run.id, {
    wrote: write,
    skipped() {
      if (!isActive(run)) return noteMissing(run);
      if (isWhole) note("Output comes faster than it can be shown. The kept output is shown at the end.\n");
      isWhole = false;
    },
    failed: (problem) => note(problem.message),
    progressed({ fraction, text }) {
      progress.hidden = false;
      $("progress", progress).value = fraction;
      $("span", progress).textContent = [`${Math.floor(fraction * 100)} %`, text].filter(Boolean).join(" · ");
    },
    ended(last) {
      progress.hidden = true;
      if (isEmpty()) note("No output.");
      if (isActive(run)) say(`${task.name}: ${stateWords(last.state)}.`);
      if (run.id === selected) shown = last;
      if (!isWhole && followed === run.id) followed = null;
      runs.refresh().then(drawRuns).catch(() => {});
    },
  });
}

function select(runId) {
  selected = runId;
  history.replaceState(null, "", `?run=${runId}`);
  drawRuns();
}

async function started(run) {
  say(`${task.name} was started.`);
  state.value = "";
  await runs.refresh();
  select(run.id);
}

// A run again, with other parameters.

const changeDialog = $("#rerun-dialog");
const changeForm = $("form", changeDialog);
let changed, fields;

async function change({ id, number }) {
  const { handler, params } = await api(`/runs/${id}`);
  const { params_schema: schema } = handlers.find(({ name }) => name === handler) ?? {};
  if (!schema) throw new Problem(422, { detail: `The handler ${handler} of this run is no longer installed.` });
  changed = id;
  fields = schemaFields(schema, params, "rerun");
  $("h2", changeForm).textContent = number === null ? "Run again" : `Run #${number} again`;
  changeForm.reset();
  $("#rerun-params").replaceChildren(...fields.elements);
  open(changeDialog);
}

onSubmit(changeForm, async () => {
  const run = await rerun(changed, fields.read());
  changeDialog.close();
  await started(run);
});

state.addEventListener("change", () => {
  selected = shown = undefined;
  history.replaceState(null, "", location.pathname);
  return runs.begin();
});

const edit = () => openTask((saved) => {
  task = saved;
  drawTask();
  say("Saved.");
}, task);

// A button is absent if the user lacks its permission.
$("#run")?.addEventListener("click", pressed(async () => {
  await started(await startRun(task.id));
}));
$("#edit")?.addEventListener("click", pressed(edit));
$("#delete")?.addEventListener("click", () => confirm({
  title: `Delete ${task.name}?`,
  text: "delete-text",
  action: "Delete task",
  async act() {
    await api(path, { method: "DELETE" });
    location.assign("/tasks");
  },
}));

try {
  [task, handlers] = await Promise.all([api(path), allHandlers()]);
  drawTask();
  if (await runs.begin()) await readSelected();
  if (hasDraft(taskForm)) edit();
} catch (problem) {
  cannotShow("Task", problem);
}
page.ariaBusy = null;
