// The console: a chat beside the picture of what the server computes.

import { startChat } from "./chat/chat.js";
import { onMissingKey } from "./lib/api.js";
import { byId } from "./lib/dom.js";
import { startIntro } from "./lib/intro.js";
import { loadKeys, onKeys } from "./lib/keys.js";
import { askForMissing, showKeys } from "./lib/keys_dialog.js";
import { teach } from "./lib/terms.js";
import { startTheme } from "./lib/theme.js";
import { startEarlier } from "./live/earlier.js";
import { startLive } from "./live/live.js";

/** Words of the page that explain themselves. */
const TAUGHT = [
  ["#timeline-title", "step"],
  ["#memory-title", "kv"],
  ...["waiting", "prefill", "decode", "verify", "recompute"].map((kind) => [`.legend > [data-kind="${kind}"]`, kind]),
  ['[data-column="cached"]', "prefix"], ['[data-column="ttft"]', "ttft"], ['[data-column="itl"]', "itl"], ['[data-column="blocks"]', "kv"],
];

loadKeys();
startTheme();
startIntro();
teach(TAUGHT);
onMissingKey(askForMissing);

const chat = startChat({
  onStory: (requestId) => live.openStory(requestId),
  sequences: () => live.sequences(),
  onModel: () => live.reconnect(), // each model has steps of its own
});
const live = startLive({
  model: () => byId("model").value || undefined,
  askForKeys: (why) => showKeys(why, "admin"),
  onFrame: (history) => earlier.look(history),
  onServer: chat.listModels, // another one may answer at this address, with another model
});
const earlier = startEarlier(byId("earlier"), live.openStory);
onKeys(() => {
  chat.listModels();
  live.reconnect();
  earlier.load();
});

function show(view) {
  byId("main").dataset.view = view;
  for (const name of ["chat", "live"]) byId(`tab-${name}`).setAttribute("aria-pressed", String(name === view));
  if (view === "live") live.draw(); // an idle server's next frame may be a second away
}

byId("tab-chat").addEventListener("click", () => show("chat"));
byId("tab-live").addEventListener("click", () => show("live"));
byId("open-keys").addEventListener("click", () => showKeys());
chat.listModels();
if (matchMedia("(min-width: 861px)").matches) byId("message").focus(); // on a telephone this would open the keyboard
