// A text file, translated line by line, with progress; the result can be saved.

import { byId } from "./explorer/elements.js";
import { UserError, translateLines } from "./api.js";

const LARGEST = 20_000_000; // bytes

function resultName(name, language) {
  const place = name.lastIndexOf(".");
  return place > 0 ? `${name.slice(0, place)}.${language}${name.slice(place)}` : `${name}.${language}`;
}

export class FileTranslation {
  // `currentModel` gives the model to use; `showProblem` shows an error, or takes it away (null).
  constructor(currentModel, showProblem) {
    Object.assign(this, { currentModel, showProblem });
    this.request = null;
    this.chosen = 0; // number of files chosen
    this.taken = 0; // the last of them that is translated
    byId("file").addEventListener("change", () => {
      const [file] = byId("file").files;
      if (file) this.translate(file);
      byId("file").value = ""; // so that the same file can be chosen again
    });
    byId("file-stop").addEventListener("click", () => this.request?.abort());
    for (const name of ["dragenter", "dragover"]) {
      document.addEventListener(name, (event) => {
        if (!event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        document.body.classList.add("dropping");
      });
    }
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("dropping");
    });
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      const [file] = event.dataTransfer?.files ?? [];
      if (!file) return;
      event.preventDefault();
      this.translate(file);
    });
  }

  async translate(file) {
    const number = ++this.chosen;
    const model = this.currentModel();
    this.showProblem(null);
    const lines = await this.read(file);
    if (!lines || number < this.taken) return; // a file chosen later was read faster
    this.taken = number;
    this.request?.abort();
    const request = (this.request = new AbortController());
    byId("file-progress").hidden = false;
    byId("file-stop").hidden = false;
    byId("file-save").hidden = true;
    byId("file-bar").max = Math.max(lines.texts.length, 1);
    const [done, cut] = [[], []]; // translations, and numbers of lines that were too long
    const showProgress = (note = "") => {
      byId("file-bar").value = done.length;
      byId("file-state").textContent =
        `${file.name}: ${done.length.toLocaleString("en")} of ${lines.texts.length.toLocaleString("en")} lines${note}`;
    };
    showProgress();
    try {
      await translateLines(lines.texts, model, {
        signal: request.signal,
        onSome: (found) => {
          found.forEach(({ warning }, index) => { if (warning) cut.push(done.length + index + 1); });
          done.push(...found.map(({ text }) => text));
          showProgress();
        },
      });
      if (cut.length) showProgress(`; too long, and cut: line ${cut.join(", ")}`);
    } catch (error) {
      this.showProblem(error);
      if (this.request === request) showProgress(", then it was stopped");
    }
    if (this.request !== request) return; // another file has taken its place
    byId("file-stop").hidden = true;
    const result = done.map((text, index) => text + lines.ends[index]).join("");
    this.offer(result, resultName(file.name, model.target), done.length);
  }

  // The lines of a file and their ends.
  async read(file) {
    if (file.size > LARGEST) {
      this.showProblem(new UserError(`${file.name} is larger than ${LARGEST / 1e6} MB: use nmt-translate.`));
      return null;
    }
    let bytes;
    try {
      bytes = await file.arrayBuffer();
    } catch (error) {
      this.showProblem(new UserError(`${file.name} cannot be read: ${error.message}`));
      return null;
    }
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      this.showProblem(new UserError(`${file.name} is not UTF-8 text.`));
      return null;
    }
    const parts = text.split(/(\r?\n)/);
    if (parts.length > 1 && parts.at(-1) === "") parts.pop(); // the file ends with a line end
    const texts = parts.filter((_, index) => index % 2 === 0);
    return { texts, ends: texts.map((_, index) => parts[2 * index + 1] ?? "") };
  }

  offer(result, name, count) {
    const link = byId("file-save");
    if (link.href) URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([result], { type: "text/plain;charset=utf-8" }));
    link.download = name;
    link.hidden = count === 0;
  }
}
