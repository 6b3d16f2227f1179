import { api, Problem } from "../api.js";
import { $, button, h, quiet, render, rowTitle, say, table } from "../dom.js";
import { confirm, onSubmit } from "../dialogs.js";
import { LiveList } from "../list.js";
import { when } from "../time.js";

/** A browser's short name. Edge and Opera also name Chrome, which also names Safari. */
function device(agent) {
  const named = (...names) => names.find((name) => agent?.includes(name));
  return [named("Edg", "OPR", "Firefox", "Chrome", "Safari", "curl"), named("Android", "iPhone", "iPad", "Mac OS", "Windows", "Linux")]
    .filter(Boolean).join(" on ") || agent || "Unknown client";
}

const sessions = new LiveList("/auth/sessions", {
  limit: null,
  counts: false,
  rest: 30_000,
  draw() {
    // Always there: a button that came later would move the list on a phone.
    $("#end-others").disabled = sessions.items.length < 2;
    render($("#list"), table("Sessions", COLUMNS, sessions.items));
  },
});

const COLUMNS = [
  ["Device", ({ id, user_agent: agent, address, current }) => [
    rowTitle(id, device(agent), agent),
    h("span", { class: "sub" }, address ?? "Unknown address", current && " · this session"),
  ], "main"],
  ["Started", ({ started_at: at }) => when(at), null, true],
  ["Last seen", ({ last_seen_at: at, current }) => (current ? quiet("now") : when(at)), null, true],
  ["Expires", ({ expires_at: at }) => when(at), null, true],
  ["Actions", ({ id, current, user_agent: agent }) => !current && button("End session", `end:${id}`, async () => {
    await api(`/auth/sessions/${id}`, { method: "DELETE" });
    await sessions.refresh();
    $("#list .title").focus();
    say("The session was ended.");
  }, { "aria-label": `End the session on ${device(agent)}` }), "row-actions"],
];

$("#end-others").addEventListener("click", () => confirm({
  title: "End all other sessions?",
  text: "end-text",
  action: "End sessions",
  async act() {
    await api("/auth/sessions", { method: "DELETE" });
    await sessions.refresh();
    say("All other sessions were ended.");
  },
}));

// Users of the identity provider have no password here.
const form = $("#password");
const { current, chosen, repeated } = form?.elements ?? {};

if (form) onSubmit(form, async () => {
  if (chosen.value !== repeated.value) throw Problem.ofField("repeated", "The passwords do not match.");
  await api("/auth/change-password", { method: "POST", body: { current_password: current.value, new_password: chosen.value } });
  form.reset();
  await sessions.refresh();
  say("Your password was changed, and your other sessions were ended.");
});

await sessions.begin();
