import { api } from "../api.js";
import { $, badge, button, counted, h, me, render, rowTitle, say, table, tags } from "../dom.js";
import { confirm, newDialog, open } from "../dialogs.js";
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

const ROLES = { user: "User", viewer: "Viewer", admin: "Administrator" };

/** A labelled choice for a question of `confirm`. */
function choice(label, options, chosen) {
  const select = h("select", {}, options.map(([value, words]) => h("option", { value, selected: value === chosen }, words)));
  return [select, h("label", { class: "stack" }, label, select)];
}

function changeRole({ id, username: name, roles }) {
  const [select, label] = choice("Role", Object.entries(ROLES), roles[0]);
  confirm({
    title: `Change the role of ${name}?`,
    text: [label, $("#roles").content.cloneNode(true)],
    action: "Change role",
    act: () => change({ id }, "PATCH", "", { roles: [select.value] }, `${name}: ${ROLES[select.value].toLowerCase()} now.`),
  });
}

/** New owners for a user's tasks: every other enabled user, and the service accounts. */
async function otherOwners(user) {
  const [people, accounts] = await Promise.all(["users?sort=name&", "service-accounts?"].map((path) => api(`/admin/${path}disabled=false&limit=200`)));
  return [...people.items.map(({ id, username }) => [id, username]), ...accounts.items.map(({ id, name }) => [id, `${name} (service account)`])]
    .filter(([id]) => id !== user.id);
}

async function disable(user) {
  const { id, username: name } = user;
  const [{ active_keys: keys, tasks }, owners] = await Promise.all([api(`/admin/users/${id}/departure`), otherOwners(user)]);
  const revoke = h("input", { type: "checkbox" });
  const [owner, ownerLabel] = choice(`Owner of the ${counted(tasks, "task")} from now on`, [["", `${name} keeps them`], ...owners]);
  confirm({
    title: `Disable: ${name}?`,
    text: [
      $("#disable").content.cloneNode(true),
      keys > 0 && h("label", { class: "check" }, revoke, `Revoke ${counted(keys, "active key")} for good. Otherwise they wait for a return.`),
      tasks > 0 && ownerLabel,
    ].filter(Boolean),
    action: "Disable",
    async act() {
      const leaves = revoke.checked || owner.value;
      const body = { revoke_keys: revoke.checked, owner_id: owner.value || null };
      const done = leaves ? await api(`/admin/users/${id}/departure`, { method: "POST", body }) : await api(`/admin/users/${id}`, { method: "PATCH", body: { disabled: true } });
      await users.refresh();
      say([`${name} was disabled.`, done.revoked_keys && `${counted(done.revoked_keys, "key")} revoked.`, done.moved_tasks && `${counted(done.moved_tasks, "task")} handed over.`].filter(Boolean).join(" "));
    },
  });
}

function actions(user) {
  const { username: name, disabled } = user;
  const named = (label, act, look = "link") => button(label, `${label}:${user.id}`, act, { "aria-label": `${label}: ${name}`, class: `button small ${look}` });
  // A user cannot lock themselves out.
  const other = name !== me.username;
  return disabled ? named("Enable", () => change(user, "PATCH", "", { disabled: false }, `${name} was enabled.`), "") : [
    named("New link", async () => { reveal(await api(`/admin/users/${user.id}/invitation`, { method: "POST" })); }),
    other && named("Change role", () => changeRole(user)),
    named("End sessions", () => confirm({
      title: `End sessions: ${name}?`, text: "end-sessions", action: "End sessions",
      act: () => change(user, "DELETE", "/sessions", undefined, `${name}: all sessions were ended.`),
    })),
    other && named("Disable", () => disable(user), ""),
  ];
}

const COLUMNS = [
  ["Name", (user) => [
    rowTitle(user.id, user.username),
    h("code", { class: "sub" }, user.id),
  ], "main"],
  ["Status", (user) => badge(status(user))],
  ["Roles", ({ roles }) => tags(roles)],
  ["Created", ({ created_at: at }) => when(at), null, true],
  ["Last login", ({ last_login_at: at }) => when(at), null, true],
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

const resume = newDialog(async ({ username, role }, dialog) => {
  const created = await api("/admin/users", { method: "POST", body: { username: username.value.trim(), role: role.value } });
  dialog.close();
  reveal(created);
  await users.refresh();
});

await users.begin();
resume();
