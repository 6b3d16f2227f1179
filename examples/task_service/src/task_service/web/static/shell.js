// What every page behind the login does.

import { onReach } from "./api.js";
import { $ } from "./dom.js";

// Back must not show a page as it was before logging out.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

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

// Commands are written on the server, which does not know the address that it is reached under.
for (const code of document.querySelectorAll(".copy-row code")) code.textContent = code.textContent.replace("{origin}", location.origin);
