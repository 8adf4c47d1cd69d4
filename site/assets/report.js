// Tables: sort by a heading, filter by words, download what is visible. Without JavaScript they read as they are.
(() => {
  "use strict";

  // Material gives its dialog no name.
  document.querySelector(".md-search").setAttribute("aria-label", "Search");

  // What a cell holds, as the CSV of the whole table has it (tables.to_csv); nothing in one that says why it is empty.
  const full = (cell) => {
    if (!cell || cell.matches(".why, .absent")) return "";
    if (cell.classList.contains("modules")) {
      const more = cell.querySelector(".faint");
      if (more) return more.textContent.startsWith("+") ? more.title : "";
    }
    const family = cell.querySelector(":scope > .family:not(.dot)");
    if (family) return family.classList[1];
    const name = cell.querySelector("details > code");
    return cell.dataset.v || cell.dataset.k || (name || cell).textContent.trim().replaceAll("\u00a0", " ");
  };

  const value = (cell, isModel) => {
    if (!cell || cell.matches(".why, .absent")) return null;
    return cell.dataset.v !== undefined ? Number(full(cell)) : isModel ? full(cell) : cell.textContent.trim();
  };

  // Names of models compare by their place in `order`; so do texts that begin with one.
  const compare = (a, b, order) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    const place = (text) => order.findIndex((name) => text === name || text.startsWith(`${name}-`) || text.startsWith(`${name} `));
    return place(String(a)) - place(String(b)) || String(a).localeCompare(String(b), undefined, { numeric: true });
  };

  const sort = (table, index, heading) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.forEach((row, position) => { row.dataset.order ??= position; });
    const next = { none: heading.classList.contains("num") ? "descending" : "ascending" };
    const now = heading.getAttribute("aria-sort") || "none";
    const first = next.none;
    const order = now === "none" ? first : now === first ? (first === "ascending" ? "descending" : "ascending") : "none";
    table.querySelectorAll("th[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
    if (order !== "none") heading.setAttribute("aria-sort", order);
    const sign = order === "descending" ? -1 : 1;
    const names = heading.dataset.order?.split(" ") ?? [];
    rows.sort((one, two) => {
      if (order === "none") return one.dataset.order - two.dataset.order;
      const [a, b] = [one, two].map((row) => value(row.cells[index], names.length));
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * compare(a, b, names) || one.dataset.order - two.dataset.order;
    });
    body.append(...rows);
  };

  // What words can find in a row: its texts with the names that recordings have for them, and its numbers, which are
  // found whole: 128 is no part of 1,280. `common`: names of what is the same in all rows, and in no column.
  const found = (row, common) => {
    const texts = [], phrases = [...common], numbers = new Set();
    for (const cell of row.cells) {
      if (cell.dataset.v !== undefined) numbers.add((cell.firstChild?.textContent ?? "").trim().replaceAll(",", ""));
      else texts.push(cell.textContent, cell.dataset.k ?? "");
      if (cell.dataset.also) phrases.push(cell.dataset.also.toLowerCase());
    }
    return { text: texts.join(" ").toLowerCase(), phrases, numbers };
  };

  // The words of `words`, those together that are a name in `names`, which is that of one cell: fused attention is no
  // eager attention with fused AdamW, and a forward pass no forward and backward pass.
  const sought = (words, names) => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean), parts = [];
    for (let from = 0, to; from < wanted.length; from = to) {
      for (to = wanted.length; to > from + 1 && !names.has(wanted.slice(from, to).join(" ")); to -= 1);
      parts.push(wanted.slice(from, to).join(" "));
    }
    return parts;
  };

  const filter = (table, words, said) => {
    const common = (table.closest("figure").dataset.also ?? "").toLowerCase().split("; ").filter(Boolean);
    const rows = [...table.tBodies[0].rows].map((row) => [row, found(row, common)]);
    const names = new Set(rows.flatMap(([, { phrases }]) => phrases)), wanted = sought(words, names);
    let kept = 0;
    for (const [row, { text, phrases, numbers }] of rows) {
      const also = phrases.flatMap((one) => one.split(" "));
      const has = (word) => text.includes(word) || also.some((one) => one.startsWith(word)) || numbers.has(word.replaceAll(",", ""));
      row.hidden = "out" in row.dataset || !wanted.every((part) => (names.has(part) ? phrases.includes(part) : has(part)));
      kept += !row.hidden;
    }
    said.textContent = kept ? "" : `Nothing matches${words.trim() && ` \u201c${words.trim()}\u201d`}.`;
  };

  const quote = (text) => {
    const safe = /^[=+@\t\r]/.test(text) || (/^-/.test(text) && Number.isNaN(Number(text))) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  const csv = (lines) => lines.map((line) => `${line.map((cell) => quote(String(cell))).join(",")}\n`).join("");

  const save = (text, type, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  // The rule of both downloads: columns by their names, values in the base units that the heading says, all digits.
  const download = (table, name) => {
    const head = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.key);
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    const lines = rows.map((row) => head.map((_, index) => full(row.cells[index])));
    const add = (heading, values) => {
      if (!values.some(Boolean) || head.includes(heading)) return;
      head.push(heading);
      lines.forEach((line, index) => line.push(values[index]));
    };
    add("unit", rows.map((row) => row.dataset.unit ?? ""));
    add("not_measured", rows.map((row) => row.querySelector("td.why")?.textContent.trim() ?? ""));
    save(csv([head, ...lines]), "text/csv", `${name}.csv`);
  };

  // A figure that is a table, as a drawing: its coloured boxes, and its words line by line, where the page has them.
  const boxes = (figure) => {
    const space = document.querySelector("svg").namespaceURI;
    const svg = document.createElementNS(space, "svg");
    const frame = figure.getBoundingClientRect();
    const add = (name, set, words = "") => {
      const part = document.createElementNS(space, name);
      for (const [key, value] of Object.entries(set)) part.setAttribute(key, value);
      part.textContent = words;
      svg.append(part);
    };
    const at = ({ left, top }) => ({ x: (left - frame.left).toFixed(1), y: (top - frame.top).toFixed(1) });
    const shown = [...figure.querySelectorAll("*")].filter((one) => !one.closest(".take, .read, .states") && one.getClientRects().length);
    for (const one of shown) {
      const box = one.getBoundingClientRect();
      const { backgroundColor: fill } = getComputedStyle(one);
      if (box.width && fill !== "rgba(0, 0, 0, 0)") {
        add("rect", { ...at(box), width: box.width.toFixed(1), height: box.height.toFixed(1), fill });
      }
      const { backgroundColor: mark, width, height, display } = getComputedStyle(one, "::before");
      if (one.matches(".family") && display !== "none" && mark !== "rgba(0, 0, 0, 0)") {
        const middle = { left: box.left, top: box.top + (box.height - parseFloat(height)) / 2 };
        add("rect", { ...at(middle), width: parseFloat(width), height: parseFloat(height), fill: mark });
      }
    }
    for (const one of shown) {
      const { color: fill, fontSize, fontWeight } = getComputedStyle(one);
      for (const node of [...one.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE)) {
        const lines = new Map();
        for (const word of node.data.matchAll(/\S+/g)) {
          const range = document.createRange();
          range.setStart(node, word.index);
          range.setEnd(node, word.index + word[0].length);
          const box = range.getBoundingClientRect();
          const line = lines.get(box.top) ?? { box, words: [] };
          lines.set(box.top, line);
          line.words.push(word[0]);
        }
        for (const { box, words } of lines.values()) {
          const { x, y } = at({ left: box.left, top: box.top + box.height / 2 });
          const set = { x, y, fill, "font-size": fontSize, "font-weight": fontWeight, "dominant-baseline": "central" };
          add("text", set, words.join(" "));
        }
      }
    }
    for (const strip of figure.querySelectorAll("svg.strip")) {
      const box = strip.getBoundingClientRect(), drawn = strip.cloneNode(true);
      for (const [key, value] of Object.entries({ ...at(box), width: box.width, height: box.height })) drawn.setAttribute(key, value);
      svg.append(drawn);
    }
    svg.setAttribute("viewBox", `-8 -8 ${(frame.width + 16).toFixed(0)} ${(frame.height + 16).toFixed(0)}`);
    return svg;
  };

  // The drawing that is shown, as a file of its own: the colours of the page are variables, which it would not have.
  const drawing = (figure) => {
    const shown = [...figure.querySelectorAll("svg:not(.strip)")].find((svg) => svg.getClientRects().length) ?? boxes(figure);
    const style = getComputedStyle(figure);
    const background = style.getPropertyValue("--md-default-bg-color");
    return new XMLSerializer().serializeToString(shown)
      .replaceAll(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim())
      .replace("<svg ", `<svg font-family="sans-serif" style="background: ${background}" `);
  };

  // The bars of strips of a timeline as rows, as exact as they are drawn: a file with them would be as large as the page.
  const bars = (figure) => {
    const strips = [...figure.querySelectorAll("svg.strip")];
    const rows = strips.flatMap((strip) => {
      const ns = Number(figure.dataset.ns) / strip.viewBox.baseVal.width;
      const of = (path) => [...path.getAttribute("d").matchAll(/M(\d+) 5h(\d+)/g)].map(([, from, length]) => [
        strip.getAttribute("aria-label"), /--family-(.*)\)/.exec(path.getAttribute("stroke"))?.[1] ?? path.querySelector("title").textContent,
        Math.round(from * ns), Math.round(length * ns)]);
      return [...strip.querySelectorAll("path")].flatMap(of).sort((a, b) => a[2] - b[2]);
    });
    return [["strip", "family", "start_ns", "duration_ns"], ...rows];
  };

  const page = location.pathname.split("/").pop().replace(/\.html$/, "") || "index";
  document.addEventListener("click", ({ target }) => {
    const figure = target.closest?.("[data-svg]")?.closest("figure");
    if (figure) save(drawing(figure), "image/svg+xml", `${figure.dataset.name ?? `${page}-${figure.id}`}.svg`);
  });
  for (const button of document.querySelectorAll("[data-drawn]")) {
    const figure = button.closest("figure");
    button.addEventListener("click", () => save(csv(bars(figure)), "text/csv", `${page}-${figure.id}.csv`));
  }

  // A tap or a click on a mark says its value below the drawing, with a link to its run: a phone has no hover.
  const readMarks = (figure) => {
    const runs = JSON.parse(figure.dataset.runs ?? "{}");
    let said = null;
    figure.addEventListener("click", ({ target }) => {
      const words = target.closest("svg path")?.querySelector("title")?.textContent;
      if (!words) return;
      if (!said) {
        said = document.createElement("p");
        said.className = "read";
        said.setAttribute("role", "status");
        figure.append(said);
      }
      said.textContent = words;
      const run = runs[words.split(", ")[0]];
      if (!run) return;
      const link = document.createElement("a");
      link.href = run;
      link.textContent = "its run";
      said.append(" · ", link);
    });
  };

  const makeSortable = (figure) => {
    const table = figure.querySelector("table");
    [...table.tHead.rows[0].cells].forEach((heading, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, index, heading));
    });
    const input = figure.querySelector("figcaption input");
    const said = document.createElement("p");
    said.className = "nothing";
    said.setAttribute("role", "status");
    if (input) figure.append(said);
    input?.addEventListener("input", () => filter(table, input.value, said));
    figure.querySelector("[data-csv]")?.addEventListener("click", () => download(table, figure.id));
  };

  const enhance = (part) => {
    part.querySelectorAll("figure.chart:has(svg)").forEach(readMarks);
    part.querySelectorAll("figure[data-table]").forEach(makeSortable);
  };
  enhance(document);
  document.addEventListener("shown", ({ detail }) => enhance(detail));

  // A page opened from a file may not fetch another: there the viewer opens empty, and the profile is dropped onto it.
  if (location.protocol === "file:") {
    for (const part of document.querySelectorAll(".timeline")) {
      const viewer = part.querySelector("a");
      viewer.hash = "";
      viewer.textContent = "Open the viewer";
      part.querySelector(".profile").hidden = false;
      part.append(" to drop into the viewer, which cannot fetch it from here");
    }
  }

  // The place that a hash names; none if it is empty or not an encoded text, such as #%.
  const find = (hash) => {
    try { return hash.length > 1 ? document.getElementById(decodeURIComponent(hash.slice(1))) : null; } catch { return null; }
  };

  // The link to the rows of a finding opens them below it, and once more puts them back.
  for (const link of document.querySelectorAll("a.rows[href^='#']")) {
    const rows = find(link.hash);
    const said = link.closest("li, p, dd");
    if (!rows || !said) continue;
    const home = rows.parentElement;
    const open = document.createElement("div");
    open.className = "in-place";
    link.setAttribute("aria-expanded", "false");
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const opens = rows.parentElement === home;
      (opens ? open : home).append(rows);
      if (!opens) open.remove();
      else if (said.tagName === "P") said.after(open);
      else said.append(open);
      link.setAttribute("aria-expanded", String(opens));
    });
  }

  // What a badge shows closes by Escape, by a click elsewhere, and if the focus leaves it. Escape leaves the focus on the
  // badge if it was inside; a click leaves it where it went.
  const closeBadges = (except) => {
    for (const badge of document.querySelectorAll("details.pop[open]")) if (!badge.contains(except)) badge.open = false;
  };
  document.addEventListener("click", ({ target }) => closeBadges(target));
  document.addEventListener("focusin", ({ target }) => closeBadges(target));
  document.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    const inside = document.activeElement?.closest("details.pop[open]");
    closeBadges(null);
    inside?.querySelector("summary").focus();
  });

  // Figures in several states: the address names the one that is chosen, as on the home page.
  const choose = (input) => { input.checked = true; };
  const wanted = new URLSearchParams(location.search).get("state");
  const inputs = [...document.querySelectorAll(".by-state > .states input")];
  inputs.filter((one) => one.value === wanted).forEach(choose);
  for (const one of inputs) {
    one.addEventListener("change", () => {
      try { history.replaceState(null, "", `${location.pathname}?${new URLSearchParams({ state: one.value })}`); } catch { /* a file's address may stay */ }
    });
  }

  // A link to rows opens what is folded around them; one to a figure in another state shows that.
  const reveal = () => {
    const target = find(location.hash), state = target?.closest(".by-state > .state");
    if (state) choose(state.parentElement.querySelectorAll(".states input")[[...state.parentElement.querySelectorAll(".state")].indexOf(state)]);
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
