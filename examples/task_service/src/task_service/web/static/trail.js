// Entries of the audit log as rows.

import { h, quiet } from "./dom.js";
import { when } from "./time.js";

const WITHOUT_ID = { system: "Service", none: "Not logged in" };

const filter = (name, value, shown = value) => h("a", { href: `/admin/audit?${new URLSearchParams({ [name]: value })}` }, shown);
/** A value of any kind as text. */
export const plain = (value) => (Array.isArray(value) ? value.map(plain).join(", ") : typeof value === "string" ? value : JSON.stringify(value));

function who({ actor, credential: { kind, id } }) {
  const how = kind === "api_key" ? ["Key ", h("code", {}, id)] : WITHOUT_ID[kind] ?? "Session";
  return [actor && h("span", { class: "title" }, actor.username ?? actor.id), h("span", { class: "sub" }, how)];
}

function what({ action, details }) {
  const said = Object.entries(details).filter(([, value]) => value !== null).map(([name, value]) => `${name}: ${plain(value)}`);
  return [h("code", { class: "title" }, action), said.length > 0 && h("span", { class: "sub" }, said.join(" · "))];
}

const WHEN = ["Time", ({ at }) => when(at)];
const FROM = ["Address", ({ address }) => quiet(address)];

/** Columns for the trail of one thing, whose owner reads it. */
export const OWN_TRAIL = [["Action", what, "main"], ["User", who], WHEN, FROM];

/** Columns for the whole log, where names lead to all that is about them. */
export const TRAIL = [
  ["Action", what, "main"],
  ["User", (entry) => (entry.actor ? [filter("actor", entry.actor.username), who(entry)[1]] : who(entry))],
  ["Target", ({ target }) => target && h("code", {}, filter("target", target))],
  WHEN, FROM,
];
