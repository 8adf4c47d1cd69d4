// The page of comparisons: shows the comparison that is chosen, or one of its pairs. Without JavaScript the first is there.
(() => {
  "use strict";

  const form = document.getElementById("choose-compared"), place = document.getElementById("compared");
  if (!form || !place) return;
  const [of, pair] = form.querySelectorAll("select");
  const root = document.querySelector("script[src$='compare.js']").src.replace(/assets\/[^/]*$/, "");
  const loaded = new Map();
  let wanted = "";

  const put = ({ name, html }) => {
    const [whole] = name.split("/"), { pairs } = loaded.get(whole);
    place.innerHTML = html;
    of.value = whole;
    pair.replaceChildren(new Option("all", ""), ...pairs.map(([value, label]) => new Option(label, value)));
    pair.value = name.includes("/") ? name : "";
    pair.closest("label").hidden = !pairs.length;
    document.dispatchEvent(new CustomEvent("shown", { detail: place }));
    try { history.replaceState(null, "", `${location.pathname}?of=${name}${location.hash}`); } catch { /* a file's address may stay */ }
  };

  globalThis.showCompared = (given) => {
    loaded.set(given.name, given);
    if (loaded.has(wanted) && loaded.has(wanted.split("/")[0])) put(loaded.get(wanted));
  };

  // A script and not a fetch: a page that was opened from a file may load the one, not the other.
  const show = (name) => {
    wanted = name;
    const missing = [...new Set([name.split("/")[0], name])].filter((one) => !loaded.has(one));
    if (!missing.length) return put(loaded.get(name));
    for (const one of missing) {
      const script = document.createElement("script");
      script.src = `${root}report/compared/${one}.js`;
      document.head.append(script);
    }
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  of.addEventListener("change", () => show(of.value));
  pair.addEventListener("change", () => show(pair.value || of.value));

  const [name, ...rest] = (new URLSearchParams(location.search).get("of") ?? "").split("/");
  const isKnown = [...of.options].some((one) => one.value === name) && rest.length < 2;
  if (isKnown && rest.every((part) => /^\w[\w.-]*$/.test(part))) show([name, ...rest].join("/"));
})();
