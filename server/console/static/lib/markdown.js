// A small Markdown: paragraphs, headings, lists, code, quotes, tables, rules; bold, italics, code and links within a line.
// It makes elements and text nodes only. Links are shown, not followed: where they lead was chosen by a model.

import { el } from "./dom.js";

const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)\s*$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const BULLET = /^(\s*)[-*+]\s+(.*)$/;
const NUMBER = /^(\s*)(\d{1,9})[.)]\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** The elements of a text. */
export function render(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const [block, next] = readBlock(lines, at);
    if (block !== null) blocks.push(block);
    at = next;
  }
  return blocks;
}

function readBlock(lines, at) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  let match;
  if ((match = FENCE.exec(line))) return readCode(lines, at, match[1]);
  if ((match = HEADING.exec(line))) return [el(match[1].length < 3 ? "h3" : "h4", {}, inline(match[2])), at + 1];
  if (RULE.test(line)) return [el("hr"), at + 1];
  if (QUOTE.test(line)) return readQuote(lines, at);
  if (BULLET.test(line) || NUMBER.test(line)) return readList(lines, at);
  if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && TABLE_RULE.test(lines[at + 1])) {
    return readTable(lines, at);
  }
  return readParagraph(lines, at);
}

function readCode(lines, at, fence) {
  const code = [];
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) code.push(lines[end++]);
  return [el("pre", { tabIndex: 0 }, el("code", {}, code.join("\n"))), end + 1];
}

function readQuote(lines, at) {
  const inside = [];
  let match;
  while (at < lines.length && (match = QUOTE.exec(lines[at]))) {
    inside.push(match[1]);
    at += 1;
  }
  return [el("blockquote", {}, el("p", {}, inline(inside.join("\n")))), at];
}

const isItem = (line = "", tag) => (tag === "OL" ? NUMBER : BULLET).test(line);

/** A list, and the lists within it, by their indentation. */
function readList(lines, at) {
  const first = BULLET.exec(lines[at]) || NUMBER.exec(lines[at]);
  const depth = first[1].length;
  const list = el(NUMBER.test(lines[at]) ? "ol" : "ul");
  if (list.tagName === "OL" && first[2] !== "1") list.start = Number(first[2]);
  while (at < lines.length) {
    const match = BULLET.exec(lines[at]) || NUMBER.exec(lines[at]);
    if (match === null) {
      const last = list.lastElementChild;
      if (!lines[at].trim() && isItem(lines[at + 1], list.tagName)) {
        at += 1; // an empty line between two items
        continue;
      }
      if (!lines[at].trim() || !/^\s/.test(lines[at]) || last === null) break;
      last.append("\n", ...inline(lines[at].trim()));
      at += 1;
    } else if (match[1].length < depth) {
      break;
    } else if (match[1].length > depth + 1 && list.lastElementChild !== null) {
      const [inner, next] = readList(lines, at);
      list.lastElementChild.append(inner);
      at = next;
    } else {
      list.append(el("li", {}, inline(match[match.length - 1])));
      at += 1;
    }
  }
  return [list, at];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function readTable(lines, at) {
  const row = (line, tag) => el("tr", {}, cells(line).map((cell) => el(tag, {}, inline(cell))));
  const body = el("tbody");
  const table = el("table", {}, el("thead", {}, row(lines[at], "th")), body);
  for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) body.append(row(lines[at], "td"));
  return [table, at];
}

function readParagraph(lines, at) {
  const text = [lines[at]];
  for (at += 1; at < lines.length && lines[at].trim() && !begins(lines[at]); at += 1) text.push(lines[at]);
  return [el("p", {}, inline(text.join("\n"))), at];
}

const begins = (line) => [FENCE, HEADING, QUOTE, BULLET].some((form) => form.test(line)) || /^\s*1[.)]\s/.test(line);

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^*\s][^*]*?)\*|\[([^\]]+)\]\(([^)\s]+)\)|\n/s;

function inline(text) {
  const found = [];
  let match;
  while ((match = INLINE.exec(text))) {
    if (match.index) found.push(text.slice(0, match.index));
    text = text.slice(match.index + match[0].length);
    const [whole, , code, bold, bold2, italic, label, target] = match;
    if (whole === "\n") found.push(el("br"));
    else if (code !== undefined) found.push(el("code", {}, code.trim()));
    else if (bold !== undefined || bold2 !== undefined) found.push(el("strong", {}, inline(bold ?? bold2)));
    else if (italic !== undefined) found.push(el("em", {}, inline(italic)));
    else found.push(el("span", { className: "link", title: target }, label), ` (${target})`);
  }
  if (text) found.push(text);
  return found;
}
