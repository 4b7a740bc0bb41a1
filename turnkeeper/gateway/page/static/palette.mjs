// The palette: Ctrl K or Cmd K opens it on any page; / goes to the search field of a list, or else opens the palette.
// The palette offers the pages, the actions of this page, and each task, conversation and workspace page by name.
const MOST = 50;
const palette = document.getElementById('palette');
const field = palette.querySelector('input');
const list = palette.querySelector('ul');
let entries = [];
let at = 0;

const words = (element) => {
  const copy = element.cloneNode(true);
  for (const one of copy.querySelectorAll('kbd, .count, .unseen')) one.remove();
  return copy.textContent.trim().replace(/\s+/g, ' ');
};

function here() {
  const pages = [...document.querySelectorAll('nav[aria-label=Pages] a')];
  const acts = [...document.querySelectorAll('.side .new, .head .acts [data-key], .head .acts button, .head .acts .pop a')];
  return [
    ...acts.filter((one) => !one.closest('.find')).map((one) => ({name: words(one), kind: 'Do', act: one})),
    ...pages.map((one) => ({name: words(one), kind: 'Go to', to: one.getAttribute('href')})),
  ];
}

async function everything() {
  const answer = await fetch('/ui/find');
  const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
  return [...page.querySelectorAll('[data-found] li')].map((one) => (
    {name: words(one.querySelector('a')), kind: words(one.querySelector('.meta')), to: one.querySelector('a').getAttribute('href')}
  ));
}

function draw() {
  const asked = field.value.toLowerCase().split(/\s+/);
  const shown = entries.filter(({name, kind}) => asked.every((word) => `${kind} ${name}`.toLowerCase().includes(word)));
  at = Math.max(0, Math.min(at, shown.length - 1, MOST - 1));
  list.replaceChildren(...shown.slice(0, MOST).map((entry, number) => {
    const item = document.createElement('li');
    item.id = `found-${number}`;
    item.role = 'option';
    item.ariaSelected = String(number === at);
    const line = document.createElement('span');
    line.className = 'entry';
    line.append(entry.name);
    const kind = document.createElement('span');
    kind.className = 'meta';
    kind.textContent = entry.kind;
    line.append(kind);
    item.append(line);
    item.addEventListener('click', () => choose(entry));
    return item;
  }));
  field.setAttribute('aria-activedescendant', shown.length ? `found-${at}` : '');
  list.children[at]?.scrollIntoView({block: 'nearest'});
  return shown;
}

function choose(entry) {
  palette.close();
  if (entry.to) location.assign(entry.to);
  else if (entry.act.matches('summary')) { entry.act.parentElement.open = true; entry.act.focus(); }
  else entry.act.click();
}

async function open() {
  if (palette.open) return;
  entries = here();
  field.value = '';
  at = 0;
  palette.showModal();
  draw();
  const found = await everything().catch(() => []);
  entries = [...entries, ...found];
  draw();
}

field.addEventListener('input', () => { at = 0; draw(); });
field.addEventListener('keydown', (event) => {
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (step) { at += step; draw(); event.preventDefault(); }
  if (event.key === 'Enter') { const entry = draw()[at]; if (entry) choose(entry); event.preventDefault(); }
});
palette.addEventListener('click', (event) => { if (event.target === palette) palette.close(); });
document.addEventListener('keydown', (event) => {
  const types = event.target.closest?.('input, textarea, select');
  const search = document.querySelector('[data-search]');
  if (event.key === 'k' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); open(); }
  if (event.key === '/' && !types && !event.ctrlKey) { event.preventDefault(); if (search) search.focus(); else open(); }
});
document.addEventListener('click', (event) => {
  if (event.target.closest?.('[data-palette]')) { event.preventDefault(); open(); }
});
