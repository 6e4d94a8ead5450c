// JSON schemas in a few words.

/** The name that a reference ends in. */
export const named = (schema) => schema.$ref.split("/").pop();

/** A schema's type and limits. */
export function kindOf(schema) {
  if (schema.$ref) return named(schema);
  for (const union of ["anyOf", "oneOf"]) {
    if (schema[union]) {
      const kinds = schema[union].filter((one) => one.type !== "null").map(kindOf);
      return [...new Set(kinds)].join(" or ");
    }
  }
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(", ");
  if (schema.type === "array") return `list of ${kindOf(schema.items || {})}${limits(schema, "minItems", "maxItems")}`;
  if (schema.type === "string") return `string${limits(schema, "minLength", "maxLength")}`;
  if (schema.type === "integer" || schema.type === "number") {
    return `${schema.type}${limits(schema, "minimum", "maximum")}`;
  }
  return Array.isArray(schema.type) ? schema.type.join(" or ") : schema.type || "anything";
}

function limits(schema, low, high) {
  const [from, to] = [schema[low], schema[high]];
  if (from === undefined && to === undefined) return "";
  if (to === undefined) return `, at least ${from}`;
  return from === undefined || from === 0 && high !== "maximum" ? `, at most ${to}` : `, ${from} to ${to}`;
}

/** The members of an object's schema, required ones first; of a union, those of all its objects. */
export function fieldsOf(schema, description) {
  const whole = resolved(schema, description);
  const members = whole.anyOf || whole.oneOf;
  if (members && !whole.properties) {
    const seen = new Map();
    for (const member of members) for (const field of fieldsOf(member, description)) seen.set(field.name, field);
    return [...seen.values()];
  }
  const required = new Set(whole.required || []);
  return Object.entries(whole.properties || {})
    .map(([name, one]) => ({
      name, kind: kindOf(one), required: required.has(name), about: one.description, preset: one["x-default"],
    }))
    .sort((a, b) => b.required - a.required);
}

const resolved = (schema, description) => (schema.$ref ? description.components.schemas[named(schema)] : schema);
