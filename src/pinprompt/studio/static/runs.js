// The page of runs: choosing some to compare, and new cards when a search begins or ends.
import { by, listen, root, showLine } from "./studio.js";

const bar = by("pick-bar");

function chosen() {
  return [...document.querySelectorAll('input[name="run"]:checked')].map((box) => box.value);
}

function update() {
  const count = chosen().length;
  by("pick-count").textContent = count === 1 ? "1 run chosen" : `${count} runs chosen`;
  by("pick-go").disabled = count < 2;
  bar.hidden = !count;
}

document.addEventListener("change", (event) => {
  if (event.target.name === "run") update();
  if (event.target.matches("#sieve select")) by("sieve").submit();
});
by("pick-go").addEventListener("click", () => {
  const query = new URLSearchParams(chosen().map((id) => ["run", id]));
  location.href = `${root}/compare?${query}`;
});
update();

let states = null;
listen({
  jobs: (jobs) => {
    showLine(jobs);
    const now = JSON.stringify(jobs.map((job) => [job.number, job.state]));
    if (states !== null && now !== states && !chosen().length && document.activeElement?.name !== "q") location.reload();
    states = now;
  },
});
