// Fields from a handler's JSON schema: texts, numbers, choices, switches, lists of texts and tables of texts with a
// field for each entry; other types are edited as JSON. Unedited values are sent back unchanged, including the mask of a
// secret.

import { Problem } from "./api.js";
import { $, h, icon, quiet } from "./dom.js";

/** True for the mask of a secret that is set. */
export const isMasked = (schema, value) => schema?.writeOnly === true && value?.secret === true;

/** The elements for `schema`, filled with `values`, and `read()`, which returns the values. Ids begin with `prefix`. */
export function schemaFields(schema, values = {}, prefix = "param") {
  const fields = Object.entries(schema.properties ?? {}).map(([name, own]) => {
    const make = isMasked(own, values[name]) ? secretField : field;
    return make(prefix, name, resolve(own, schema), schema.required?.includes(name) ?? false, values[name]);
  });
  return {
    elements: fields.map(([, element]) => element),
    read: () => Object.fromEntries(fields.map(([name, , read]) => [name, read()]).filter(([, value]) => value !== undefined)),
  };
}

/** A property with its reference resolved, and its "or null" as a flag. */
function resolve(own, root) {
  const follow = (part) => part.$ref?.split("/").slice(1).reduce((at, step) => at[step], root) ?? part;
  const options = (own.anyOf ?? own.allOf ?? []).map(follow);
  const [real, ...others] = options.filter(({ type }) => type !== "null");
  return { ...follow(own), ...(others.length === 0 && real), ...own, nullable: options.some(({ type }) => type === "null") };
}

/** A secret that is set: the user can replace it, but not remove it. */
function secretField(prefix, name, schema, required, mask) {
  const [, replacement, read] = field(prefix, name, schema, required, undefined, true);
  const [id, place] = [`${prefix}-${name}`, `params.${name}`];
  const replace = h("button", { type: "button", class: "button small", name: place, "aria-describedby": `${id}-hint ${id}-error` },
    `Replace ${schema.title ?? name}`);
  const element = h("div", { class: "field", "data-field": place, "data-secret": true },
    h("span", { class: "label" }, schema.title ?? name),
    h("div", {}, replace),
    h("p", { class: "hint", id: `${id}-hint` }, "A secret is set. It is not shown."),
    h("p", { class: "error", id: `${id}-error` }));
  let isKept = true;
  replace.addEventListener("click", () => {
    isKept = false;
    element.replaceWith(replacement);
    $("input:not([type=hidden]), select, textarea, button", replacement).focus();
  });
  return [name, element, () => (isKept ? mask : read())];
}

function field(prefix, name, schema, required, given, replaces = false) {
  const id = `${prefix}-${name}`;
  const value = given ?? schema.default;
  const title = schema.title ?? name;
  const props = { id, name: `params.${name}`, "aria-describedby": `${id}-hint ${id}-error` };
  const [control, read, form] = kind(name, { ...schema, title }, { ...props, required }, value);
  const once = schema.writeOnly && (replaces ? "Leave it empty to remove the secret." : "Not shown again after it is saved.");
  const optional = !required && schema.default !== false && !schema.default?.length;
  const isGroup = control.matches(".entries");
  const label = [title, optional && quiet(" optional")];
  const element = h("div", { class: "field", "data-field": props.name, "data-secret": schema.writeOnly },
    control.type === "checkbox" ? h("label", { class: "check" }, control, title)
      : [isGroup ? h("span", { class: "label", id: `${id}-label` }, label) : h("label", { for: id }, label), control],
    h("p", { class: "hint", id: `${id}-hint` }, [schema.description, form, once].filter(Boolean).join(" ")),
    h("p", { class: "error", id: `${id}-error` }));
  // A control may normalise its value (line breaks, spaces), refuse it, or show a default in its place: while its parts
  // are unchanged, the given value is kept and the control is not read. A new required value, or a new secret, is always read.
  const parts = () => [...element.querySelectorAll("input, select, textarea")];
  const state = () => JSON.stringify(parts().map((part) => (part.type === "checkbox" ? part.checked : part.value)));
  if (given !== undefined) {
    // The service checks the input instead.
    for (const part of parts()) if (!part.validity.valid) for (const limit of ["required", "min", "max", "step"]) part.removeAttribute(limit);
  }
  const untouched = given === undefined && (required || replaces) ? null : state();
  return [name, element, () => (state() === untouched ? given : read())];
}

/** A list with a row for each entry, and a button that adds a row. `row` makes, numbers and reads the controls of an
 *  entry. The count is a control too, so that a draft restores as many rows. */
