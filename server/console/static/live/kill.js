// The button that kills the executor, and what becomes of the streams.

import { killExecutor } from "../lib/api.js";
import { byId, el } from "../lib/dom.js";
import { open } from "../lib/dialogs.js";
import { getKey } from "../lib/keys.js";
import { durationText, plural } from "../lib/format.js";

/** `say(text, tone)` shows a notice. */
export class Kill {
  constructor(history, say, askForKeys) {
    Object.assign(this, { history, say, askForKeys });
    this.killed = null;
    byId("kill").addEventListener("click", () => this.ask());
  }

  ask() {
    if (!getKey("admin")) {
      this.askForKeys("The button needs the admin key.").then((given) => given && getKey("admin") && this.ask());
      return;
    }
    const dialog = byId("confirm-kill");
    open(dialog,
      el("h2", { id: "kill-title" }, "Kill the executor?"),
      el("p", {}, "The process that holds the model gets a SIGKILL. A new one loads the model, and every stream goes on where it stood."),
      el("div", { className: "actions" },
        el("button", { type: "button", className: "button", onclick: () => dialog.close() }, "Cancel"),
        el("button", { type: "button", className: "button danger", id: "really-kill", onclick: () => this.kill(dialog) }, "Kill it")));
  }

  async kill(dialog) {
    dialog.close();
    const { running = 0, waiting = 0, resumed = 0, epoch = 0, at = 0 } = this.history.frame ?? {};
    try {
      const { killed: pid } = await killExecutor();
      this.killed = { pid, streams: running + waiting, resumed, epoch, at };
      this.say(`Executor ${pid} is killed, ${plural(running + waiting, "stream")} on it.`, "bad");
    } catch (error) {
      this.say(error.message, "bad");
    }
  }

  /** Looks at each frame for the new executor. */
  look(frame) {
    byId("kill").hidden = !this.history.server?.kill_button;
    const { killed } = this;
    if (killed === null || frame.epoch === undefined || frame.stage !== "ready") return;
    const outage = frame.outages.find((one) => one.epoch >= killed.epoch && one.began > killed.at - 1 && one.ended !== null);
    if (outage === undefined) return;
    this.killed = null;
    const resumed = frame.resumed - killed.resumed;
    const went = resumed ? `; ${plural(resumed, "stream")} went on without losing a token` : "";
    this.say(`Executor ${frame.pid} was ready after ${durationText(outage.ended - outage.began)}${went}.`, "good");
  }
}
