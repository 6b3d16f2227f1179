// A list of the API, shown in `#list` and kept up to date while somebody looks; where it is empty, `#empty` teaches.

import { api } from "./api.js";
import { $, h, pressed, render } from "./dom.js";

const AWAY_MS = 10 * 60_000;
let lastUse = Date.now();
for (const event of ["pointerdown", "keydown", "wheel", "focus"]) {
  addEventListener(event, () => { lastUse = Date.now(); }, { passive: true, capture: true });
}

export class LiveList {
  items = [];
  more = false;
  #pages = 1;
  #timer;

  /** `draw(items before)` shows `items`; `pause()` is how many milliseconds they may stay as they are. */
  constructor(path, { limit = 50, draw, pause }) {
    Object.assign(this, { path, limit, draw, pause });
    $("#more").addEventListener("click", pressed(() => {
      this.#pages += 1;
      return this.refresh();
    }));
    document.addEventListener("visibilitychange", () => this.#look());
  }

  /** Read everything anew that was read before, and show it. */
  async refresh() {
    clearTimeout(this.#timer);
    try {
      const items = [];
      let cursor;
      for (let page = 0; page < this.#pages && cursor !== null; page += 1) {
        const answer = await api(`${this.path}?${new URLSearchParams({ limit: this.limit, ...(cursor && { cursor }) })}`);
        items.push(...answer.items);
        cursor = answer.next_cursor;
      }
      const before = this.items;
      this.items = items;
      this.more = cursor !== null;
      $("#more").hidden = !this.more;
      $("#list").hidden = !items.length;
      $("#empty").hidden = items.length > 0;
      this.draw(before);
    } finally {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#look(), this.pause());
    }
  }

  /** The first time: without an answer there is nothing to show but the problem. */
  begin() {
    return this.refresh().catch((problem) => render($("#list"), h("p", { class: "empty", role: "alert" }, problem.message)));
  }

  #look() {
    // A page that nobody sees or uses is silent: its requests would keep a session alive that should end for idleness.
    if (document.hidden || Date.now() - lastUse > AWAY_MS) this.#timer = setTimeout(() => this.#look(), this.pause());
    // What is shown stays as it was; the next look may find the service again.
    else this.refresh().catch(() => {});
  }
}