function entries({ id, name, noun }, given, row) {
  const rows = h("div", { class: "stack tight" });
  const count = h("input", { type: "hidden", name: `${name}.count` });
  const renumber = () => {
    [...rows.children].forEach((one, index) => row.number(one, index));
    count.value = String(rows.childElementCount);
  };
  const add = (entry) => {
    const remove = h("button", { type: "button", class: "button small", "aria-label": "Remove" }, icon("close"));
    const one = h("div", { class: "entry" }, row.controls(entry), remove);
    remove.addEventListener("click", () => {
      const next = one.nextElementSibling ?? one.previousElementSibling;
      one.remove();
      renumber();
      (next ? $("textarea, input", next) : more).focus();
    });
    rows.append(one);
    renumber();
    return one;
  };
  const more = h("button", { type: "button", class: "button small" }, icon("plus"), `Add ${noun}`);
  more.addEventListener("click", () => $("textarea, input", add()).focus());
  count.addEventListener("change", () => {
    const wanted = Number(count.value);
    while (rows.childElementCount > wanted) rows.lastElementChild.remove();
    while (rows.childElementCount < wanted) add();
    renumber();
  });
  given.forEach(add);
  renumber();
  const group = h("div", { class: "entries stack tight", id, role: "group", "aria-labelledby": `${id}-label`, "aria-describedby": `${id}-hint ${id}-error` },
    count, rows, h("div", {}, more));
  return [group, () => [...rows.children].map(row.read)];
}

const text = (props, value) => h("textarea", { rows: 1, spellcheck: "false", autocomplete: "off", ...props }, value);

/** A list of texts: any text is an entry, even if it is empty or has line breaks. */
function listOfTexts({ id, name, title, noun }, given) {
  return entries({ id, name, noun }, given, {
    controls: (entry = "") => text({}, entry),
    number(one, index) {
      const control = $("textarea", one);
      control.name = `${name}.${index}`;
      control.ariaLabel = `${title}, ${index + 1}`;
      $("button", one).ariaLabel = `Remove ${title}, ${index + 1}`;
    },
    read: (one) => $("textarea", one).value,
  });
}

/** A table of texts, by name. */
function tableOfTexts({ id, name, title }, given) {
  const [group, read] = entries({ id, name, noun: "entry" }, Object.entries(given), {
    controls: ([key, value] = ["", ""]) => [
      h("input", { value: key, spellcheck: "false", autocomplete: "off", class: "entry-name" }), text({}, value)],
    number(one, index) {
      const [key, value] = [$("input", one), $("textarea", one)];
      key.ariaLabel = `${title}, name ${index + 1}`;
      value.ariaLabel = `${title}, value ${index + 1}`;
      $("button", one).ariaLabel = `Remove ${title}, ${index + 1}`;
    },
    read: (one) => [$("input", one).value.trim(), $("textarea", one).value],
  });
  return [group, () => {
    const pairs = read().filter(([key, value]) => key || value);
    for (const [index, [key]] of pairs.entries()) {
      if (!key) throw Problem.ofField(name, `Entry ${index + 1} has a value and no name.`);
      if (pairs.findIndex(([other]) => other === key) !== index) throw Problem.ofField(name, `The name ${key} is used twice.`);
    }
    return Object.fromEntries(pairs);
  }];
}

/** A control, the function that reads it, and a hint on its form. */
function kind(name, schema, props, value) {
  // An empty control is null if allowed, else left out, so that the handler's default applies.
  const nothing = schema.nullable ? null : schema.writeOnly ? "" : undefined;
  const typed = (control, read, form) => [control, () => (control.value.trim() === "" ? nothing : read(control.value)), form];
  const area = (text) => h("textarea", { ...props, rows: 3, spellcheck: "false" }, text);
  const wrong = (message) => { throw Problem.ofField(props.name, message); };

  if (schema.enum) {
    const select = h("select", props, schema.enum.map((choice) => h("option", { selected: choice === value }, String(choice))));
    return [select, () => schema.enum[select.selectedIndex]];
  }
  if (schema.type === "boolean") {
    const box = h("input", { ...props, required: false, type: "checkbox", checked: value });
    return [box, () => box.checked];
  }
  if (schema.type === "integer" || schema.type === "number") {
    const step = schema.type === "integer" ? 1 : "any";
    return typed(h("input", { ...props, type: "number", step, min: schema.minimum, max: schema.maximum, value }), Number);
  }
  if (schema.type === "string") {
    const long = name === "body" || schema.maxLength > 10_000;
    return typed(long ? area(value) : h("input", { ...props, value, maxlength: schema.maxLength, spellcheck: "false", ...(schema.format === "password" ? { type: "password", autocomplete: "new-password" } : { autocomplete: "off" }) }), String);
  }
  const named = { ...props, title: schema.title };
  if (schema.type === "array" && schema.items?.type === "string") {
    return listOfTexts({ ...named, noun: schema.items.title?.toLowerCase() ?? "entry" }, value ?? (props.required ? [""] : []));
  }
  if (schema.type === "object" && schema.additionalProperties?.type === "string") return tableOfTexts(named, value ?? {});
  return typed(area(value === undefined ? "" : JSON.stringify(value, null, 2)), (text) => {
    try {
      return JSON.parse(text);
    } catch {
      return wrong("This is not valid JSON.");
    }
  }, "As JSON.");
}
