// The tasks that a new key is limited to. A hidden field of the form keeps them, as pairs of id and name.

import { api, Problem } from "../api.js";
import { $, h, me, quiet } from "../dom.js";
import { ownTasks } from "./owner.js";

const { limited, tasks: kept } = $("#new-dialog form").elements;
const place = $("#key-tasks");
const search = $("input", place);
const list = $(".scopes", place);
const status = $(".hint", place);

const picked = () => new Map(JSON.parse(kept.value || "[]"));

const choice = (id, name, owner) => {
  const box = h("input", { type: "checkbox", form: "", checked: picked().has(id) });
  box.addEventListener("change", () => {
    const now = picked();
    if (box.checked) now.set(id, name);
    else now.delete(id);
    kept.value = JSON.stringify([...now]);
  });
  return h("label", { class: "check", title: id }, box, h("span", {}, name, " ", owner !== me.username && quiet(owner)));
};

/** Show the picked tasks, and those that the search finds. */
async function find() {
  const wanted = search.value.trim();
  const query = new URLSearchParams({ limit: 50, sort: "name", ...(wanted && { search: wanted }), ...ownTasks() });
  try {
    const { items, next_cursor: next } = await api(`/tasks?${query}`);
    if (wanted !== search.value.trim()) return;
    const before = picked();
    const others = items.filter(({ id }) => !before.has(id));
    list.replaceChildren(...[...before].map(([id, name]) => choice(id, name, me.username)),
      ...others.map(({ id, name, owner_name: owner }) => choice(id, name, owner)));
    status.textContent = next ? "There are more: search for them." : items.length ? "" : "No tasks match.";
  } catch (problem) {
    status.textContent = problem.message;
  }
}

function show() {
  place.hidden = !limited.checked;
  if (limited.checked) find();
}

limited.addEventListener("change", show);
let waiting;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(find, 200);
});

/** Begin with these tasks, or with null for all. */
export function limitTo(tasks) {
  kept.value = JSON.stringify(tasks ?? []);
  limited.checked = tasks !== null;
  search.value = "";
  show();
}

/** The resources of the new key; null for all tasks of its owner. */
export function resources() {
  const ids = [...picked().keys()];
  if (limited.checked && !ids.length) throw Problem.ofField("resources", "Tick at least one task, or choose all tasks.");
  return limited.checked ? ids.map((id) => `task:${id}`) : null;
}
