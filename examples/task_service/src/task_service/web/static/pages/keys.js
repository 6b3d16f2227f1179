import { api, Problem } from "../api.js";
import { $, badge, button, focusOn, h, icon, quiet, render, rowTitle, say, table, tags } from "../dom.js";
import { confirm, onSubmit, open } from "../dialogs.js";
import { checkFields, hasDraft, restoreDraft } from "../forms.js";
import { filtering, LiveList } from "../list.js";
import { daysTo, when } from "../time.js";
import { OWN_TRAIL } from "../trail.js";

// Absent without the permission keys:manage.
const newKey = $("#new");

// The list.

/** What an owner should look at, each with a remedy that is one click away. */
function hints(key) {
  if (!newKey || key.status !== "active" || key.replaced_by) return [];
  const hint = (what, remedy, act) => h("span", {}, icon("warn"), `${what} · `,
    button(remedy, `${remedy}-hint:${key.id}`, () => act(key), { class: "link", "aria-label": `${what}: ${remedy} ${key.name}` }));
  const idle = -daysTo(key.last_used_at ?? key.created_at);
  return [
    !key.last_used_at && idle > 7 && hint("Never used", "Revoke", revoke),
    key.last_used_at && idle > 90 && hint("Idle for 90 days", "Revoke", revoke),
    !key.expires_at && hint("Never expires", "Replace", create),
  ].filter(Boolean);
}

function expiry({ status, expires_at: at }) {
  if (!at) return quiet("Never");
  return status === "active" && daysTo(at) <= 7 ? h("span", { class: "warn" }, icon("warn"), when(at)) : when(at);
}

function actions(key) {
  const named = (label, act) => button(label, `${label}:${key.id}`, () => act(key), { "aria-label": `${label} ${key.name}` });
  const history = named("Activity", showTrail);
  if (!newKey) return history;
  if (key.status !== "active") return [history, named("Delete", remove)];
  return [history, !key.replaced_by && named("Rotate", rotate), named("Revoke", revoke)];
}

const COLUMNS = [
  ["Name", (key) => [
    rowTitle(key.id, key.name),
    h("code", { class: "sub" }, key.mask),
    key.replaced_by && h("span", { class: "sub" }, "Replaced by ", h("code", {}, key.replaced_by),
      " · the old key was ", key.last_used_at ? ["last used ", when(key.last_used_at)] : "never used"),
    h("div", { class: "hints" }, hints(key)),
  ], "main"],
  ["Status", ({ status }) => badge(status)],
  ["Scopes", ({ scopes }) => (!scopes ? quiet("All of mine") : !scopes.length ? quiet("None") : tags(scopes)), "wrap"],
  ["Created", (key) => when(key.created_at), null, true],
  ["Last used", (key) => when(key.last_used_at), null, true],
  ["Expires", expiry, null, true],
  ["Actions", actions, "row-actions"],
];

const filter = $("#filter");
const chosen = filtering(filter, () => keys.begin());
const keys = new LiveList("/keys", { limit: 100, draw, rest: 30_000, query: chosen });

function draw() {
  const { counts } = keys.counted;
  const all = Object.values(counts).reduce((sum, count) => sum + count);
  for (const radio of filter.elements.status) radio.nextElementSibling.textContent = counts[radio.value] ?? all;
  const { search, status } = chosen();
  // Without any keys the page explains them.
  const isEmpty = !keys.items.length && !search && !status;
  filter.hidden = isEmpty;
  $("#empty").hidden = !isEmpty;
  $("#list").hidden = isEmpty;
  render($("#list"), keys.items.length ? table("API keys", COLUMNS, keys.items, ({ status: state }) => state !== "active" && "ended")
    : h("p", { class: "empty quiet" }, "No keys match."));
}

// A new key.

const dialog = $("#new-dialog");
const form = $("form", dialog);
const { name, lifetime, days, reach } = form.elements;
const scopes = [...form.querySelectorAll("[name=scope]")];

form.addEventListener("change", () => {
  days.closest("label").hidden = days.disabled = lifetime.value !== "custom";
  for (const scope of scopes) scope.disabled = reach.value !== "some";
});

/** The key whose place the new one takes: a key without an end cannot be given one. */
let replaced = null;

