// The table of all heads: sorted by any measure; a row leads to its head.

import { byId, fillSelect, make, makeButton } from "../explorer/elements.js";
import { TYPES } from "../explorer/weights.js";

const EVERYTHING = ["", "all"];
const PLACE = { key: "place", title: "head", rising: true };

function allHeads(models, columns) {
  const list = [];
  models.forEach(({ layers, heads, measures }, model) => {
    for (const type of Object.keys(TYPES)) {
      for (let layer = 0; layer < layers[type]; layer++) {
        for (let head = 0; head < heads; head++) {
          const values = {};
          for (const { key } of columns) values[key] = measures[type][layer][key]?.[head] ?? null;
          list.push({ choice: { model, type, layer, head }, values });
        }
      }
    }
  });
  return list;
}

const sameHead = (a, b) =>
  a.model === b.model && a.type === b.type && a.layer === b.layer && a.head === b.head;

export class HeadsTable {
  constructor(explorer, { onSort, onOpen }) {
    Object.assign(this, { explorer, onSort, onOpen });
    this.heads = allHeads(explorer.models, explorer.measures);
    this.columns = explorer.measures.filter(({ key }) => this.heads.some(({ values }) => values[key] !== null));
    this.sort = PLACE.key;
    this.descending = false;
    this.models = byId("only-model");
    this.types = byId("only-type");
    fillSelect(this.models, [EVERYTHING, ...explorer.models.map(({ name }, number) => [number, name])], "");
    fillSelect(this.types, [EVERYTHING, ...Object.entries(TYPES)], "");
    for (const select of [this.models, this.types]) select.addEventListener("change", () => this.render());
    byId("meanings").replaceChildren(...this.columns.flatMap(({ title, meaning }) =>
      [make("dt", title), make("dd", meaning)]));
  }

  sorted() {
    const list = this.heads.filter(({ choice }) =>
      (this.models.value === "" || choice.model === Number(this.models.value)) &&
      (this.types.value === "" || choice.type === this.types.value));
    if (this.sort === PLACE.key) return this.descending ? list.reverse() : list;
    const sign = this.descending ? -1 : 1;
    return list.sort((a, b) => {
      const [left, right] = [a.values[this.sort], b.values[this.sort]];
      if (left === null || right === null) return (left === null) - (right === null); // last
      return sign * (left - right);
    });
  }

  // The head some rows below the one that is shown, in the order of the table.
  neighbour(by) {
    const list = this.sorted();
    const shown = this.explorer.choices[this.explorer.active];
    const place = list.findIndex(({ choice }) => sameHead(choice, shown));
    return list[place < 0 ? 0 : (place + by + list.length) % list.length].choice;
  }

  render() {
    const table = byId("overview");
    const headings = [PLACE, ...this.columns].map((column) => this.heading(column));
    table.tHead.replaceChildren(make("tr", headings));
    table.tBodies[0].replaceChildren(...this.sorted().map((head) => this.rowOf(head)));
  }

  heading({ key, title, meaning = "", rising }) {
    const button = makeButton(title, "", () => {
      this.descending = this.sort === key ? !this.descending : !rising;
      this.sort = key;
      this.render();
      this.onSort();
    });
    button.title = meaning;
    const cell = make("th", [button], key === PLACE.key ? "label" : "");
    if (this.sort === key) cell.ariaSort = this.descending ? "descending" : "ascending";
    return cell;
  }

  rowOf({ choice, values }) {
    const { model, type, layer, head } = choice;
    const { colour, name } = this.explorer.models[model];
    const dot = make("span", undefined, "dot");
    dot.style.setProperty("--model", colour);
    const label = make("td", [dot, make("bdi", name), `, ${TYPES[type]} ${layer}, head ${head}`], "label");
    const row = make("tr", [label, ...this.columns.map(({ key, show }) => make("td", show(values[key])))]);
    row.tabIndex = 0;
    row.classList.toggle("current", sameHead(choice, this.explorer.choices[this.explorer.active]));
    row.addEventListener("click", () => this.onOpen(choice));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") this.onOpen(choice); });
    return row;
  }

  save(parts) {
    parts.set("sort", this.sort);
    parts.set("descending", Number(this.descending));
  }

  load(parts) {
    const wanted = parts.get("sort");
    if ([PLACE, ...this.columns].some(({ key }) => key === wanted)) this.sort = wanted;
    if (["0", "1"].includes(parts.get("descending"))) this.descending = parts.get("descending") === "1";
  }
}
