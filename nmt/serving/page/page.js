// The page: text on the left, its translation on the right as one types, and how words belong together.

import { byId, fillSelect, findDirection, make, makeButton } from "./explorer/elements.js";
import { UserError, ask, attention, translateLines, useKey } from "./api.js";
import { FileTranslation } from "./file.js";
import { Inside } from "./inside.js";
import { OutputLine, splitWords, sureness } from "./words.js";

const TYPING = 250; // milliseconds without a key before the text is translated
const LOOKING = 150; // before the words of a line are asked for
const SPOKEN = 400; // characters of a translation that a screen reader is given
const CACHED = 5000; // lines
const LONGEST = 100_000; // characters; browsers are slow with longer text fields

const source = byId("source");
const state = {
  models: [],
  model: null,
  lines: [], // of the translation
  active: 0, // the line whose words and heads are shown
  sourceSpans: [], // the words of this line in the mirror of the text field
  sourceStarts: [], // and their places in the line
  request: null, // what aborts the translation under way
  pointed: "", // side and word under the pointer
};
const translations = new Map(); // model and line -> { text, warning }

// ---- errors ----

// The server names the field that it refuses, which says nothing here.
function describeProblem({ message, status }) {
  return status ? `Not translated: ${message.replace(/^q: /, "")}` : message;
}

function showProblem(error) {
  if (error?.name === "AbortError") return;
  byId("problem").textContent = error ? describeProblem(error) : "";
  byId("problem").hidden = !error;
  if (error && !(error instanceof UserError)) throw error;
  if (error?.status === 401 || error?.status === 403) byId("key-form").hidden = false;
}

// ---- translating ----

const cacheName = (line, model = state.model) => JSON.stringify([model.name, model.version, line]);

function remember(found, model) {
  for (const one of found) translations.set(cacheName(one.line, model), one);
  while (translations.size > CACHED) translations.delete(translations.keys().next().value);
}

function later(milliseconds, action) {
  let waiting;
  return () => {
    clearTimeout(waiting);
    waiting = setTimeout(action, milliseconds);
  };
}

async function translate() {
  state.request?.abort();
  const request = (state.request = new AbortController());
  const { model } = state;
  const texts = source.value.split("\n");
  reuseLines(texts);
  const missing = [...new Set(texts)].filter((text) => text.trim() && !translations.has(cacheName(text)));
  byId("output").ariaBusy = String(missing.length > 0);
  try {
    await translateLines(missing, model, {
      signal: request.signal,
      onSome: (found) => { remember(found, model); showTranslations(); },
    });
    showProblem(null);
    showTranslations();
    speak();
    activate(state.active);
  } catch (error) {
    showProblem(error);
  } finally {
    if (state.request === request) byId("output").ariaBusy = "false";
  }
}

// Lines that are as before keep their element, their words and what was chosen.
function reuseLines(texts) {
  const before = state.lines;
  const known = new Map(before.map((line) => [line.source, line]));
  state.lines = texts.map((text, index) => {
    const line = known.get(text) ?? new OutputLine(text, before[index]?.element.textContent ?? "");
    known.delete(text);
    return line;
  });
  state.active = caretLine();
  byId("output").replaceChildren(...state.lines.map(({ element }) => element));
}

function showTranslations() {
  const warnings = [];
  state.lines.forEach((line, index) => {
    const found = line.source.trim() ? translations.get(cacheName(line.source)) : { text: "" };
    if (found) line.show(line.chosen ?? found.text);
    if (found?.warning) warnings.push(`Line ${index + 1}: ${found.warning}.`);
  });
  byId("notice").textContent = warnings.join(" ");
  byId("notice").hidden = !warnings.length;
  byId("copy").hidden = !navigator.clipboard || !source.value.trim();
}

const translatedText = () => state.lines.map(({ text }) => text ?? "").join("\n");

function speak() {
  byId("spoken").textContent = translatedText().slice(0, SPOKEN);
}

const translateSoon = later(TYPING, translate);

// ---- the line whose words and heads are shown ----

const caretLine = () => source.value.slice(0, source.selectionStart).split("\n").length - 1;

