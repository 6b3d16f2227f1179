// Modal dialogs that give the focus back to where it was.

import { $, focusOn, h } from "./dom.js";
import { checkFields, clearProblem, hasDraft, restoreDraft, showProblem } from "./forms.js";

/** Open a dialog; the promise ends when the dialog closes. */
export function open(dialog) {
  const opener = document.activeElement;
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", function closed() {
    // The event is late: the user may have opened the dialog again.
    if (dialog.open) return;
    dialog.removeEventListener("close", closed);
    // The browser gives the focus back, unless the list behind was drawn anew: then the same button has it, or its row.
    if (!opener.isConnected) focusOn(opener.dataset.focus ?? "") || ($("#new") ?? $("#main")).focus();
    done();
  }));
}

document.addEventListener("click", ({ target }) => {
  if (target.closest("[data-close]")) target.closest("dialog").close();
});

/** Call `act` when a form with valid fields is sent, once at a time, and show problems in the form. */
export function onSubmit(form, act) {
  const submit = $("[type=submit]", form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (submit.ariaDisabled) return;
    submit.ariaDisabled = "true";
    clearProblem(form);
    try {
      checkFields(form);
      await act();
    } catch (problem) {
      showProblem(form, problem);
    } finally {
      submit.ariaDisabled = null;
    }
  });
}

/** The dialog of "New", whose form `save` saves; the returned function opens it again if a draft was kept. */
export function newDialog(save) {
  const dialog = $("#new-dialog");
  const form = $("form", dialog);
  const create = () => {
    form.reset();
    restoreDraft(form);
    open(dialog);
  };
  onSubmit(form, () => save(form.elements, dialog));
  $("#new").addEventListener("click", create);
  return () => hasDraft(form) && create();
}

const asked = $("#confirm");
let confirmed;

/** Ask before doing `act`, which cannot be undone; `text` is lines of text and nodes, or the id of a template. */
export function confirm({ title, text, action, act }) {
  $("h2", asked).textContent = title;
  const lines = typeof text === "string" ? [$(`#${text}`).content.cloneNode(true)] : text;
  $(".confirm-text", asked).replaceChildren(...lines.map((line) => h("p", {}, line)));
  $("[type=submit]", asked).textContent = action;
  $("form", asked).reset();
  confirmed = act;
  open(asked);
}

if (asked) {
  onSubmit($("form", asked), async () => {
    await confirmed();
    asked.close();
  });
}
