import { api } from "../api.js";
import { $, badge, button, h, render, rowLink, say, table } from "../dom.js";
import { confirm, newDialog } from "../dialogs.js";
import { filtering, LiveList } from "../list.js";
import { when } from "../time.js";

const PATH = "/admin/service-accounts";

const chosen = filtering($("#filter"), () => accounts.begin());
const accounts = new LiveList(PATH, {
  limit: 100,
  rest: 30_000,
  query: chosen,
  draw() {
    $("#empty").textContent = Object.keys(chosen()).length ? "No service accounts match." : "No service accounts yet.";
    render($("#list"), table("Service accounts", COLUMNS, accounts.items, ({ disabled }) => disabled && "ended"));
  },
});

async function change({ id, name }, disabled) {
  await api(`${PATH}/${id}`, { method: "PATCH", body: { disabled } });
  await accounts.refresh();
  say(`${name} was ${disabled ? "disabled" : "enabled"}.`);
}

function actions(account) {
  const { id, name, disabled } = account;
  const label = disabled ? "Enable" : "Disable";
  const act = disabled ? () => change(account, false) : () => confirm({
    title: `Disable: ${name}?`, text: "disable", action: "Disable", act: () => change(account, true),
  });
  return button(label, `${label}:${id}`, act, { "aria-label": `${label}: ${name}` });
}

const COLUMNS = [
  ["Name", ({ id, name, description }) => [
    rowLink(id, `${PATH}/${id}`, name),
    description && h("span", { class: "sub" }, description),
  ], "main"],
  ["Status", ({ disabled }) => badge(disabled ? "disabled" : "active")],
  ["Active keys", ({ active_keys: number }) => String(number), null, true],
  ["Last used", ({ last_used_at: at }) => when(at), null, true],
  ["Created", ({ created_at: at }) => when(at), null, true],
  ["Actions", actions, "row-actions"],
];

const resume = newDialog(async ({ name, description }) => {
  const body = { name: name.value.trim(), description: description.value.trim() || null };
  const { id } = await api(PATH, { method: "POST", body });
  // There its first key is made.
  location.assign(`${PATH}/${id}`);
});

await accounts.begin();
resume();
