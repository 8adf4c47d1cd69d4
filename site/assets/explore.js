// The page of all runs: choose by facets, sort by a metric, pin two. The table is the data; the address keeps the state.
// It waits for report.js, whose filter it shares.
addEventListener("DOMContentLoaded", () => {
  "use strict";

  const PRECISIONS = ["FP8", "BF16", "TF32", "FP32"];

  const form = document.getElementById("explore");
  const figure = document.getElementById("table-explore");
  const table = figure?.querySelector("table");
  if (!form || !table) return;
  const headings = [...table.tHead.rows[0].cells];
  const keys = headings.map((cell) => cell.dataset.key.split(" [")[0]);
  const rows = [...table.tBodies[0].rows];
  const cell = (row, key) => row.cells[keys.indexOf(key)];
  const held = (row, key) => {
    const one = cell(row, key);
    return one ? one.dataset.v || one.dataset.k || one.firstChild.textContent.trim() : "";
  };
  const number = (row, key) => {
    const one = cell(row, key);
    return one?.dataset.v === undefined ? null : Number(one.dataset.v || one.textContent.replaceAll(",", ""));
  };
  const facets = [...form.querySelectorAll("select")].filter((select) => !["metric", "over"].includes(select.name));
  const metrics = [...form.elements.metric.options];
  const filter = figure.querySelector("figcaption input"), most = form.elements.most;
  // A facet without a column is of what the words of another column name; what they do not is its first value.
  const fits = (row, select) => {
    if (!select.value) return true;
    if (!select.dataset.within) return held(row, select.name) === select.value;
    const said = cell(row, select.dataset.within).textContent.trim().split(", "), [, usual, ...named] = select.options;
    return (named.find((option) => said.includes(option.text)) ?? usual).value === select.value;
  };
  const isCheap = (row) => !most?.value || (number(row, "cost") ?? Infinity) <= Number(most.value);
  const direction = (heading) => heading.getAttribute("aria-sort");
  // Forward passes and training steps have nothing to compare: without a choice the page opens with the longest mode.
  const mode = form.elements.mode, usual = mode?.options[mode.options.length - 1].value;
  let pins = [];

  const buttons = new Map(rows.map((row) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "pin";
    button.setAttribute("aria-label", `Pin ${row.id}`);
    button.addEventListener("click", () => pin(row));
    row.cells[0].append(button);
    return [row, button];
  }));

  const remember = () => {
    const state = new URLSearchParams();
    for (const select of facets) if (select.value) state.set(select.name, select.value);
    for (const name of ["metric", "over"]) if (form.elements[name].selectedIndex) state.set(name, form.elements[name].value);
    if (most?.value) state.set("most", most.value);
    if (filter.value) state.set("words", filter.value);
    const sorted = headings.findIndex(direction);
    if (sorted >= 0) state.set("sort", (direction(headings[sorted]) === "descending" ? "-" : "") + keys[sorted]);
    for (const row of pins) state.append("pin", row.id);
    if (mode && ![...state].length) state.set("mode", "");
    const query = state.toString();
    try { history.replaceState(null, "", `${location.pathname}${query && "?" + query}${location.hash}`); } catch { /* a file's address may stay */ }
  };

  const choose = () => {
    for (const row of rows) {
      if (!isCheap(row) || !facets.every((select) => fits(row, select))) row.dataset.out = ""; else delete row.dataset.out;
    }
    filter.dispatchEvent(new Event("input"));
    show();
  };
  const show = () => {
    const shown = rows.filter((row) => !row.hidden).length;
    document.getElementById("explore-shown").textContent = `${shown} of ${rows.length} runs`;
    draw();
  };

  // The metric over another number, both logarithmic; a tap on a mark reads it out and leads to its run.
  const picture = document.getElementById("scatter"), HEIGHT = 260, LEFT = 62, BELOW = 38;
  const svg = picture.querySelector("svg"), space = svg.namespaceURI;
  const place = (name, set, words = "") => {
    const made = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(set)) made.setAttribute(key, value);
    made.textContent = words;
    svg.append(made);
    return made;
  };
  const getUnit = (key) => headings[keys.indexOf(key)].querySelector(".unit")?.textContent ?? "";
  const SCALES = { ms: 1e6, GiB: 2 ** 30, "%": 0.01, B: 1e9 };
  const say = (value, key) => {
    const scaled = value / (SCALES[getUnit(key)] ?? 1);
    return (scaled >= 100 ? Math.round(scaled) : Number(scaled.toPrecision(3))).toLocaleString("en");
  };
  const choosePoints = (values) => {
    const known = [...new Set(values)].sort((a, b) => a - b);
    if (known.length <= 8) return known;
    const all = [], [low, high] = [known[0], known.at(-1)];
    for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) all.push(power, 2 * power, 5 * power);
    const inside = all.filter((value) => value >= low && value <= high);
    return inside.length > 8 ? inside.filter((_, at) => at % 3 === 0) : inside;
  };
  const makeScale = (values, from, to) => {
    const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log);
    return (value) => (high > low ? from + ((Math.log(value) - low) / (high - low)) * (to - from) : (from + to) / 2);
  };
  const MARKS = ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-3.5-3.5h7v7h-7z", "M0-4.5l4.5 8h-9z", "M0-5l5 5l-5 5l-5-5z"];
  // The model and its parameters are one axis; the table has no room for a column of these.
  const SIZE = "num_parameters", MOST_LINES = 12, parameters = keys.indexOf(SIZE);
  for (const row of headings[0].closest("table").rows) if (row.cells[parameters]) row.cells[parameters].hidden = true;
  const cases = keys.slice(0, keys.indexOf(metrics[0].value)).filter((key) => key !== SIZE);
  // The name of a line: the settings in which it differs from the other lines.
  const nameLine = (values, others) => {
    const isParallel = others.some((other) => other.some((value) => / GPUs\b/.test(value)));
    const differing = values.filter((value, at) => others.some((other) => other[at] !== value));
    return differing.map((value) => (value === "none" ? (isParallel ? "one GPU" : "as usual") : value)).join(" · ");
  };
  const draw = () => {
    const [across, up] = [form.elements.over, form.elements.metric].map((select) => select.value);
    const shown = rows.filter((row) => !row.hidden && number(row, across) > 0 && number(row, up) > 0);
    const [xs, ys] = [across, up].map((key) => shown.map((row) => number(row, key)));
    const width = Math.max(300, picture.clientWidth), kinds = [...new Set(rows.map((row) => held(row, "precision")))].sort();
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const x = makeScale(xs, LEFT + 12, width - 16), y = makeScale(ys, HEIGHT - BELOW - 8, 10);
    let labelled = -Infinity;
    for (const value of shown.length ? choosePoints(xs) : []) {
      place("line", { x1: x(value), x2: x(value), y1: 4, y2: HEIGHT - BELOW, class: "rule" });
      if (x(value) - labelled < 36) continue;
      labelled = x(value);
      place("text", { x: x(value), y: HEIGHT - BELOW + 14, "text-anchor": "middle" }, say(value, across));
    }
    for (const value of shown.length ? choosePoints(ys) : []) {
      place("line", { x1: LEFT, x2: width - 4, y1: y(value), y2: y(value), class: "rule" });
      place("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, say(value, up));
    }
    // Runs that differ in nothing but what the picture is over are joined by a line, if there are few such lines.
    const lines = new Map();
    const axis = across === SIZE ? "size" : across;
    if (cases.includes(axis)) shown.forEach((row, at) => {
      const of = cases.filter((key) => key !== axis && key !== "recording").map((key) => held(row, key)).join("|");
      lines.set(of, [...(lines.get(of) ?? []), [xs[at], ys[at], kinds.indexOf(held(row, "precision")) % MARKS.length]]);
    });
    const joined = [...lines].filter(([, points]) => new Set(points.map(([at]) => at)).size > 1);
    const few = (joined.length <= MOST_LINES ? joined : []).map(([of, points]) => [of.split("|"), points]), ends = [];
    for (const [of, points] of few) {
      const medians = [...new Set(points.map(([at]) => at))].sort((a, b) => a - b).map((at) => {
        const of = points.filter(([other]) => other === at).map(([, value]) => value).sort((a, b) => a - b);
        return `${x(at).toFixed(1)},${y(of[of.length >> 1]).toFixed(1)}`;
      });
      place("polyline", { points: medians.join(" "), fill: "none", stroke: `var(--series-${points[0][2]})` });
      const [right, top] = medians.at(-1).split(",").map(Number);
      ends.push({ right, top, name: nameLine(of, few.map(([other]) => other)) });
    }
    shown.forEach((row, at) => {
      const kind = kinds.indexOf(held(row, "precision")) % MARKS.length;
      const mark = place("path", { d: MARKS[kind], transform: `translate(${x(xs[at]).toFixed(1)} ${y(ys[at]).toFixed(1)})`, fill: `var(--series-${kind})` });
      mark.dataset.run = row.id;
    });
    // Names of lines are above their ends, below one another.
    let taken = -Infinity;
    for (const end of few.length > 1 ? ends.sort((a, b) => a.top - b.top) : []) {
      taken = Math.max(end.top - 7, taken + 13, 12);
      place("text", { x: end.right, y: taken, "text-anchor": "end", class: "line" }, end.name);
    }
    const [over, of] = [form.elements.over, form.elements.metric].map((select) => `${select.selectedOptions[0].text}${getUnit(select.value) && `, ${getUnit(select.value)}`}`);
    place("text", { x: (LEFT + width) / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "axis" }, `${over} (log scale)`);
    place("text", { "text-anchor": "middle", class: "axis", transform: `translate(12 ${(HEIGHT - BELOW) / 2}) rotate(-90)` }, `${of} (log scale)`);
    picture.querySelector(".title").textContent = `${of}, over ${over}`;
    picture.querySelector(".legend").replaceChildren(...kinds.filter(Boolean).map((kind, at) => {
      const entry = document.createElement("span");
      entry.className = `series point series-${at % MARKS.length}`;
      entry.style.setProperty("--family", `var(--series-${at % MARKS.length})`);
      entry.textContent = kind;
      return entry;
    }));
  };
  svg.addEventListener("click", ({ target }) => {
    const row = rows.find((one) => one.id === target.dataset.run), read = picture.querySelector(".read");
    if (!row) return;
    const link = document.createElement("a"), run = row.querySelector("a");
    link.textContent = "its run";
    if (run) link.href = run.href;
    const up = form.elements.metric.value;
    read.replaceChildren(`${name(row)}: ${say(number(row, up), up)} ${getUnit(up)}`, ...(run ? [" · ", link] : []));
  });

  // The metric's column is marked, and sorted from its best value on; what a heading sorted by is no more.
  const order = () => {
    for (const heading of headings) heading.removeAttribute("aria-sort");
    for (const row of rows) delete row.dataset.order;
    const chosen = form.elements.metric.selectedOptions[0], index = keys.indexOf(chosen.value);
    const sign = "larger" in chosen.dataset ? -1 : 1;
    for (const row of table.rows) [...row.cells].forEach((one, at) => one.classList.toggle("metric", at === index));
    if (!form.elements.metric.selectedIndex) return rows.forEach((row) => table.tBodies[0].append(row));
    const value = (row) => number(row, chosen.value) ?? Infinity * sign;
    [...rows].sort((a, b) => sign * (value(a) - value(b)) || 0).forEach((row) => table.tBodies[0].append(row));
    if (chosen.value === "mfu") group();
  };
  // MFU orders runs within a precision: the peaks differ.
  const group = () => {
    const place = (row) => PRECISIONS.indexOf(held(row, "precision"));
    [...table.tBodies[0].rows].sort((a, b) => place(a) - place(b)).forEach((row) => table.tBodies[0].append(row));
  };
  table.tHead.addEventListener("click", () => {
    if (headings.some((heading, at) => keys[at] === "mfu" && direction(heading))) group();
  });

  const pin = (row) => {
    pins = pins.includes(row) ? pins.filter((one) => one !== row) : [...pins.slice(-1), row];
    compare();
    remember();
  };

  const element = (name, text, parent) => {
    const made = document.createElement(name);
    made.textContent = text;
    parent.append(made);
    return made;
  };
  const name = (row) => cases.map((key) => cell(row, key).firstChild.textContent.trim()).join(" · ");
  const verdict = (key, first, second) => {
    if (key !== metrics[0].value || !form.dataset.relative) return "not known";
    const shares = pins.map((row) => number(row, "idle_share")), gpus = new Set(pins.map((row) => held(row, "gpu_name")));
    if (shares.some((share) => share === null || share === undefined) || gpus.size > 1) return "not known";
    const idle = Math.max(...pins.map((row, index) => shares[index] * number(row, key)));
    const width = Number(form.dataset.relative) * Math.hypot((first + second) / 2, Number(form.dataset.ratio) * idle);
    return `${Math.abs(second - first) > width ? "yes" : "no"}: the band is ± ${(width / 1e6).toPrecision(3)} ms`;
  };
  const compare = () => {
    for (const [row, button] of buttons) {
      button.textContent = pins.includes(row) ? "AB"[pins.indexOf(row)] : "";
      button.setAttribute("aria-pressed", String(pins.includes(row)));
    }
    const place = document.getElementById("explore-pinned");
    place.replaceChildren();
    pins.forEach((row, index) => { element("p", `${"AB"[index]}: ${name(row)}`, place).className = "of"; });
    if (pins.length < 2) return void element("p", pins.length ? "Pin one more to see the difference." : "Pin two runs to see their difference.", place);
    const drawn = element("table", "", place);
    drawn.className = "data";
    const head = element("tr", "", element("thead", "", drawn));
    for (const text of ["metric", "A", "B", "B − A", "B ÷ A", "beyond noise"]) element("th", text, head).scope = "col";
    const body = element("tbody", "", drawn);
    for (const option of metrics) {
      const [first, second] = pins.map((row) => number(row, option.value));
      const line = element("tr", "", body);
      const unit = headings[keys.indexOf(option.value)].querySelector(".unit")?.textContent ?? "";
      element("th", `${option.textContent}${unit && ", " + unit}`, line).scope = "row";
      const scale = { ms: 1e6, GiB: 2 ** 30, "%": 0.01 }[unit] ?? 1;
      for (const row of pins) element("td", cell(row, option.value)?.textContent.trim() || "n/a", line);
      if (first === null || second === null) { for (let left = 3; left; left -= 1) element("td", "n/a", line); continue; }
      const apart = (second - first) / scale;
      element("td", `${apart > 0 ? "+" : ""}${Number(apart.toPrecision(4)).toLocaleString("en")}`, line);
      element("td", first ? `${(second / first).toPrecision(3)} ×` : "n/a", line);
      element("td", verdict(option.value, first, second), line);
    }
  };

  const read = () => {
    const state = new URLSearchParams(location.search);
    for (const select of [...facets, form.elements.metric, form.elements.over]) {
      const wanted = state.get(select.name)?.toLowerCase();
      const option = [...select.options].find((one) => one.value.toLowerCase() === wanted);
      if (option) select.value = option.value;
    }
    if (mode && !location.search) mode.value = usual;
    if (most) most.value = state.get("most") ?? "";
    pins = state.getAll("pin").map((id) => document.getElementById(id)).filter((row) => rows.includes(row)).slice(0, 2);
    filter.value = state.get("words") ?? "";
    order();
    const [, sign, key] = /^(-?)(.*)$/.exec(state.get("sort") ?? ""), heading = headings[keys.indexOf(key)];
    const wanted = sign ? "descending" : "ascending";
    for (let press = 0; heading && press < 2 && direction(heading) !== wanted; press += 1) heading.querySelector("button").click();
  };

  form.addEventListener("change", ({ target }) => {
    if (target.name === "metric") order();
    choose();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    for (const select of [...facets, form.elements.metric, form.elements.over]) select.selectedIndex = 0;
    pins = [];
    if (most) most.value = "";
    filter.value = "";
    order();
    compare();
    choose();
  });
  filter.addEventListener("input", () => { show(); remember(); });
  read();
  table.tHead.addEventListener("click", remember);
  choose();
  compare();
});
