// Asks for the password if an operation needs a recent login (RFC 9470); the page behind the dialog stays as it is.

import { api, LOGIN, Problem } from "./api.js";
import { onSubmit, open } from "./dialogs.js";
import { $ } from "./dom.js";

const dialog = $("#reauthenticate");
const form = $("form", dialog);
// Users of the identity provider have no password here, and follow the dialog's link.
const { password } = form.elements;
let confirmed, asking;

onSubmit(form, async () => {
  const body = { password: password.value };
  // Until the browser has the new cookie, requests with the old cookie are refused; they wait for this lock.
  await navigator.locks.request(LOGIN, () => api("/auth/reauthenticate", { method: "POST", body, again: false }));
  confirmed = true;
  dialog.close();
});

async function ask() {
  confirmed = false;
  await open(dialog);
  form.reset();
  if (!confirmed) throw new Problem(401, { detail: "Nothing was changed: the password was not confirmed." });
}

/** Ends when the login is recent; other callers get the same dialog. Raises a problem if the user cancels. */
export const reauthenticate = () => (asking ??= ask().finally(() => { asking = null; }));
