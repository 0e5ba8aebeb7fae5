// The tables and figures of the report.

import { make } from "../explorer/elements.js";

const SCALE = 0.65; // pixels of the page per pixel of a figure

function figureOf({ title, caption, png }) {
  const image = make("img");
  image.src = `data:image/png;base64,${png}`;
  image.alt = title;
  // All figures in one scale, whatever their number of panels.
  image.addEventListener("load", () => { image.style.width = `${Math.round(image.naturalWidth * SCALE)}px`; });
  return make("figure", [make("h2", title), image, make("figcaption", `${caption}.`)]);
}

function tableOf({ title, note, columns, rows, labels }) {
  const row = (tag, cells) =>
    make("tr", cells.map((text, place) => make(tag, text, place < labels ? "label" : "")));
  const table = make("table");
  table.createTHead().append(row("th", columns));
  table.createTBody().append(...rows.map((cells) => row("td", cells)));
  return [make("h2", title), make("p", note && `${note}.`, "note"), make("div", [table], "scroll")];
}

export function renderNumbers(root, { figures, tables }) {
  root.replaceChildren(...figures.map(figureOf), ...tables.flatMap(tableOf));
}
