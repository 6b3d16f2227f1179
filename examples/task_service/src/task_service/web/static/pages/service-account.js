import { api } from "../api.js";
import { $, badge, cannotShow, fill, pressed, say } from "../dom.js";
import { confirm, onSubmit, open } from "../dialogs.js";
import { poll } from "../list.js";
import { when } from "../time.js";

const LIST = "/admin/service-accounts";
const page = $("#account");
const path = `${LIST}/${encodeURIComponent(page.dataset.accountId)}`;
let account;
let isListed = false;

const SHOWN = {
  disabled: (disabled) => badge(disabled ? "disabled" : "active"),
  last_used_at: when,
  created_at: when,
};

function draw() {
  document.title = `${account.name} · Task Service`;
  $("#name").textContent = account.name;
  fill($("#known"), account, SHOWN);
  $("#description").textContent = account.description ?? "";
  $("#refused").hidden = !account.disabled;
  $("#disable").hidden = account.disabled;
  $("#enable").hidden = !account.disabled;
  $("#new").disabled = account.disabled || !isListed;
  $("#actions").classList.remove("waiting");
}

const look = poll(async () => {
  account = await api(path);
  draw();
}, () => 30_000);

/** Change the account; `said` is the message of success. */
async function change(body, said) {
  account = await api(path, { method: "PATCH", body });
  draw();
  say(said);
}

const dialog = $("#edit-dialog");
const form = $("form", dialog);

$("#edit").addEventListener("click", () => {
  form.reset();
  form.elements.description.value = account.description ?? "";
  open(dialog);
});

onSubmit(form, async () => {
  await change({ description: form.elements.description.value.trim() || null }, "Saved.");
  dialog.close();
});

$("#enable").addEventListener("click", pressed(async () => {
  await change({ disabled: false }, `${account.name} was enabled.`);
  $("#disable").focus();
}));
$("#disable").addEventListener("click", () => confirm({
  title: `Disable: ${account.name}?`,
  text: "disable-text",
  action: "Disable",
  act: () => change({ disabled: true }, `${account.name} was disabled.`),
}));
$("#delete").addEventListener("click", () => confirm({
  title: `Delete: ${account.name}?`,
  text: "delete-account-text",
  action: "Delete service account",
  async act() {
    await api(path, { method: "DELETE" });
    location.assign(LIST);
  },
}));

try {
  await look();
  // The same list as for a user's own keys.
  await import("./keys.js");
  isListed = true;
  draw();
} catch (problem) {
  cannotShow("Service account", problem);
}
page.ariaBusy = null;
