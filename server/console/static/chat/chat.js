// The chat: model picker, composer, and what its buttons do.

import { models } from "../lib/api.js";
import { byId, el } from "../lib/dom.js";
import { Conversation } from "./conversation.js";
import { optionText, showMemory } from "./models.js";
import { loadSettings, showSettings } from "./settings.js";
import { makeView } from "./view.js";

const AGAIN = 2000;
/** Milliseconds after which a server that could not list its models is asked again. */

/** `onStory(requestId)` opens a story; `sequences()`: those that the feed of steps tells; `onModel()`: another model was chosen. */
export function startChat({ onStory, sequences, onModel }) {
  const message = byId("message");
  const cards = new Map();
  let timer = null;
  let view = null;
  const conversation = new Conversation((changed) => {
    view.changed(changed);
    showButtons();
  }, sequences);
  const run = (answer) => answer?.finally(() => {
    showButtons();
    view.drawAll();
    if (cards.get(conversation.model)?.status) listModels(); // it may be loaded now, and another one may have made room
  });
  const send = (text) => {
    if (text.trim() && !conversation.busy) run(conversation.send(text));
  };
  view = makeView(conversation, {
    send,
    regenerate: () => !conversation.busy && run(conversation.regenerate()),
    giveResult: (...given) => run(conversation.giveResult(...given)),
    story: onStory,
  });

  function showButtons() {
    byId("send").hidden = conversation.busy;
    byId("stop").hidden = !conversation.busy;
    byId("messages").setAttribute("aria-busy", String(conversation.busy)); // read when it is complete, not word by word
  }

  function grow() {
    message.style.height = "auto";
    message.style.height = `${Math.min(message.scrollHeight, 200)}px`;
  }

  function submit() {
    const text = message.value;
    if (!text.trim() || conversation.busy) return;
    message.value = "";
    grow();
    send(text);
  }

  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  message.addEventListener("input", grow);
  message.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && conversation.busy && !document.querySelector("dialog[open]")) conversation.stop();
  });
  byId("stop").addEventListener("click", () => {
    conversation.stop();
    message.focus();
  });
  byId("new-chat").addEventListener("click", () => {
    conversation.clear();
    message.focus();
  });
  byId("open-settings").addEventListener("click", async () => {
    const drawn = () => showSettings({ card: cards.get(conversation.model), body: () => conversation.nextBody(message.value) });
    drawn();
    if (!cards.get(conversation.model)?.sampling_defaults && (await listModels()) && byId("settings").open) drawn(); // it loaded since
  });
  byId("model").addEventListener("change", (event) => {
    conversation.model = event.target.value;
    onModel();
  });
  byId("model").addEventListener("focus", () => {
    if (cards.get(conversation.model)?.status) listModels();
  });

  /** Fills the picker. A server that is still to come is asked again. */
  async function listModels() {
    const notice = byId("chat-notice");
    clearTimeout(timer);
    try {
      const list = await models();
      const found = list.data;
      const before = conversation.model;
      cards.clear();
      for (const card of found) cards.set(card.id, card);
      const ids = found.map((one) => one.id);
      const options = [...byId("model").options];
      const same = ids.join("\n") === options.map((one) => one.value).join("\n");
      if (!same) byId("model").replaceChildren(...found.map((one) => el("option", { value: one.id }, optionText(one))));
      else found.forEach((one, index) => (options[index].text = optionText(one))); // it may stand open
      conversation.model = found.some((one) => one.id === before) ? before : found[0]?.id;
      byId("model").value = conversation.model;
      showMemory(byId("model-memory"), list);
      notice.hidden = true;
      return true;
    } catch (error) {
      if (error.status === 401) {
        const ask = el("button", { type: "button", className: "button small", onclick: () => listModels() }, "Give the key");
        notice.replaceChildren(el("span", {}, "This server requires an API key."), ask);
        notice.hidden = false;
      } else {
        clearTimeout(timer);
        timer = setTimeout(listModels, AGAIN);
      }
      return false;
    }
  }

  loadSettings();
  view.drawAll();
  return { listModels };
}