/** Open the form, with another key's name and scopes, or with what was typed before a session ended. */
function create(like = null) {
  replaced = like;
  form.reset();
  name.value = like?.name ?? "";
  reach.value = like?.scopes ? "some" : "all";
  for (const scope of scopes) scope.checked = like?.scopes?.includes(scope.value) ?? false;
  restoreDraft(form);
  form.dispatchEvent(new Event("change"));
  open(dialog);
}

onSubmit(form, async () => {
  checkFields(form);
  const chosen = reach.value === "all" ? null : scopes.filter(({ checked }) => checked).map(({ value }) => value);
  if (chosen?.length === 0) throw Problem.ofField("scopes", "Tick at least one permission, or choose everything you may do.");
  const created = await api("/keys", { method: "POST", body: {
    name: name.value.trim(),
    scopes: chosen,
    expires_in_days: lifetime.value === "never" ? null : Number((days.disabled ? lifetime : days).value),
  } });
  const old = replaced;
  dialog.close();
  await reveal(created);
  if (old) revoke(old, "The new key is ready. Put it in place everywhere before you revoke the old one, or revoke it later from the list.");
});

newKey?.addEventListener("click", () => create());

// The value, once.

const revealed = $("#reveal");
const acknowledge = $("#acknowledge");
const value = $("code", revealed);
const warnBeforeLeaving = (event) => event.preventDefault();

async function reveal({ id, name: label, key }) {
  $("#reveal-name").textContent = label;
  value.textContent = key;
  addEventListener("beforeunload", warnBeforeLeaving);
  const closed = open(revealed);
  await keys.refresh().catch((problem) => say(problem.message));
  await closed;
  focusOn(`row:${id}`);
}

/** Nothing of the value stays: not in the page, and not in what the browser keeps of it for Back. */
function forget() {
  removeEventListener("beforeunload", warnBeforeLeaving);
  value.textContent = $(".dialog-status", revealed).textContent = "";
  revealed.close();
}

acknowledge.addEventListener("click", forget);
addEventListener("pagehide", forget);
revealed.addEventListener("cancel", (event) => event.preventDefault());
revealed.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.preventDefault();
  acknowledge.focus();
  say("Save the key, then press “I have saved this key”.");
});

// Rotating, revoking, deleting.

const rotateDialog = $("#rotate-dialog");
const rotateForm = $("form", rotateDialog);
let rotated;

function rotate(key) {
  rotated = key;
  rotateForm.reset();
  $("#rotate-name").textContent = key.name;
  $("#rotate-seen").replaceChildren(when(key.last_used_at, "never"));
  open(rotateDialog);
}

onSubmit(rotateForm, async () => {
  const body = { overlap_seconds: Number(rotateForm.elements.overlap.value) };
  const created = await api(`/keys/${rotated.id}/rotate`, { method: "POST", body });
  rotateDialog.close();
  await reveal(created);
});

const end = (key, verb, text, method, path, body) => confirm({
  title: `${verb} ${key.name}?`,
  text,
  action: `${verb} key`,
  async act() {
    await api(`/keys/${key.id}${path}`, { method, body: body?.() });
    await keys.refresh();
    say(`${key.name}: ${verb.toLowerCase()}d.`);
  },
});
function revoke(key, first = null) {
  const runs = h("input", { type: "checkbox" });
  end(key, "Revoke", [
    ...(first ? [first] : []),
    [h("code", {}, key.mask), " stops working at once, everywhere and for good."],
    ["Last used: ", when(key.last_used_at, "never"), "."],
    h("label", { class: "check" }, runs, "Also cancel its runs"),
  ], "POST", "/revoke", () => ({ cancel_runs: runs.checked }));
}
const remove = (key) => end(key, "Delete", "delete", "DELETE", "");

// The audit trail of one key.

async function showTrail(key) {
  const { items, next_cursor: more } = await api(`/keys/${key.id}/audit?limit=100`);
  $("#trail-name").textContent = key.name;
  $("#trail-more").hidden = !more;
  $("#trail-list").replaceChildren(items.length ? table("Activity", OWN_TRAIL, items)
    : h("p", { class: "empty quiet" }, "No entries. Older ones are deleted after the log’s retention time."));
  open($("#trail"));
}

await keys.begin();
if (hasDraft(form)) create();
