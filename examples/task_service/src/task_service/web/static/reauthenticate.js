// Asks for the password where an operation needs a recent login (RFC 9470); the page behind the dialog stays as it is.

import { api, LOGIN, Problem } from "./api.js";
import { onSubmit, open } from "./dialogs.js";
import { $ } from "./dom.js";

const dialog = $("#reauthenticate");
const form = $("form", dialog);
// Who logs in at the identity provider has no password here, and follows the link in the dialog.
const { password } = form.elements;
let confirmed, asking;

onSubmit(form, async () => {
  const body = { password: password.value };
  // Until the browser has the new cookie, what was sent with the old one is refused; it waits for this lock.
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

/** Done when the login is recent; whatever asks meanwhile gets the same dialog. Raises a problem if it was cancelled. */
export const reauthenticate = () => (asking ??= ask().finally(() => { asking = null; }));
