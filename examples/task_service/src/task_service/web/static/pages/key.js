import { api } from "../api.js";
import { $, badge, fill, h, quiet, render, say, table, tags } from "../dom.js";
import { onSubmit, open } from "../dialogs.js";
import { checkFields } from "../forms.js";
import { afterChange, remove, revoke, rotate } from "../keys/actions.js";
import { expiry } from "../keys/expiry.js";
import { LiveList, poll } from "../list.js";
import { when } from "../time.js";
import { OWN_TRAIL } from "../trail.js";

const REST_MS = 30_000;
const page = $("#key");
const path = `/keys/${encodeURIComponent(page.dataset.keyId)}`;
// Absent without the permission keys:manage.
const buttons = ["edit", "rotate", "revoke", "delete"].map((id) => $(`#${id}`));
const words = Object.fromEntries([...$("#words").content.children].map((one) => [one.dataset.permission, one.textContent]));
let key;

const link = (id) => h("a", { href: `/keys/${id}` }, h("code", {}, id));

const SHOWN = {
  status: badge,
  labels: (labels) => (labels.length ? tags(labels) : quiet("None")),
  networks: (networks) => (networks ? tags(networks) : "Everywhere"),
  created_at: (at) => when(at),
  last_used_at: (at) => when(at),
  expires_at: () => expiry(key),
};

function draw() {
  document.title = `${key.name} · Task Service`;
  $("#name").textContent = key.name;
  fill($("#known"), key, SHOWN);
  $("#description").textContent = key.description ?? "";
  $("#description").hidden = !key.description;
  $("#effects").classList.remove("waiting");
  const scopes = key.scopes ?? Object.keys(words);
  $("#may").replaceChildren(...(scopes.length ? [] : [h("li", {}, "Nothing: it has no permission.")]),
    ...(key.scopes ? [] : [h("li", {}, h("strong", {}, "All that you may do, and what you are granted later. Now:"))]),
    ...scopes.map((scope) => h("li", {}, words[scope] ?? "A permission that you do not have", " ", h("code", { class: "quiet" }, scope))));
  const isActive = key.status === "active";
  if (!isActive) {
    $("#end-title").textContent = key.revoked_at ? "It is revoked" : "It has expired";
    $("#end").replaceChildren(h("li", {}, key.revoked_at ? ["It was revoked ", when(key.revoked_at), ", for good."] : ["It expired ", when(key.expires_at), "."]),
      h("li", {}, "Requests with it are refused. To let its program go on, create another key."));
  }
  $("#actions")?.classList.remove("waiting");
  const usable = [isActive, isActive && !key.replaced_by, isActive, !isActive];
  buttons.forEach((one, index) => { if (one) one.hidden = !usable[index]; });
  drawRotation();
}

/** What it replaced, or what replaces it. The entry of its creation names its predecessor. */
function drawRotation() {
  const predecessor = trail.items.find(({ action }) => action === "key.created")?.details.predecessor;
  const rotation = $("#rotation");
  const [title, other] = key.replaced_by ? ["Replaced by", key.replaced_by] : ["Replaces", predecessor];
  rotation.hidden = !other;
  if (!other) return;
  $("dt", rotation).textContent = title;
  $("dd", rotation).replaceChildren(link(other), key.replaced_by && key.status === "active" ? quiet(" Works until it expires") : "");
}

const trail = new LiveList(`${path}/audit`, {
  rest: REST_MS,
  draw() {
    render($("#list"), table("History", OWN_TRAIL, trail.items));
    drawRotation();
  },
});

async function look() {
  try {
    key = await api(path);
    draw();
  } finally {
    again();
  }
}

const again = poll(look, () => REST_MS);

afterChange(async (id, what) => {
  if (what === "deleted") location.assign("/keys");
  else await Promise.all([look(), trail.refresh()]);
});

const dialog = $("#edit-dialog");
const form = $("form", dialog);
const { name, description, labels, networks } = form.elements;
const listed = ({ value }) => value.split(/\s+/).filter(Boolean);

function edit() {
  form.reset();
  [name.value, description.value] = [key.name, key.description ?? ""];
  [labels.value, networks.value] = [key.labels, key.networks ?? []].map((all) => all.join(" "));
  open(dialog);
}

onSubmit(form, async () => {
  checkFields(form);
  const places = listed(networks);
  const body = {
    name: name.value.trim(),
    description: description.value.trim() || null,
    labels: listed(labels),
    networks: places.length ? places : null,
  };
  key = await api(path, { method: "PATCH", body });
  dialog.close();
  draw();
  await trail.refresh();
  say("Saved.");
});

const acts = [edit, () => rotate(key, ({ id }) => location.assign(`/keys/${id}`)), () => revoke(key), () => remove(key)];
buttons.forEach((one, index) => one?.addEventListener("click", acts[index]));

try {
  await look();
  await trail.begin();
} catch (problem) {
  $("#name").textContent = "API key";
  $("#problem").prepend(problem.message);
  $("#problem").hidden = false;
  $("#known").hidden = true;
}
page.ariaBusy = null;
