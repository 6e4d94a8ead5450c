// Numbers for people.

/** Seconds as { text, unit }: 0.0123 is 12.3 ms. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return { text: "–", unit: "" };
  if (seconds < 0.9995) {
    const ms = seconds * 1000;
    return { text: ms < 10 ? ms.toFixed(1) : ms.toFixed(0), unit: "ms" };
  }
  return { text: seconds < 100 ? seconds.toFixed(seconds < 10 ? 2 : 1) : seconds.toFixed(0), unit: "s" };
}

export function durationText(seconds) {
  const { text, unit } = duration(seconds);
  return unit ? `${text} ${unit}` : text;
}

export const count = (number) => (number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en-US"));

/** A number with its noun: 1 block, 2 blocks. */
export const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

export const percent = (share) => `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)}%`;

/** The last characters of a request's id, which are enough to tell a few hundred apart. */
export const shortId = (requestId, choice, several) => `${(requestId || "").slice(-6)}${several ? `·${choice}` : ""}`;

/** The value below which the given share of numbers lies; null of none. */
export function quantile(numbers, share) {
  if (!numbers.length) return null;
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}
