// The API reference, made in the browser from the server's own /openapi.json.

import { getJson, onMissingKey } from "../lib/api.js";
import { byId, el } from "../lib/dom.js";
import { loadKeys, onKeys } from "../lib/keys.js";
import { askForMissing, showKeys } from "../lib/keys_dialog.js";
import { startTheme } from "../lib/theme.js";
import { fieldsOf, kindOf, named } from "./schema.js";

loadKeys();
startTheme();
onMissingKey(askForMissing);
byId("open-keys").addEventListener("click", () => showKeys());
onKeys(load);
load();

async function load() {
  try {
    show(await getJson("/openapi.json"));
  } catch (error) {
    const missing = error.status === 401;
    byId("reference").replaceChildren(el("p", { className: "note", role: "status" },
      missing ? "This server requires an API key, for its description too. " : error.message,
      missing ? el("button", { type: "button", className: "button small", onclick: load }, "Give the key") : null));
  }
}

function show(description) {
  byId("version").textContent = `API of version ${description.info.version}`;
  const groups = new Map(description.tags.map((tag) => [tag.name, { about: tag.description, operations: [] }]));
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      groups.get(operation.tags[0]).operations.push({ path, method, operation });
    }
  }
  const contents = [];
  const sections = [];
  for (const [name, { operations }] of groups) {
    contents.push(el("h2", {}, name));
    for (const one of operations) {
      contents.push(el("a", { href: `#${one.operation.operationId}` }, methodNode(one.method), el("span", { className: "path" }, one.path)));
      sections.push(operationNode(one, description));
    }
  }
  byId("contents").replaceChildren(...contents);
  byId("reference").replaceChildren(...sections);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

const methodNode = (method) => el("span", { className: "method", "data-method": method }, method);

/** Text with `code` in it. */
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
}

function operationNode({ path, method, operation }, description) {
  const parts = [
    el("h2", {}, methodNode(method), path),
    el("p", { className: "summary" }, prose(operation.summary)),
  ];
  if (operation.description) parts.push(el("p", { className: "more" }, prose(operation.description)));
  if (operation.parameters) {
    parts.push(el("h3", {}, "Parameters"), el("table", {}, el("tbody", {}, operation.parameters.map((one) =>
      row(one.name, kindOf(one.schema), one.required, one.description || `in the ${one.in}`)))));
  }
  const body = operation.requestBody?.content["application/json"];
  if (body) parts.push(...bodyNodes(body, description));
  parts.push(el("h3", {}, "Answers"), statuses(operation, description));
  for (const [media, { schema }] of Object.entries(operation.responses["200"].content)) {
    const name = schema.$ref ? named(schema) : media === "text/event-stream" ? "event" : null;
    if (name !== null && media !== "text/plain") parts.push(schemaNode(`${media}: ${name}`, schema, description));
  }
  return el("section", { className: "operation", id: operation.operationId, "aria-label": `${method} ${path}` }, parts);
}

function row(name, kind, required, about, preset) {
  return el("tr", {},
    el("td", {}, el("code", {}, name), required ? el("span", { className: "required" }, " required") : "", el("span", { className: "kind" }, kind)),
    el("td", {}, prose(about || ""), preset ? el("span", { className: "kind" }, `default: ${preset}`) : ""));
}

function table(schema, description) {
  return el("table", {}, el("tbody", {}, fieldsOf(schema, description).map((one) =>
    row(one.name, one.kind, one.required, one.about, one.preset))));
}

function bodyNodes(body, description) {
  const parts = [el("h3", {}, "Body"), table(body.schema, description)];
  for (const [name, example] of Object.entries(body.examples || {})) {
    parts.push(el("details", {}, el("summary", {}, `Example: ${name}`), code(example.value)));
  }
  return parts;
}

function schemaNode(title, schema, description) {
  const details = el("details", {}, el("summary", {}, title));
  // Made when it is opened: most never are.
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(table(schema, description));
  });
  return details;
}

const code = (value) => el("pre", { tabIndex: 0 }, el("code", {}, JSON.stringify(value, null, 2)));

function statuses(operation, description) {
  return el("ul", { className: "statuses" }, Object.entries(operation.responses).map(([status, one]) => {
    const response = one.$ref ? description.components.responses[named(one)] : one;
    return el("li", { title: response.description }, status);
  }));
}
