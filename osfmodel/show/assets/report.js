"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const one = (selector, from = document) => from.querySelector(selector);
  const svg = "http://www.w3.org/2000/svg";
  const scroll = one(".scroll"), inner = one(".inner"), axis = one(".axis"), details = one("#details");
  const UNITS = [["s", 1], ["ms", 1e3], ["µs", 1e6], ["ns", 1e9]];
  const MOST = 400;
  let zoom = 1, plan = one('input[name="plan"]:checked').value;

  // The axis: numbers about 80 pixels apart over what is shown now, in the unit of the whole.
  const end = () => Number(one(`.inner [data-plan="${plan}"]`).dataset.end);
  const drawAxis = () => {
    const whole = end(), shown = whole / zoom;
    const [unit, factor] = UNITS.find(([, factor]) => shown * factor >= 2) || UNITS[3];
    const raw = (shown * factor * 90) / Math.max(scroll.clientWidth, 90);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * (1 - 1e-9));
    axis.replaceChildren();
    const from = (scroll.scrollLeft / inner.clientWidth) * whole * factor, to = from + shown * factor;
    for (let n = Math.max(0, Math.floor(from / step) - 1); n * step <= Math.min(to + step, whole * factor * (1 + 1e-9)); n++) {
      const at = `${((100 * n * step) / (whole * factor)).toFixed(5)}%`;
      const line = document.createElementNS(svg, "line"), text = document.createElementNS(svg, "text");
      for (const [name, value] of [["x1", at], ["x2", at], ["y1", 0], ["y2", 5]]) line.setAttribute(name, value);
      text.setAttribute("x", at);
      text.setAttribute("y", 19);
      text.textContent = n ? `${Number((n * step).toPrecision(7))} ${unit}` : "0";
      if (n * step > 0.97 * whole * factor) text.setAttribute("text-anchor", "end"), text.style.textAnchor = "end";
      if (n) text.style.textAnchor = text.style.textAnchor || "middle"; else text.style.textAnchor = "start";
      axis.append(line, text);
    }
  };

  // Numbers of buckets, where bars have become wide enough for them.
  const drawNumbers = () => {
    for (const bar of all(".block:not([hidden]) .collective")) {
      const rect = bar.firstElementChild, had = one(".late", bar);
      const fits = bar.dataset.bucket !== undefined && rect.getBoundingClientRect().width > 28;
      if (had && !fits) had.remove();
      if (!fits || one("text", bar)) continue;
      const text = document.createElementNS(svg, "text");
      text.setAttribute("class", "late");
      text.setAttribute("x", `${parseFloat(rect.getAttribute("x")) + parseFloat(rect.getAttribute("width")) / 2}%`);
      text.setAttribute("y", Number(rect.getAttribute("y")) + 19);
      text.textContent = Number(bar.dataset.bucket) + 1;
      bar.append(text);
    }
  };

  // Zoom: the drawing gets wider inside a box that scrolls; what is under the pointer stays there.
  const setZoom = (wanted, at = 0.5) => {
    const next = Math.min(Math.max(wanted, 1), MOST), width = scroll.clientWidth;
    const under = (scroll.scrollLeft + at * width) / (zoom * width || 1);
    zoom = next;
    inner.style.width = `${100 * zoom}%`;
    scroll.scrollLeft = under * zoom * width - at * width;
    drawAxis();
    drawNumbers();
  };
  const ACTIONS = { in: () => setZoom(zoom * 1.6), out: () => setZoom(zoom / 1.6), all: () => setZoom(1) };
  for (const button of all("[data-zoom]")) button.addEventListener("click", ACTIONS[button.dataset.zoom]);
  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = scroll.getBoundingClientRect();
    setZoom(zoom * Math.exp(-event.deltaY / 300), (event.clientX - box.left) / box.width);
  }, { passive: false });
  scroll.addEventListener("scroll", () => requestAnimationFrame(drawAxis));
  scroll.addEventListener("keydown", (event) => {
    const action = { "+": "in", "=": "in", "-": "out", 0: "all" }[event.key];
    if (action && !event.ctrlKey && !event.metaKey) ACTIONS[action](), event.preventDefault();
  });
  // Drag with a mouse; fingers scroll by themselves.
  let drag = null;
  scroll.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && zoom > 1) drag = { x: event.clientX, left: scroll.scrollLeft };
  });
  addEventListener("pointermove", (event) => {
    if (drag) scroll.scrollLeft = drag.left - (event.clientX - drag.x);
  });
  addEventListener("pointerup", () => { drag = null; });

  // What is pointed at: a collective shows its row of the table, anything else its words.
  const fact = (name, value) => {
    const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    box.append(dt, dd);
    return box;
  };
  const tell = (bar) => {
    for (const on of all(".on")) on.classList.remove("on");
    const block = bar.closest(".block"), row = bar.dataset.row && document.getElementById(bar.dataset.row);
    const title = document.createElement("h3");
    if (row) {
      const heads = all("thead th", row.closest("table")).map((head) => head.textContent);
      const cells = [...row.cells].map((cell) => cell.textContent);
      const list = document.createElement("dl");
      heads.forEach((head, n) => { if (n > 1 && cells[n]) list.append(fact(head, cells[n])); });
      title.textContent = cells[0] ? `Bucket ${cells[0]}: ${cells[1]}` : cells[1];
      details.replaceChildren(title, list);
      row.classList.add("on");
    } else {
      const words = bar.dataset.say, cut = words.indexOf(": ");
      title.textContent = words.slice(0, cut);
      const text = document.createElement("p");
      text.textContent = words.slice(cut + 2);
      details.replaceChildren(title, text);
    }
    bar.classList.add("on");
    details.classList.add("told");
    if (bar.dataset.bucket !== undefined)
      for (const same of all(`.bar[data-bucket="${bar.dataset.bucket}"]`, block)) same.classList.add("on");
  };
  const bar = (event) => event.target.closest && event.target.closest(".gantt .bar");
  for (const kind of ["pointerover", "click", "focusin"])
    scroll.addEventListener(kind, (event) => { const found = bar(event); if (found && !drag) tell(found); });
  scroll.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], found = bar(event);
    if (!step || !found) return;
    event.preventDefault();
    const bars = all(".collective", found.closest("svg.lanes"));
    const rows = bars.sort((a, b) => Number(a.dataset.row.split("-")[1]) - Number(b.dataset.row.split("-")[1]));
    const next = rows[rows.indexOf(found) + step];
    if (!next) return;
    found.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  for (const point of all(".point")) {
    const say = one(".say", point.closest("figure"));
    const told = () => { say.textContent = point.dataset.say; };
    for (const kind of ["pointerover", "click", "focus"]) if (say) point.addEventListener(kind, told);
  }

  // Another plan: its drawing, its names and its table; a measured step keeps its length on the new axis.
  const choose = (chosen) => {
    plan = chosen;
    for (const part of all("[data-plan]")) part.hidden = part.dataset.plan !== plan;
    for (const block of all("[data-length]"))
      one(".span", block).setAttribute("width", `${(100 * Number(block.dataset.length)) / end()}%`);
    const empty = document.createElement("p");
    empty.textContent = "Hover, tap or focus a bar for its bucket.";
    details.replaceChildren(empty);
    details.classList.remove("told");
    drawAxis();
  };
  for (const input of all('input[name="plan"]')) input.addEventListener("change", () => choose(input.value));
  addEventListener("resize", drawAxis);
  // On paper: the whole iteration, and the tables that are short.
  let opened = [];
  addEventListener("beforeprint", () => {
    setZoom(1);
    opened = all("details:not([hidden]):not([open])").filter((fold) => all("tbody tr", fold).length <= 40);
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of opened) fold.open = false; });
  drawAxis();
})();
