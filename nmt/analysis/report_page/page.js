
// The state of the page, and its events: pointer, keys and the address.

const state = {
  view: "look", sentence: 0, unit: "words", step: "predicted", two: data.models.length > 1,
  active: 0, row: null, sort: "place", descending: false, onlyModel: "", onlyType: "",
  panels: [0, 1].map((place) => firstChoice(Math.min(place, data.models.length - 1))),
};

function firstChoice(model) {
  const layers = data.models[model].layers.cross;
  return { model, type: "cross", layer: (layers - 1) >> 1, head: 0 };
}

const panels = [new Panel(0), new Panel(1)];

function choose(place, change) {
  const choice = { ...state.panels[place], ...change };
  const { layers, heads } = data.models[choice.model];
  choice.layer = Math.min(choice.layer, layers[choice.type] - 1);
  choice.head = Math.min(choice.head, heads);
  state.panels[place] = choice;
  if (change.type) state.row = null;
  panels[place].render();
  saveState();
}

function chooseSentence(sentence) {
  state.sentence = (sentence + data.sentences.length) % data.sentences.length;
  byId("sentence").value = state.sentence;
  state.row = null;
  renderLook();
}

function point(place, index) {
  if (state.row && state.row.place === place && state.row.index === index) return;
  state.row = { place, index };
  panels.forEach((panel) => panel.renderRow());
}

function activate(place) {
  state.active = place;
  panels.forEach((panel) => panel.element.classList.toggle("active", panel.place === place));
}

function renderLook() {
  byId("sentence").value = state.sentence;
  byId("unit").value = state.unit;
  byId("step").value = state.step;
  byId("beside").checked = state.two;
  const shown = state.two ? panels : panels.slice(0, 1);
  byId("panels").classList.toggle("two", state.two);
  if (byId("panels").children.length !== shown.length) {
    byId("panels").replaceChildren(...shown.map((panel) => panel.element));
  }
  if (!state.two) state.active = 0;
  activate(state.active);
  shown.forEach((panel) => panel.render());
  saveState();
}

