// A list of the API, shown in `#list` and kept up to date while the page is used; an empty list shows `#empty`.

import { api } from "./api.js";
import { $, h, pressed, released, render } from "./dom.js";

const AWAY_MS = 10 * 60_000;
const BUSY_MS = 1000;
let lastUse = Date.now();
for (const event of ["pointerdown", "keydown", "wheel", "focus"]) {
  addEventListener(event, () => { lastUse = Date.now(); }, { passive: true, capture: true });
}

/** Returns a function that calls `look()`, and again after `rest()` ms while the page is visible and used: the
 *  requests of an idle page would keep its session open. */
export function poll(look, rest) {
  let timer;
  const now = async () => {
    try {
      await look();
    } finally {
      again();
    }
  };
  const again = () => {
    clearTimeout(timer);
    timer = setTimeout(turn, rest());
  };
  // The page stays as it is; the next call may reach the service.
  const turn = () => (document.hidden || Date.now() - lastUse > AWAY_MS ? again() : now().catch(() => {}));
  document.addEventListener("visibilitychange", turn);
  return now;
}

/** Let a form filter a list, with the choice in the address; each change calls `changed()`. Returns a function for
 *  the choice. */
export function filtering(form, changed) {
  const address = new URLSearchParams(location.search);
  for (const { name } of form.elements) if (name) form.elements[name].value = address.get(name) ?? "";
  const chosen = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  let waiting;
  // Not with each letter; after a reset, when the fields are empty.
  const soon = (event) => {
    if (event.type === "submit") event.preventDefault();
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      history.replaceState(null, "", `?${new URLSearchParams(chosen())}`);
      changed();
    }, event.type === "input" ? 200 : 0);
  };
  for (const type of [form.dataset.on, "reset", "submit"]) form.addEventListener(type, soon);
  return chosen;
}

/** A query that repeats the parameter of a list. */
export const inQuery = (values) => new URLSearchParams(Object.entries(values).flatMap(([name, value]) => [value].flat().map((one) => [name, one])));

export class LiveList {
  items = [];
  more = false;
  /** The members of the first page besides its items: `total` or `counts`. */
  counted = {};
  #pages = 1;
  #turn = 0;
  #shown;

  /** `limit` is null if the service returns all at once, and `counts` is true if it can count. `draw(items before)` shows
   *  `items`, `busy()` is true if they will change soon, `rest` is the time between other reads, and `query()` filters. */
  constructor(path, { limit = 50, counts = true, draw, busy = () => false, rest = 5000, query = () => ({}) }) {
    Object.assign(this, { path, limit, counts, draw, busy, query });
    /** Read all shown items again, and show them. */
    this.refresh = poll(() => this.#read(), () => (this.busy() ? BUSY_MS : rest));
    $("#more").addEventListener("click", pressed(() => {
      this.#pages += 1;
      return this.refresh();
    }));
  }

  async #read() {
    this.#turn += 1;
    const turn = this.#turn;
    const items = [];
    const query = { ...(this.limit && { limit: this.limit }), ...this.query() };
    let cursor, counted;
    for (let page = 0; page < this.#pages && cursor !== null; page += 1) {
      const { items: more, next_cursor: next, ...rest } = await api(`${this.path}?${inQuery({ ...query, ...(cursor ? { cursor } : this.counts && { count: true }) })}`);
      items.push(...more);
      counted ??= rest;
      cursor = next;
    }
    await released();
    // A later request has newer items.
    if (turn === this.#turn) this.#show(items, cursor !== null, counted);
  }

  /** Read for the first time, or with another filter: without an answer only the problem is shown. Returns true for an
   *  answer. */
  begin() {
    this.#pages = 1;
    return this.refresh().then(() => true, (problem) => {
      render($("#list"), h("p", { class: "empty", role: "alert" }, problem.message));
      return false;
    });
  }

  #show(items, more, counted) {
    // Unchanged rows stay: they may be selected, or being read aloud.
    const content = JSON.stringify([items, more, counted]);
    if (content === this.#shown && !this.busy()) return;
    this.#shown = content;
    const before = this.items;
    Object.assign(this, { items, more, counted });
    $("#more").hidden = !more;
    const { total } = counted;
    if ($("#count")) $("#count").textContent = !total ? "" : more ? `${items.length} of ${total}` : String(total);
    $("#list").hidden = !items.length;
    $("#empty").hidden = items.length > 0;
    this.draw(before);
  }
}
