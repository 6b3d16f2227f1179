// Elements from data. Text becomes text nodes and nothing else, so no name or output can turn into markup.

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

export function icon(name) {
  const [svg, use] = ["svg", "use"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

export const quiet = (...children) => h("span", { class: "quiet" }, ...children);

/** A state in words, with a dot of its colour. */
export const stateWords = (state) => (state.charAt(0).toUpperCase() + state.slice(1)).replace("_", " ");
export const badge = (state) => h("span", { class: `badge ${state}` }, stateWords(state));

/** What a row is called; the focus goes there when its buttons are gone. */
export const rowTitle = (id, text, title) => h("span", { class: "title", title, tabindex: -1, "data-focus": `row:${id}` }, text);
export const tags = (texts) => h("span", { class: "tags" }, texts.map((text) => h("span", { class: "tag" }, text)));

/** Fill in what the template left open: `data-of` is a path into `values`, and `show` makes a node of what is there. */
export function fill(root, values, show) {
  for (const place of root.querySelectorAll("[data-of]")) {
    const value = place.dataset.of.split(".").reduce((at, step) => at[step], values);
    place.replaceChildren(show?.[place.dataset.of]?.(value) ?? value);
  }
}

/** A small button; `focus` names it, so that the focus finds it again when its list is drawn anew. */
export const button = (label, focus, act, props = {}) =>
  h("button", { type: "button", class: "button small", "data-focus": focus, onclick: pressed(act), ...props }, label);

/** A listener that does `act` once at a time and says what went wrong. The button stays focusable while it waits, which
 *  is until something has happened and not until a dialog that `act` opens is closed. */
export const pressed = (act) => async ({ currentTarget }) => {
  if (currentTarget.ariaDisabled) return;
  currentTarget.ariaDisabled = "true";
  try {
    await act();
  } catch (problem) {
    say(problem.message);
  } finally {
    currentTarget.ariaDisabled = null;
  }
};

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

let hiding;

/** Say that something has happened, to eyes and to screen readers. What is outside an open dialog is inert, so a
 *  dialog has a status line of its own. */
export function say(text) {
  const inner = $("dialog[open] .dialog-status");
  const status = inner ?? $("#announcer");
  status.textContent = "";
  // A region that is emptied and filled in one turn counts as unchanged.
  setTimeout(() => { status.textContent = text; }, 50);
  if (inner) return;
  const toast = $("#toast");
  toast.textContent = text;
  toast.showPopover();
  clearTimeout(hiding);
  hiding = setTimeout(() => toast.hidePopover(), 5000);
}

// Texts to take along (macro `copy_row`): selected with one click, copied with a button that says so.

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
  // Another text may be in the dialog when it opens again.
  copy.closest("dialog")?.addEventListener("close", restore, { once: true });
});

// A single key presses the control that names it, unless the user is typing or a dialog is open.

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]") || event.target.closest("input, select, textarea")) return;
  const control = $(`[aria-keyshortcuts="${CSS.escape(event.key)}"]`);
  if (!control?.checkVisibility()) return;
  event.preventDefault();
  control.focus();
  control.click();
});

/** The user who is logged in, from the attributes of the page. */
const { username, permissions = "" } = document.body.dataset;
export const me = { username, may: (permission) => permissions.split(" ").includes(permission) };
