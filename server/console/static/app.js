// The console: a chat beside the picture of what the server computes.

import { startChat } from "./chat/chat.js";
import { byId } from "./lib/dom.js";
import { loadKeys } from "./lib/keys.js";
import { showKeys } from "./lib/keys_dialog.js";
import { startTheme } from "./lib/theme.js";
import { startLive } from "./live/live.js";

loadKeys();
startTheme();

const askForKeys = (why = "") => showKeys(why, () => {
  chat.listModels();
  live.reconnect();
});

const chat = startChat({
  onStory: (requestId) => live.openStory(requestId),
  onRefused: (error) => {
    if (error.status === 401) askForKeys("This server requires an API key.");
    else setTimeout(() => chat.listModels(), 2000); // still loading, or not there
  },
});
const live = startLive({ model: () => byId("model").value || undefined, askForKeys });

function show(view) {
  byId("main").dataset.view = view;
  for (const name of ["chat", "live"]) byId(`tab-${name}`).setAttribute("aria-pressed", String(name === view));
}

byId("tab-chat").addEventListener("click", () => show("chat"));
byId("tab-live").addEventListener("click", () => show("live"));
byId("open-keys").addEventListener("click", () => askForKeys());
chat.listModels();
if (matchMedia("(min-width: 861px)").matches) byId("message").focus(); // on a telephone this would open the keyboard
