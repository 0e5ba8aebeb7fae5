
// A panel: one head on one sentence as text and heat map, and the other heads of its layer.

class Panel {
  constructor(place) {
    this.place = place;
    this.element = byId("panel").content.firstElementChild.cloneNode(true);
    this.element.setAttribute("aria-label", `Attention ${place + 1}`);
    this.find = (selector) => this.element.querySelector(selector);
    this.canvas = this.find(".map canvas");
    for (const select of this.element.querySelectorAll("select")) {
      select.addEventListener("change", () => {
        const name = select.dataset.choice;
        choose(place, { [name]: name === "type" ? select.value : Number(select.value) });
      });
    }
    this.element.addEventListener("pointerdown", () => activate(place));
    this.element.addEventListener("focusin", () => activate(place));
    this.canvas.addEventListener("pointermove", (event) => {
      const row = Math.floor(event.offsetY / this.cell);
      if (this.map && row >= 0 && row < this.map.rows.length) point(place, row);
    });
    for (const selector of [".queries", ".rows"]) {
      for (const name of ["pointerover", "focusin"]) {
        this.find(selector).addEventListener(name, (event) => {
          const row = event.target.closest("[data-row]");
          if (row) point(place, Number(row.dataset.row));
        });
      }
    }
  }

  get choice() { return state.panels[this.place]; }

  async render() {
    this.renderControls();
    this.renderMeasures();
    const request = (this.request = {});
    const shown = data.models[this.choice.model].sentences[state.sentence];
    this.map = null;
    if (!shown) {
      this.renderWords();
      this.find(".readout").textContent = "This sentence is too long for this model.";
      return;
    }
    const buffer = await unpack(this.choice.model, state.sentence);
    if (this.request !== request) return; // something else was chosen meanwhile
    this.map = heatMap(buffer, this.choice, state.sentence);
    this.renderWords();
    this.renderMap();
    this.renderThumbs(buffer);
    this.renderRow();
  }

  renderControls() {
    const { model, type, layer, head } = this.choice;
    const { layers, heads, colour } = data.models[model];
    this.element.style.setProperty("--model", colour);
    const numbers = (count) => Array.from({ length: count }, (_, number) => [number, number]);
    const select = (name) => this.find(`[data-choice=${name}]`);
    fillSelect(select("model"), data.models.map(({ name }, number) => [number, name]), model);
    fillSelect(select("type"), TYPES.map((name) => [name, data.types[name].replace("-attention", "")]), type);
    fillSelect(select("layer"), numbers(layers[type]), layer);
    fillSelect(select("head"), [...numbers(heads), [heads, "mean"]], head);
  }

  renderMeasures() {
    const { model, type, layer, head } = this.choice;
    const measures = data.models[model].measures[type][layer];
    const list = COLUMNS.filter(({ key }) => measures[key]).map(({ key, title, show }) => {
      const entry = make("div");
      entry.append(make("dt", title), make("dd", show(measures[key][head]) || "–"));
      return entry;
    });
    const kind = make("div");
    kind.append(make("dt", "kind"), make("dd", data.models[model].attention[type]));
    this.find(".measures").replaceChildren(kind, ...list);
  }

  renderWords() {
    const map = this.map || { rows: [], columns: [], nulls: [] };
    const type = this.choice.type;
    this.find(".keys-name").textContent = type === "decoder_self" ? "target so far" : "source";
    this.find(".queries-name").textContent = type === "encoder_self" ? "source" : "target";
    this.find(".keys").replaceChildren(...spaced(map.columns.map(({ text, special }) =>
      make("span", text, special ? "special" : ""))));
    this.find(".queries").replaceChildren(...spaced(map.rows.map(({ text, special }, row) => {
      const button = make("button", text, special ? "special" : "");
      button.type = "button";
      button.dataset.row = row;
      button.classList.toggle("null", map.nulls[row]);
      return button;
    })));
    // Set again, because Chromium ignores words that were replaced.
    for (const line of this.element.querySelectorAll(".words")) {
      line.removeAttribute("dir");
      line.dir = "auto";
    }
    this.find(".pictures").hidden = !this.map;
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
    const { model, type, layer, head } = this.choice;
    const { heads, measures } = data.models[model];
    const buttons = [];
    for (let number = 0; number <= heads; number++) {
      const map = heatMap(buffer, { model, type, layer, head: number }, state.sentence);
      const canvas = make("canvas");
      canvas.width = map.columns.length;
      canvas.height = map.rows.length;
      const image = new ImageData(canvas.width, canvas.height);
      for (let index = 0; index < canvas.width * canvas.height; index++) {
        const [row, column] = [Math.floor(index / canvas.width), index % canvas.width];
        image.data.set([...cellColour(map, row, column), 255], 4 * index);
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
      const button = make("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(number === head));
      const nulls = measures[type][layer].null_rate[number];
      const note = number < heads && nulls > 0 ? ` · ${Math.round(100 * nulls)} % null` : "";
      button.append(canvas, number === heads ? "mean" : `${number}${note}`);
      button.addEventListener("click", () => choose(this.place, { head: number }));
      buttons.push(button);
    }
    this.find(".thumbs").replaceChildren(...buttons);
  }

  // The row under the pointer, in this panel or, if rows are the same words, in the other one.
  pointed() {
    if (state.row === null || !this.map || state.row.index >= this.map.rows.length) return null;
    const other = state.panels[state.row.place];
    const same = state.row.place === this.place ||
      (state.unit === "words" && (other.type === "encoder_self") === (this.choice.type === "encoder_self"));
    return same ? state.row.index : null;
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
    order.slice(0, 6).forEach(([weight, column], index) => {
      if (index) readout.append(", ");
      readout.append(make("bdi", this.map.columns[column].text), ` ${weightText(weight)}`);
    });
    if (order.length > 6) readout.append(`, and ${order.length - 6} more`);
  }
}

// Spaces between words, so that lines can break and copied text is readable.
function spaced(elements) {
  return elements.flatMap((element, index) => (index ? [" ", element] : [element]));
}
