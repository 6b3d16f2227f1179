// The keys that this page knows.

import { open } from "../dialogs.js";
import { $, h, isUsable, singleKeys } from "../dom.js";

const label = (control) => control.ariaLabel ?? (control.labels?.[0] ?? control.firstElementChild?.nextSibling ?? control).textContent.trim();

const dialog = $("#shortcuts-dialog");
const keys = $("dl", dialog);
const box = $("input", dialog);
box.addEventListener("change", () => { singleKeys.areOn = box.checked; });

export function show() {
  const rows = [
    ["Ctrl K", "Go to a page, a task or a key"],
    ["?", "Keyboard shortcuts"],
    ...[...document.querySelectorAll("[aria-keyshortcuts]:not(#go, #shortcuts)")].filter(isUsable)
      .map((control) => [control.getAttribute("aria-keyshortcuts").toUpperCase(), label(control)]),
    ["Esc", "Close a dialog, dismiss a message"],
  ];
  keys.replaceChildren(...rows.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))));
  box.checked = singleKeys.areOn;
  $("#user-menu").hidePopover();
  open(dialog);
}
