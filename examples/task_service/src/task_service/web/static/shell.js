// The script of every page behind the login.

import { onReach } from "./api.js";
import { open } from "./dialogs.js";
import { $, singleKeys } from "./dom.js";

// Back must not show a page as it was before logging out.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// Loaded on first use: most visits do not need them.
async function showPalette() {
  const palette = $("#palette");
  $("input", palette).value = "";
  open(palette);
  (await import("./overlays/palette.js")).show();
}
const showShortcuts = async () => (await import("./overlays/shortcuts.js")).show();

$("#go").addEventListener("click", showPalette);
$("#shortcuts").addEventListener("click", showShortcuts);
$("#dismiss").addEventListener("click", () => $("#toast").hidePopover());
document.addEventListener("keydown", (event) => {
  if ($("dialog[open]") || event.altKey) return;
  const isControl = event.ctrlKey || event.metaKey;
  if (isControl && !event.shiftKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    showPalette();
  } else if (!isControl && event.key === "?" && singleKeys.areOn && !event.target.closest("input, select, textarea")) {
    event.preventDefault();
    showShortcuts();
  }
});

$("#logout").addEventListener("submit", () => sessionStorage.clear());

const RETRY_MS = 3000;
const offline = $("#offline");
let retrying;

// The notice stays until the service answers again. Pages without a list make no requests of their own, so this tries.
onReach((isReached) => {
  offline.hidden = isReached;
  clearInterval(retrying);
  if (!isReached) retrying = setInterval(retry, RETRY_MS);
});

async function retry() {
  const answer = await fetch("/healthz", { cache: "no-store" }).catch(() => null);
  if (!answer?.ok) return;
  clearInterval(retrying);
  offline.hidden = true;
}

// The server writes the commands, but does not know the browser's address for it.
for (const code of document.querySelectorAll(".copy-row code")) code.textContent = code.textContent.replace("{origin}", location.origin);
