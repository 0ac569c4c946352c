// A click on a column's head sorts its table: numbers by data-sort, then texts; cells without anything stay last.
for (const table of document.querySelectorAll('table')) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    return cell.dataset.sort === undefined ? text : Number(cell.dataset.sort);
  };
  const rank = k => typeof k === 'number' ? 0 : k === '' ? 2 : 1;
  heads.forEach((head, column) => head.querySelector('button').addEventListener('click', () => {
    const up = head.getAttribute('aria-sort') !== 'ascending';
    heads.forEach(h => h.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const sign = up ? 1 : -1;
    const rows = [...body.rows].map(row => [key(row, column), row]);
    rows.sort(([a], [b]) => {
      if (rank(a) !== rank(b)) return rank(a) - rank(b);
      if (typeof a === 'number') return a === b ? 0 : sign * (a < b ? -1 : 1);
      return sign * a.localeCompare(b, 'en', { numeric: true });
    });
    body.append(...rows.map(([, row]) => row));
  }));
}
// Paper has no folds.
addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(d => { d.open = true; }));
