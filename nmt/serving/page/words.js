// Lines of words that can be pointed at. Text becomes text nodes only.

import { findDirection, make } from "./explorer/elements.js";

// The text as spans for these words, in order, and plain text between them. `starts` are the places
// of the words in the text, -1 where the tokenizer has changed a word so that it cannot be found.
export function splitWords(text, words) {
  const [parts, spans, starts] = [[], [], []];
  let place = 0;
  for (const word of words) {
    const found = word ? text.indexOf(word, place) : -1;
    const span = make("span", word, "word");
    span.dataset.word = spans.length;
    spans.push(span);
    starts.push(found);
    if (found < 0) continue;
    if (found > place) parts.push(text.slice(place, found));
    parts.push(span);
    place = found + word.length;
  }
  parts.push(text.slice(place));
  return { parts, spans, starts };
}

// How sure the model is of a word, as a class and in words.
export function sureness(probability) {
  if (probability < 0.5) return "unsure";
  return probability < 0.8 ? "doubtful" : "";
}

// One line of the translation.
export class OutputLine {
  // `before` is the text that stands here until the translation is there.
  constructor(source, before) {
    this.source = source;
    this.element = make("p", before, "line stale");
    this.element.line = this;
    this.text = null; // null: not translated yet
    this.chosen = undefined; // another translation that the user has chosen
    this.details = null; // the answer of the server about words and heads
    this.nbest = []; // the translations to choose from, the best first
    this.spans = [];
  }

  show(text) {
    if (text === this.text) return;
    this.text = text;
    this.details = null;
    this.spans = [];
    this.element.classList.remove("stale");
    this.element.textContent = text;
    findDirection(this.element);
  }

  showDetails(details) {
    this.details = details;
    this.nbest = details.nbest;
    const { parts, spans } = splitWords(this.text, details.target_words.map(({ text }) => text));
    this.spans = spans;
    details.target_words.forEach(({ probability }, index) => {
      const name = sureness(probability);
      if (name) spans[index].classList.add(name);
      spans[index].role = "button";
      spans[index].tabIndex = index ? -1 : 0;
    });
    this.element.replaceChildren(...parts);
    findDirection(this.element);
  }
}
