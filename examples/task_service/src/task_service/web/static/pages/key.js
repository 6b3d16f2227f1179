import { api } from "../api.js";
import { barChart } from "../bar-chart.js";
import { $, badge, cannotShow, fill, h, quiet, render, say, table, tags } from "../dom.js";
import { onSubmit, open } from "../dialogs.js";
import { afterChange, remove, revoke, rotate } from "../keys/actions.js";
import { expiry, fillDetails, readDetails, tasksOf } from "../keys/details.js";
import { acting, isAnyones, keyPage, keysPath, listPage } from "../keys/owner.js";
import { filtering, LiveList, poll } from "../list.js";
import { when } from "../time.js";
import { OWN_TRAIL } from "../trail.js";

const REST_MS = 30_000;
const page = $("#key");
const id = `/${encodeURIComponent(page.dataset.keyId)}`;
// Absent without the permission keys:manage.
const buttons = ["edit", "rotate", "revoke", "delete"].map((id) => $(`#${id}`));
const words = Object.fromEntries([...$("#words").content.children].map((one) => [one.dataset.permission, one.textContent]));
let key;
let tasks;
let activity;

const link = (other) => h("a", { href: keyPage(other) }, h("code", {}, other));

/** A task that the key reaches; of a deleted task only the id is known. */
const taskLink = ([task, title], index) => [
  index > 0 && ", ",
  title ? h("a", { href: `/tasks/${task}` }, title) : h("span", {}, h("code", {}, task), quiet(" (gone)")),
];

const SHOWN = {
  status: (status) => badge(status === "active" && key.owner_disabled ? "owner_disabled" : status),
  labels: (labels) => (labels.length ? tags(labels) : quiet("None")),
  networks: (networks) => (networks ? tags(networks) : "Everywhere"),
  created_at: when,
  last_used_at: when,
  expires_at: () => expiry(key),
  owner_name: (name) => name ?? key.owner_id,
};

function draw() {
  document.title = `${key.name} · Task Service`;
  $("#name").textContent = key.name;
  fill($("#known"), key, SHOWN);
  $("#description").textContent = key.description ?? "";
  $("#effects").classList.remove("waiting");
  const scopes = key.scopes ?? (isAnyones ? [] : Object.keys(words));
  $("#may").replaceChildren(...(scopes.length || !key.scopes ? [] : [h("li", {}, "Nothing: it has no permission.")]),
    ...(key.scopes ? [] : [h("li", {}, h("strong", {}, isAnyones ? "All permissions of its owner, at any time." : "All your permissions, also later ones. Now:"))]),
    ...scopes.map((scope) => h("li", {}, words[scope] ?? "A permission that you do not have", " ", h("code", { class: "quiet" }, scope))),
    tasks ? h("li", {}, tasks.length ? "Only with these tasks; it cannot create tasks: " : "With no task.", ...tasks.flatMap(taskLink)) : "");
  const isActive = key.status === "active";
  if (!isActive) {
    $("#end-title").textContent = key.revoked_at ? "It is revoked" : "It has expired";
    $("#end").replaceChildren(h("li", {}, key.revoked_at ? ["It was revoked ", when(key.revoked_at), ", for good."] : ["It expired ", when(key.expires_at), "."]),
      h("li", {}, "Requests with this key are refused. Create another key for its program."));
  }
  $("#actions")?.classList.remove("waiting");
  const usable = [isActive, isActive && !key.replaced_by, isActive, !isActive];
  buttons.forEach((one, index) => { if (one) one.hidden = !usable[index]; });
  drawRotation();
}

/** Its predecessor and successor. The entry of its creation names the predecessor. */
function drawRotation() {
  const predecessor = trail.items.find(({ action }) => action === "key.created")?.details.predecessor;
  const rotation = $("#rotation");
  const [title, other] = key.replaced_by ? ["Replaced by", key.replaced_by] : ["Replaces", predecessor];
  rotation.hidden = !other;
  if (!other) return;
  $("dt", rotation).textContent = title;
  $("dd", rotation).replaceChildren(link(other), key.replaced_by && key.status === "active" ? quiet(" Works until it expires") : "");
}

const DAYS = 30;
const dayOf = new Intl.DateTimeFormat("en", { day: "numeric", month: "long", timeZone: "UTC" });

/** The requests of each day, today at the right: a bar is as high as the number of requests, and a day with refused
 *  requests has a colour and a mark below. */
function drawRequests() {
  const found = Object.fromEntries(activity.days.map((one) => [one.day, one]));
  const days = Array.from({ length: DAYS }, (_, index) => {
    const at = new Date(Date.now() - (DAYS - 1 - index) * 86_400_000);
    return { at, accepted: 0, refused: 0, ...found[at.toISOString().slice(0, 10)] };
  });
  const bars = days.map(({ at, accepted, refused }) => ({
    title: `${dayOf.format(at)}: ${accepted} accepted, ${refused} refused`,
    parts: [["succeeded", accepted + refused], ["failed", refused]].filter(([, number]) => number),
    marked: refused && "failed",
  }));
  const totals = ["accepted", "refused"].map((name) => `${days.reduce((sum, one) => sum + one[name], 0).toLocaleString("en")} ${name}`);
  const summary = `${activity.days.length ? totals.join(" · ") : "None"} in the last ${DAYS} days`;
  $("#chart").replaceChildren(
    ...(activity.days.length ? [barChart("Requests of each day, today at the right", bars, true)] : []),
    h("figcaption", { class: "quiet" }, summary));
  const last = activity.last_request;
  $("#last").hidden = !last;
  if (!last) return;
  const { at, route, address, user_agent: agent } = last;
  $("#last").replaceChildren("The last one ", when(at), ...(route ? [": ", h("code", {}, route)] : []),
    ...(address ? [", from ", h("code", {}, address)] : []), ...(agent ? [", with ", h("code", {}, agent)] : []), ".");
}

const chosen = filtering($("#filter"), () => trail.begin());
const trail = new LiveList(isAnyones ? "/admin/audit" : `/keys${id}/audit`, {
  counts: false,
  query: () => ({ ...acting, ...(isAnyones && { key: page.dataset.keyId }), routine: Boolean(chosen().routine) }),
  rest: REST_MS,
  draw() {
    render($("#list"), table("History", OWN_TRAIL, trail.items));
    drawRotation();
  },
});

const look = poll(async () => {
  [key, activity] = await Promise.all([api(keysPath(id)), api(keysPath(`${id}/activity`, { days: DAYS }))]);
  // What a key is limited to never changes.
  tasks ??= key.resources && await tasksOf(key);
  draw();
  drawRequests();
}, () => REST_MS);

afterChange(async (_, what) => {
  if (what === "deleted") location.assign(listPage);
  else await Promise.all([look(), trail.refresh()]);
});

const dialog = $("#edit-dialog");
const form = $("form", dialog);

function edit() {
  form.reset();
  fillDetails(form.elements, key);
  open(dialog);
}

onSubmit(form, async () => {
  key = await api(keysPath(id), { method: "PATCH", body: readDetails(form.elements) });
  dialog.close();
  draw();
  await trail.refresh();
  say("Saved.");
});

const acts = [edit, () => rotate(key, ({ id: other }) => location.assign(keyPage(other))), () => revoke(key), () => remove(key)];
buttons.forEach((one, index) => one?.addEventListener("click", acts[index]));

try {
  await look();
  await trail.begin();
} catch (problem) {
  cannotShow("API key", problem);
}
page.ariaBusy = null;
