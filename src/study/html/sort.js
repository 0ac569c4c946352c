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
// What a page says can be saved: each table as CSV and JSON, everything as JSON.
const save = (name, type, text) => {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const said = cell => cell.textContent.trim().replaceAll('\u00a0', ' ');
const quoted = text => /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
document.querySelectorAll('table').forEach((table, index) => {
  const titles = [...table.tHead.rows[0].cells].map(said);
  const rows = () => [...table.tBodies[0].rows].map(row => [...row.cells].map(said));
  const forms = {
    CSV: () => ['text/csv', [titles, ...rows()].map(row => row.map(quoted).join(',')).join('\n') + '\n'],
    JSON: () => ['application/json', JSON.stringify(rows().map(row => Object.fromEntries(row.map((c, i) => [titles[i], c]))), null, 1)],
  };
  const place = document.createElement('p');
  place.className = 'saves';
  for (const [form, make] of Object.entries(forms)) {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'save';
    button.textContent = 'Save as ' + form;
    button.addEventListener('click', () => save(`table-${index + 1}.${form.toLowerCase()}`, ...make()));
    place.append(button);
  }
  table.parentElement.append(place);
});
document.querySelectorAll('.data button').forEach((button, index) => button.addEventListener('click', () =>
  save(button.dataset.name, 'application/json', document.querySelectorAll('script.data')[index].textContent)));
// Paper has no folds.
addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(d => { d.open = true; }));
