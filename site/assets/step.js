// The figure of a training step: draws the chosen one from the data of all. Without JavaScript one step is shown.
(() => {
  "use strict";

  const number = (ms) => {
    const digits = ms ? Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(ms)))) : 0;
    return ms.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  };

  const make = (tag, words = "", set = {}) => Object.assign(document.createElement(tag), { textContent: words }, set);

  const bar = (family, ms, most, families) => {
    const [key, label] = family < 0 ? ["", "no kernel"] : families[family];
    const part = make("i", "", { title: `${label} ${number(ms)} ms` });
    part.style.width = `${(100 * ms / most).toFixed(2)}%`;
    part.style.background = `var(--${key ? `family-${key}` : "chart-rule"})`;
    return part;
  };

  const draw = (figure, step, { families, words }) => {
    const most = Math.max(...step.rows.filter((row) => row[3].length).map((row) => row[2]));
    const rows = step.rows.map(([phase, module, ms, pairs]) => {
      const row = make("tr", "", { className: phase ? "first" : "" });
      const bars = make("td", "", { className: "bars" });
      for (let i = 0; i < pairs.length; i += 2) bars.append(bar(pairs[i], pairs[i + 1], most, families));
      row.append(make("th", words[phase || module] || "outside phases", { scope: "row" }), bars, make("td", number(ms)));
      return row;
    });
    figure.querySelector("tbody").replaceChildren(...rows);
  };

  for (const figure of document.querySelectorAll("figure[data-steps]")) {
    const data = JSON.parse(figure.dataset.steps);
    const fields = [...figure.querySelectorAll("fieldset")];
    const show = () => {
      const boxes = fields.map((field) => field.querySelector("input:checked"));
      const [size, context, variant] = boxes.map((box) => box.nextSibling.textContent);
      const step = data.steps.find(({ at }) => boxes.every((box, i) => at[i] === Number(box.value)));
      figure.querySelector(".title").textContent = step ? step.said : "Not measured";
      figure.querySelector(".case").textContent = `${size} · ${context}`;
      figure.querySelector(".variant").textContent = variant;
      figure.querySelector(".conditions .ms").textContent = step ? number(step.ms) : "no";
      const link = figure.querySelector("a.run");
      link.hidden = !step?.run;
      if (step?.run) link.href = step.run;
      if (step) draw(figure, step, data);
      else figure.querySelector("tbody").replaceChildren();
    };
    for (const field of fields) field.addEventListener("change", show);
  }
})();
