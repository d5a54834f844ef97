"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const one = (selector, from = document) => from.querySelector(selector);
  const make = (tag, text = "") => Object.assign(document.createElement(tag), { textContent: text });
  const PRINTED = 500, FEW = 12;

  const table = one("#points table");
  if (!table) return;
  const body = table.tBodies[0], heads = all("thead th", table), names = heads.map((head) => head.textContent);
  const grid = [...body.rows];
  const rows = grid.map((row) => {
    const cells = [...row.cells], texts = cells.map((cell) => cell.textContent);
    const values = cells.map((cell, n) => (texts[n] === "" ? NaN : Number(cell.dataset.v ?? texts[n])));
    return { row, texts, values, words: texts.join(" ").toLowerCase() };
  });
  const numeric = names.map((_, n) => rows.every(({ texts, values }) => texts[n] === "" || !Number.isNaN(values[n])));
  const compare = new Intl.Collator("en", { numeric: true }).compare;
  const status = one("#points .found"), tools = one("#points .filters"), say = one(".say");
  const dots = new Map(all("#plot [data-row]").map((dot) => [dot.dataset.row, dot]));
  let sorted = null, falling = false;

  const showing = () => {
    let shown = 0;
    for (const row of body.rows) row.classList.toggle("beyond", !row.hidden && ++shown > PRINTED);
    status.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} points`;
    const paper = one("#points .paper");
    if (paper) paper.hidden = shown <= PRINTED;
  };

  // Sorting: up, down, and the order of the grid again; empty cells come last.
  const sort = (n) => {
    if (sorted !== n) [sorted, falling] = [n, false];
    else if (!falling) falling = true;
    else [sorted, falling] = [null, false];
    heads.forEach((head, m) => {
      if (m === sorted) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const order = sorted === null ? rows : [...rows].sort((a, b) => {
      if (a.texts[n] === "" || b.texts[n] === "") return (a.texts[n] === "") - (b.texts[n] === "");
      const way = numeric[n] ? a.values[n] - b.values[n] : compare(a.texts[n], b.texts[n]);
      return falling ? -way : way;
    });
    body.append(...order.map(({ row }) => row));
    showing();
  };
  heads.forEach((head, n) => {
    const button = make("button", names[n]);
    button.type = "button";
    button.title = "Sort";
    button.addEventListener("click", () => sort(n));
    head.replaceChildren(button);
  });

  // Filters: words that a row has, and a choice for each column with few values.
  const labelled = (name, input) => {
    const label = make("label");
    label.append(make("span", name), input);
    tools.append(label);
    return input;
  };
  const search = labelled("search", make("input"));
  search.type = "search";
  const choices = [];
  names.forEach((name, n) => {
    if (heads[n].dataset.choose === undefined) return;
    const values = [...new Set(rows.map(({ texts }) => texts[n]))];
    if (values.length < 2 || values.length > FEW) return;
    values.sort((a, b) => (a === "") - (b === "") || compare(a, b));
    const select = labelled(name, make("select"));
    select.append(Object.assign(make("option", "all"), { value: "all" }));
    values.forEach((value, m) => select.append(Object.assign(make("option", value || "(none)"), { value: m })));
    choices.push({ n, select, values });
  });
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = choices.filter(({ select }) => select.value !== "all");
    for (const { row, texts, words } of rows) {
      row.hidden = !wanted.every((word) => words.includes(word)) ||
        !chosen.every(({ n, select, values }) => texts[n] === values[Number(select.value)]);
      const dot = dots.get(row.id);
      if (dot) dot.toggleAttribute("data-off", row.hidden);
    }
    clear.disabled = !wanted.length && !chosen.length;
    showing();
  };
  const clear = make("button", "Clear filters");
  clear.type = "button";
  clear.disabled = true;
  clear.addEventListener("click", () => {
    search.value = "";
    for (const { select } of choices) select.value = "all";
    filter();
  });
  tools.append(clear);
  search.addEventListener("input", filter);
  for (const { select } of choices) select.addEventListener("change", filter);

  // A point of the plot: its values below it, and its row marked; a mouse's click or Enter goes to the row.
  const tell = (dot) => {
    const row = document.getElementById(dot.dataset.row);
    for (const on of all("tr.on", body)) on.classList.remove("on");
    row.classList.add("on");
    const cells = [...row.cells].map((cell) => cell.textContent);
    say.textContent = names.map((name, n) => cells[n] && `${name} ${cells[n]}`).filter(Boolean).join(", ");
    return row;
  };
  const go = (dot) => tell(dot).scrollIntoView({ block: "center" });
  for (const dot of dots.values()) {
    for (const kind of ["pointerover", "focus"]) dot.addEventListener(kind, () => tell(dot));
    dot.addEventListener("click", (event) => (event.pointerType === "mouse" ? go(dot) : tell(dot)));
    dot.addEventListener("keydown", (event) => { if (event.key === "Enter") go(dot); });
  }
  showing();
})();
