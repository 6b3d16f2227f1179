// A key's details in lists, pages and forms.

import { api } from "../api.js";
import { counted, h, icon, quiet, tags } from "../dom.js";
import { inQuery } from "../list.js";
import { daysTo, when } from "../time.js";
import { isAnyones } from "./owner.js";

/** When a key expires, with a warning in an active key's last week. */
export function expiry({ status, expires_at: at }) {
  if (!at) return quiet("Never");
  return status === "active" && daysTo(at) <= 7 ? h("span", { class: "warn" }, icon("warn"), when(at)) : when(at);
}

/** Columns of each list of keys: permissions and times. */
export const KEY_COLUMNS = [
  ["Scopes", ({ scopes, resources }) => [
    !scopes ? quiet(isAnyones ? "All of the owner’s" : "All of mine") : !scopes.length ? quiet("None") : tags(scopes),
    resources && h("span", { class: "sub" }, `Only ${counted(resources.length, "task")}`),
  ], "wrap"],
  ["Created", (key) => when(key.created_at), null, true],
  ["Last used", (key) => when(key.last_used_at), null, true],
  ["Expires", expiry, null, true],
];

const listed = ({ value }) => value.split(/\s+/).filter(Boolean);

/** Fill in a form with a key's details, or empty it. */
export function fillDetails({ name, description, labels, networks }, key) {
  name.value = key?.name ?? "";
  description.value = key?.description ?? "";
  labels.value = key?.labels.join(" ") ?? "";
  networks.value = key?.networks?.join(" ") ?? "";
}

/** A form's values for the API. */
export function readDetails({ name, description, labels, networks }) {
  const places = listed(networks);
  return {
    name: name.value.trim(),
    description: description.value.trim() || null,
    labels: listed(labels),
    networks: places.length ? places : null,
  };
}

/** A key's tasks, as pairs of id and name; a deleted task has no name. */
export async function tasksOf({ resources }) {
  const ids = resources.map((one) => one.replace("task:", ""));
  const { items } = ids.length ? await api(`/tasks?${inQuery({ limit: 100, id: ids })}`) : { items: [] };
  const names = new Map(items.map(({ id, name }) => [id, name]));
  return ids.map((id) => [id, names.get(id)]);
}
