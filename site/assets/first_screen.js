// The first screen: reads out the part that the pointer, the keyboard or a tap is at, and shows the case that is chosen.
// Without JavaScript one case is shown, and its states can be chosen.
(() => {
  "use strict";

  const select = (figure, shape) => {
    const words = shape?.querySelector("title")?.textContent, read = figure.querySelector(".read");
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

  const home = document.getElementById("home");
  const form = home?.querySelector(".picker");
  if (!form) return;
  const cases = JSON.parse(form.dataset.cases), fields = [...form.querySelectorAll("select")];
  const root = document.querySelector("script[src$='first_screen.js']").src.replace(/assets\/[^/]*$/, "");
  const loaded = new Map();
  const values = () => fields.map((field) => field.value);
  const same = (one, other) => one.filter((value, i) => value === other[i]).length;
  const getState = () => home.querySelector(".states input:checked")?.value ?? "";

  const note = document.createElement("p");
  note.className = "nearest";
  note.setAttribute("role", "status");
  home.prepend(note);

  // The case with the value of `changed` that has most of the others' values: no choice leads to nothing.
  const find = (changed) => {
    const wanted = values(), fits = cases.filter((one) => changed < 0 || one[changed] === wanted[changed]);
    const found = fits.reduce((best, one) => (same(one, wanted) > same(best, wanted) ? one : best), fits[0]);
    const isThere = same(found.slice(0, wanted.length), wanted) === wanted.length;
    note.textContent = isThere ? "" : `Not measured: ${wanted.join(", ")}. This one has most of these values.`;
    return found;
  };
  const simplify = (value) => value?.split(" (")[0].replaceAll(",", "");

  const remember = () => {
    const state = new URLSearchParams(fields.map((field) => [field.name, field.value.split(" (")[0]]));
    state.set("state", getState());
    try { history.replaceState(null, "", `${location.pathname}?${state}${location.hash}`); } catch { /* a file's address may stay */ }
  };

  const chooseState = (name) => {
    const boxes = [...home.querySelectorAll(".states input")];
    const box = boxes.find((one) => one.value === name);
    if (box) box.checked = true;
  };

  const replace = ({ html }, state) => {
    home.querySelector(".states").remove();
    for (const old of home.querySelectorAll(".state")) old.remove();
    home.insertAdjacentHTML("beforeend", html);
    chooseState(state);
    remember();
  };

  // A script and not a fetch: a page that was opened from a file may load the one, not the other.
  const show = (one, state) => {
    fields.forEach((field, i) => { field.value = one[i]; });
    const key = one.slice(0, fields.length).join();
    if (loaded.has(key)) return replace(loaded.get(key), state);
    const script = document.createElement("script");
    script.src = root + one[fields.length];
    globalThis.showCase = (given) => {
      loaded.set(given.at.join(), given);
      if (given.at.join() === values().join()) replace(given, state);
    };
    document.head.append(script);
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  fields.forEach((field, i) => field.addEventListener("change", () => show(find(i), getState())));
  home.addEventListener("change", ({ target }) => { if (target.name === "state") remember(); });

  const wanted = new URLSearchParams(location.search);
  let isAsked = false;
  for (const field of fields) {
    const option = [...field.options].find((one) => simplify(one.value) === simplify(wanted.get(field.name)));
    if (option && option.value !== field.value) [field.value, isAsked] = [option.value, true];
  }
  chooseState(wanted.get("state"));
  if (isAsked) show(find(-1), wanted.get("state") ?? getState());
})();
