// Sorting the table. Unknown values stay at the end, whichever way it is sorted.

function sortable(table) {
  const heads = [...table.querySelectorAll("th[aria-sort]")];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const byNumber = head.classList.contains("number");
      body.append(...[...body.rows].sort(comparison(column, byNumber, down ? -1 : 1)));
    });
  });
}

function comparison(column, byNumber, direction) {
  return (one, other) => {
    const [a, b] = [one, other].map((row) => row.cells[column].dataset.key);
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const order = byNumber ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
    return direction * order;
  };
}
