// Where the server begins: a proxy may serve it below a path of its own (https://host/llm/), of which the server knows nothing.

/** Address of the server, with a slash at the end. This file lies at console/lib/root.js below it. */
export const ROOT = new URL("../../", import.meta.url);

/** The name of an entry of the browser's storage. Servers below different paths of a host share that storage. */
export const entry = (name) => (ROOT.pathname === "/" ? `cohort.${name}` : `cohort.${name}:${ROOT.pathname}`);
