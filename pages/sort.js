// Sort the table of benchmark-table.md by a column: numbers first, a second click reverses.
const value = (row, column) => row.cells[column].textContent;
const compare = (a, b) => {
  const numbers = [a, b].map((text) => (text === "" ? NaN : Number(text)));
  const known = numbers.map((number) => !Number.isNaN(number));
  if (known[0] && known[1]) return numbers[0] - numbers[1];
  return known[0] === known[1] ? a.localeCompare(b) : known[0] ? -1 : 1;
};
for (const heading of document.querySelectorAll(".sortable th")) {
  heading.addEventListener("click", () => {
    const body = heading.closest("table").tBodies[0];
    const sign = heading.dataset.sorted === "up" ? -1 : 1;
    const column = heading.cellIndex;
    for (const other of heading.parentNode.cells) delete other.dataset.sorted;
    heading.dataset.sorted = sign === 1 ? "up" : "down";
    const rows = [...body.rows];
    rows.sort((a, b) => sign * compare(value(a, column), value(b, column)));
    body.append(...rows);
  });
}
