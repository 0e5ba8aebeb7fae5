"use strict";
// Data, weights, colours and small functions. The scripts of this folder are concatenated in the
// order weights.js, panel.js, heads.js, page.js.
// All data is in the element #data; nothing is ever loaded. Text of the user becomes textContent
// only.

const data = JSON.parse(document.getElementById("data").textContent);
const TYPES = ["encoder_self", "decoder_self", "cross"];
const LEVELS = 127; // level n stands for (n / LEVELS)^2 of the largest weight of the head
const START = "⟨start⟩";
const END = "⟨end⟩";

const byId = (id) => document.getElementById(id);

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function percent(share) {
  return share === null || share === undefined ? "" : `${(100 * share).toFixed(1)} %`;
}

function decimals(number, digits = 2) {
  return number === null || number === undefined ? "" : number.toFixed(digits);
}

function weightText(weight) {
  return Math.abs(weight) < 0.005 ? "<0.01" : weight.toFixed(2);
}

function fillSelect(select, texts, chosen) {
  select.replaceChildren(...texts.map(([value, text]) => {
    const option = make("option", text);
    option.value = value;
    return option;
  }));
  select.value = chosen;
}

// ---- weights ----

const unpacked = new Map(); // "model:sentence" -> promise of the levels of all heads

function unpack(model, sentence) {
  const key = `${model}:${sentence}`;
  if (!unpacked.has(key)) {
    if (unpacked.size > 8) unpacked.delete(unpacked.keys().next().value);
    unpacked.set(key, inflate(data.models[model].sentences[sentence].weights));
  }
  return unpacked.get(key);
}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function shape(model, sentence, type) {
  const { source, target } = data.models[model].sentences[sentence];
  const [sources, targets] = [source.pieces.length + 1, target.pieces.length + 1];
  return {
    queries: type === "encoder_self" ? sources : targets,
    keys: type === "decoder_self" ? targets : sources,
  };
}

// The weights [queries x keys] of one head; the head after the last one is the mean of all heads.
function headWeights(buffer, choice, sentence) {
  const { layers, heads } = data.models[choice.model];
  let place = 0; // index of the head among the scales
  let offset = 4 * heads * TYPES.reduce((sum, type) => sum + layers[type], 0);
  for (const type of TYPES) {
    const { queries, keys } = shape(choice.model, sentence, type);
    if (type !== choice.type) {
      place += layers[type] * heads;
      offset += layers[type] * heads * queries * keys;
      continue;
    }
    const weights = new Float32Array(queries * keys);
    const mean = choice.head === heads;
    for (let head = mean ? 0 : choice.head; head < (mean ? heads : choice.head + 1); head++) {
      const number = choice.layer * heads + head;
      const scale = new DataView(buffer).getFloat32(4 * (place + number), true) / (mean ? heads : 1);
      const levels = new Int8Array(buffer, offset + number * queries * keys, queries * keys);
      levels.forEach((level, index) => {
        weights[index] += scale * Math.sign(level) * (level / LEVELS) ** 2;
      });
    }
    return { queries, keys, weights };
  }
  throw new Error(`no attention ${choice.type}`);
}

// The text of each row or column, and the positions that belong to it.
function units(side, before, unit) {
  const shift = before ? 1 : 0; // inputs begin with the start token, outputs end with the end token
  const special = before
    ? { text: START, special: true, positions: [0] }
    : { text: END, special: true, positions: [side.pieces.length] };
  let parts;
  if (unit === "subwords") {
    parts = side.pieces.map((text, index) => ({ text, positions: [index + shift] }));
  } else {
    parts = side.words.map((text) => ({ text, positions: [] }));
    side.word_of_piece.forEach((word, index) => parts[word].positions.push(index + shift));
  }
  return before ? [special, ...parts] : [...parts, special];
}

// Rows, columns and cells of a heat map: summed over keys and averaged over queries of a unit.
function heatMap(buffer, choice, sentence) {
  const { source, target } = data.models[choice.model].sentences[sentence];
  const { keys, weights } = headWeights(buffer, choice, sentence);
  const rows = choice.type === "encoder_self"
    ? units(source, false, state.unit) : units(target, state.step === "read", state.unit);
  const columns = choice.type === "decoder_self"
    ? units(target, true, state.unit) : units(source, false, state.unit);
  const cells = rows.map((row) => columns.map((column) => {
    if (choice.type === "decoder_self" && Math.min(...column.positions) > Math.max(...row.positions)) {
      return null; // masked: in the future of the row
    }
    let sum = 0;
    for (const query of row.positions) {
      for (const key of column.positions) sum += weights[query * keys + key];
    }
    return sum / Math.max(row.positions.length, 1);
  }));
  const nulls = cells.map((row) => row.every((weight) => !weight));
  // Shades are absolute for weights that sum to 1, and relative to the largest weight otherwise.
  const largest = data.models[choice.model].nullable[choice.type]
    ? cells.flat().reduce((most, weight) => Math.max(most, Math.abs(weight)), 1e-9) : 1;
  return { rows, columns, cells, nulls, largest };
}

// ---- colours ----

let colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "line", "null", "hidden", "weak", "middle", "strong",
    "negative-weak", "negative-strong", "accent"]) {
    const hex = style.getPropertyValue(`--${name}`).trim().slice(1);
    const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
    colours[name] = [0, 2, 4].map((start) => parseInt(full.slice(start, start + 2), 16));
  }
}

const css = (rgb) => `rgb(${rgb.join(" ")})`;

function blend(from, to, share) {
  return from.map((value, index) => Math.round(value + (to[index] - value) * share));
}

function heat(weight, largest) {
  const size = Math.sqrt(Math.min(1, Math.abs(weight) / largest));
  if (weight < 0) return blend(colours["negative-weak"], colours["negative-strong"], size);
  return size < 0.5
    ? blend(colours.weak, colours.middle, 2 * size)
    : blend(colours.middle, colours.strong, 2 * size - 1);
}

function cellColour(map, row, column) {
  const weight = map.cells[row][column];
  if (weight === null) return colours.hidden;
  if (map.nulls[row]) return colours.null;
  return weight === 0 ? colours.paper : heat(weight, map.largest);
}

function inkOn([red, green, blue]) {
  return 0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#111" : "#fff";
}
