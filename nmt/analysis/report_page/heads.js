
// The table of all heads, and the page of tables and figures.

const COLUMNS = [
  { key: "null_rate", title: "null rate", show: percent },
  { key: "shuffled_null_rate", title: "shuffled", show: percent },
  { key: "sparsity", title: "sparsity", show: percent },
  { key: "entropy", title: "entropy", show: decimals },
  { key: "aer_normal", title: "AER normal", show: percent, rising: true },
  { key: "aer_shifted", title: "AER shifted", show: percent, rising: true },
  ...data.learned.map((key) => ({ key, title: key, show: decimals })),
];

function allHeads() {
  const list = [];
  data.models.forEach(({ layers, heads, measures }, model) => {
    for (const type of TYPES) {
      for (let layer = 0; layer < layers[type]; layer++) {
        for (let head = 0; head < heads; head++) {
          const values = {};
          for (const { key } of COLUMNS) values[key] = measures[type][layer][key]?.[head] ?? null;
          list.push({ model, type, layer, head, values });
        }
      }
    }
  });
  return list;
}

const HEADS = allHeads();

function sortedHeads() {
  const list = HEADS.filter(({ model, type }) =>
    (state.onlyModel === "" || model === Number(state.onlyModel)) &&
    (state.onlyType === "" || type === state.onlyType));
  if (state.sort === "place") return state.descending ? list.reverse() : list;
  const sign = state.descending ? -1 : 1;
  return list.sort((a, b) => {
    const [left, right] = [a.values[state.sort], b.values[state.sort]];
    if (left === null || right === null) return (left === null) - (right === null); // last
    return sign * (left - right);
  });
}

const sameHead = (a, b) =>
  a.model === b.model && a.type === b.type && a.layer === b.layer && a.head === b.head;

function renderHeads() {
  const columns = COLUMNS.filter(({ key }) => HEADS.some(({ values }) => values[key] !== null));
  const heading = make("tr");
  for (const { key, title, rising } of [{ key: "place", title: "head", rising: true }, ...columns]) {
    const cell = make("th", undefined, key === "place" ? "label" : "");
    const button = make("button", title);
    button.type = "button";
    button.addEventListener("click", () => {
      state.descending = state.sort === key ? !state.descending : !rising;
      state.sort = key;
      renderHeads();
      saveState();
    });
    if (state.sort === key) cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
    cell.append(button);
    heading.append(cell);
  }
  const table = byId("overview");
  table.tHead.replaceChildren(heading);
  table.tBodies[0].replaceChildren(...sortedHeads().map((head) => {
    const { model, type, layer, head: number, values } = head;
    const row = make("tr");
    row.tabIndex = 0;
    row.classList.toggle("current", sameHead(head, state.panels[state.active]));
    const dot = make("span", undefined, "dot");
    dot.style.setProperty("--model", data.models[model].colour);
    const name = make("td", undefined, "label");
    name.append(dot, make("bdi", data.models[model].name), `, ${data.types[type]} ${layer}, head ${number}`);
    row.append(name, ...columns.map(({ key, show }) => make("td", show(values[key]))));
    const open = () => {
      setView("look");
      choose(state.active, { model, type, layer, head: number });
    };
    row.addEventListener("click", open);
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
    return row;
  }));
}

// ---- tables and figures ----

function renderNumbers() {
  const parts = data.figures.map(({ title, caption, png }) => {
    const figure = make("figure");
    const image = make("img");
    image.src = `data:image/png;base64,${png}`;
    image.alt = title;
    figure.append(make("h2", title), image, make("figcaption", `${caption}.`));
    return figure;
  });
  for (const { title, note, columns, rows, labels } of data.tables) {
    const table = make("table");
    const row = (tag, cells) => {
      const line = make("tr");
      line.append(...cells.map((text, place) => make(tag, text, place < labels ? "label" : "")));
      return line;
    };
    table.createTHead().append(row("th", columns));
    table.createTBody().append(...rows.map((cells) => row("td", cells)));
    const scroll = make("div", undefined, "scroll");
    scroll.append(table);
    parts.push(make("h2", title), make("p", note && `${note}.`, "note"), scroll);
  }
  byId("numbers").replaceChildren(...parts);
}
