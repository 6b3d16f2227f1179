// A browser stores the login cookie only if the connection is encrypted; elsewhere a login would seem to fail.

document.querySelector("#insecure").hidden = isSecureContext;
