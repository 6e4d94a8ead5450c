// What a request carries besides its messages, and the drawer in which it is set.

import { copy } from "../lib/clipboard.js";
import { byId, el } from "../lib/dom.js";
import { field, head, open } from "../lib/dialogs.js";
import { count } from "../lib/format.js";
import { entry } from "../lib/root.js";
import { curl, python } from "./code.js";

const STORE = entry("settings");

const NUMBERS = [
  // name, label, lowest, highest, step, what the API takes where neither the request nor the model says
  ["temperature", "Temperature", 0, 2, 0.05, "1"],
  ["top_p", "Top p", 0, 1, 0.05, "1"],
  ["top_k", "Top k", 0, null, 1, "0"],
  ["min_p", "Min p", 0, 1, 0.01, "0"],
  ["max_tokens", "Max tokens", 1, null, 1, ""],
  ["seed", "Seed", 0, null, 1, "random"],
  ["presence_penalty", "Presence pen.", -2, 2, 0.1, "0"],
  ["frequency_penalty", "Frequency pen.", -2, 2, 0.1, "0"],
  ["repetition_penalty", "Repetition pen.", 0.1, 2, 0.05, "1"],
];

const EXAMPLE_TOOLS = JSON.stringify([{
  type: "function",
  function: {
    name: "get_weather",
    description: "Weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}], null, 2);

const EXAMPLE_SCHEMA = JSON.stringify({
  type: "object",
  properties: { name: { type: "string" }, year: { type: "integer" } },
  required: ["name", "year"],
}, null, 2);

export const settings = {
  system: "",
  stop: "",
  format: "text",
  schema: EXAMPLE_SCHEMA,
  useTools: false,
  tools: EXAMPLE_TOOLS,
  toolChoice: "auto",
  ...Object.fromEntries(NUMBERS.map(([name]) => [name, ""])),
};

export function loadSettings() {
  try {
    Object.assign(settings, JSON.parse(sessionStorage.getItem(STORE) || "{}"));
  } catch {
    // Nothing stored, or storage is turned off.
  }
}

function save() {
  try {
    sessionStorage.setItem(STORE, JSON.stringify(settings));
  } catch {
    // As above.
  }
}

function readJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`Settings, ${what}: this is not JSON (${error.message}).`);
  }
}

/** The body of a request. Throws an Error that names the setting at fault. */
export function requestBody(model, messages) {
  const body = { model, messages: [], stream: true, stream_options: { include_usage: true } };
  if (settings.system.trim()) body.messages.push({ role: "system", content: settings.system });
  body.messages.push(...messages);
  for (const [name] of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
  const stop = settings.stop.split("\n").filter((line) => line);
  if (stop.length) body.stop = stop;
  if (settings.format === "json_object") body.response_format = { type: "json_object" };
  if (settings.format === "json_schema") {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: readJson(settings.schema, "JSON schema") } };
  }
  if (settings.useTools) {
    body.tools = readJson(settings.tools, "tools");
    body.tool_choice = settings.toolChoice;
  }
  return body;
}

function bound(input, name) {
  input.value = settings[name];
  input.addEventListener("input", () => {
    settings[name] = input.value;
    save();
  });
  return input;
}

function choose(name, choices, again) {
  const select = el("select", {}, choices.map(([value, label]) => el("option", { value }, label)));
  select.value = settings[name];
  select.addEventListener("change", () => {
    settings[name] = select.value;
    save();
    again();
    byId(`set-${name}`)?.focus();
  });
  return select;
}

/** The value in force while the field is empty, and who says so. */
function inForce(name, preset, card) {
  const own = card?.sampling_defaults?.[name];
  if (own !== undefined) return [String(Number(own.toFixed(4))), "model's default"];
  if (name === "max_tokens") return card?.max_model_len ? [`≤ ${count(card.max_model_len)}`, "to the context's end"] : ["", "to the context's end"];
  return [preset, name === "seed" ? "" : "API's default"];
}

function numberField([name, label, low, high, step, preset], card) {
  const [value, origin] = inForce(name, preset, card);
  const input = el("input", { type: "number", step: String(step), placeholder: value });
  if (low !== null) input.min = String(low);
  if (high !== null) input.max = String(high);
  const node = field(`set-${name}`, label, bound(input, name), origin ? el("span", { id: `from-${name}` }, origin) : null);
  if (origin) input.setAttribute("aria-describedby", `from-${name}`);
  return node;
}

/** The request that would be sent now as code, on the clipboard. */
function codeButtons(body) {
  const fault = el("p", { className: "fault", role: "alert", hidden: true });
  const button = (label, write) => el("button", { type: "button", className: "button small", onclick: (event) => {
    fault.hidden = true;
    try {
      copy(write(body()), event.currentTarget);
    } catch (error) {
      fault.textContent = error.message;
      fault.hidden = false;
    }
  } }, label);
  return el("div", { className: "field" }, el("span", {}, "This chat's next request, for a shell or a program"),
    el("div", { className: "buttons" }, button("Copy as curl", curl), button("Copy as Python", python)), fault);
}

/** `card`: the model as GET /v1/models tells it; `body()`: the request as it would be sent now. */
export function showSettings({ card, body }) {
  const dialog = byId("settings");
  const again = () => showSettings({ card, body });
  const tools = el("input", { type: "checkbox", id: "set-useTools", checked: settings.useTools });
  tools.addEventListener("change", () => {
    settings.useTools = tools.checked;
    save();
    again();
    byId("set-useTools").focus();
  });
  open(dialog,
    head(dialog, "settings-title", "Settings"),
    field("set-system", "System prompt", bound(el("textarea", { placeholder: "none" }), "system")),
    el("div", { className: "pairs" }, NUMBERS.map((one) => numberField(one, card))),
    el("p", { className: "note" }, `An empty field has the value that it shows in grey: the model's own, where ${card?.id ?? "the model"} has one, else the API's.`),
    field("set-stop", "Stop strings, one a line", bound(el("textarea", { placeholder: "none" }), "stop")),
    field("set-format", "Answer", choose("format", [["text", "text"], ["json_object", "JSON"], ["json_schema", "JSON by a schema"]], again)),
    settings.format === "json_schema" && field("set-schema", "JSON schema", bound(el("textarea", { rows: 8 }), "schema")) || null,
    el("label", { className: "note" }, tools, " Offer tools to the model"),
    settings.useTools && field("set-tools", "Tools", bound(el("textarea", { rows: 12 }), "tools")) || null,
    settings.useTools && field("set-toolChoice", "Tool choice",
      choose("toolChoice", [["auto", "auto"], ["required", "required"], ["none", "none"]], again)) || null,
    codeButtons(body),
  );
}
