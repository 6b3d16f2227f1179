// The theme wraps what scrolls sideways while a page is shown, and forgets those who scroll by keyboard.
document$.subscribe(() => {
  for (const scrolled of document.querySelectorAll(".md-typeset__scrollwrap")) scrolled.tabIndex = 0;
  // A phone has room for two columns or three. Of a wider table it shows each row as a list, each cell with the name of its column.
  for (const table of document.querySelectorAll(".md-content .md-typeset__table > table")) {
    const [head, ...rows] = table.rows;
    if (head.cells.length < 4) continue;
    table.dataset.wide = "";
    for (const row of rows)
      for (const cell of row.cells) cell.dataset.column = head.cells[cell.cellIndex]?.textContent;
    // Screen readers see no table in blocks without these roles.
    for (const part of table.querySelectorAll("thead, tbody")) part.role = "rowgroup";
    for (const row of table.rows) row.role = "row";
    for (const cell of table.querySelectorAll("th, td")) cell.role = cell.tagName === "TH" ? "columnheader" : "cell";
    table.role = "table";
  }
});
