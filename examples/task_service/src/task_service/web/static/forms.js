// Problems beside the fields they are about, and half-filled forms that survive a session's end.

import { beforeLogin, Problem } from "./api.js";
import { $, me } from "./dom.js";

export function clearProblem(form) {
  for (const element of form.querySelectorAll(".error, .form-error")) element.textContent = "";
  for (const element of form.querySelectorAll("[aria-invalid]")) element.ariaInvalid = null;
}

document.addEventListener("reset", ({ target }) => clearProblem(target));

/** Show a problem in a form: beside the fields it names, and what is left at its end. */
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

/** What is wrong with a control, in the same words in every browser. */
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

// Drafts: kept only while a session's end leads through the log-in, only for the same user, and never a secret. Fields
// marked so are left out, and so is any value with something like a credential in it.

const SECRET = /_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}|\beyJ[\w-]{8}|bearer\s|basic\s|-----BEGIN|:\/\/[^/\s]*@/i;
const ownerOf = (form) => `${me.username} ${location.pathname} ${form.dataset.draft}`;
const mayKeep = (control) => control.type !== "password" && !SECRET.test(control.value);
// Those of secret fields are not counted either: they are others when the form is there again.
const controlsOf = (form) => [...form.elements].filter((control) => !control.closest("[data-secret]"));

beforeLogin.add(() => {
  const form = $("dialog[open] form[data-draft]") ?? $("form[data-draft]:not(dialog *)");
  if (!form) return;
  const values = controlsOf(form).map((control) => mayKeep(control) && [control.value, control.checked]);
  sessionStorage.setItem("draft", JSON.stringify([ownerOf(form), values]));
});

/** True if this form was put away; what was put away by another page or user is forgotten. */
export function hasDraft(form) {
  const [owner] = JSON.parse(sessionStorage.getItem("draft") ?? "[]");
  const own = owner === ownerOf(form);
  if (!own) sessionStorage.removeItem("draft");
  return own;
}

/** Put back into a form what was kept of it, once. */
export function restoreDraft(form) {
  if (!hasDraft(form)) return;
  const [, values] = JSON.parse(sessionStorage.getItem("draft"));
  sessionStorage.removeItem("draft");
  for (const [index, kept] of values.entries()) {
    // One after the other: a choice may make the fields that follow it.
    const control = controlsOf(form)[index];
    if (!kept || !control) continue;
    [control.value, control.checked] = kept;
    control.dispatchEvent(new Event("change", { bubbles: true }));
  }
}
