"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const filters = document.getElementById("filters");

  // Filter: rows and cards whose attributes disagree are hidden, and groups that become empty with them.
  if (filters) {
    const boxes = all("[data-filter]", filters);
    const works = all(".work");
    const output = filters.querySelector("output");
    const apply = () => {
      const wanted = boxes.filter((box) => box.value !== "");
      for (const work of works) {
        work.hidden = !wanted.every((box) =>
          box.dataset.filter === "text"
            ? work.dataset.workload.toLowerCase().includes(box.value.trim().toLowerCase())
            : work.dataset[box.dataset.filter] === box.value);
      }
      for (const group of all("details.group")) {
        const shown = all(".card:not([hidden])", group).length;
        group.hidden = shown === 0;
        if (wanted.length && shown) group.open = true;
      }
      const cards = all(".card");
      const shown = cards.filter((card) => !card.hidden).length;
      output.textContent = wanted.length ? `${shown} of ${cards.length} workloads` : `${cards.length} workloads`;
    };
    filters.hidden = false;
    filters.addEventListener("input", apply);
    filters.addEventListener("submit", (event) => event.preventDefault());
    filters.addEventListener("reset", () => setTimeout(apply));
    apply(); // a reload keeps what was chosen
  }

  // Read out: the nearest setting under the pointer, or the next one by the arrow keys, from the card's table of values.
  for (const card of all(".card")) {
    const drawing = card.querySelector("svg.curves");
    const readout = card.querySelector(".readout");
    const rows = all("table.values tbody tr", card).map((row) => [...row.cells].map((cell) => cell.textContent));
    const places = drawing.dataset.xs.split(",").map(Number);
    const resting = readout.textContent;
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    line.setAttribute("class", "cursor");
    line.setAttribute("y1", "2");
    line.setAttribute("y2", drawing.dataset.bottom);
    let at = -1;
    const show = (index) => {
      at = index;
      if (index < 0) {
        line.remove();
        readout.textContent = resting;
        return;
      }
      line.setAttribute("x1", places[index]);
      line.setAttribute("x2", places[index]);
      drawing.append(line);
      const [setting, time, power, energy, above, who] = rows[index];
      const clock = setting === "maxn" ? setting : `${setting} MHz`;
      readout.textContent = `${clock}: ${time} s, ${power} W, ${energy} J, ${above} % above the best${who ? `; picked by ${who}` : ""}`;
    };
    const nearest = (event) => {
      const box = drawing.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * drawing.viewBox.baseVal.width;
      let best = 0;
      places.forEach((place, i) => { if (Math.abs(place - x) < Math.abs(places[best] - x)) best = i; });
      show(best);
    };
    drawing.setAttribute("tabindex", "0");
    drawing.addEventListener("pointermove", nearest);
    drawing.addEventListener("pointerdown", nearest);
    drawing.addEventListener("pointerleave", () => show(-1));
    drawing.addEventListener("blur", () => show(-1));
    drawing.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) {
        event.preventDefault();
        show(Math.min(Math.max(at + step, 0), places.length - 1));
      } else if (event.key === "Escape") show(-1);
    });
  }

  // A link to a card unfolds its group; so does printing, for all of them.
  const unfold = () => {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    const group = target && target.closest("details");
    if (group && !group.open) {
      group.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", unfold);
  addEventListener("beforeprint", () => all("details.group").forEach((group) => { group.open = true; }));
  unfold();
})();