// Where the active line begins in the text.
const lineStart = () => source.value.split("\n").slice(0, state.active).reduce((sum, text) => sum + text.length + 1, 0);

function activate(index) {
  state.active = Math.max(0, Math.min(index, state.lines.length - 1));
  state.lines.forEach((line, place) => line.element.classList.toggle("active", place === state.active && state.lines.length > 1));
  mirror();
  lookSoon();
}

const lookSoon = later(LOOKING, async () => {
  const line = state.lines[state.active];
  const { model } = state;
  const empty = !line?.text || !line.source.trim();
  byId("inside").hidden = empty;
  if (empty) {
    showOthers(null);
    return;
  }
  const { chosen } = line;
  const isWanted = () => state.lines[state.active] === line && state.model === model && line.chosen === chosen;
  try {
    const details = line.details ?? await attention(line.source, model, chosen);
    if (!isWanted()) return;
    if (!line.details) line.showDetails(details);
    mirror();
    showOthers(line);
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    if (!isWanted()) return;
    showOthers(line);
    byId("readout").textContent = `Words cannot be shown: ${error.message}`;
  }
  inside.look(line, model, state.models);
});

// The text again, behind the text field: its words show which are linked.
function mirror() {
  const line = state.lines[state.active];
  state.sourceSpans = [];
  state.pointed = "";
  if (!line?.details || source.value.split("\n")[state.active] !== line.source) {
    byId("mirror").textContent = `${source.value}\n`;
  } else {
    const start = lineStart();
    const { parts, spans, starts } = splitWords(line.source, line.details.source_words);
    Object.assign(state, { sourceSpans: spans, sourceStarts: starts });
    const after = source.value.slice(start + line.source.length);
    const here = make("span", parts, state.lines.length > 1 ? "here" : "");
    byId("mirror").replaceChildren(source.value.slice(0, start), here, `${after}\n`);
  }
  findDirection(byId("mirror"));
}

// ---- pointing at words ----

// Mark a word and those on the other side that it is linked with. `side` is 0 for the source.
function point(side, word) {
  const line = state.lines[state.active];
  const pointed = word === null ? "" : `${side} ${word}`;
  if (!line?.details || pointed === state.pointed) return;
  state.pointed = pointed;
  const sides = [state.sourceSpans, line.spans];
  for (const span of sides.flat()) span.classList.remove("pointed", "linked");
  if (word === null) {
    explainMarks(line);
    return;
  }
  sides[side][word]?.classList.add("pointed");
  const others = line.details.links.filter((link) => link[side] === word).map((link) => link[1 - side]);
  for (const other of others) sides[1 - side][other]?.classList.add("linked");
  readOut(line, side, word, others);
}

function readOut(line, side, word, others) {
  const { source_words: sources, target_words: targets } = line.details;
  const names = [sources, targets.map(({ text }) => text)];
  const linked = others.length ? others.flatMap((other, index) => [...(index ? [", "] : []), make("bdi", names[1 - side][other])])
    : [make("span", "no word", "nothing")];
  const sure = side ? [` · ${Math.round(100 * targets[word].probability)} % sure`] : [];
  byId("readout").replaceChildren(make("bdi", names[side][word]), ...sure, " · linked with ", ...linked);
}

function explainMarks(line) {
  const marks = line.details.target_words.map(({ probability }) => sureness(probability));
  const notes = [];
  if (marks.includes("doubtful")) notes.push(make("span", "dotted", "doubtful"), ": below 80 % sure. ");
  if (marks.includes("unsure")) notes.push(make("span", "dashed", "unsure"), ": below 50 %. ");
  byId("readout").replaceChildren(...notes, "Point at a word to see its links.");
}

// The word of the text field under the pointer, found in its mirror.
function mirrorWord(x, y) {
  const index = state.sourceSpans.findIndex((span) => [...span.getClientRects()].some((box) =>
    x >= box.left && x <= box.right && y >= box.top && y <= box.bottom));
  return index < 0 ? null : index;
}

// The word of the text field at the caret.
function caretWord() {
  const place = source.selectionStart - lineStart();
  const index = state.sourceSpans.findIndex((span, word) =>
    state.sourceStarts[word] >= 0 && place >= state.sourceStarts[word] &&
    place <= state.sourceStarts[word] + span.textContent.length);
  return index < 0 ? null : index;
}

