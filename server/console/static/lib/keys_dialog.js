// The dialog for keys, and the question for one that is missing.

import { byId, el } from "./dom.js";
import { field, head, open } from "./dialogs.js";
import { getKey, setKey, tellKeys } from "./keys.js";

const NEEDED = {
  api: "This server requires an API key. Whoever runs it has one for you.",
  admin: "This needs the admin key. The text that the server prints when it starts has a link with it.",
};
const REFUSED = {
  api: "The server does not know this key. This server requires an API key.",
  admin: "The server does not know this key. This needs the admin key.",
};

/** Opens the dialog. `why` is shown above the fields, `name` (api or admin) is the field that gets the focus. Resolves to whether
 * keys were given; all who ask while it is open get the same answer. */
export function showKeys(why = "", name = "api") {
  pending ??= ask(why, name).finally(() => {
    pending = null;
  });
  return pending;
}

let pending = null;

function ask(why, name) {
  const dialog = byId("keys");
  const inputs = ["api", "admin"].map((one) =>
    el("input", { type: "password", value: getKey(one), autocomplete: "off", autofocus: one === name }));
  return new Promise((resolve) => {
    let given = false;
    const submit = (event) => {
      event.preventDefault();
      setKey("api", inputs[0].value);
      setKey("admin", inputs[1].value);
      given = true;
      dialog.close();
    };
    dialog.addEventListener("close", () => {
      resolve(given);
      if (given) tellKeys();
    }, { once: true });
    open(dialog,
      head(dialog, "keys-title", "Keys"),
      why && el("p", { id: "keys-why", role: "status" }, why),
      el("form", { className: "keys-form", onsubmit: submit },
        field("key-api", "API key", inputs[0], "For chats. Needed if the server was started with --api-key and there is no admin key here."),
        field("key-admin", "Admin key", inputs[1], "For stories, earlier requests, the kill button, and the steps of a server with API keys; it opens chats too. The server's start-up text has a link with it."),
        el("div", { className: "actions" }, el("button", { className: "button primary" }, "Use them"))),
      el("p", { className: "note" }, "Keys stay in this tab and go nowhere but to this server."));
    inputs[name === "admin" ? 1 : 0].focus();
  });
}

/** For `onMissingKey`. */
export function askForMissing({ admin, given }) {
  const name = admin ? "admin" : "api";
  return showKeys((given ? REFUSED : NEEDED)[name], name);
}

/** A sentence and the button that asks for the admin key, for a place that needs it. */
export function needsAdmin(text) {
  return [el("span", {}, text), el("button", { type: "button", className: "button small", onclick: () => showKeys(NEEDED.admin, "admin") }, "Give the admin key")];
}
