// What every page behind the login does.

import { $ } from "./dom.js";

// Back must not show a page as it was before logging out.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

$("#logout").addEventListener("submit", () => sessionStorage.clear());

// Commands are written on the server, which does not know the address that it is reached under.
for (const code of document.querySelectorAll(".copy-row code")) code.textContent = code.textContent.replace("{origin}", location.origin);
