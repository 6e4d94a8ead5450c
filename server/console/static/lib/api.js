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

async function call(path, { admin = false, body, signal } = {}) {
  const options = { headers: { ...authorization(admin) }, signal };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(new URL(path.slice(1), ROOT), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export const getJson = async (path, options) => (await call(path, options)).json();

export const models = async () => (await getJson("/v1/models")).data;

export const story = (id) => getJson(`/v1/requests/${encodeURIComponent(id)}`, { admin: true });

export const killExecutor = async () => (await call("/v1/kill_executor", { admin: true, body: {} })).json();

/** Opens a stream. Returns the request's id and its events, each { event, data }. */
export async function stream(path, options) {
  const response = await call(path, options);
  return { requestId: response.headers.get("x-request-id"), events: events(response.body) };
}
