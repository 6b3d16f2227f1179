// A list of the API, shown in `#list` and kept up to date while the page is in use; an empty list shows `#empty`.

import { api } from "./api.js";
import { $, h, pressed, released, render } from "./dom.js";

const AWAY_MS = 10 * 60_000;
const BUSY_MS = 1000;
let lastUse = Date.now();
for (const event of ["pointerdown", "keydown", "wheel", "focus"]) {
  addEventListener(event, () => { lastUse = Date.now(); }, { passive: true, capture: true });
}

/** Returns a function that does `look()`, and does it again `rest()` ms later as long as the page is visible and in use: the
 *  requests of an idle page would keep its session from ending. */
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
  // What is shown stays as it was; the next look may find the service again.
  const turn = () => (document.hidden || Date.now() - lastUse > AWAY_MS ? again() : now().catch(() => {}));
  document.addEventListener("visibilitychange", turn);
  return now;
}

/** Let a form say what a list shows, with the choice kept in the address; `changed()` follows each change of it.
 *  Returns what gives the choice. */
export function filtering(form, changed) {
  const address = new URLSearchParams(location.search);
  for (const { name } of form.elements) if (name) form.elements[name].value = address.get(name) ?? "";
  const chosen = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  let waiting;
  // Not with each letter; and once the fields are empty, after a reset.
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

/** A query in which a list names its parameter several times. */
export const inQuery = (values) => new URLSearchParams(Object.entries(values).flatMap(([name, value]) => [value].flat().map((one) => [name, one])));

export class LiveList {
  items = [];
  more = false;
  /** What the first page says besides its items: `total` or `counts`. */
  counted = {};
  #pages = 1;
  #turn = 0;
  #shown;

  /** `limit` is null where the service answers all at once, and `counts` says whether it can count.
   *  `draw(items before)` shows `items`, `busy()` says that they will change soon, `rest` is how long they keep else,
   *  and `query()` says which ones are wanted. */
  constructor(path, { limit = 50, counts = true, draw, busy = () => false, rest = 5000, query = () => ({}) }) {
    Object.assign(this, { path, limit, counts, draw, busy, query });
    /** Read everything anew that was read before, and show it. */
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

  /** The first time, or when something else is wanted: without an answer there is nothing to show but the problem.
   *  Returns whether there is one. */
  begin() {
    this.#pages = 1;
    return this.refresh().then(() => true, (problem) => {
      render($("#list"), h("p", { class: "empty", role: "alert" }, problem.message));
      return false;
    });
  }

  #show(items, more, counted) {
    // What stays the same is not touched: it may be selected, or read aloud just now.
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