function setView(wanted) {
  const view = wanted === "look" && !data.sentences.length ? "heads" : wanted;
  state.view = view;
  for (const element of document.querySelectorAll(".view")) element.hidden = element.id !== view;
  for (const button of document.querySelectorAll("nav button")) {
    if (button.dataset.view === view) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  if (view === "look") renderLook();
  if (view === "heads") renderHeads();
  if (view === "numbers" && !byId("numbers").children.length) renderNumbers();
  saveState();
}

const cycle = (list, value, step) => list[(list.indexOf(value) + step + list.length) % list.length];

function step(name, by) {
  const choice = state.panels[state.active];
  const { layers, heads } = data.models[choice.model];
  const count = { head: heads + 1, layer: layers[choice.type], model: data.models.length }[name];
  choose(state.active, { [name]: (choice[name] + by + count) % count });
}

function stepInTable(by) {
  const list = sortedHeads();
  const place = list.findIndex((head) => sameHead(head, state.panels[state.active]));
  const { model, type, layer, head } = list[place < 0 ? 0 : (place + by + list.length) % list.length];
  choose(state.active, { model, type, layer, head });
}

function stepWord(by) {
  const panel = panels[state.active];
  if (!panel.map) return;
  const count = panel.map.rows.length;
  const row = panel.pointed();
  point(state.active, row === null ? (by > 0 ? 0 : count - 1) : (row + by + count) % count);
}

function flip(name, values) {
  state[name] = cycle(values, state[name], 1);
  state.row = null;
  renderLook();
}

const KEYS = {
  ArrowLeft: () => step("head", -1), ArrowRight: () => step("head", 1),
  ArrowUp: () => step("layer", -1), ArrowDown: () => step("layer", 1),
  t: () => choose(state.active, { type: cycle(TYPES, state.panels[state.active].type, 1) }),
  m: () => step("model", 1),
  n: () => chooseSentence(state.sentence + 1), p: () => chooseSentence(state.sentence - 1),
  j: () => stepWord(1), k: () => stepWord(-1),
  w: () => flip("unit", ["words", "subwords"]), r: () => flip("step", ["predicted", "read"]),
  "[": () => stepInTable(-1), "]": () => stepInTable(1),
  1: () => activate(0), 2: () => { if (state.two) activate(1); },
};

document.addEventListener("keydown", (event) => {
  if (state.view !== "look" || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.closest?.("select, input") || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});

// ---- the address: #sentence=3&model=0&type=cross&layer=1&head=2&model2=1... ----

const NAMES = ["model", "type", "layer", "head"];

function saveState() {
  const parts = new URLSearchParams({
    view: state.view, sentence: state.sentence, unit: state.unit, step: state.step,
    two: Number(state.two), sort: state.sort, descending: Number(state.descending),
  });
  state.panels.forEach((choice, place) => {
    for (const name of NAMES) parts.set(place ? `${name}2` : name, choice[name]);
  });
  history.replaceState(null, "", `#${parts}`);
}

function loadState() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const oneOf = (name, values, usual) => (values.includes(parts.get(name)) ? parts.get(name) : usual);
  const number = (name, count, usual) => {
    const value = Number(parts.get(name) ?? NaN);
    return Number.isInteger(value) && value >= 0 && value < count ? value : usual;
  };
  state.view = oneOf("view", ["look", "heads", "numbers"], "look");
  state.unit = oneOf("unit", ["words", "subwords"], state.unit);
  state.step = oneOf("step", ["predicted", "read"], state.step);
  state.sort = oneOf("sort", ["place", ...COLUMNS.map(({ key }) => key)], state.sort);
  state.descending = Boolean(number("descending", 2, Number(state.descending)));
  state.sentence = number("sentence", data.sentences.length, state.sentence);
  state.two = Boolean(number("two", 2, Number(state.two)));
  state.panels = state.panels.map((before, place) => {
    const name = (key) => (place ? `${key}2` : key);
    const model = number(name("model"), data.models.length, before.model);
    const type = oneOf(name("type"), TYPES, before.type);
    const { layers, heads } = data.models[model];
    const layer = number(name("layer"), layers[type], Math.min(before.layer, layers[type] - 1));
    return { model, type, layer, head: number(name("head"), heads + 1, Math.min(before.head, heads)) };
  });
}

function begin() {
  byId("summary").textContent = data.summary;
  if (typeof DecompressionStream === "undefined") {
    byId("problem").textContent = "This browser is too old to unpack the weights (it lacks DecompressionStream).";
    byId("problem").hidden = false;
    return;
  }
  readColours();
  loadState();
  fillSelect(byId("sentence"), data.sentences.map((text, number) => [number, text]), state.sentence);
  const everything = ["", "all"];
  fillSelect(byId("only-model"), [everything, ...data.models.map(({ name }, number) => [number, name])], "");
  fillSelect(byId("only-type"), [everything, ...TYPES.map((type) => [type, data.types[type]])], "");
  byId("sentence").addEventListener("change", (event) => chooseSentence(Number(event.target.value)));
  for (const name of ["unit", "step"]) {
    byId(name).addEventListener("change", (event) => {
      state[name] = event.target.value;
      state.row = null;
      renderLook();
    });
  }
  byId("beside").addEventListener("change", (event) => {
    state.two = event.target.checked;
    renderLook();
  });
  for (const [id, name] of [["only-model", "onlyModel"], ["only-type", "onlyType"]]) {
    byId(id).addEventListener("change", (event) => {
      state[name] = event.target.value;
      renderHeads();
    });
  }
  for (const button of document.querySelectorAll("nav button")) {
    button.hidden = button.dataset.view === "look" && !data.sentences.length;
    button.addEventListener("click", () => setView(button.dataset.view));
  }
  window.addEventListener("hashchange", () => { loadState(); setView(state.view); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    if (state.view === "look") renderLook();
  });
  let waiting;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (state.view === "look") renderLook(); }, 150);
  });
  setView(state.view);
}

begin();
