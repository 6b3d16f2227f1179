// The reference of the API: Swagger UI, over the document that the service serves itself.

// It has dark colours, under a class of its own.
const dark = matchMedia("(prefers-color-scheme: dark)");
const showColours = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", showColours);
showColours();

SwaggerUIBundle({
  url: "/openapi.json",
  domNode: document.getElementById("reference"),
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
  displayRequestDuration: true,
  // Its requests have the login of this page already, and nothing secret is kept.
  persistAuthorization: false,
  // The validator is on another host.
  validatorUrl: null,
});
