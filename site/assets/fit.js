// The calculator of the page on memory: what one case is predicted to need, and the largest batch for each GPU.
// Cells of memory_grid.js are in the order of the choices, the batch changing first; memory_grid.py says what they hold.
(() => {
  "use strict";

  const form = document.getElementById("will-it-fit");
  if (!form) return;
  const NAMES = { size: "model", context_length: "context", mode: "step", precision: "precision", attention: "attention" };
  const root = document.querySelector("script[src$='fit.js']").src.replace(/assets\/[^/]*$/, "");

  const addChoice = (name, label, values) => {
    const select = document.createElement("select"), around = document.createElement("label");
    select.name = name;
    select.append(...values.map(([value, text]) => new Option(text, value)));
    around.append(`${label} `, select);
    form.append(around);
    return select;
  };

  const writeGib = (gib) => `${gib.toFixed(Math.abs(gib) < 100 ? 1 : 0).replace(/^-0\.0$/, "0.0")} GiB`;

  const fillTable = (table, title, rows) => {
    table.replaceChildren();
    table.createCaption().textContent = title;
    const [headings, ...cells] = rows;
    const head = table.createTHead().insertRow(), body = table.createTBody();
    for (const text of headings) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      head.append(cell);
    }
    for (const texts of cells) {
      const row = body.insertRow();
      for (const text of texts) row.insertCell().textContent = text;
    }
  };

  globalThis.showMemoryGrid = (grid) => {
    const cells = grid.peaks.split(" ");
    const readPeaks = (cell) => cells[cell].split(",").map((peak) => parseInt(peak, 36) / 100);
    const fields = Object.entries(grid.choices).map(([name, values]) => addChoice(name, NAMES[name], values));
    const batch = addChoice("batch_size", "batch", grid.batches.map((value) => [value, String(value)]));
    const said = document.createElement("output");
    const [table, changes] = ["fit", "fit-changes"].map((name) => {
      const made = document.createElement("table");
      made.className = name;
      return made;
    });
    const tables = document.createElement("div");
    tables.className = "fit-tables";
    tables.append(table, changes);
    form.after(said, tables);
    said.className = "fit";
    said.id = "fit-said";

    const findRow = () => fields.reduce((at, field) => at * field.options.length + field.selectedIndex, 0) * grid.batches.length;
    const show = () => {
      const row = findRow(), cell = row + batch.selectedIndex, fits = Number(grid.fits[cell]);
      const [peak, ...relieved] = readPeaks(cell);
      const need = `Peak allocated, predicted: ${writeGib(peak)}`;
      said.textContent = fits < grid.gpus.length
        ? `${need}. It fits a GPU of ${grid.gpus[fits]} GB.`
        : `${need}. It does not fit a GPU of ${grid.gpus.at(-1)} GB.`;
      const context = Number(form.elements.context_length.value);
      fillTable(table, "Largest batch", [
        ["GPU", "this batch", "largest batch", "tokens a step"],
        ...grid.gpus.map((gb, place) => {
          const most = grid.batches.filter((_, i) => Number(grid.fits[row + i]) <= place).at(-1);
          const isAll = most === grid.batches.at(-1);
          return [
            `${gb} GB`,
            fits <= place ? "fits" : "too large",
            most ? `${most}${isAll ? " or more" : ""}` : "none",
            most ? (most * context).toLocaleString("en") : "",
          ];
        }),
      ]);
      changes.hidden = !relieved.length;
      fillTable(changes, "What saves memory", [
        ["change", "predicted peak", "saves"],
        ...relieved.map((gib, i) => [grid.changes[i], ...[gib, peak - gib].map(writeGib)]),
      ]);
    };
    const remember = () => {
      const state = new URLSearchParams([...fields, batch].map((field) => [field.name, field.value]));
      try { history.replaceState(null, "", `${location.pathname}?${state}${location.hash}`); } catch { /* a file's address may stay */ }
    };

    const wanted = new URLSearchParams(location.search);
    const usual = { size: "1.3B", context_length: "1024", batch_size: "4" };
    for (const field of [...fields, batch]) {
      for (const value of [usual[field.name], wanted.get(field.name)]) {
        if ([...field.options].some((one) => one.value === value)) field.value = value;
      }
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => { show(); remember(); });
    show();
  };

  // A script and not a fetch: a page that was opened from a file may load the one, not the other.
  const script = document.createElement("script");
  script.src = `${root}assets/memory_grid.js`;
  document.head.append(script);
})();
