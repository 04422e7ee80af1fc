// The form of a new search: files go up and come back described; the command and the cost follow every change.
import { act, address, by, complain, dropZone, element, listen, upload } from "./studio.js";

const form = by("search");
const defaults = JSON.parse(form.dataset.defaults);
const given = { train: null, source: null, target: null, pictures: [], dataset: null };
const problems = { table: [], lines: { source: [], target: [] }, picture: [] };
let asked = null;
let timer = 0;

const kind = () => form.elements.kind.value;

function values() {
  const found = Object.fromEntries([...new FormData(form)].filter(([name, value]) => typeof value === "string" && value.trim() !== "" && !name.startsWith("word:")));
  found.kind = kind();
  found.dictionary = form.elements.dictionary.checked;
  if (found.kind === "classify") {
    if (given.dataset) found.dataset = given.dataset;
    else {
      found.train = given.train;
      found.words = Object.fromEntries([...by("labels").querySelectorAll("input")].map((input) => [input.dataset.label, input.value]));
    }
  } else if (found.kind === "restyle") Object.assign(found, { source: given.source, target: given.target });
  else found.pictures = given.pictures;
  return found;
}

function ready() {
  if (kind() === "classify") return Boolean(given.dataset || (given.train && !problems.table.length));
  if (kind() === "restyle") return Boolean(given.source && given.target) && !problems.lines.source.length && !problems.lines.target.length;
  return given.pictures.length > 0;
}

function changed() {
  clearTimeout(timer);
  asked?.abort();
  by("go").disabled = true;
  complain("");
  if (!ready()) {
    by("cost").textContent = "Give " + { classify: "examples", restyle: "both files", invert: "a picture" }[kind()] + " first.";
    by("command").textContent = "pinprompt " + kind();
    return;
  }
  timer = setTimeout(plan, 350);
}

async function plan() {
  const mine = (asked = new AbortController());
  try {
    const said = await act("plan", values(), mine.signal);
    by("command").textContent = said.command;
    by("go").disabled = false;
    const calls = Number(form.elements.calls.value || defaults[kind()].calls);
    by("cost").textContent = `${calls ? `At most ${count(calls)} calls for the search. ` : ""}Measuring how fast this machine is.`;
    const { figures } = await act("estimate", values(), mine.signal);
    by("cost").replaceChildren(...cost(figures));
  } catch (error) {
    if (mine.signal.aborted) return;
    by("cost").textContent = "";
    complain(error.message);
  }
}

const count = (value) => Math.round(value).toLocaleString("en");

function cost(figures) {
  const found = ["At most ", element("b", {}, figures.calls == null ? "an unknown number of calls" : `${count(figures.calls)} calls`), " for the search"];
  if (figures.minutes != null) found.push(", about ", element("b", {}, figures.minutes < 1 ? "a minute" : `${figures.minutes.toFixed(figures.minutes < 10 ? 1 : 0)} minutes`));
  if (figures.tokens) found.push(`, ${count(figures.tokens)} tokens`);
  if (figures.money) found.push(`, ${figures.money.toPrecision(3)} by the price table`);
  else if (figures.money === null) found.push(", at a price that is unknown");
  found.push(".");
  if (figures.report_calls) found.push(` The report takes ${count(figures.report_calls)} calls more`, figures.report_minutes ? ` (about ${Math.max(1, Math.round(figures.report_minutes))} min)` : "", ".");
  if (figures.note) found.push(` ${figures.note[0].toUpperCase()}${figures.note.slice(1)}.`);
  return found;
}

function showProblems(place, list) {
  place.replaceChildren(...list.map((one) => element("li", {}, one.line ? element("b", {}, `Line ${one.line}:`) : null, one.message)));
}

function showTable(said) {
  given.train = said.file;
  given.dataset = null;
  by("demo").value = "";
  problems.table = said.problems;
  by("demo-view").hidden = true;
  if (!said.problems.length) by("paste-box").open = false;
  by("table-view").hidden = !said.columns.length;
  by("table-name").textContent = said.file;
  by("table-count").textContent = `${count(said.rows)} rows${said.blank ? `; ${count(said.blank)} without a text are left out` : ""}`;
  for (const name of ["text_column", "label_column"]) {
    const select = form.elements[name];
    select.replaceChildren(...said.columns.map((column) => element("option", { selected: column === said[name] }, column)));
    select.value = said[name] ?? "";
  }
  by("table-rows").replaceChildren(...said.sample.map((row) => element("tr", {}, element("td", { class: "num rank" }, String(row.line)), element("td", {}, row.text), element("td", {}, row.label))));
  const kept = Object.fromEntries([...by("labels").querySelectorAll("input")].map((input) => [input.dataset.label, input.value]));
  by("labels").replaceChildren(
    ...said.labels.map((one, place) => {
      const input = element("input", { name: `word:${place}`, "data-label": one.label, placeholder: "a word", required: true });
      input.value = kept[one.label] || one.word;
      return element("label", {}, element("b", {}, one.label), element("span", { class: "count" }, `${count(one.count)} rows`), input);
    }),
  );
  showProblems(by("table-problems"), said.problems);
  changed();
}

