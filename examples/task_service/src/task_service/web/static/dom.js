// Elements from data. Text becomes only text nodes, so no name or output can turn into markup.

export const $ = (selector, root = document) => root.querySelector(selector);

const present = (child) => child !== null && child !== undefined && child !== false;

/** An element. Functions among `props` are listeners (`onclick`), null and false are left out, like among `children`. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (present(value)) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter(present));
  return element;
}

/** A part of a picture. */
export function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const icon = (name) => drawn("svg", { class: "icon", "aria-hidden": "true" }, drawn("use", { href: `#icon-${name}` }));

export const quiet = (...children) => h("span", { class: "quiet" }, ...children);

/** A number of things in words. */
export const counted = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

/** A state in words, with a dot of its colour. */
export const stateWords = (state) => (state.charAt(0).toUpperCase() + state.slice(1)).replace("_", " ");
export const badge = (state) => h("span", { class: `badge ${state}` }, stateWords(state));

/** A row's title, which gets the focus when the row's buttons are gone. */
export const rowTitle = (id, text, title) => h("span", { class: "title", title, tabindex: -1, "data-focus": `row:${id}` }, text);
export const rowLink = (id, href, text) => h("a", { class: "title", href, "data-focus": `row:${id}` }, text);
export const tags = (texts) => h("span", { class: "tags" }, texts.map((text) => h("span", { class: "tag" }, text)));

/** Fill in a template: `data-of` is a path into `values`, and `show` makes a node from the value. */
export function fill(root, values, show) {
  for (const place of root.querySelectorAll("[data-of]")) {
    const value = place.dataset.of.split(".").reduce((at, step) => at[step], values);
    place.replaceChildren(show?.[place.dataset.of]?.(value) ?? value);
  }
}

/** Say why the page's object cannot be shown; `kind` replaces its name. */
export function cannotShow(kind, problem) {
  $("#name").textContent = kind;
  $("#problem").prepend(problem.message);
  $("#problem").hidden = false;
  $("#known").hidden = true;
}

/** A checkbox that adds a row's id to `chosen`, or removes it. */
export function selectBox(chosen, { id, name }, changed) {
  const box = h("input", { type: "checkbox", checked: chosen.has(id), "aria-label": `Select ${name}`, "data-focus": `select:${id}` });
  box.addEventListener("change", () => {
    chosen[box.checked ? "add" : "delete"](id);
    changed();
  });
  return box;
}

/** A small button; `focus` names it, to focus it again after its list is drawn anew. */
export const button = (label, focus, act, props = {}) =>
  h("button", { type: "button", class: "button small", "data-focus": focus, onclick: pressed(act), ...props }, label);

/** A listener that calls `act` once at a time and shows errors. The button stays focusable while it waits: until `act`
 *  has a result, or opens a dialog. */
export const pressed = (act) => async ({ currentTarget }) => {
  if (currentTarget.ariaDisabled) return;
  currentTarget.ariaDisabled = "true";
  try {
    await act();
  } catch (problem) {
    say(problem.message, true);
  } finally {
    currentTarget.ariaDisabled = null;
  }
};

/** Ends when no pointer button is pressed: a button replaced between press and release is not clicked. */
export async function released() {
  while ($("main :active")) await new Promise((go) => setTimeout(go, 20));
}

/** Replace what is in `container`; the focus stays on the control of the same name. */
export function render(container, ...children) {
  const held = container.contains(document.activeElement) && document.activeElement.dataset.focus;
  container.replaceChildren(...children.filter(present));
  container.ariaBusy = null;
  if (held) focusOn(held);
}

/** Focus the control of this name or, if it is gone, the title of its row. */
export function focusOn(name) {
  const find = (wanted) => $(`[data-focus="${CSS.escape(wanted)}"]`);
  const element = find(name) ?? find(`row:${name.split(":")[1]}`);
  element?.focus();
  return Boolean(element);
}

/** A table whose roles survive the phone's layout. A column is `[heading, cell(item), class, labelled on a phone]`. */
export const table = (label, columns, items, rowClass = () => null) => h("table", { role: "table", "aria-label": label },
  h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([heading, , style]) => h("th", { role: "columnheader", class: style }, heading)))),
  h("tbody", { role: "rowgroup" }, items.map((item) => h("tr", { role: "row", class: rowClass(item) },
    columns.map(([heading, cell, style, labelled]) => h("td", { role: "cell", class: style, "data-label": labelled && heading }, cell(item)))))));

const TOAST_MS = 6000;
let hiding;

/** True if neither the pointer nor the focus is in the element. */
function hideSoon(toast) {
  clearTimeout(hiding);
  hiding = setTimeout(() => (toast.matches(":hover, :focus-within") ? hideSoon(toast) : toast.hidePopover()), TOAST_MS);
}

/** Show a message, also to screen readers. A problem stays until it is dismissed. The page outside an open dialog is
 *  inert, so a dialog has its own status line. `run` is the address of a run to link. */
export function say(text, isProblem = false, run = null) {
  const inner = $("dialog[open] .dialog-status");
  const status = inner ?? $("#announcer");
  status.textContent = "";
  // A region emptied and filled in one turn counts as unchanged.
  setTimeout(() => { status.textContent = text; }, 50);
  if (inner) return;
  const toast = $("#toast");
  $("p", toast).textContent = text;
  const link = $("a", toast);
  link.hidden = !run;
  link.href = run;
  toast.showPopover();
  if (isProblem) clearTimeout(hiding);
  else hideSoon(toast);
}

// Texts to copy (macro `copy_row`): selected with one click, copied with a button.

for (const event of ["focusin", "click"]) {
  document.addEventListener(event, ({ target }) => {
    if (target.matches?.(".copy-row code")) getSelection().selectAllChildren(target);
  });
}

document.addEventListener("click", async ({ target }) => {
  const copy = target.closest(".copy-row button");
  if (!copy) return;
  const [code, word] = [copy.previousElementSibling, copy.lastElementChild];
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    code.focus();
    return say("The browser blocked copying. The text is selected: copy it with the keyboard.");
  }
  const usual = word.textContent;
  const restore = () => { word.textContent = usual; };
  if (usual === "Copied") return;
  word.textContent = "Copied";
  say("Copied.");
  setTimeout(restore, 2000);
  // The dialog may have another text when it opens again.
  copy.closest("dialog")?.addEventListener("close", restore, { once: true });
});

/** Whether single keys press buttons; a user of speech input or with a tremor switches them off (WCAG 2.1.4). */
export const singleKeys = {
  get areOn() { return localStorage.getItem("single-keys") !== "off"; },
  set areOn(yes) { localStorage.setItem("single-keys", yes ? "on" : "off"); },
};

/** Whether a control with a shortcut can be used now. */
export const isUsable = (control) => control?.checkVisibility({ visibilityProperty: true }) ?? false;

// A single key presses the control that names it, unless the user is typing or a dialog is open.

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  if (event.key === "Escape" && $("#toast")?.matches(":popover-open")) $("#toast").hidePopover();
  if (event.target.closest("input, select, textarea") || !singleKeys.areOn) return;
  const control = $(`[aria-keyshortcuts="${CSS.escape(event.key)}"]`);
  if (!isUsable(control)) return;
  event.preventDefault();
  control.focus();
  control.click();
});

/** The user who is logged in, from the attributes of the page. */
const { username, permissions = "" } = document.body.dataset;
const may = (permission) => permissions.split(" ").includes(permission);
export const me = { username, may, manages: (task) => task.owner_name === username || may("tasks:manage_all") };
