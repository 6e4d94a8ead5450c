// The dialog for keys.

import { byId, el } from "./dom.js";
import { field, head, open } from "./dialogs.js";
import { getKey, setKey } from "./keys.js";

/** `changed()` is called after keys were given. */
export function showKeys(why, changed) {
  const dialog = byId("keys");
  const inputs = ["api", "admin"].map((name) => el("input", { type: "password", value: getKey(name), autocomplete: "off" }));
  const submit = (event) => {
    event.preventDefault();
    setKey("api", inputs[0].value);
    setKey("admin", inputs[1].value);
    dialog.close();
    changed();
  };
  open(dialog,
    head(dialog, "keys-title", "Keys"),
    why && el("p", {}, why),
    el("form", { className: "keys-form", onsubmit: submit },
      field("key-api", "API key", inputs[0], "For chats. Needed if the server was started with --api-key and there is no admin key here."),
      field("key-admin", "Admin key", inputs[1], "For stories, the kill button, and the steps of a server with API keys; it opens chats too. The server's start-up text has a link with it."),
      el("div", { className: "actions" }, el("button", { className: "button primary" }, "Use them"))),
    el("p", { className: "note" }, "Keys stay in this tab and go nowhere but to this server."));
}
