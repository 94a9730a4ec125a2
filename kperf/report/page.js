// Keys, buttons and the search of each timeline. The figure itself, its zoom, pan and hover, is Bokeh's.
"use strict";
const ready = (name, then) => {
  const figure = (window.Bokeh?.documents ?? []).map((one) => one.get_model_by_name(name)).find(Boolean);
  figure ? then(figure) : setTimeout(() => ready(name, then), 50);
};
for (const part of document.querySelectorAll(".figure")) {
  ready(part.dataset.name, (figure) => {
    const range = figure.x_range;
    const [least, most] = range.bounds;
    const begin = [range.start, range.end];
    const view = (start, end) => {
      const width = Math.min(end - start, most - least);
      const from = Math.max(least, Math.min(start, most - width));
      range.setv({ start: from, end: from + width });
    };
    const moves = {
      in: () => { const rest = (range.end - range.start) / 4; view(range.start + rest, range.end - rest); },
      out: () => { const more = (range.end - range.start) / 2; view(range.start - more, range.end + more); },
      left: () => { const step = (range.end - range.start) / 4; view(range.start - step, range.end - step); },
      right: () => { const step = (range.end - range.start) / 4; view(range.start + step, range.end + step); },
      all: () => view(least, most),
      reset: () => view(...begin),
    };
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "reset", a: "all" };
    for (const button of part.querySelectorAll("button[data-move]")) {
      button.addEventListener("click", () => moves[button.dataset.move]());
    }
    part.querySelector(".paper").addEventListener("keydown", (event) => {
      if (event.key in keys && !event.ctrlKey && !event.metaKey) { moves[keys[event.key]](); event.preventDefault(); }
    });
    const source = figure.renderers[0].data_source;
    const search = part.querySelector("input[type=search]");
    const count = part.querySelector("output");
    let matches = [], place = -1;
    search.addEventListener("input", () => {
      const words = search.value.trim().toLowerCase();
      const names = Array.from(source.data.name, (name) => name.toLowerCase());
      matches = words ? names.flatMap((name, index) => name.includes(words) ? [index] : []) : [];
      const found = new Set(matches);
      source.data = { ...source.data, alpha: names.map((_, index) => !words || found.has(index) ? 1 : 0.12) };
      place = -1;
      count.value = words ? `${matches.length} events` : "";
    });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !matches.length) return;
      place = (place + (event.shiftKey ? matches.length - 1 : 1)) % matches.length;
      const index = matches[place];
      const middle = (source.data.left[index] + source.data.right[index]) / 2;
      const half = (range.end - range.start) / 2;
      view(middle - half, middle + half);
      count.value = `${place + 1} of ${matches.length} events`;
    });
    part.dataset.ready = "true";
  });
}
