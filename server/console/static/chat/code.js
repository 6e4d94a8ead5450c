// A request as a command line and as a program, for use outside of the console.

import { ROOT } from "../lib/root.js";

const BASE = new URL("v1", ROOT).href;
const KEY = "COHORT_API_KEY";

/** A word of a POSIX shell: within single quotes nothing has a meaning but the quote itself. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The request as a command. The key is a variable of the shell: it must not lie in its history. */
export function curl(body) {
  return [
    `curl -N ${quoted(`${BASE}/chat/completions`)}`,
    "-H 'Content-Type: application/json'",
    `-H "Authorization: Bearer $${KEY}"`,
    `-d ${quoted(JSON.stringify(body, null, 2))}`,
  ].join(" \\\n  ");
}

const SDK = new Set([
  "model", "messages", "stream", "stream_options", "temperature", "top_p", "max_tokens", "seed", "presence_penalty",
  "frequency_penalty", "stop", "response_format", "tools", "tool_choice",
]);
/** Parameters that the openai package names; others go into `extra_body`. */

/** A value as a literal of Python. JSON's strings are Python's, but for names of its constants. */
function literal(value, indent) {
  const inner = `${indent}    `;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) {
    return value.length ? `[\n${value.map((one) => `${inner}${literal(one, inner)},\n`).join("")}${indent}]` : "[]";
  }
  if (typeof value === "object") {
    const members = Object.entries(value).map(([name, one]) => `${inner}${JSON.stringify(name)}: ${literal(one, inner)},\n`);
    return members.length ? `{\n${members.join("")}${indent}}` : "{}";
  }
  return JSON.stringify(value);
}

/** The request as a program with the openai package. */
export function python(body) {
  const entries = Object.entries(body);
  const own = entries.filter(([name]) => SDK.has(name));
  const extra = Object.fromEntries(entries.filter(([name]) => !SDK.has(name)));
  if (Object.keys(extra).length) own.push(["extra_body", extra]);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(BASE)}, api_key=os.environ.get("${KEY}", "none"))`,
    "stream = client.chat.completions.create(",
    ...own.map(([name, value]) => `    ${name}=${literal(value, "    ")},`),
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    '        print(choice.delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}
