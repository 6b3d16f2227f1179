import { api } from "../api.js";
import { $, badge, button, h, me, render, rowTitle, say, table, tags } from "../dom.js";
import { confirm, onSubmit, open } from "../dialogs.js";
import { checkFields, hasDraft, restoreDraft } from "../forms.js";
import { filtering, LiveList } from "../list.js";
import { when } from "../time.js";

const users = new LiveList("/admin/users", {
  limit: 100,
  rest: 30_000,
  query: filtering($("#filter"), () => users.begin()),
  draw: () => render($("#list"), table("Users", COLUMNS, users.items, ({ disabled }) => disabled && "ended")),
});

const status = ({ disabled, has_password: password, external_login: external }) =>
  disabled ? "disabled" : password || external ? "active" : "invited";

/** Change a user through the API; `said` is the message of success. */
async function change({ id }, method, path, body, said) {
  await api(`/admin/users/${id}${path}`, { method, body });
  await users.refresh();
  say(said);
}

function actions(user) {
  const { username: name, roles, disabled } = user;
  const named = (label, act) => button(label, `${label}:${user.id}`, act, { "aria-label": `${label}: ${name}` });
  const asked = (label, text, ...request) => named(label, () => confirm({
    title: `${label}: ${name}?`, text, action: label, act: () => change(user, ...request),
  }));
  const [role, words] = roles.includes("admin") ? ["user", "a user"] : ["admin", "an administrator"];
  // A user cannot lock themselves out.
  const other = name !== me.username;
  return disabled ? named("Enable", () => change(user, "PATCH", "", { disabled: false }, `${name} was enabled.`)) : [
    other && asked(`Make ${words}`, `make-${role}`, "PATCH", "", { roles: [role] }, `${name} is ${words} now.`),
    named("New link", async () => { reveal(await api(`/admin/users/${user.id}/invitation`, { method: "POST" })); }),
    asked("End sessions", "end-sessions", "DELETE", "/sessions", undefined, `${name}: all sessions were ended.`),
    other && asked("Disable", "disable", "PATCH", "", { disabled: true }, `${name} was disabled.`),
  ];
}

const COLUMNS = [
  ["Name", (user) => [
    rowTitle(user.id, user.username),
    h("code", { class: "sub" }, user.id),
  ], "main"],
  ["Status", (user) => badge(status(user))],
  ["Roles", ({ roles }) => tags(roles)],
  ["Created", (user) => when(user.created_at), null, true],
  ["Last login", (user) => when(user.last_login_at), null, true],
  ["Actions", actions, "row-actions"],
];

const link = $("#link");
const value = $("code", link);

/** Show a link, once: it leaves the page with the dialog. */
function reveal({ user: { username }, invitation_url: url, expires_at: until }) {
  $("#link-title").textContent = `One-time link for ${username}`;
  $("#link-until").replaceChildren(when(until));
  value.textContent = url;
  return open(link);
}

const forget = () => { value.textContent = ""; };
link.addEventListener("close", forget);
addEventListener("pagehide", forget);

const dialog = $("#new-dialog");
const form = $("form", dialog);

function create() {
  form.reset();
  restoreDraft(form);
  open(dialog);
}

onSubmit(form, async () => {
  checkFields(form);
  const { username, role } = form.elements;
  const created = await api("/admin/users", { method: "POST", body: { username: username.value.trim(), role: role.value } });
  dialog.close();
  reveal(created);
  await users.refresh();
});

$("#new").addEventListener("click", create);
await users.begin();
if (hasDraft(form)) create();
