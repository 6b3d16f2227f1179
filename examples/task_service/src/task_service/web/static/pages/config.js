import { api, beforeLogin } from "../api.js";
import { $, say } from "../dom.js";
import { onSubmit } from "../dialogs.js";
import { restoreDraft, showProblem } from "../forms.js";

const form = $("#config");
let config;

function fill(current) {
  config = current;
  for (const [name, value] of Object.entries(config)) {
    if (typeof value === "boolean") form.elements[name].checked = value;
    else form.elements[name].value = value?.join?.("\n") ?? value ?? "";
  }
}

const read = ({ type, value, checked }) => (type === "checkbox" ? checked
  : type === "textarea" ? value.split("\n").map((line) => line.trim()).filter(Boolean)
  : value === "" ? null : Number(value));

form.addEventListener("reset", (event) => {
  event.preventDefault();
  fill(config);
});

const changes = () => Object.keys(config ?? {}).map((name) => [name, read(form.elements[name])])
  .filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(config[name]));

// The browser asks before it discards edits, except on the way to the log-in, which keeps a draft.
const warnBeforeLeaving = (event) => { if (changes().length) event.preventDefault(); };
addEventListener("beforeunload", warnBeforeLeaving);
beforeLogin.add(() => removeEventListener("beforeunload", warnBeforeLeaving));

onSubmit(form, async () => {
  const changed = changes();
  if (!changed.length) return say("Nothing was changed.");
  fill(await api("/admin/config", { method: "PATCH", body: Object.fromEntries(changed) }));
  say("Saved and in effect.");
});

try {
  fill(await api("/admin/config"));
  // Earlier input would have been overwritten.
  for (const group of form.querySelectorAll("fieldset")) group.disabled = false;
  restoreDraft(form);
} catch (problem) {
  showProblem(form, problem);
}
form.ariaBusy = null;
