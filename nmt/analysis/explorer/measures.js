// The measures of a head: name, one sentence that says what it is, and how its number is written.

export function percent(share) {
  return share === null || share === undefined ? "" : `${(100 * share).toFixed(1)} %`;
}

function decimals(number, digits = 2) {
  return number === null || number === undefined ? "" : number.toFixed(digits);
}

export function weightText(weight) {
  return Math.abs(weight) < 0.005 ? "<0.01" : weight.toFixed(2);
}

// `rising`: sorted from small to large at first.
const MEASURES = [
  {
    key: "null_rate", title: "null rate", show: percent,
    meaning: "Share of the rows whose weights are all 0: they attend to nothing.",
  },
  {
    key: "shuffled_null_rate", title: "shuffled", show: percent,
    meaning: "The null rate with wrong targets, taken from other sentences.",
  },
  {
    key: "sparsity", title: "sparsity", show: percent,
    meaning: "Share of the visible weights that are exactly 0.",
  },
  {
    key: "entropy", title: "entropy", show: decimals,
    meaning: "Spread of the weights: 0 is one word, 0.69 two words alike, 2.3 ten.",
  },
  {
    key: "diversity", title: "diversity", show: decimals,
    meaning: "How much the heads of the layer differ: 0 if all are alike.",
  },
  {
    key: "aer_normal", title: "AER normal", show: percent, rising: true,
    meaning: "Alignment error rate: how far links are from the gold ones; 0 % is best.",
  },
  {
    key: "aer_shifted", title: "AER shifted", show: percent, rising: true,
    meaning: "The same with the weights of the next step, which reads the word.",
  },
];

const LEARNED = {
  alpha: "Learned by the head: 1 is softmax, 2 is sparsemax; higher gives more zeros.",
  threshold: "Learned by the head: scores below it get weight 0.",
};

export function allMeasures(learned) {
  const meaning = (name) => LEARNED[name] || "A number that every head has learned.";
  const parameters = learned.map((name) => ({ key: name, title: name, show: decimals, meaning: meaning(name) }));
  return [...MEASURES, ...parameters];
}
