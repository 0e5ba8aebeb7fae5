// The weights of heads: packed by nmt/analysis/explorer_data.py, unpacked and summed over words here.

export const TYPES = {
  encoder_self: "encoder self-attention",
  decoder_self: "decoder self-attention",
  cross: "cross-attention",
};
const LEVELS = 127; // level n stands for (n / LEVELS)^2 of the largest weight of the head
const START = "⟨start⟩";
const END = "⟨end⟩";

const unpacked = new WeakMap(); // sentence -> promise of the levels of all its heads

export function unpack(sentence) {
  if (!unpacked.has(sentence)) unpacked.set(sentence, inflate(sentence.weights));
  return unpacked.get(sentence);
}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function shape({ source, target }, type) {
  const [sources, targets] = [source.pieces.length + 1, target.pieces.length + 1];
  return {
    queries: type === "encoder_self" ? sources : targets,
    keys: type === "decoder_self" ? targets : sources,
  };
}

// The weights [queries x keys] of one head; the head after the last one is the mean of all heads.
function headWeights(buffer, { layers, heads }, sentence, choice) {
  const types = Object.keys(TYPES);
  let place = 0; // index of the head among the scales
  let offset = 4 * heads * types.reduce((sum, type) => sum + layers[type], 0);
  for (const type of types) {
    const { queries, keys } = shape(sentence, type);
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
// `view` has the unit (words, subwords) and the step whose rows are shown (predicted, read).
export function heatMap(buffer, model, sentence, choice, view) {
  const { source, target } = sentence;
  const { keys, weights } = headWeights(buffer, model, sentence, choice);
  const rows = choice.type === "encoder_self"
    ? units(source, false, view.unit) : units(target, view.step === "read", view.unit);
  const columns = choice.type === "decoder_self"
    ? units(target, true, view.unit) : units(source, false, view.unit);
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
  const largest = model.nullable[choice.type]
    ? cells.flat().reduce((most, weight) => Math.max(most, Math.abs(weight)), 1e-9) : 1;
  return { rows, columns, cells, nulls, largest };
}
