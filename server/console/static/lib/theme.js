// Light, dark, or as the system says.

import { byId } from "./dom.js";

const CHOICES = ["automatic", "light", "dark"];
const SIGNS = { automatic: "◐", light: "○", dark: "●" };
const system = matchMedia("(prefers-color-scheme: dark)");
let choice = "automatic";
const listeners = [];

/** Calls `listener` after each change of the colours. */
export const onTheme = (listener) => listeners.push(listener);

/** The value of a custom property, for what is drawn on a canvas. */
export function colours(names) {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function apply() {
  const dark = choice === "dark" || (choice === "automatic" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = byId("theme");
  if (button !== null) {
    button.textContent = SIGNS[choice];
    button.title = `Colours: ${choice}`;
    button.setAttribute("aria-label", `Colours: ${choice}`);
  }
  for (const listener of listeners) listener();
}

export function startTheme() {
  try {
    choice = CHOICES.includes(localStorage.getItem("cohort.theme")) ? localStorage.getItem("cohort.theme") : choice;
  } catch {
    // Storage is turned off.
  }
  system.addEventListener("change", apply);
  byId("theme")?.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem("cohort.theme", choice);
    } catch {
      // As above.
    }
    apply();
  });
  apply();
}
