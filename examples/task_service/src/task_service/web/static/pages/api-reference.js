// The reference of the API: Swagger UI with the service's own document.

// Swagger UI has its own class for dark colours.
const dark = matchMedia("(prefers-color-scheme: dark)");
const showColours = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", showColours);
showColours();

const reference = document.getElementById("reference");

// Its own layout has a second main landmark and a second title, and its headings skip a level.
const layout = ({ React: { createElement } }) => ({
  components: {
    ReferenceLayout({ getComponent, specSelectors }) {
      const part = (name, props) => createElement(getComponent(name, true), props);
      const loaded = specSelectors.loadingStatus() === "success";
      return createElement("div", { className: "swagger-ui" },
        part("SvgAssets"),
        part("errors"),
        loaded && createElement("div", { className: "wrapper" },
          part("Markdown", { source: specSelectors.info().get("description") }),
          createElement("h2", null, "Operations"),
          part("operations"),
          part("Models")));
    },
  },
  // Swagger UI puts a link into each button of an operation; a click on the button also changes the address.
  wrapComponents: { DeepLink: () => ({ text }) => createElement("span", null, text) },
});

SwaggerUIBundle({
  url: "/openapi.json",
  domNode: reference,
  plugins: [layout],
  layout: "ReferenceLayout",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
  displayRequestDuration: true,
  // The validator is on another host.
  validatorUrl: null,
});

// Corrections for keyboards and screen readers. Tables of responses are tables, not landmarks.
function complete() {
  for (const block of reference.querySelectorAll("pre:not([tabindex])")) block.tabIndex = 0;
  for (const table of reference.querySelectorAll("table[role]")) table.removeAttribute("role");
  for (const field of reference.querySelectorAll("input, select, textarea")) {
    if (field.labels.length > 0 || field.ariaLabel) continue;
    field.ariaLabel = field.closest("[data-param-name]")?.dataset.paramName ?? "Request body";
  }
}

new MutationObserver(complete).observe(reference, { childList: true, subtree: true });
