// "Try it": the same text under several prompts, side by side; every call is counted and shown.
import { act, by, complain, dropZone, element, listen, run, upload } from "./studio.js";

const kind = document.body.dataset.kind;
let spent = 0;

const boxes = () => [...by("prompts").querySelectorAll("input:checked")];
const boxOf = (prompt) => [...by("prompts").querySelectorAll("input")].find((box) => box.value === prompt);
const named = (prompt) => boxOf(prompt)?.dataset.name ?? "yours";
const shown = (prompt) => boxOf(prompt)?.parentElement.querySelector(".words").textContent ?? prompt.trim();

async function ask(question, button) {
  const prompts = boxes().map((box) => box.value);
  if (!prompts.length) {
    complain("Choose a prompt, or type your own.");
    return null;
  }
  complain("");
  button.disabled = true;
  const words = button.textContent;
  button.textContent = "Asking the model";
  try {
    const said = await act("try", { run, prompts, ...question });
    spent += said.calls;
    by("calls").textContent = `${spent.toLocaleString("en")} calls so far`;
    return said;
  } catch (error) {
    complain(error.message);
    return null;
  } finally {
    button.disabled = false;
    button.textContent = words;
  }
}

function heading(prompt) {
  return element("h3", {}, element("span", { class: "chip" }, named(prompt)), " ", element("span", { class: "words" }, shown(prompt)));
}

function showAnswers(...articles) {
  by("answers").replaceChildren(element("div", { class: "tried" }, ...articles));
  by("answers-section").hidden = false;
}

const percent = (value) => `${(100 * value).toFixed(value > 0.995 || value < 0.005 ? 1 : 0)} %`;

function labelled(one, words) {
  const odds = Object.entries(one.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 8);
  const said = (label) => (words[label] && words[label] !== label ? `${label} (${words[label]})` : label);
  const rows = odds.flatMap(([label, value]) => [element("span", {}, said(label)), element("meter", { min: 0, max: 1, value, "aria-label": said(label) }), element("span", { class: "num" }, percent(value))]);
  return element("article", {}, heading(one.prompt), element("p", { class: "verdict-word" }, said(one.label)), element("div", { class: "odds" }, ...rows));
}

function rewritten(one) {
  const rows = one.rewrites.map((row) => element("p", {}, row.text || "(nothing)", element("span", { class: "under" }, `content ${row.content.toFixed(0)}, style ${row.style.toFixed(0)}`)));
  return element("article", {}, heading(one.prompt), ...rows);
}

function seen(one) {
  return element("article", {}, heading(one.prompt), element("p", { class: "verdict-word" }, one.similarity.toFixed(3)), element("p", { class: "dim" }, `similarity with this picture; with its own picture ${one.own.toFixed(3)}`));
}

by("ask")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = event.target.elements.text.value;
  const style = kind === "style-transfer";
  const said = await ask({ do: style ? "rewrite" : "predict", text }, event.target.querySelector("button"));
  if (said) showAnswers(...said.answers.map((one) => (style ? rewritten(one) : labelled(one, said.words))));
});

function addPrompt(name, text) {
  if (!text.trim()) return;
  const box = element("input", { type: "checkbox", "data-name": name, checked: true });
  box.value = text;
  by("prompts").append(element("li", {}, element("label", {}, box, " ", element("span", { class: "chip" }, name), " ", element("span", { class: "words" }, text))));
}

by("own").addEventListener("submit", (event) => {
  event.preventDefault();
  addPrompt("yours", event.target.elements.prompt.value);
  event.target.elements.prompt.value = "";
});

const answer = by("prompts").querySelector("input[data-name=found]")?.value.trim() ?? "";
const found = answer.includes("\n") ? [] : answer.split(/\s+/); // the lines of a chat's format have to stay
if (found.length > 1) {
  const words = found.map((word, place) => {
    const button = element("button", { type: "button", class: "quiet" }, word);
    button.addEventListener("click", () => addPrompt(`without "${word}"`, found.filter((_, other) => other !== place).join(" ")));
    return button;
  });
  by("prompts").after(element("p", { class: "actions", id: "without" }, "Without the word: ", ...words));
}

by("score").addEventListener("click", async (event) => {
  const said = await ask({ do: "score", split: "dev" }, event.target);
  if (!said) return;
  const names = [...new Set(said.answers.flatMap((one) => Object.keys(one.metrics)))].slice(0, 6);
  const share = (name, value) => (["accuracy", "macro_f1", "balanced_accuracy"].includes(name.replace(/^raw_/, "")) ? percent(value) : value.toPrecision(4));
  const cell = (one, name) => {
    const ends = one.intervals[name];
    return element("td", { class: "num" }, one.metrics[name] == null ? "–" : share(name, one.metrics[name]), ends ? element("span", { class: "under" }, `${share(name, ends[0])} to ${share(name, ends[1])}`) : null);
  };
  const rows = said.answers.map((one) => element("tr", {}, element("th", {}, named(one.prompt), element("span", { class: "under" }, shown(one.prompt))), ...names.map((name) => cell(one, name))));
  const head = element("tr", {}, element("th", {}, "prompt"), ...names.map((name) => element("th", { class: "num" }, name.replaceAll("_", " "))));
  by("scores").replaceChildren(element("p", { class: "note" }, `On ${said.answers[0].rows} rows of ${said.split}; this took ${said.calls.toLocaleString("en")} calls.`), element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
});

if (by("drop")) {
  dropZone(by("drop"), async (files) => {
    try {
      const found = await upload("picture", files[0].name, files[0]);
      if (found.problems.length) throw new Error(found.problems[0].message);
      by("preview").src = URL.createObjectURL(files[0]);
      by("preview").hidden = false;
      const said = await ask({ do: "picture", file: found.file }, by("score"));
      if (said) showAnswers(...said.answers.map(seen));
    } catch (error) {
      complain(error.message);
    }
  });
}
listen({});
