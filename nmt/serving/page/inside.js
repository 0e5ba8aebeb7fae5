// The drawer with the explorer of the report page, on the active line: all models of its languages.

import { byId, isCommand } from "./explorer/elements.js";
import { Explorer } from "./explorer/explorer.js";
import { UserError, attention } from "./api.js";

const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

export class Inside {
  constructor() {
    this.wanted = null; // line and models to show
    this.shown = null;
    this.explorer = null;
    byId("inside-toggle").addEventListener("click", () => {
      const open = byId("inside-body").hidden;
      byId("inside-body").hidden = !open;
      byId("inside-toggle").ariaExpanded = String(open);
      this.render();
    });
    byId("explorer").addEventListener("keydown", (event) => {
      if (isCommand(event) || event.target.closest("select, input")) return;
      if (this.explorer?.press(event.key)) event.preventDefault();
    });
  }

  // Show a line as this model and then the others of the same languages translate it.
  look(line, model, models) {
    const others = models.filter((one) => one !== model && one.source === model.source && one.target === model.target);
    this.wanted = { line, target: line.chosen, models: [model, ...others] };
    this.render();
  }

  async render() {
    const wanted = this.wanted;
    if (!wanted || byId("inside-body").hidden || this.shown === wanted) return;
    this.shown = wanted;
    const answers = await Promise.allSettled(wanted.models.map((model, index) =>
      attention(wanted.line.source, model, index ? undefined : wanted.target)));
    if (this.wanted !== wanted) return;
    const failed = answers.find(({ status }) => status === "rejected")?.reason;
    byId("inside-problem").hidden = !failed;
    byId("inside-problem").textContent = failed?.message ?? "";
    const found = answers.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
    if (found.length) this.show(found);
    if (failed && !(failed instanceof UserError)) throw failed;
  }

  show(answers) {
    const models = answers.map((answer, index) => ({ ...answer.models[0], colour: COLOURS[index % COLOURS.length] }));
    const heads = answers.map(({ alignment_head: { layer, head } }, index) => ({ layer, head: head ?? models[index].heads }));
    const { layer, head } = answers[0].alignment_head;
    byId("links-from").textContent =
      `The links between the words come from cross-attention, layer ${layer}, ${head === null ? "mean of the heads" : `head ${head}`}.`;
    const learned = [...new Set(answers.flatMap((answer) => answer.learned))];
    if (this.explorer) this.explorer.update(models, learned);
    else {
      this.explorer = new Explorer(byId("explorer"), {
        models, learned, targetName: "translation", sameTargets: false,
      });
      // Begin with the heads that the links come from.
      this.explorer.choices = this.explorer.choices.map((choice) => ({ ...choice, ...heads[choice.model] }));
      this.explorer.render();
    }
  }
}
