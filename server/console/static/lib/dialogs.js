// Dialogs: opened modally, closed by Esc, by their button, or by a click beside them.

import { el } from "./dom.js";

/** The head of a drawer: its title and the button that closes it. */
export function head(dialog, id, title) {
  return el("div", { className: "top" }, el("h2", { id }, title),
    el("button", { type: "button", className: "button small", onclick: () => dialog.close() }, "Close"));
}

export function open(dialog, ...content) {
  dialog.replaceChildren(el("div", { className: "body" }, content));
  if (!dialog.dataset.ready) {
    dialog.dataset.ready = "yes";
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }
  if (!dialog.open) dialog.showModal();
}

/** A labelled field: `input` gets an id. */
export function field(id, label, input, note = null) {
  input.id = id;
  return el("div", { className: "field" }, el("label", { for: id }, label), input, note && el("span", { className: "note" }, note));
}
