// A browser stores the login cookie only on an encrypted connection; otherwise a login would seem to fail.

document.querySelector("#insecure").hidden = isSecureContext;
