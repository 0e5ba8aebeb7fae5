// Elements of the page. Text of the user becomes textContent only.

export const byId = (id) => document.getElementById(id);

// An element with a text, or with children, and a class.
export function make(tag, content, className) {
  const element = document.createElement(tag);
  if (Array.isArray(content)) element.append(...content);
  else if (content !== undefined) element.textContent = content;
  if (className) element.className = className;
  return element;
}

export function makeButton(content, className, onClick) {
  const button = make("button", content, className);
  button.type = "button";
  if (onClick) button.addEventListener("click", onClick);
  return button;
}

// A list of [value, text] with its label.
export function labelledSelect(text, options, onChange) {
  const select = make("select");
  fillSelect(select, options, options[0]?.[0]);
  select.addEventListener("change", () => onChange(select.value));
  return { label: make("label", [`${text} `, select]), select };
}

export function fillSelect(select, texts, chosen) {
  select.replaceChildren(...texts.map(([value, text]) => {
    const option = make("option", text);
    option.value = value;
    return option;
  }));
  select.value = chosen;
}

// Spaces between words, so that lines can break and copied text is readable.
export function spaced(elements) {
  return elements.flatMap((element, index) => (index ? [" ", element] : [element]));
}

// Let the words decide the direction of a line. Chromium ignores words that were replaced, so the
// attribute is set again.
export function findDirection(line) {
  line.removeAttribute("dir");
  line.dir = "auto";
}

// Whether a key is pressed together with Ctrl, Alt or Meta, as for commands of the browser. AltGr, which types
// brackets on many keyboards, is Ctrl and Alt on Windows.
export const isCommand = (event) =>
  event.metaKey || ((event.ctrlKey || event.altKey) && !event.getModifierState("AltGraph"));
