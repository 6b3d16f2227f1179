// Problems beside their fields, and drafts of forms that survive a session's end.

import { beforeLogin, Problem } from "./api.js";
import { $, me } from "./dom.js";

export function clearProblem(form) {
  for (const element of form.querySelectorAll(".error, .form-error")) element.textContent = "";
  for (const element of form.querySelectorAll("[aria-invalid]")) element.ariaInvalid = null;
}

document.addEventListener("reset", ({ target }) => clearProblem(target));

/** Show a problem in a form: beside the fields it names, and the rest at the form's end. */
export function showProblem(form, problem) {
  const rest = problem.fields?.length ? [] : [problem.message];
  let first;
  for (const { field, message } of problem.fields ?? []) {
    const place = placeOf(form, field);
    const control = place && ($(`[name="${CSS.escape(field)}"]`, place) ?? $("input:not([type=hidden]), select, textarea", place));
    if (!place) rest.push(field ? `${field}: ${message}` : message);
    else $(".error", place).textContent = sentence(message);
    // A button that replaces a secret has no value.
    if (control && control.type !== "button") control.ariaInvalid = "true";
    const folded = place?.closest("details");
    if (folded) folded.open = true;
    first ??= control;
  }
  $(".form-error", form).textContent = rest.map(sentence).join(" ");
  first?.focus();
}

/** The place of a field, or of the longest part of its name that has one: `params.argv.0` is at `params.argv`. */
function placeOf(form, name) {
  if (!name) return null;
  return $(`[data-field="${CSS.escape(name)}"]`, form) ?? placeOf(form, name.slice(0, Math.max(0, name.lastIndexOf("."))));
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A control's error, in the same words in every browser. */
function wording({ validity, validationMessage, type, minLength, min, max }) {
  if (validity.valueMissing && !validity.badInput) return "Fill in this field.";
  if (validity.tooShort) return `Use at least ${minLength} characters.`;
  return type === "number" ? `Enter a number${min && ` from ${min}`}${max && ` to ${max}`}.` : validationMessage;
}

/** The browser's own checks (required, number, range), shown like the server's. */
export function checkFields(form) {
  const errors = [...form.elements]
    .filter((control) => control.willValidate && !control.validity.valid)
    .map((control) => ({ field: control.closest("[data-field]").dataset.field, message: wording(control) }));
  if (errors.length) throw new Problem(422, { errors });
}

// Drafts: kept only while the user logs in again, only for the same user, and without secrets: fields marked as secret are
// left out, and so is any value that looks like a credential.

const SECRET = /_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}|\beyJ[\w-]{8}|bearer\s|basic\s|-----BEGIN|:\/\/[^/\s]*@/i;
const ownerOf = (form) => `${me.username} ${location.pathname} ${form.dataset.draft}`;
const mayKeep = (control) => control.type !== "password" && !SECRET.test(control.value);
// Buttons of secret fields are not counted either: the next form has others.
const controlsOf = (form) => [...form.elements].filter((control) => !control.closest("[data-secret]"));

beforeLogin.add(() => {
  const form = $("dialog[open] form[data-draft]") ?? $("form[data-draft]:not(dialog *)");
  if (!form) return;
  const values = controlsOf(form).map((control) => mayKeep(control) && [control.value, control.checked]);
  sessionStorage.setItem("draft", JSON.stringify([ownerOf(form), values]));
});

/** True if this form has a draft; drafts of other pages or users are forgotten. */
export function hasDraft(form) {
  const [owner] = JSON.parse(sessionStorage.getItem("draft") ?? "[]");
  const own = owner === ownerOf(form);
  if (!own) sessionStorage.removeItem("draft");
  return own;
}

/** Fill a form from its draft, once. */
export function restoreDraft(form) {
  if (!hasDraft(form)) return;
  const [, values] = JSON.parse(sessionStorage.getItem("draft"));
  sessionStorage.removeItem("draft");
  for (const [index, kept] of values.entries()) {
    // In order: a choice may make the fields after it.
    const control = controlsOf(form)[index];
    if (!kept || !control) continue;
    [control.value, control.checked] = kept;
    control.dispatchEvent(new Event("change", { bubbles: true }));
  }
}
