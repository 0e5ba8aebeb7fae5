// A panel: one head on one sentence as text and heat map, and the other heads of its layer.

import { cellColour, colours, css, heat, inkOn } from "./colours.js";
import { fillSelect, findDirection, labelledSelect, make, makeButton, spaced } from "./elements.js";
import { weightText } from "./measures.js";
import { TYPES, heatMap, unpack } from "./weights.js";

const CHOICES = { model: "Model", type: "Attention", layer: "Layer", head: "Head" };
const MOST_KEYS = 6; // named in the line that reads a row out
const ROWS = {
  encoder_self: "Each row is a source word, and its columns are the source words that it takes from.",
  decoder_self: "Each row is a target word, and its columns are the words before it that it takes from.",
  cross: "Each row is a target word, and its columns are the source words that it takes from.",
};

function panelElement() {
  const hidden = (tag, className) => {
    const element = make(tag, undefined, className);
    element.ariaHidden = "true";
    return element;
  };
  const map = make("div", [hidden("div", "columns"), hidden("div", "rows"), hidden("canvas")], "map");
  const thumbs = make("div", undefined, "thumbs");
  thumbs.role = "group";
  thumbs.ariaLabel = "Heads of this layer";
  const readout = make("p", undefined, "readout");
  readout.ariaLive = "polite";
  return make("section", [
    make("div", undefined, "bar"),
    make("p", undefined, "note place"),
    make("div", [
      make("span", undefined, "side keys-name"), make("p", undefined, "words keys"),
      make("span", undefined, "side queries-name"), make("p", undefined, "words queries"),
      make("span", "translation", "side own-name"), make("p", undefined, "words own"),
    ], "text"),
    readout,
    make("div", [make("div", [map], "scroll"), make("div", [thumbs, make("dl", undefined, "measures")], "aside")], "pictures"),
  ], "panel");
}

export class Panel {
  constructor(explorer, place) {
    this.explorer = explorer;
    this.place = place;
    this.element = panelElement();
    this.element.ariaLabel = `Attention ${place + 1}`;
    this.find = (selector) => this.element.querySelector(selector);
    this.canvas = this.find("canvas");
    this.selects = {};
    for (const [name, text] of Object.entries(CHOICES)) {
      const { label, select } = labelledSelect(text, [], (value) =>
        explorer.choose(place, { [name]: name === "type" ? value : Number(value) }));
      select.dataset.choice = name;
      this.selects[name] = select;
      this.find(".bar").append(label);
    }
    this.listen();
  }

  listen() {
    const { explorer, place } = this;
    this.element.addEventListener("pointerdown", () => explorer.activate(place));
    this.element.addEventListener("focusin", () => explorer.activate(place));
    this.canvas.addEventListener("pointermove", (event) => {
      const row = Math.floor(event.offsetY / this.cell);
      if (this.map && row >= 0 && row < this.map.rows.length) explorer.point(place, row);
    });
    for (const selector of [".queries", ".rows"]) {
      for (const name of ["pointerover", "focusin"]) {
        this.find(selector).addEventListener(name, (event) => {
          const row = event.target.closest("[data-row]");
          if (row) explorer.point(place, Number(row.dataset.row));
        });
      }
    }
  }

  get choice() { return this.explorer.choices[this.place]; }

  get model() { return this.explorer.models[this.choice.model]; }

  get sentence() { return this.model.sentences[this.explorer.sentence]; }

  async render() {
    this.renderControls();
    this.renderMeasures();
    const request = (this.request = {});
    const { sentence } = this;
    this.map = null;
    if (!sentence) {
      this.renderWords();
      this.find(".readout").textContent = "This sentence is too long for this model.";
      return;
    }
    const buffer = await unpack(sentence);
    if (this.request !== request) return; // something else was chosen meanwhile
    this.map = heatMap(buffer, this.model, sentence, this.choice, this.explorer);
    this.renderWords();
    this.renderMap();
    this.renderThumbs(buffer);
    this.renderRow();
  }

