// The link's secret is after the `#`, which browsers do not send; it leaves the address bar at once.

import { api, Problem } from "../api.js";
import { $ } from "../dom.js";
import { onSubmit } from "../dialogs.js";

const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname);

const form = $("#set-password");
const { password, repeated } = form.elements;
$("#no-token").hidden = Boolean(token);

/** Report a used or expired link before the user types a password. */
async function check() {
  try {
    const { username } = await api("/auth/password-link", { method: "POST", body: { token }, loggedIn: false });
    form.elements.username.value = $("#username").textContent = username;
    form.hidden = false;
    password.focus();
  } catch (problem) {
    $("#dead").textContent = problem.message;
    $("#dead").hidden = false;
  }
}

if (token) await check();

$("#show").addEventListener("change", ({ target }) => {
  password.type = repeated.type = target.checked ? "text" : "password";
});

onSubmit(form, async () => {
  if (password.value !== repeated.value) throw Problem.ofField("repeated", "The passwords do not match.");
  await api("/auth/set-password", { method: "POST", body: { token, password: password.value }, loggedIn: false });
  location.replace("/login?reason=password-set");
});
