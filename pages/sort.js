// Sort the table of benchmark-table.md by a column: numbers first, a second click reverses.
(() => {
  const compare = (a, b) => {
    const numbers = [a, b].map((text) => (text === "" ? NaN : Number(text)));
    const known = numbers.map((number) => !Number.isNaN(number));
    if (known[0] && known[1]) return numbers[0] - numbers[1];
    return known[0] === known[1] ? a.localeCompare(b) : known[0] ? -1 : 1;
  };
  for (const heading of document.querySelectorAll(".sortable th")) {
    heading.addEventListener("click", () => {
      const sign = heading.dataset.sorted === "up" ? -1 : 1;
      for (const other of heading.parentNode.cells) delete other.dataset.sorted;
      heading.dataset.sorted = sign === 1 ? "up" : "down";
      const body = heading.closest("table").tBodies[0];
      const text = (row) => row.cells[heading.cellIndex].textContent;
      body.append(...[...body.rows].sort((a, b) => sign * compare(text(a), text(b))));
    });
  }
})();
