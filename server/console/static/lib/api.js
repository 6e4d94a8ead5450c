// Calls of this server, the only one that the page may reach.

import { authorization } from "./keys.js";
import { ROOT } from "./root.js";
import { events } from "./sse.js";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not JSON: the status has to do.
  }
  return new ApiError(response.status, message);
}

let askForKey = null;

/** `ask({ admin, given })` is called when the server refuses a call for want of a key: `given` tells whether the call had one. It
 * resolves to whether there is another key now; the call is then repeated. */
export function onMissingKey(ask) {
  askForKey = ask;
}

async function reach(path, options) {
  try {
    return await fetch(new URL(path.slice(1), ROOT), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
}

/** `ask`: whether a missing key is asked for; what the page does by itself must not open dialogs again and again. */
async function call(path, { admin = false, ask = true, body, signal, headers = {} } = {}) {
  const options = { signal };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
  }
  for (;;) {
    const key = authorization(admin);
    options.headers = { ...headers, ...key, ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
    const response = await reach(path, options);
    if (response.ok) return response;
    if (response.status !== 401 || !ask || !(await anotherKey(key.Authorization, admin))) throw await failure(response);
  }
}

/** Whether there is another key than the one that was refused: one that was given meanwhile, or is now. */
async function anotherKey(refused, admin) {
  if (authorization(admin).Authorization !== refused) return true;
  return askForKey !== null && askForKey({ admin, given: Boolean(refused) });
}

export const getJson = async (path, options) => (await call(path, options)).json();

/** The models: { data, memory }, `memory` where several are served. */
export const models = () => getJson("/v1/models");

export const story = (id) => getJson(`/v1/requests/${encodeURIComponent(id)}`, { admin: true, ask: false });

/** The last calls that ended, the latest first. Returns { data, has_more }. */
export const earlier = (limit) =>
  getJson(`/v1/requests?outcome=stop,length,abort,error,refused&limit=${limit}`, { admin: true, ask: false });

/** The server's stage, as load balancers read it: { status, detail, phase, done, total }. Needs no key. */
export const ready = async () => (await reach("/ready", {})).json();

export const killExecutor = async () => (await call("/v1/kill_executor", { admin: true, body: {} })).json();

/** Opens a stream. Returns the request's id and its events, each { event, data }; `onComment(text)` gets the comments. */
export async function stream(path, { onComment, ...options }) {
  const response = await call(path, options);
  return { requestId: response.headers.get("x-request-id"), events: events(response.body, onComment) };
}
