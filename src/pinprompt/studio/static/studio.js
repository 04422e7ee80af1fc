// What every page of the studio shares: asking the server, hearing from it, and building elements from text.
// Nothing here makes HTML out of strings that people or models wrote; text is always set as text.

export const root = document.body.dataset.root;
export const run = document.body.dataset.run;

export function address(path) {
  return root + "/" + path.split("/").map(encodeURIComponent).join("/");
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

export const by = (id) => document.getElementById(id);

async function answer(response) {
  let said;
  try {
    said = await response.json();
  } catch {
    throw new Error("The studio did not answer as expected. Is it still running?");
  }
  if (!response.ok) throw new Error(said.error || "The studio refused.");
  return said;
}

export async function act(name, form, signal) {
  let response;
  try {
    response = await fetch(`${root}/do/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(form),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The studio cannot be reached. Is it still running in the terminal?");
  }
  return answer(response);
}

export async function upload(kind, name, body) {
  const place = `${root}/do/upload?kind=${encodeURIComponent(kind)}&name=${encodeURIComponent(name)}`;
  return answer(await fetch(place, { method: "POST", headers: { "content-type": "application/octet-stream" }, body }));
}

export function complain(message) {
  const place = by("problem");
  if (!place) return;
  place.textContent = message || "";
  place.hidden = !message;
}

// One stream a page, closed while the page is hidden: a browser allows only a few connections to one server.
export function listen(handlers) {
  let source = null;
  let last = document.body.dataset.from || "0";
  function open() {
    if (source) return;
    const query = run === undefined ? "" : `?run=${encodeURIComponent(run)}&from=${last}`;
    source = new EventSource(`${root}/stream${query}`);
    for (const [kind, handle] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        handle(JSON.parse(event.data));
      });
    }
    if (!handlers.jobs) source.addEventListener("jobs", (event) => showLine(JSON.parse(event.data)));
  }
  function close() {
    if (source) source.close();
    source = null;
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
}

// The line of searches below the navigation: those at work and in line, and failures until they are seen.
export function showLine(jobs) {
  const place = by("line");
  const shown = jobs.filter((job) => ["running", "waiting", "stopping"].includes(job.state) && job.run !== run);
  place.replaceChildren(
    ...shown.map((job) =>
      element("span", {}, element("span", { class: `chip state ${job.state}` }, job.state), " ", element("a", { href: address("run/" + job.run) }, job.title)),
    ),
  );
  place.hidden = !shown.length;
}

// Drop zones: a file dropped or chosen goes to `take`.
export function dropZone(zone, take) {
  const input = zone.querySelector("input");
  input.addEventListener("change", () => {
    if (input.files.length) take([...input.files]);
    input.value = "";
  });
  for (const kind of ["dragenter", "dragover"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
}

if (document.currentScript === null && document.querySelector('script[src$="/studio.js"]')) listen({});