async function takeTable(name, body) {
  try {
    showTable(await upload("table", name, body));
  } catch (error) {
    problems.table = [{ line: null, message: error.message }];
    showProblems(by("table-problems"), problems.table);
    changed();
  }
}

function useDemo(option) {
  const on = Boolean(option?.value);
  given.dataset = on ? option.value : null;
  by("demo-name").textContent = on ? option.value : "";
  by("demo-words").textContent = on ? option.dataset.words : "";
  if (!on) by("demo").value = "";
  by("demo-view").hidden = !on;
  by("table-view").hidden = on || !given.train;
  showProblems(by("table-problems"), on ? [] : problems.table);
  changed();
}

async function takeLines(slot, file) {
  const view = by(`${slot}-view`);
  try {
    const said = await upload("lines", file.name, file);
    given[slot] = said.file;
    problems.lines[slot] = said.problems;
    view.replaceChildren(
      element("p", {}, element("b", {}, file.name), ` ${count(said.rows)} texts`),
      element("ol", {}, ...said.sample.slice(0, 4).map((row) => element("li", {}, row.text))),
      element("ul", { class: "problems" }),
    );
    showProblems(view.querySelector(".problems"), said.problems);
  } catch (error) {
    given[slot] = null;
    view.replaceChildren(element("ul", { class: "problems" }));
    showProblems(view.querySelector(".problems"), [{ line: null, message: error.message }]);
  }
  changed();
}

async function takePictures(files) {
  for (const file of files) {
    try {
      const said = await upload("picture", file.name, file);
      if (said.problems.length) throw new Error(said.problems[0].message);
      if (given.pictures.includes(said.file)) continue;
      given.pictures.push(said.file);
      by("previews").append(element("img", { src: URL.createObjectURL(file), alt: file.name }));
      complain("");
    } catch (error) {
      changed();
      complain(error.message);
      return;
    }
  }
  changed();
}

function showKind() {
  for (const name of ["classify", "restyle", "invert"]) {
    for (const part of document.querySelectorAll(`.for-${name}`)) part.hidden = name !== kind();
  }
  for (const [name, value] of Object.entries(defaults[kind()])) form.elements.namedItem(name).placeholder = Number.isInteger(value) ? count(value) : value;
  by("model").placeholder = kind() === "invert" ? "emoji-clip" : "smollm2";
  changed();
}

for (const zone of document.querySelectorAll(".drop")) {
  dropZone(zone, (files) => {
    if (files.every((file) => file.type.startsWith("image/"))) {
      form.elements.kind.value = "invert";
      showKind();
      takePictures(files);
    } else if (zone.dataset.kind === "table") takeTable(files[0].name, files[0]);
    else if (zone.dataset.kind === "lines") takeLines(zone.dataset.slot, files[0]);
    else takePictures(files);
  });
}
by("use-pasted").addEventListener("click", () => takeTable("pasted", by("pasted").value));
by("demo").addEventListener("change", () => useDemo(by("demo").selectedOptions[0]));
by("no-demo").addEventListener("click", () => useDemo(null));
form.addEventListener("input", (event) => {
  if (event.target.name === "kind") showKind();
  else if (event.target.name === "text_column" || event.target.name === "label_column") {
    act("describe", { file: given.train, text_column: form.elements.text_column.value, label_column: form.elements.label_column.value }).then(showTable, (error) => complain(error.message));
  } else if (event.target.id !== "pasted" && event.target.id !== "demo" && event.target.type !== "file") changed();
});
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (by("go").disabled) return;
  clearTimeout(timer);
  asked?.abort();
  by("go").disabled = true;
  try {
    const job = await act("search", values());
    location.href = address("run/" + job.run);
  } catch (error) {
    by("go").disabled = false;
    complain(error.message);
  }
});
listen({});
showKind();
