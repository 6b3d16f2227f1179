import { api } from "../api.js";
import { $, badge, fill, pressed, say } from "../dom.js";
import { confirm, onSubmit, open } from "../dialogs.js";
import { checkFields } from "../forms.js";
import { poll } from "../list.js";
import { when } from "../time.js";

const LIST = "/admin/service-accounts";
const REST_MS = 30_000;
const page = $("#account");
const path = `${LIST}/${encodeURIComponent(page.dataset.accountId)}`;
let account;
let isListed = false;

const SHOWN = {
  disabled: (disabled) => badge(disabled ? "disabled" : "active"),
  last_used_at: (at) => when(at),
  created_at: (at) => when(at),
};

function draw() {
  document.title = `${account.name} · Task Service`;
  $("#name").textContent = account.name;
  fill($("#known"), account, SHOWN);
  $("#description").textContent = account.description ?? "";
  $("#description").hidden = !account.description;
  $("#refused").hidden = !account.disabled;
  $("#disable").hidden = account.disabled;
  $("#enable").hidden = !account.disabled;
  $("#new").disabled = account.disabled || !isListed;
  $("#actions").classList.remove("waiting");
}

async function look() {
  try {
    account = await api(path);
    draw();
  } finally {
    again();
  }
}

const again = poll(look, () => REST_MS);

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
  checkFields(form);
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
  // The list of its keys is that of a user's own.
  await import("./keys.js");
  isListed = true;
  draw();
} catch (problem) {
  $("#name").textContent = "Service account";
  $("#problem").prepend(problem.message);
  $("#problem").hidden = false;
  $("#known").hidden = true;
}
page.ariaBusy = null;
