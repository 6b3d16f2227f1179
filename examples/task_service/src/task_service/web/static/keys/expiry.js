// When a key expires, as lists and its own page show it.

import { h, icon, quiet } from "../dom.js";
import { daysTo, when } from "../time.js";

/** In the last week of a key that works it is a warning. */
export function expiry({ status, expires_at: at }) {
  if (!at) return quiet("Never");
  return status === "active" && daysTo(at) <= 7 ? h("span", { class: "warn" }, icon("warn"), when(at)) : when(at);
}
