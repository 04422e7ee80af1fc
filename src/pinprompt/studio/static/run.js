// A run's page while the run grows: the report is fetched again when there is news, the matrix takes in new prompts.
import { act, address, by, complain, listen, root, run, showLine } from "./studio.js";
import { Matrix } from "./matrix.js";

const waiting = "waiting" in document.body.dataset;
const pause = 1000;
let state = document.body.dataset.state;
let ours = false;
let due = false;
let busy = false;

function show(name, visible) {
  const found = by(name);
  if (found) found.hidden = !visible;
}

async function refresh() {
  if (busy) {
    due = true;
    return;
  }
  busy = true;
  due = false;
  try {
    const response = await fetch(address("live/" + run), { headers: { accept: "text/html" } });
    if (response.ok) replaceBody(await response.text());
    await matrix.update();
  } catch {
    // The server is gone or restarting; the stream tells when it is back.
  }
  await new Promise((done) => setTimeout(done, pause));
  busy = false;
  if (due) refresh();
}

// The report's sections come from the same template as the report itself, escaped there.
function replaceBody(html) {
  const body = by("body");
  const open = [...body.querySelectorAll("details")].map((one) => one.open);
  const section = by("matrix");
  body.after(section);
  body.innerHTML = html;
  [...body.querySelectorAll("details")].forEach((one, place) => (one.open = Boolean(open[place])));
  settle();
}

function settle() {
  const place = by("matrix-place");
  if (place) place.replaceWith(by("matrix"));
}

function showState(now) {
  state = now;
  const chip = by("state");
  if (!chip) return;
  chip.textContent = now;
  chip.className = `chip state ${now}`;
  show("resume-open", now !== "running" && !ours);
  by("resume-open").textContent = now === "finished" ? "More budget" : "Resume";
}

// One line of what is being done: how far the search is, and the prompt that was answered last.
let done = by("ticker")?.textContent ?? "";
let tried = "";

function tick() {
  by("ticker").textContent = tried ? `${done}; last tried: “${tried}”` : done;
}

function tell(events) {
  const step = events.findLast((event) => event.event === "step");
  const last = events.at(-1);
  if (step && last === step) {
    const calls = step.calls === undefined ? "" : `, ${step.calls.toLocaleString("en")} calls`;
    done = `Step ${step.step + 1}${calls}${step.best_prompt ? `, best so far: “${step.best_prompt.trim()}”` : ""}`;
  } else if (last.event === "start") done = "Writing the first prompts";
  else if (last.event === "evaluating") done = `Evaluating the ${last.name} prompt on ${last.split}`;
  else if (last.event === "problem") done = `It could not continue: ${last.reason}`;
  else if (last.event === "end") done = "Writing the result";
  if (["evaluating", "problem", "end"].includes(last.event)) tried = "";
  tick();
}

function hearJobs(jobs) {
  showLine(jobs);
  const job = jobs.findLast((one) => one.run === run);
  ours = Boolean(job && ["running", "waiting", "stopping"].includes(job.state));
  if (waiting) {
    if (job && (job.state === "failed" || job.state === "withdrawn")) {
      by("waiting-title").textContent = job.state === "failed" ? "The search did not start" : "Withdrawn";
      if (job.message) by("waiting-message").textContent = job.message;
      by("waiting-message").parentElement.classList.toggle("bad", job.state === "failed");
    } else if (job && job.state === "running") {
      by("waiting-title").textContent = "Getting ready";
      if (job.doing) by("waiting-message").textContent = job.doing;
    }
    show("stop", ours);
    return;
  }
  show("stop", ours && job.state !== "stopping");
  show("resume-open", !ours && state !== "running");
  if (job && job.state === "failed") complain(job.message);
  if (job && job.state !== hearJobs.last) {
    if (hearJobs.last) refresh();
    hearJobs.last = job.state;
  }
}

const matrix = waiting ? null : new Matrix(run, root);
if (!waiting) {
  settle();
  // A server that is gone by now is no error of the page: the stream tells when it is back.
  matrix.update().catch(() => {});
}

listen({
  jobs: hearJobs,
  run: (events) => {
    if (waiting) {
      location.reload();
      return;
    }
    tell(events);
    if (state !== "finished" || events.length) refresh();
  },
  trying: ({ prompt }) => {
    if (waiting) return;
    tried = prompt.trim();
    tick();
  },
  again: () => !waiting && refresh(),
  state: (said) => {
    if (waiting) location.reload();
    else if (said.state !== state) {
      showState(said.state);
      refresh();
    }
  },
});

by("stop")?.addEventListener("click", () => act("stop", { run }).then(() => complain(""), (error) => complain(error.message)));

for (const name of ["resume", "vary"]) {
  const button = by(`${name}-open`);
  const form = by(`${name}-form`);
  if (!button || !form) continue;
  button.addEventListener("click", () => {
    form.hidden = !form.hidden;
    button.setAttribute("aria-expanded", String(!form.hidden));
    if (!form.hidden) form.querySelector("input").focus();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = { run, ...Object.fromEntries(new FormData(form)) };
    if (event.submitter?.name) values[event.submitter.name] = event.submitter.value;
    try {
      const job = await act(name, values);
      complain("");
      form.hidden = true;
      button.setAttribute("aria-expanded", "false");
      if (job.run !== run) location.href = address("run/" + job.run);
      else {
        ours = true;
        showState(job.state);
        show("stop", true);
      }
    } catch (error) {
      complain(error.message);
    }
  });
}
