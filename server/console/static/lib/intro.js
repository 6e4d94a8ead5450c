// The strip that says at the first visit what the page shows. The button with the question mark opens it again.

import { byId } from "./dom.js";

const STORE = "cohort.intro";

function seen() {
  try {
    return localStorage.getItem(STORE) !== null;
  } catch {
    return false; // storage is turned off
  }
}

export function startIntro() {
  const [strip, help] = [byId("intro"), byId("help")];
  const show = (open) => {
    strip.hidden = !open;
    help.setAttribute("aria-expanded", String(open));
  };
  const close = () => {
    try {
      localStorage.setItem(STORE, "seen");
    } catch {
      // As above: it is shown at each visit.
    }
    show(false);
  };
  byId("intro-close").addEventListener("click", () => {
    close();
    help.focus();
  });
  help.addEventListener("click", () => (strip.hidden ? show(true) : close()));
  show(!seen());
}
