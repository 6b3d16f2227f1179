// Entries of the audit log as rows.

import { h, me, quiet } from "./dom.js";
import { when } from "./time.js";

const WITHOUT_ID = { system: "Service", none: "Not logged in" };

const filter = (name, value, shown = value) => h("a", { href: `/admin/audit?${new URLSearchParams({ [name]: value })}` }, shown);
/** A value of any kind as text. */
export const plain = (value) => (Array.isArray(value) ? value.map(plain).join(", ") : typeof value === "string" ? value : JSON.stringify(value));

/** The page of a key named here: an administrator's page leads to any key. */
const keyLink = (id, name) => (me.may("admin:keys") ? h("a", { href: `/admin/keys/${id}` }, name ?? id) : name ?? h("code", {}, id));

function who({ actor, credential: { kind, id, name } }) {
  const how = kind === "api_key" ? ["Key ", keyLink(id, name)] : WITHOUT_ID[kind] ?? "Session";
  return [actor && h("span", { class: "title" }, actor.username ?? actor.id), h("span", { class: "sub" }, how)];
}

/** Old and new value, with an arrow between them. */
const step = (old, now) => `${plain(old ?? "nothing")} → ${plain(now ?? "nothing")}`;

function what({ action, details }) {
  const { changed = {}, ...rest } = details;
  const said = Object.entries(changed).map(([name, values]) => `${name}: ${step(values.old, values.new)}`);
  if ("old" in rest && "new" in rest) said.push(step(rest.old, rest.new));
  said.push(...Object.entries(rest).filter(([name, value]) => value !== null && !("new" in rest && (name === "old" || name === "new")))
    .map(([name, value]) => `${name}: ${plain(value)}`));
  return [h("code", { class: "title" }, action), said.length > 0 && h("span", { class: "sub" }, said.join(" · "))];
}

const WHEN = ["Time", ({ at }) => when(at)];
const FROM = ["Address", ({ address }) => quiet(address)];

/** Columns for the trail of one object, for its owner. */
export const OWN_TRAIL = [["Action", what, "main"], ["User", who, "wrap"], WHEN, FROM];

/** Columns for the whole log, where names lead to all of their entries. */
export const TRAIL = [
  ["Action", what, "main"],
  ["User", (entry) => (entry.actor ? [filter("actor", entry.actor.username), who(entry)[1]] : who(entry)), "wrap"],
  ["Target", ({ action, target, details: { name } }) => target && [
    action.startsWith("key.") && h("span", { class: "title" }, keyLink(target, name)),
    h("code", { class: "sub" }, filter("target", target)),
  ], "wrap"],
  WHEN, FROM,
];
