// Tables: sort by a heading, filter by words, download what is visible. Without JavaScript they read as they are.
(() => {
  "use strict";

  const full = (cell) => {
    if (!cell) return "";
    const name = cell.querySelector("details > code");
    return cell.dataset.v || (name || cell).textContent.trim().replaceAll("\u00a0", " ");
  };

  const value = (cell) => {
    if (!cell || cell.classList.contains("why")) return null;
    return cell.dataset.v !== undefined ? Number(full(cell)) : cell.textContent.trim();
  };

  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
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
    rows.sort((one, two) => {
      if (order === "none") return one.dataset.order - two.dataset.order;
      const [a, b] = [value(one.cells[index]), value(two.cells[index])];
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * compare(a, b) || one.dataset.order - two.dataset.order;
    });
    body.append(...rows);
  };

  const filter = (table, words) => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
  };

  const quote = (text) => {
    const safe = /^[=+@\t\r]/.test(text) || (/^-/.test(text) && Number.isNaN(Number(text))) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  const download = (table, name) => {
    const rows = [...table.rows].filter((row) => !row.hidden);
    const text = rows.map((row) => [...row.cells].map((cell) => quote(full(cell))).join(",")).join("\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text + "\n"], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  for (const figure of document.querySelectorAll("figure[data-table]")) {
    const table = figure.querySelector("table");
    [...table.tHead.rows[0].cells].forEach((heading, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, index, heading));
    });
    const input = figure.querySelector("figcaption input");
    input?.addEventListener("input", () => filter(table, input.value));
    figure.querySelector("[data-csv]")?.addEventListener("click", () => download(table, figure.id));
  }

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

  // A link to rows opens what is folded around them.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