  renderControls() {
    const { model, type, layer, head } = this.choice;
    const { layers, heads, colour } = this.model;
    this.element.style.setProperty("--model", colour);
    const numbers = (count) => Array.from({ length: count }, (_, number) => [number, number]);
    fillSelect(this.selects.model, this.explorer.models.map(({ name }, number) => [number, name]), model);
    const types = Object.entries(TYPES).map(([name, text]) => [name, text.replace("-attention", "")]);
    fillSelect(this.selects.type, types, type);
    fillSelect(this.selects.layer, numbers(layers[type]), layer);
    fillSelect(this.selects.head, [...numbers(heads), [heads, "mean"]], head);
    const which = head === heads
      ? `Shown is the mean of the ${heads} heads of the layer.`
      : `A head is one of the ${heads} weightings that a layer computes side by side.`;
    this.find(".place").textContent = `${ROWS[type]} ${which}`;
  }

  renderMeasures() {
    const { type, layer, head } = this.choice;
    const values = this.model.measures[type][layer];
    const card = (title, value, meaning) =>
      make("div", [make("dt", title), make("dd", value), make("dd", meaning, "meaning")]);
    const cards = this.explorer.measures
      .filter(({ key }) => typeof values[key]?.[head] === "number")
      .map(({ key, title, show, meaning }) => card(title, show(values[key][head]), meaning));
    const kind = this.model.attention[type];
    this.find(".measures").replaceChildren(
      card("kind", kind, "The function that turns scores into weights."), ...cards);
  }

  renderWords() {
    const map = this.map || { rows: [], columns: [], nulls: [] };
    const type = this.choice.type;
    const { targetName } = this.explorer;
    this.find(".keys-name").textContent = type === "decoder_self" ? `${targetName} so far` : "source";
    this.find(".queries-name").textContent = type === "encoder_self" ? "source" : targetName;
    this.find(".keys").replaceChildren(...spaced(map.columns.map(({ text, special }) =>
      make("span", text, special ? "special" : ""))));
    this.find(".queries").replaceChildren(...spaced(map.rows.map(({ text, special }, row) => {
      const button = makeButton(text, special ? "special" : "");
      button.dataset.row = row;
      button.classList.toggle("null", map.nulls[row]);
      return button;
    })));
    const own = this.sentence?.translation;
    this.find(".own").textContent = own ?? "";
    for (const part of [".own", ".own-name"]) this.find(part).hidden = own === undefined;
    this.element.querySelectorAll(".words").forEach(findDirection);
    for (const part of [".scroll", ".thumbs"]) this.find(part).hidden = !this.map;
  }

  renderMap() {
    const { rows, columns } = this.map;
    const room = this.element.clientWidth - 160;
    this.cell = Math.max(13, Math.min(28, Math.floor(room / columns.length)));
    const font = `${Math.min(13, this.cell - 2)}px`;
    const label = (unit, row) => {
      const span = make("span", unit.text, unit.special ? "special" : "");
      span.title = unit.text;
      span.style.fontSize = font;
      span.style[row === undefined ? "width" : "height"] = `${this.cell}px`;
      span.style.lineHeight = `${this.cell}px`;
      if (row !== undefined) span.dataset.row = row;
      return span;
    };
    this.find(".columns").replaceChildren(...columns.map((unit) => label(unit)));
    this.find(".rows").replaceChildren(...rows.map((unit, row) => label(unit, row)));
    this.draw();
  }

