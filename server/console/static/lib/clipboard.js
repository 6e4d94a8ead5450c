// Copying, also where the browser has no clipboard for the page: it has one for https and for this machine alone.

import { el } from "./dom.js";

/** Copies the text; the button says so for a moment. */
export async function copy(text, button) {
  const label = button.textContent;
  const done = await write(text);
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => {
    button.textContent = label;
  }, 1500);
}

async function write(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return writeBySelection(text);
  }
}

function writeBySelection(text) {
  const field = el("textarea", { value: text, className: "visually-hidden", readOnly: true, tabIndex: -1 });
  const before = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch {
    // The browser forbids it.
  }
  field.remove();
  before?.focus();
  return done;
}
