// Appended to a page: tries it as a reader would and tells the page around it what it finds, as JSON.
addEventListener('load', () => {
  const found = { errors: window.__errors, tables: [], plots: [] };
  found.width = innerWidth;
  found.scrollWidth = document.documentElement.scrollWidth;
  found.outside = [...document.querySelectorAll('body *')].filter(e => {
    if (e.closest('.scroll') && !e.classList.contains('scroll')) return false; // tables scroll inside their frame
    if (e.closest('svg') && e.tagName !== 'svg') return false; // drawings are clipped; their texts are looked at below
    if (e.closest('details:not([open])') && !e.closest('summary') && e.tagName !== 'DETAILS') return false;
    const box = e.getBoundingClientRect();
    return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
  }).map(e => e.tagName + ': ' + e.textContent.slice(0, 40));
  found.dark = matchMedia('(prefers-color-scheme: dark)').matches;
  found.fetched = [...performance.getEntriesByType('resource').map(e => e.name),
    ...[...document.querySelectorAll('[src], link[href]')].map(e => e.src || e.href)].filter(name => !name.startsWith('data:'));

  // WCAG contrast of two computed colours.
  const channels = text => text.match(/[\d.]+/g).slice(0, 3).map(Number);
  const luminance = text => channels(text).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const style = e => getComputedStyle(e);
  const paper = style(document.body).backgroundColor;
  found.paper = luminance(paper);
  found.contrast = contrast(style(document.body).color, paper);
  const least = (list, value) => list.reduce((low, e) => Math.min(low, value(e)), 99);
  const card = e => style(e.closest('svg').querySelector('.fp-paper')).fill;
  found.plotText = least([...document.querySelectorAll('svg text')], e => contrast(style(e).fill, card(e)));
  found.plotMarks = least([...document.querySelectorAll('svg [class*=fp-c]')], e => contrast(style(e).color, card(e)));

  for (const svg of document.querySelectorAll('svg')) {
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].filter(e => e.textContent).map(e => [e.textContent, e.getBoundingClientRect(), parseFloat(style(e).fontSize)]);
    const cut = texts.filter(([, t]) => t.left < box.left - 0.5 || t.right > box.right + 0.5 || t.top < box.top - 0.5 || t.bottom > box.bottom + 0.5);
    const over = [];
    texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
      // A line's box is taller than its letters: only a clear overlap counts.
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 1 && high > 0.35 * Math.min(p.height, q.height)) over.push(a + ' | ' + b);
    }));
    found.plots.push({
      title: svg.querySelector('title').textContent, width: box.width, height: box.height,
      marks: svg.querySelectorAll('path, rect').length, cut: cut.map(c => c[0]), over,
      smallest: Math.min(...texts.map(t => t[2])) * box.width / svg.viewBox.baseVal.width,
    });
  }

  for (const table of document.querySelectorAll('table')) {
    const heads = [...table.tHead.rows[0].cells];
    const column = index => [...table.tBodies[0].rows].map(row => row.cells[index].textContent);
    const columns = heads.map((head, index) => {
      const button = head.querySelector('button');
      button.focus();
      const tried = { title: head.textContent, before: column(index), focus: document.activeElement === button };
      button.click();
      tried.up = column(index);
      tried.said = [head.getAttribute('aria-sort')];
      button.click();
      tried.down = column(index);
      tried.said.push(head.getAttribute('aria-sort'));
      tried.others = heads.filter(h => h !== head && h.hasAttribute('aria-sort')).length;
      return tried;
    });
    found.tables.push({ caption: table.caption ? table.caption.textContent : '', columns });
  }

  // No table needs to be pushed sideways.
  found.sideways = [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.textContent.slice(0, 40) + ': ' + e.scrollWidth + ' of ' + e.clientWidth);
  // What the buttons would save.
  const saved = [];
  URL.createObjectURL = blob => { saved.push([blob.type, blob.size]); return 'data:,'; };
  HTMLAnchorElement.prototype.click = () => {};
  document.querySelectorAll('.save, .data button').forEach(button => button.click());
  found.saved = saved;
  const data = document.querySelector('script.data');
  found.methods = data ? JSON.parse(data.textContent).methods.map(m => m.method) : [];

  const details = [...document.querySelectorAll('details')];
  found.closed = details.every(d => !d.open);
  details.forEach(d => d.querySelector('summary').click());
  found.opened = details.every(d => d.open && d.querySelector('pre').getBoundingClientRect().height > 10);
  found.statements = details.length;
  found.links = [...document.querySelectorAll('nav a')].map(a => document.querySelector(a.getAttribute('href')) !== null);

  parent.postMessage(JSON.stringify(found), '*');
});