  draw() {
    const { rows, columns } = this.map;
    const [cell, ratio] = [this.cell, window.devicePixelRatio || 1];
    const [width, height] = [columns.length * cell, rows.length * cell];
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.width = `${width + 2}px`; // with its border
    this.canvas.style.height = `${height + 2}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.fillStyle = css(colours.line);
    context.fillRect(0, 0, width, height);
    for (let row = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++) {
        context.fillStyle = css(cellColour(this.map, row, column));
        context.fillRect(column * cell, row * cell, cell - 0.5, cell - 0.5);
      }
    }
    const row = this.pointed();
    if (row !== null) {
      context.strokeStyle = css(colours.accent);
      context.lineWidth = 2;
      context.strokeRect(1, row * cell + 1, width - 2, cell - 2);
    }
  }

  renderThumbs(buffer) {
    const { type, layer, head } = this.choice;
    const { heads, measures } = this.model;
    const buttons = [];
    for (let number = 0; number <= heads; number++) {
      const choice = { ...this.choice, head: number };
      const map = heatMap(buffer, this.model, this.sentence, choice, this.explorer);
      const canvas = make("canvas");
      canvas.width = map.columns.length;
      canvas.height = map.rows.length;
      const image = new ImageData(canvas.width, canvas.height);
      for (let index = 0; index < canvas.width * canvas.height; index++) {
        const [row, column] = [Math.floor(index / canvas.width), index % canvas.width];
        image.data.set([...cellColour(map, row, column), 255], 4 * index);
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
      const nulls = measures[type][layer].null_rate?.[number];
      const note = number < heads && nulls > 0 ? ` · ${Math.round(100 * nulls)} % null` : "";
      const text = number === heads ? "mean" : `${number}${note}`;
      const button = makeButton([canvas, text], "", () => this.explorer.choose(this.place, { head: number }));
      button.ariaPressed = String(number === head);
      buttons.push(button);
    }
    this.find(".thumbs").replaceChildren(...buttons);
  }

  // The row under the pointer, in this panel or, if rows are the same words, in the other one.
  pointed() {
    const { row, choices, unit, sameTargets } = this.explorer;
    if (row === null || !this.map || row.index >= this.map.rows.length) return null;
    const [own, other] = [this.choice, choices[row.place]].map(({ type }) => type === "encoder_self");
    const same = row.place === this.place || (unit === "words" && own === other && (own || sameTargets));
    return same ? row.index : null;
  }

  renderRow() {
    if (!this.map) return;
    const row = this.pointed();
    this.draw();
    for (const element of this.element.querySelectorAll("[data-row]")) {
      element.classList.toggle("chosen", Number(element.dataset.row) === row);
    }
    const weights = row === null ? [] : this.map.cells[row];
    const keys = this.find(".keys").querySelectorAll("span");
    const labels = this.find(".columns").children;
    this.map.columns.forEach((_, column) => {
      const weight = weights[column] || 0;
      const colour = weight ? heat(weight, this.map.largest) : null;
      keys[column].style.background = colour ? css(colour) : "";
      keys[column].style.color = colour ? inkOn(colour) : "";
      if (weight) keys[column].dataset.weight = weightText(weight);
      else delete keys[column].dataset.weight;
      labels[column].classList.toggle("chosen", weight !== 0);
    });
    this.renderReadout(row, weights);
  }

  renderReadout(row, weights) {
    const readout = this.find(".readout");
    if (row === null) {
      const nulls = this.map.nulls.filter(Boolean).length;
      const note = nulls ? `; ${nulls} of ${this.map.rows.length} attend to nothing` : "";
      readout.textContent = `Point at a word of the second line or at a row to see what it attends to${note}.`;
      return;
    }
    readout.replaceChildren(make("bdi", this.map.rows[row].text), " → ");
    const order = weights.map((weight, column) => [weight || 0, column])
      .filter(([weight]) => weight).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
    if (!order.length) readout.append(make("span", "attends to nothing", "nothing"));
    order.slice(0, MOST_KEYS).forEach(([weight, column], index) => {
      if (index) readout.append(", ");
      readout.append(make("bdi", this.map.columns[column].text), ` ${weightText(weight)}`);
    });
    if (order.length > MOST_KEYS) readout.append(`, and ${order.length - MOST_KEYS} more`);
  }
}
