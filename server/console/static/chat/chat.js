// The chat: model picker, composer, and what its buttons do.

import { models } from "../lib/api.js";
import { byId, el } from "../lib/dom.js";
import { Conversation } from "./conversation.js";
import { loadSettings, showSettings } from "./settings.js";
import { makeView } from "./view.js";

/** `onStory(requestId)` opens a story, `onRefused(error)` hears why the models could not be listed. */
export function startChat({ onStory, onRefused }) {
  const message = byId("message");
  let view = null;
  const conversation = new Conversation((changed) => {
    view.changed(changed);
    showButtons();
  });
  const run = (answer) => answer?.finally(() => {
    showButtons();
    view.drawAll();
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
  byId("open-settings").addEventListener("click", showSettings);
  byId("model").addEventListener("change", (event) => {
    conversation.model = event.target.value;
  });

  /** Fills the picker. Called again when a key was given. */
  async function listModels() {
    try {
      const found = await models();
      const before = conversation.model;
      byId("model").replaceChildren(...found.map((one) => el("option", { value: one.id }, one.id)));
      conversation.model = found.some((one) => one.id === before) ? before : found[0].id;
      byId("model").value = conversation.model;
      return true;
    } catch (error) {
      onRefused(error);
      return false;
    }
  }

  loadSettings();
  view.drawAll();
  return { listModels };
}
