// Colours of weights, from the variables of the style sheet: they differ in light and dark.

export const colours = {};

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "line", "null", "hidden", "weak", "middle", "strong",
    "negative-weak", "negative-strong", "accent"]) {
    const hex = style.getPropertyValue(`--${name}`).trim().slice(1);
    const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
    colours[name] = [0, 2, 4].map((start) => parseInt(full.slice(start, start + 2), 16));
  }
}

export const css = (rgb) => `rgb(${rgb.join(" ")})`;

function blend(from, to, share) {
  return from.map((value, index) => Math.round(value + (to[index] - value) * share));
}

export function heat(weight, largest) {
  const size = Math.sqrt(Math.min(1, Math.abs(weight) / largest));
  if (weight < 0) return blend(colours["negative-weak"], colours["negative-strong"], size);
  return size < 0.5
    ? blend(colours.weak, colours.middle, 2 * size)
    : blend(colours.middle, colours.strong, 2 * size - 1);
}

export function cellColour(map, row, column) {
  const weight = map.cells[row][column];
  if (weight === null) return colours.hidden;
  if (map.nulls[row]) return colours.null;
  return weight === 0 ? colours.paper : heat(weight, map.largest);
}

// Black or white, whichever is easier to read on a colour: one of them has a contrast above 4.5.
export function inkOn(rgb) {
  const [red, green, blue] = rgb.map((value) => ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
}
