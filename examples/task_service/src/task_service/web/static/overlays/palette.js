// Go anywhere: to the pages of the menu, and to tasks and keys, which the server searches.

import { api } from "../api.js";
import { $, h, me, quiet } from "../dom.js";

const MOST = 6;
// Some are in the navigation and in the menu.
const PAGES = [...new Map([...document.querySelectorAll("nav a, #user-menu a")].map(({ textContent, pathname }) => [pathname, textContent]))]
  .map(([href, name]) => ({ kind: "Page", name, href }));

const [input, list, status] = $("#palette").children;

let places = [];
let chosen = 0;
let turn = 0;
let searched;
let waiting;

function choose(index) {
  chosen = index;
  [...list.children].forEach((one, at) => { one.ariaSelected = String(at === index); });
  if (places.length) input.setAttribute("aria-activedescendant", list.children[index].id);
  else input.removeAttribute("aria-activedescendant");
  list.children[index]?.scrollIntoView({ block: "nearest" });
}

function draw(found, said) {
  places = found;
  list.replaceChildren(...places.map(({ kind, name, note, href }, index) => h("li", {
    id: `palette-${index}`, role: "option", onclick: () => location.assign(href),
  }, h("span", { class: "clip" }, name), note && h("code", { class: "quiet" }, note), quiet(kind))));
  list.hidden = !places.length;
  input.ariaExpanded = String(places.length > 0);
  status.textContent = said;
  choose(0);
}

async function look() {
  turn += 1;
  const now = turn;
  const search = input.value.trim();
  const query = new URLSearchParams({ limit: MOST, ...(search && { search }) });
  const pages = PAGES.filter(({ name }) => name.toLowerCase().includes(search.toLowerCase()));
  const answers = await Promise.allSettled([me.may("tasks:read") ? api(`/tasks?${query}`) : { items: [] }, api(`/keys?${query}`)]);
  if (now !== turn) return;
  searched = search;
  const [tasks, keys] = answers.map(({ value }) => value?.items ?? []);
  const found = [
    ...pages,
    ...tasks.map(({ id, name }) => ({ kind: "Task", name, href: `/tasks/${id}` })),
    ...keys.map(({ id, name, mask }) => ({ kind: "Key", name, note: mask, href: `/keys/${id}` })),
  ];
  const failed = answers.find(({ reason }) => reason)?.reason.message;
  draw(found, failed ?? (found.length ? "" : "Nothing was found."));
}

input.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(look, 120);
});
input.addEventListener("keydown", async (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && places.length) choose((chosen + step + places.length) % places.length);
  else if (event.key === "Enter") {
    // Only the answer for the last text is shown.
    clearTimeout(waiting);
    if (input.value.trim() !== searched) await look();
    if (places[chosen]) location.assign(places[chosen].href);
  } else return;
  event.preventDefault();
});

export function show() {
  searched = null;
  draw(PAGES, "");
  return look();
}
