import { api, Problem } from "../api.js";
import { $, badge, button, counted, focusOn, h, icon, pressed, render, rowLink, say, selectBox, table } from "../dom.js";
import { confirm, onSubmit, open } from "../dialogs.js";
import { hasDraft, restoreDraft } from "../forms.js";
import { filtering, LiveList } from "../list.js";
import { afterChange, cancelRuns, remove, reveal, revoke, rotate } from "../keys/actions.js";
import { fillDetails, KEY_COLUMNS, readDetails, tasksOf } from "../keys/details.js";
import { acting, keyPage, keysPath } from "../keys/owner.js";
import { limitTo, resources } from "../keys/task-choice.js";
import { daysTo, when } from "../time.js";

// Absent without the permission keys:manage.
const newKey = $("#new");

// The list.

/** Warnings for the owner, each with a remedy one click away. */
function hints(key) {
  if (!newKey || key.status !== "active" || key.replaced_by) return [];
  const hint = (what, remedy, act) => h("span", {}, icon("warn"), `${what} · `,
    button(remedy, `${remedy}-hint:${key.id}`, () => act(key), { class: "link", "aria-label": `${what}: ${remedy} ${key.name}` }));
  const idle = -daysTo(key.last_used_at ?? key.created_at);
  return [
    !key.last_used_at && idle > 7 && hint("Never used", "Revoke", (one) => revoke(one)),
    key.last_used_at && idle > 90 && hint("Idle for 90 days", "Revoke", (one) => revoke(one)),
    !key.expires_at && hint("Never expires", "Replace", create),
  ].filter(Boolean);
}

function actions(key) {
  const named = (label, act) => button(label, `${label}:${key.id}`, () => act(key), { "aria-label": `${label} ${key.name}` });
  if (!newKey) return null;
  if (key.status !== "active") return named("Delete", remove);
  return [!key.replaced_by && named("Rotate", (one) => rotate(one, focusKey)), named("Revoke", (one) => revoke(one))];
}

/** Unless the user is already typing elsewhere: the list may be late. */
const focusKey = ({ id }) => document.activeElement.matches("input") || focusOn(`row:${id}`);

const COLUMNS = [
  ...(newKey ? [["Select", (key) => key.status === "active" && selectBox(selected, key, drawBulk), "select"]] : []),
  ["Name", (key) => [
    rowLink(key.id, keyPage(key.id), key.name),
    h("code", { class: "sub" }, key.mask),
    key.replaced_by && h("span", { class: "sub" }, "Replaced by ", h("a", { href: keyPage(key.replaced_by) }, h("code", {}, key.replaced_by)),
      " · the old key was ", key.last_used_at ? ["last used ", when(key.last_used_at)] : "never used"),
    h("div", { class: "hints" }, hints(key)),
  ], "main"],
  ["Status", ({ status }) => badge(status)],
  ...KEY_COLUMNS,
  ["Actions", actions, "row-actions"],
];

const filter = $("#filter");
const chosen = filtering(filter, () => keys.begin());
const keys = new LiveList("/keys", { limit: 100, draw, rest: 30_000, query: () => ({ ...chosen(), ...acting }) });

/** The number of keys that end soon, as the first line of the list. */
function ending() {
  const { expiring } = keys.counted;
  const { status, sort } = chosen();
  const first = () => {
    filter.elements.status.value = "active";
    filter.elements.sort.value = "expires";
    filter.requestSubmit();
  };
  return expiring > 0 && h("p", { class: "ending" }, icon("warn"), `${counted(expiring, "key")} ${expiring === 1 ? "expires" : "expire"} within 7 days. `,
    !(status === "active" && sort === "expires") && button("Show first", "ending", first, { class: "link" }));
}

function draw() {
  const { counts } = keys.counted;
  const all = Object.values(counts).reduce((sum, count) => sum + count);
  for (const radio of filter.elements.status) radio.nextElementSibling.textContent = counts[radio.value] ?? all;
  const { search, status } = chosen();
  // Keys that are not in the list, or have ended, are not revoked unseen.
  const shown = keys.items.filter(({ status: its }) => its === "active").map(({ id }) => id);
  for (const id of selected) if (!shown.includes(id)) selected.delete(id);
  drawBulk();
  // Without any keys the page explains them.
  const isEmpty = !keys.items.length && !search && !status;
  filter.hidden = isEmpty;
  $("#empty").hidden = !isEmpty;
  $("#list").hidden = isEmpty;
  render($("#list"), ending(), keys.items.length ? table("API keys", COLUMNS, keys.items, ({ status: state }) => state !== "active" && "ended")
    : h("p", { class: "empty quiet" }, "No keys match."));
}

