// Requests to the server, and its errors.

const LINES = 32; // of one request, so that progress is seen
const CHARACTERS = 8000;
const ATTEMPTS = 5; // while the server says that it is busy

let key = "";

export function useKey(text) { key = text; }

// A problem to show as one; `status` is that of the server's answer, or 0.
export class UserError extends Error {
  constructor(message, status = 0, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

// The JSON answer to a GET request, or to a POST request with these fields.
export async function ask(path, fields, signal) {
  const post = fields && {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(key ? { ...fields, api_key: key } : fields),
  };
  let response;
  let answer;
  try {
    response = await fetch(path, { ...post, signal });
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const reason = response ? `status ${response.status}, without a reason` : "no answer";
    throw new UserError(`The server cannot be reached (${reason}).`);
  }
  if (!response.ok) {
    const retryAfter = Number(response.headers.get("retry-after")) || 0;
    throw new UserError(answer?.error ?? `status ${response.status}`, response.status, retryAfter);
  }
  return answer;
}

// Ask again after a while if the server has too much to do.
async function askPatiently(path, fields, signal) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await ask(path, fields, signal);
    } catch (error) {
      const busy = error.status === 503 || error.status === 429;
      if (!busy || attempt === ATTEMPTS) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 1000 * Math.min(error.retryAfter || 1, 10)); });
      signal?.throwIfAborted();
    }
  }
}

// By the index of a line: what the server warns of.
function readWarnings(warnings) {
  return new Map(warnings.map((warning) => {
    const [, text, message] = /^text (\d+): (?:line 1: )?(.*)$/s.exec(warning) ?? [null, 1, warning];
    return [Number(text) - 1, message];
  }));
}

// Translations of lines, some at a time; `onSome` gets each group of { line, text, warning }.
export async function translateLines(lines, model, { signal, onSome }) {
  for (let start = 0; start < lines.length;) {
    let [end, size] = [start, 0];
    while (end < lines.length && end - start < LINES && (end === start || size + lines[end].length < CHARACTERS)) {
      size += lines[end++].length;
    }
    const some = lines.slice(start, end);
    const { name, source, target } = model;
    const answer = await askPatiently("translate", { q: some, model: name, source, target }, signal);
    const warnings = readWarnings(answer.warnings ?? []);
    onSome(some.map((line, index) => ({ line, text: answer.translatedText[index], warning: warnings.get(index) })));
    start = end;
  }
}

const attentions = new Map(); // promises of answers, so that nothing is asked twice
const KEPT = 100;

// All heads, links and probabilities of a line, and of its translation if none is given.
export function attention(line, model, target) {
  const name = JSON.stringify([model.name, model.version, line, target ?? null]);
  if (!attentions.has(name)) {
    const { name: model_name, source, target: language } = model;
    const fields = { q: line, model: model_name, source, target: language };
    const answer = askPatiently("attention", target === undefined ? fields : { ...fields, target_text: target });
    answer.catch(() => attentions.delete(name));
    attentions.set(name, answer);
    if (attentions.size > KEPT) attentions.delete(attentions.keys().next().value);
  }
  return attentions.get(name);
}