// ---- other translations ----

const shareText = (share) => (share < 0.001 ? "below 0.1 %" : `${(100 * share).toFixed(1)} %`);

// The list is made anew; the focus stays at its place in it.
function showOthers(line) {
  const nbest = line?.nbest ?? [];
  const focused = [...byId("nbest").children].findIndex((item) => item.contains(document.activeElement));
  byId("others").hidden = nbest.length < 2;
  if (line?.details) explainMarks(line);
  else byId("readout").replaceChildren();
  byId("nbest").replaceChildren(...nbest.map(({ text, log_probability }) => {
    const button = makeButton(text, "", () => chooseOther(line, text));
    button.dir = "auto";
    button.lang = state.model.target;
    button.ariaPressed = String(text === line.text);
    return make("li", [button, make("span", shareText(Math.exp(log_probability)), "share")]);
  }));
  byId("nbest").children[focused]?.firstElementChild.focus();
}

function chooseOther(line, text) {
  if (!state.lines.includes(line)) return; // its text has changed since
  line.chosen = text === line.nbest[0].text ? undefined : text;
  line.show(text);
  showOthers(line);
  speak();
  activate(state.lines.indexOf(line));
}

// ---- events ----

function listenToSource() {
  source.addEventListener("input", () => {
    byId("clear").hidden = !source.value;
    if (source.value.length > LONGEST) {
      showProblem(new UserError("This text has more than 100,000 characters: translate it as a file."));
      return;
    }
    mirror();
    translateSoon();
  });
  source.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.ctrlKey) translate();
  });
  document.addEventListener("selectionchange", () => {
    if (document.activeElement !== source) return;
    if (caretLine() !== state.active) activate(caretLine());
    else point(0, caretWord());
  });
  source.addEventListener("pointermove", (event) => point(0, mirrorWord(event.clientX, event.clientY)));
  source.addEventListener("pointerleave", () => point(0, null));
  byId("clear").addEventListener("click", () => {
    source.value = "";
    source.dispatchEvent(new Event("input"));
    source.focus();
  });
}

function listenToOutput() {
  const output = byId("output");
  for (const name of ["pointerover", "focusin"]) {
    output.addEventListener(name, (event) => {
      const { line } = event.target.closest(".line") ?? {};
      if (!line) return;
      if (state.lines[state.active] !== line) activate(state.lines.indexOf(line));
      const word = event.target.closest("[data-word]");
      point(1, word ? Number(word.dataset.word) : null);
    });
  }
  output.addEventListener("pointerleave", () => point(1, null));
  output.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const word = event.target.closest("[data-word]");
    if (!step || !word) return;
    event.preventDefault();
    const { spans } = word.closest(".line").line;
    const next = spans[Number(word.dataset.word) + step];
    if (!next) return;
    word.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  byId("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(translatedText());
    } catch {
      showProblem(new UserError("The browser does not allow to copy: select the text instead."));
      return;
    }
    byId("copy").textContent = "Copied";
    setTimeout(() => { byId("copy").textContent = "Copy"; }, 1500);
  });
}

// ---- models ----

function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code; // no code of a language
  }
}

function chooseModel(name) {
  state.model = state.models.find((model) => model.name === name);
  byId("source-name").textContent = languageName(state.model.source);
  byId("target-name").textContent = languageName(state.model.target);
  source.lang = state.model.source;
  byId("output").lang = state.model.target;
  state.lines = []; // of another model
  translate();
}

async function begin() {
  try {
    state.models = await ask("models");
  } catch (error) {
    showProblem(error);
    return;
  }
  const names = state.models.map(({ name, source: from, target: to }) => [name, `${name} (${from} → ${to})`]);
  fillSelect(byId("model"), names, state.models[0].name);
  byId("model-choice").hidden = state.models.length < 2;
  byId("model").addEventListener("change", () => chooseModel(byId("model").value));
  listenToSource();
  listenToOutput();
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value);
    byId("key-form").hidden = true;
    translate();
  });
  new FileTranslation(() => state.model, showProblem);
  chooseModel(state.models[0].name);
}

const inside = new Inside();
begin();
