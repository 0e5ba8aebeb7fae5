// The report page: its data, its three views, and the address that remembers them.

import { byId, fillSelect, isCommand } from "../explorer/elements.js";
import { Explorer } from "../explorer/explorer.js";
import { HeadsTable } from "./heads.js";
import { renderNumbers } from "./numbers.js";

const VIEWS = ["look", "heads", "numbers"];
const data = JSON.parse(byId("data").textContent); // all of it; nothing is ever loaded
let view = "look";

const explorer = new Explorer(byId("explorer"), {
  models: data.models,
  learned: data.learned,
  targetName: "reference",
  sameTargets: true,
  help: [["n", "p", "sentence"], ["[", "]", "heads in the order of the table"]],
  onChange: () => {
    byId("sentence").value = explorer.sentence;
    saveState();
  },
});
const table = new HeadsTable(explorer, { onSort: saveState, onOpen: openHead });

function openHead(choice) {
  setView("look");
  explorer.choose(explorer.active, choice);
}

function stepSentence(by) {
  const count = data.sentences.length;
  explorer.chooseSentence((explorer.sentence + by + count) % count);
}

function setView(wanted) {
  view = wanted === "look" && !data.sentences.length ? "heads" : wanted;
  for (const element of document.querySelectorAll(".view")) element.hidden = element.id !== view;
  for (const button of document.querySelectorAll("nav button")) {
    button.ariaCurrent = button.dataset.view === view ? "page" : null;
  }
  if (view === "look") explorer.render();
  if (view === "heads") table.render();
  if (view === "numbers" && !byId("numbers").children.length) renderNumbers(byId("numbers"), data);
  saveState();
}

const KEYS = {
  n: () => stepSentence(1), p: () => stepSentence(-1),
  "[": () => explorer.choose(explorer.active, table.neighbour(-1)),
  "]": () => explorer.choose(explorer.active, table.neighbour(1)),
};

document.addEventListener("keydown", (event) => {
  if (view !== "look" || isCommand(event)) return;
  if (event.target.closest?.("select, input")) return;
  if (Object.hasOwn(KEYS, event.key)) KEYS[event.key]();
  else if (!explorer.press(event.key)) return;
  event.preventDefault();
});

function saveState() {
  const parts = new URLSearchParams({ view });
  explorer.save(parts);
  table.save(parts);
  history.replaceState(null, "", `#${parts}`);
}

function loadState() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (VIEWS.includes(parts.get("view"))) view = parts.get("view");
  explorer.load(parts);
  table.load(parts);
}

function begin() {
  byId("summary").textContent = data.summary;
  if (typeof DecompressionStream === "undefined") {
    byId("problem").textContent = "This browser is too old to unpack the weights (it lacks DecompressionStream).";
    byId("problem").hidden = false;
    return;
  }
  loadState();
  fillSelect(byId("sentence"), data.sentences.map((text, number) => [number, text]), explorer.sentence);
  byId("sentence").addEventListener("change", (event) => explorer.chooseSentence(Number(event.target.value)));
  for (const button of document.querySelectorAll("nav button")) {
    button.hidden = button.dataset.view === "look" && !data.sentences.length;
    button.addEventListener("click", () => setView(button.dataset.view));
  }
  window.addEventListener("hashchange", () => { loadState(); setView(view); });
  setView(view);
}

begin();