// A new key.

const dialog = $("#new-dialog");
const form = $("form", dialog);
const { lifetime, days, reach } = form.elements;
const scopes = [...form.querySelectorAll("[name=scope]")];

form.addEventListener("change", () => {
  days.closest("label").hidden = days.disabled = lifetime.value !== "custom";
  $("#key-scopes").hidden = reach.value !== "some";
  for (const scope of scopes) scope.disabled = reach.value !== "some";
});

/** The key that the new key replaces: a key without an expiry cannot get one. */
let replaced = null;

/** Open the form, with another key's details, or with a draft from before a session's end. */
async function create(like = null) {
  const tasks = like?.resources ? await tasksOf(like) : null;
  replaced = like;
  form.reset();
  fillDetails(form.elements, like);
  limitTo(tasks?.filter(([, name]) => name) ?? null);
  if (like) reach.value = like.scopes ? "some" : "all";
  for (const scope of scopes) scope.checked = like?.scopes?.includes(scope.value) ?? false;
  restoreDraft(form);
  form.dispatchEvent(new Event("change"));
  const { description, labels, networks } = form.elements;
  $("details", form).open = [description, labels, networks].some(({ value }) => value);
  open(dialog);
}

onSubmit(form, async () => {
  const ticked = scopes.filter(({ checked }) => checked).map(({ value }) => value);
  // A preset is written as its scopes.
  const chosen = reach.value === "all" ? null : reach.value === "some" ? ticked : reach.value.split(" ");
  if (chosen?.length === 0) throw Problem.ofField("scopes", "Tick at least one permission, or choose another option.");
  const created = await api(keysPath(""), { method: "POST", body: {
    ...readDetails(form.elements),
    scopes: chosen,
    resources: resources(),
    expires_in_days: lifetime.value === "never" ? null : Number((days.disabled ? lifetime : days).value),
  } });
  const old = replaced;
  dialog.close();
  await reveal(created);
  focusKey(created);
  if (old) revoke(old, "The new key is ready. Put it in place everywhere before you revoke the old one, or revoke it later from the list.");
});

newKey?.addEventListener("click", pressed(() => create()));
afterChange(() => keys.refresh());

// Several keys at once. The service revokes one per request, so each has its own result.

const AT_ONCE = 4;
const bulk = $("#bulk");
const selected = new Set();

function drawBulk() {
  bulk.hidden = !selected.size;
  $("span", bulk).textContent = `${counted(selected.size, "key")} selected`;
}

/** Revoke these keys, a few at a time; returns the problems. */
async function revokeAll(chosenKeys, body) {
  const waiting = [...chosenKeys];
  const problems = [];
  const work = async () => {
    for (let key = waiting.shift(); key; key = waiting.shift()) {
      try {
        await api(keysPath(`/${key.id}/revoke`), { method: "POST", body });
        selected.delete(key.id);
      } catch (problem) {
        problems.push(`${key.name}: ${problem.message}`);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return problems;
}

$("#bulk-none").addEventListener("click", () => {
  selected.clear();
  draw();
  $("#list .title")?.focus();
});
$("#bulk-revoke").addEventListener("click", () => {
  const chosenKeys = keys.items.filter(({ id }) => selected.has(id));
  const [box, choice] = cancelRuns("their");
  const all = counted(chosenKeys.length, "key");
  confirm({
    title: `Revoke ${all}?`,
    text: [
      "They stop working at once, everywhere and for good.",
      h("span", { class: "names" }, chosenKeys.map(({ name: label, mask }) => h("span", {}, label, " ", h("code", { class: "quiet" }, mask)))),
      choice,
    ],
    action: `Revoke ${all}`,
    async act() {
      const problems = await revokeAll(chosenKeys, { cancel_runs: box.checked });
      await keys.refresh();
      if (problems.length) throw new Problem(0, { detail: `${counted(chosenKeys.length - problems.length, "key")} revoked, and ${problems.length} not. ${problems.join(" ")}` });
      say(`${all} revoked.`);
    },
  });
});

await keys.begin();
if (hasDraft(form)) create();
