// Sort the table of benchmark-table.md by a column; a second click reverses. Empty cells are last.
(() => {
  const compare = (a, b, sign) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const numeric = !Number.isNaN(Number(a)) && !Number.isNaN(Number(b));
    return sign * (numeric ? a - b : a.localeCompare(b));
  };
  for (const heading of document.querySelectorAll(".sortable th")) {
    heading.addEventListener("click", () => {
      const sign = heading.dataset.sorted === "up" ? -1 : 1;
      for (const other of heading.parentNode.cells) delete other.dataset.sorted;
      heading.dataset.sorted = sign === 1 ? "up" : "down";
      const body = heading.closest("table").tBodies[0];
      const text = (row) => row.cells[heading.cellIndex].textContent;
      body.append(...[...body.rows].sort((a, b) => compare(text(a), text(b), sign)));
    });
  }
})();
