// The first screen: reads out the part that the pointer, the keyboard or a tap is at, and shows the case that is chosen.
// Without JavaScript one case is shown, and its states can be chosen.
(() => {
  "use strict";

  const select = (figure, shape) => {
    const link = shape?.closest("a")?.getAttribute("aria-label");
    const words = link ?? shape?.querySelector("title")?.textContent, read = figure.querySelector(".read");
    if (!words || !read) return;
    for (const old of figure.querySelectorAll("rect.on")) old.classList.remove("on");
    shape.classList.add("on");
    read.textContent = words;
    read.classList.add("on");
  };
  for (const name of ["pointerover", "focusin", "click"]) {
    document.addEventListener(name, ({ target }) => {
      const figure = target.closest?.("figure.icicle");
      if (figure) select(figure, target.closest("rect") ?? target.closest("a")?.querySelector("rect"));
    });
  }

  // Copies the address, which then names the step that is shown; a page that may not copy shows it.
  let remember = () => {};
  document.addEventListener("click", async ({ target }) => {
    const button = target.closest?.("[data-share]");
    if (!button) return;
    const read = button.closest("figure").querySelector(".read");
    remember();
    let said = `Copied: ${location.href}`;
    try { await navigator.clipboard.writeText(location.href); } catch { said = location.href; }
    read.textContent = said;
    read.classList.add("on");
  });

  const home = document.getElementById("home");
  const form = home?.querySelector(".picker");
  if (!form) return;
  const cases = JSON.parse(form.dataset.cases), fields = [...form.querySelectorAll("select")];
  const root = document.querySelector("script[src$='first_screen.js']").src.replace(/assets\/[^/]*$/, "");
  const loaded = new Map();
  const values = () => fields.map((field) => field.value);
  const getState = () => home.querySelector(".states input:checked")?.value ?? "";

  // What is said of a step that was not measured, and of a state that was not recorded.
  const [note, ofState] = ["p", "p"].map((name) => {
    const made = document.createElement(name);
    made.className = "nearest";
    made.setAttribute("role", "status");
    return made;
  });
  form.before(note, ofState);

  const load = (path, name, receive) => {
    globalThis[name] = receive;
    const script = document.createElement("script");
    script.src = root + path;
    document.head.append(script);
  };
  const simplify = (value) => value?.split(" (")[0].replaceAll(",", "");

  remember = () => {
    const state = new URLSearchParams(fields.map((field) => [field.name, field.value.split(" (")[0]]));
    state.set("state", getState());
    try { history.replaceState(null, "", `${location.pathname}?${state}${location.hash}`); } catch { /* a file's address may stay */ }
  };

  // The state of this name, or of those recorded the nearest, and of two as near the first.
  const chooseState = (name) => {
    const boxes = [...home.querySelectorAll(".states input")], at = boxes.findIndex((one) => one.value === name);
    const apart = (one) => Math.abs(boxes.indexOf(one) - at), known = boxes.filter((one) => !one.disabled);
    ofState.textContent = "";
    if (at < 0 || !known.length) return;
    const box = known.reduce((best, one) => (apart(one) < apart(best) ? one : best));
    box.checked = true;
    const isTimed = boxes[at].dataset.timed !== undefined;
    if (box.value !== name) ofState.textContent = `${name} ${isTimed ? "has no figure" : "was not recorded"} for this step: ${box.value} is shown.`;
  };

  const replace = ({ html }, said, state) => {
    home.querySelector(".states").remove();
    for (const old of home.querySelectorAll(".state")) old.remove();
    home.insertAdjacentHTML("beforeend", html);
    note.innerHTML = said;
    chooseState(state);
    remember();
  };

  // A script and not a fetch: a page that was opened from a file may load the one, not the other.
  let unmeasured = null;
  const show = (state) => {
    const wanted = values(), key = wanted.join("|");
    const isWanted = () => values().join("|") === key;
    const showCase = (one, said) => {
      const known = one.slice(0, fields.length).join("|");
      if (loaded.has(known)) return replace(loaded.get(known), said, state);
      load(one[fields.length], "showCase", (given) => {
        loaded.set(given.at.join("|"), given);
        if (isWanted() && given.at.join("|") === known) replace(given, said, state);
      });
    };
    const one = cases.find((of) => of.slice(0, fields.length).join("|") === key);
    if (one) return showCase(one, "");
    const showNearest = () => { if (isWanted()) showCase(cases[unmeasured[key][0]], unmeasured[key][1]); };
    if (unmeasured) return showNearest();
    load("report/cases/unmeasured.js", "showUnmeasured", (given) => { unmeasured = given; showNearest(); });
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  for (const field of fields) field.addEventListener("change", () => show(getState()));
  home.addEventListener("change", ({ target }) => {
    if (target.name !== "state") return;
    ofState.textContent = "";
    remember();
  });

  const wanted = new URLSearchParams(location.search);
  let isAsked = false;
  for (const field of fields) {
    const option = [...field.options].find((one) => simplify(one.value) === simplify(wanted.get(field.name)));
    if (option && option.value !== field.value) [field.value, isAsked] = [option.value, true];
  }
  chooseState(wanted.get("state"));
  if (isAsked) show(wanted.get("state") ?? getState());
})();
