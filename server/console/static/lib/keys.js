// The API key and the admin key: in memory and, for this tab alone, in sessionStorage. Never anywhere else.

import { entry } from "./root.js";

const NAMES = ["api", "admin"];
const held = { api: "", admin: "" };

function stored(name) {
  try {
    return sessionStorage.getItem(entry(name)) || "";
  } catch {
    return ""; // storage is turned off: memory has to do
  }
}

/** Takes the keys of this tab, and an admin key from the address, which is removed from it: it must not stay in the history. */
export function loadKeys() {
  for (const name of NAMES) held[name] = stored(name);
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has("admin_key")) {
    setKey("admin", given.get("admin_key"));
    history.replaceState(null, "", location.pathname + location.search);
  }
}

const listeners = [];

/** Calls `listener` after keys were given in the dialog. */
export const onKeys = (listener) => listeners.push(listener);

export function tellKeys() {
  for (const listener of listeners) listener();
}

export const getKey = (name) => held[name];

export function setKey(name, value) {
  held[name] = value.trim();
  try {
    if (held[name]) sessionStorage.setItem(entry(name), held[name]);
    else sessionStorage.removeItem(entry(name));
  } catch {
    // As above.
  }
}

/** Headers of a request. `admin`: with the admin key if there is one, else with the API key; other requests the other way round,
 * for the admin key opens what an API key opens. */
export function authorization(admin = false) {
  const key = admin ? held.admin || held.api : held.api || held.admin;
  return key ? { Authorization: `Bearer ${key}` } : {};
}
