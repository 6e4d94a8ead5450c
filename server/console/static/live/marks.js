// The mark of a sequence: the same in the steps, the table and the memory map. Twelve colours (`--mark-0` ... in live.css), and
// for each further dozen another of four shapes and patterns.

import { colours } from "../lib/theme.js";

export const COLOURS = 12;
const SHAPES = 4;
const NAMES = Array.from({ length: COLOURS }, (_, i) => `mark-${i}`);
const SVG = "http://www.w3.org/2000/svg";
/** Outlines in a box of 10 by 10: a disc, a square, a triangle, a lozenge. */
const PATHS = ["M5 0a5 5 0 1 0 .01 0z", "M.7.7h8.6v8.6H.7z", "M5 .2 10 9.4H0z", "M5-.4 10.4 5 5 10.4-.4 5z"];

/** The shape of a mark's number, of SHAPES. */
export const shapeOf = (mark) => Math.floor(mark / COLOURS) % SHAPES;

/** The colours of this theme, for a canvas. */
export function markColours() {
  const found = colours(NAMES);
  return NAMES.map((name) => found[name]);
}

/** The mark as an element; its colour follows the theme. */
export function markNode(mark) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 10 10");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", `mark mark-${mark % COLOURS}`);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[shapeOf(mark)]);
  svg.append(path);
  return svg;
}

const drawn = PATHS.map((path) => new Path2D(path));

/** Draws the mark on a canvas, `size` pixels wide around a middle. */
export function drawMark(context, mark, palette, x, y, size) {
  context.save();
  context.translate(x - size / 2, y - size / 2);
  context.scale(size / 10, size / 10);
  context.fillStyle = palette[mark % COLOURS];
  context.fill(drawn[shapeOf(mark)]);
  context.restore();
}

/** Draws a cell of the mark's colour, with its pattern in `ground`: plain, a dot, stripes across, stripes down. */
export function drawCell(context, mark, palette, ground, x, y, size) {
  context.fillStyle = palette[mark % COLOURS];
  context.beginPath();
  context.roundRect(x, y, size, size, 2);
  context.fill();
  context.fillStyle = ground;
  const [third, shape] = [size / 3, shapeOf(mark)];
  if (shape === 1) context.fillRect(x + third, y + third, third, third);
  if (shape === 2) context.fillRect(x + 1, y + third, size - 2, third);
  if (shape === 3) context.fillRect(x + third, y + 1, third, size - 2);
}
