// A browser keeps the login cookie only where nobody on the way can read it; elsewhere a login would seem to fail.

document.querySelector("#insecure").hidden = isSecureContext;
