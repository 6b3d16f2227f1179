// Fields from a handler's JSON schema: texts, numbers, choices, switches, lists of texts (one per line) and tables of
// texts (`Name: value` per line); anything else is typed as JSON.

import { Problem } from "./api.js";
import { h, quiet } from "./dom.js";

// Values of such fields are kept nowhere but in the form.
const SECRET_NAME = /header|secret|token|password|cookie|credential|key$/i;

/** The elements for `schema`, filled with `values`, and `read()`, which gives the values back. */
export function schemaFields(schema, values = {}) {
  const fields = Object.entries(schema.properties ?? {}).map(([name, own]) =>
    field(name, resolve(own, schema), schema.required?.includes(name) ?? false, values[name]));
  return {
    elements: fields.map(([, element]) => element),
    read: () => Object.fromEntries(fields.map(([name, , read]) => [name, read()]).filter(([, value]) => value !== undefined)),
  };
}

/** A property with its reference followed, and its "or null" remembered. */
function resolve(own, root) {
  const follow = (part) => part.$ref?.split("/").slice(1).reduce((at, step) => at[step], root) ?? part;
  const options = (own.anyOf ?? own.allOf ?? []).map(follow);
  const [real, ...others] = options.filter(({ type }) => type !== "null");
  return { ...follow(own), ...(others.length === 0 && real), ...own, nullable: options.some(({ type }) => type === "null") };
}

function field(name, schema, required, given) {
  const id = `param-${name}`;
  const value = given ?? schema.default;
  const props = { id, name: `params.${name}`, "aria-describedby": `${id}-hint ${id}-error` };
  const [control, read, form] = kind(name, schema, { ...props, required }, value);
  const optional = !required && schema.default !== false && !schema.default?.length;
  const title = schema.title ?? name;
  const secret = schema.writeOnly || schema.format === "password" || SECRET_NAME.test(name);
  const element = h("div", { class: "field", "data-field": props.name, "data-secret": secret },
    control.type === "checkbox" ? h("label", { class: "check" }, control, title)
      : [h("label", { for: id }, title, optional && quiet(" optional")), control],
    h("p", { class: "hint", id: `${id}-hint` }, [schema.description, form].filter(Boolean).join(" ")),
    h("p", { class: "error", id: `${id}-error` }));
  return [name, element, read];

}

/** A control, how it is read, and what is said about its form. */
function kind(name, schema, props, value) {
  // Nothing typed is null where that is allowed, else nothing at all, so that the handler's own default applies.
  const nothing = schema.nullable ? null : undefined;
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
    return typed(long ? area(value) : h("input", { ...props, value, maxlength: schema.maxLength, spellcheck: "false", autocomplete: "off" }), String);
  }
  if (schema.type === "array" && schema.items?.type === "string") {
    return typed(area(value?.join("\n")), (text) => text.replace(/\n$/, "").split("\n"), "One per line.");
  }
  if (schema.type === "object" && schema.additionalProperties?.type === "string") {
    const given = Object.entries(value ?? {}).map((pair) => pair.join(": ")).join("\n");
    return typed(area(given), (text) => Object.fromEntries(text.split("\n").filter((line) => line.trim()).map((line) => {
      const [, key, rest] = /^\s*([^:]+?)\s*:\s*(.*?)\s*$/.exec(line) ?? wrong("Each line needs a colon between name and value.");
      return [key, rest];
    })), "One per line, as “Name: value”.");
  }
  return typed(area(value === undefined ? "" : JSON.stringify(value, null, 2)), (text) => {
    try {
      return JSON.parse(text);
    } catch {
      return wrong("This is not valid JSON.");
    }
  }, "As JSON.");
}
