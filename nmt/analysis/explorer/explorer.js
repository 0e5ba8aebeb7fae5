// The explorer: one head, or two side by side, on one sentence. It is part of the report page and of
// the page of nmt-serve, and takes pointer and keys.

import { readColours } from "./colours.js";
import { labelledSelect, make } from "./elements.js";
import { allMeasures } from "./measures.js";
import { Panel } from "./panel.js";
import { TYPES } from "./weights.js";

const UNITS = { words: "words", subwords: "subwords" };
const STEPS = { predicted: "predicted words", read: "words just read (shifted)" };
const LEGEND = {
  weight: "weight, from small to large", zero: "exactly 0",
  null: "attends to nothing (null)", "hidden-cell": "masked",
};
const HELP = [
  ["←", "→", "head"], ["↑", "↓", "layer"], ["t", "attention"], ["m", "model"], ["j", "k", "word"],
  ["w", "words or subwords"], ["r", "rows"], ["1", "2", "side"],
];
const NAMES = ["model", "type", "layer", "head"];

const cycle = (list, value, step) => list[(list.indexOf(value) + step + list.length) % list.length];

export class Explorer {
  // `models` as nmt/analysis/explorer_data.py describes them; `targetName` is what the second text is
  // called; `sameTargets` says that all models read the same second text; `help` are further keys;
  // `onChange` is called when the choice has changed.
  constructor(root, { models, learned = [], targetName, sameTargets, help = [], onChange = () => {} }) {
    Object.assign(this, { models, targetName, sameTargets, onChange });
    this.measures = allMeasures(learned);
    this.sentence = 0;
    this.unit = "words";
    this.step = "predicted";
    this.two = models.length > 1;
    this.active = 0;
    this.row = null; // { place, index } of the row under the pointer
    this.choices = [0, 1].map((place) => this.firstChoice(Math.min(place, models.length - 1)));
    this.panels = [new Panel(this, 0), new Panel(this, 1)];
    this.build(root, help);
    readColours();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      readColours();
      if (root.checkVisibility()) this.render();
    });
    let waiting;
    window.addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => { if (root.checkVisibility()) this.render(); }, 150);
    });
  }

  firstChoice(model) {
    return { model, type: "cross", layer: (this.models[model].layers.cross - 1) >> 1, head: 0 };
  }

  build(root, help) {
    const change = (name) => (value) => { this[name] = value; this.row = null; this.render(); };
    const unit = labelledSelect("Show", Object.entries(UNITS), change("unit"));
    const step = labelledSelect("Rows are", Object.entries(STEPS), change("step"));
    this.selects = { unit: unit.select, step: step.select };
    this.beside = make("input");
    this.beside.type = "checkbox";
    this.beside.addEventListener("change", () => { this.two = this.beside.checked; this.render(); });
    const beside = make("label", [this.beside, " two heads side by side"]);
    this.bar = make("div", [unit.label, step.label, beside], "bar");
    this.grid = make("div", undefined, "panels");
    this.swatches = Object.entries(LEGEND).map(([name, text]) => {
      const item = make("span", [make("span", undefined, `swatch ${name}`), ` ${text}`]);
      item.dataset.legend = name;
      return item;
    });
    const keys = [...HELP, ...help].flatMap((entry, index) => [
      ...(index ? [" · "] : []), ...entry.slice(0, -1).flatMap((key) => [make("kbd", key), " "]), entry.at(-1),
    ]);
    root.append(this.bar, this.grid, make("p", this.swatches, "legend"), make("p", keys, "help"));
  }

  choose(place, change) {
    const choice = { ...this.choices[place], ...change };
    const { layers, heads } = this.models[choice.model];
    choice.layer = Math.min(choice.layer, layers[choice.type] - 1);
    choice.head = Math.min(choice.head, heads);
    this.choices[place] = choice;
    if (change.type) this.row = null;
    this.panels[place].render();
    this.renderLegend();
    this.onChange();
  }

  // Show other data of as many models as there are now; what was chosen stays where it can.
  update(models, learned) {
    this.models = models;
    this.measures = allMeasures(learned);
    this.row = null;
    this.choices = this.choices.map((choice) => {
      const model = Math.min(choice.model, models.length - 1);
      const layer = Math.min(choice.layer, models[model].layers[choice.type] - 1);
      return { ...choice, model, layer, head: Math.min(choice.head, models[model].heads) };
    });
    this.render();
  }

  // Show another sentence, whose texts and weights each model has at this index.
  chooseSentence(sentence) {
    this.sentence = sentence;
    this.row = null;
    this.render();
  }

  point(place, index) {
    if (this.row && this.row.place === place && this.row.index === index) return;
    this.row = { place, index };
    this.panels.forEach((panel) => panel.renderRow());
  }

  activate(place) {
    this.active = place;
    this.panels.forEach((panel) => panel.element.classList.toggle("active", panel.place === place));
  }

  render() {
    this.selects.unit.value = this.unit;
    this.selects.step.value = this.step;
    this.beside.checked = this.two;
    const shown = this.shownPanels();
    this.grid.classList.toggle("two", this.two);
    if (this.grid.children.length !== shown.length) {
      this.grid.replaceChildren(...shown.map((panel) => panel.element));
    }
    this.activate(this.two ? this.active : 0);
    shown.forEach((panel) => panel.render());
    this.renderLegend();
    this.onChange();
  }

  shownPanels() { return this.two ? this.panels : this.panels.slice(0, 1); }

  // Only what can occur in the panels.
  renderLegend() {
    const panels = this.shownPanels();
    const occurs = {
      null: panels.some((panel) => panel.model.nullable[panel.choice.type]),
      "hidden-cell": panels.some((panel) => panel.choice.type === "decoder_self"),
    };
    for (const item of this.swatches) item.hidden = occurs[item.dataset.legend] === false;
  }

  // Do what a key stands for; returns whether it stands for anything.
  press(key) {
    const change = (name, by) => {
      const choice = this.choices[this.active];
      const { layers, heads } = this.models[choice.model];
      const count = { head: heads + 1, layer: layers[choice.type], model: this.models.length }[name];
      this.choose(this.active, { [name]: (choice[name] + by + count) % count });
    };
    const flip = (name, values) => {
      this[name] = cycle(Object.keys(values), this[name], 1);
      this.row = null;
      this.render();
    };
    const actions = {
      ArrowLeft: () => change("head", -1), ArrowRight: () => change("head", 1),
      ArrowUp: () => change("layer", -1), ArrowDown: () => change("layer", 1),
      t: () => this.choose(this.active, { type: cycle(Object.keys(TYPES), this.choices[this.active].type, 1) }),
      m: () => change("model", 1),
      j: () => this.stepWord(1), k: () => this.stepWord(-1),
      w: () => flip("unit", UNITS), r: () => flip("step", STEPS),
      1: () => this.activate(0), 2: () => { if (this.two) this.activate(1); },
    };
    if (!Object.hasOwn(actions, key)) return false;
    actions[key]();
    return true;
  }

  stepWord(by) {
    const panel = this.panels[this.active];
    if (!panel.map) return;
    const count = panel.map.rows.length;
    const row = panel.pointed();
    this.point(this.active, row === null ? (by > 0 ? 0 : count - 1) : (row + by + count) % count);
  }

  // ---- the address: #sentence=3&model=0&type=cross&layer=1&head=2&model2=1... ----

  save(parts) {
    const { sentence, unit, step, two } = this;
    for (const [name, value] of Object.entries({ sentence, unit, step, two: Number(two) })) parts.set(name, value);
    this.choices.forEach((choice, place) => {
      for (const name of NAMES) parts.set(place ? `${name}2` : name, choice[name]);
    });
  }

  load(parts) {
    const oneOf = (name, values, usual) => (Object.hasOwn(values, parts.get(name)) ? parts.get(name) : usual);
    const number = (name, count, usual) => {
      const value = Number(parts.get(name) ?? NaN);
      return Number.isInteger(value) && value >= 0 && value < count ? value : usual;
    };
    this.unit = oneOf("unit", UNITS, this.unit);
    this.step = oneOf("step", STEPS, this.step);
    this.sentence = number("sentence", this.models[0].sentences.length, this.sentence);
    this.two = Boolean(number("two", 2, Number(this.two)));
    this.choices = this.choices.map((before, place) => {
      const name = (key) => (place ? `${key}2` : key);
      const model = number(name("model"), this.models.length, before.model);
      const type = oneOf(name("type"), TYPES, before.type);
      const { layers, heads } = this.models[model];
      const layer = number(name("layer"), layers[type], Math.min(before.layer, layers[type] - 1));
      return { model, type, layer, head: number(name("head"), heads + 1, Math.min(before.head, heads)) };
    });
  }
}
