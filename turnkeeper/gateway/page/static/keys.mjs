// Keys. Without this script, pages and forms work; only the keys are missing.
// On a card of a decision: a approves, r, e and t open what they need, 1 to 9 choose an answer; j and k move.
// Anywhere: the key in an element's data-key presses the element.
const one = (query, at = document) => at.querySelector(query);
const all = (query, at = document) => [...at.querySelectorAll(query)];
const OPENS = {r: 'reject', t: 'answer', e: 'edit'};

function decide(key) {
  const cards = all('[data-card].waits');
  const at = cards.indexOf(document.activeElement?.closest('[data-card]'));
  if (key === 'j' || key === 'k') {
    cards[Math.min(cards.length - 1, Math.max(0, at + (key === 'j' ? 1 : at < 0 ? 1 : -1)))]?.focus();
    return cards.length > 0;
  }
  const card = cards[at];
  if (!card) return false;
  const details = key in OPENS && one(`[data-way=${OPENS[key]}]`, card);
  const button = key === 'a' ? one('[value=approve]', card) : one(`[data-key="${CSS.escape(key)}"]`, card);
  if (details) open(details);
  else button?.click();
  return Boolean(details || button);
}

function open(details) {
  details.open = true;
  one('input:not([type=hidden]), select, textarea', details)?.focus();
}

function close(details) {
  details.open = false;
  one('summary', details).focus();
}

document.addEventListener('keydown', (event) => {
  if (one('dialog[open]')) return; // the palette has keys of its own
  const field = event.target.closest?.('input:not([type=checkbox]), textarea, select'); // what one types into
  const opened = event.target.closest?.('details[open]');
  if (event.key === 'Escape') {
    const drop = opened ?? one('.drop[open]');
    if (drop) close(drop);
    (drop ?? field)?.closest('[data-card]')?.focus();
  } else if (event.key === 'Enter' && field?.matches('input') && field.closest('[data-way]')) {
    event.preventDefault();
    one('button[name=do]', field.closest('[data-way]')).click();
  } else if (!field && !event.ctrlKey && !event.metaKey && !event.altKey && /^(.|Arrow.*)$/.test(event.key)) {
    const pressed = one(`[data-key="${CSS.escape(event.key)}"]:not([data-card] *)`);
    if (decide(event.key)) event.preventDefault();
    else if (pressed) {
      event.preventDefault();
      if (pressed.matches('summary')) open(pressed.parentElement);
      else pressed.click();
    }
  }
});
document.addEventListener('click', (event) => {
  for (const drop of all('.drop[open]')) if (!drop.contains(event.target)) drop.open = false;
});
document.addEventListener('toggle', ({target}) => {
  if (target.matches?.('[data-way]') && target.open) one('input, textarea', target)?.focus();
}, true);
