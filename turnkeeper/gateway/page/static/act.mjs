// Sends the forms that change something. The button shows at once that the request runs. If no answer comes, the page
// says so and keeps the typed text.
import {content, isOurs} from './live.mjs';

const SLOW_MS = 2000;
const TYPING_MS = 300;
let lost = null; // the last decision that Turnkeeper did not answer

document.addEventListener('submit', (event) => {
  const form = event.target;
  if (form.method !== 'post') return;
  event.preventDefault();
  if (!form.dataset.busy) send(form, event.submitter);
});

async function send(form, button) {
  const id = form.elements.request_id;
  if (id && !id.value) id.value = crypto.getRandomValues(new Uint32Array(4)).join('-'); // a repetition counts once
  const body = new URLSearchParams(new FormData(form, button));
  form.dataset.busy = 'yes';
  button?.setAttribute('aria-busy', 'true');
  const slow = setTimeout(() => say(form, 'No answer came within 2 seconds. It is not known yet whether this was done.'), SLOW_MS);
  lost = null;
  try {
    const answer = await fetch(form.action, {method: 'POST', body});
    if (!isOurs(answer)) throw new Error('a proxy answered');
    show(form, answer, await answer.text());
  } catch {
    say(form, 'Turnkeeper does not answer. It is not known whether this was done; the page shows it when Turnkeeper is back.');
    if (form.matches('.decide')) lost = {action: form.getAttribute('action'), about: form.elements.about.value};
  } finally {
    clearTimeout(slow);
    delete form.dataset.busy;
    button?.removeAttribute('aria-busy');
  }
}

function show(form, answer, text) {
  const page = new DOMParser().parseFromString(text, 'text/html');
  const alert = page.querySelector('[role=alert]');
  const to = new URL(answer.url);
  if (answer.redirected && to.pathname + to.search !== location.pathname + location.search) {
    location.assign(to);
  } else if (answer.status >= 500 || !page.getElementById('content')) {
    say(form, alert?.textContent ?? `Turnkeeper answered ${answer.status}.`);
  } else {
    form.querySelector('.slow')?.remove();
    if (!alert) {
      if (form.elements.request_id) form.elements.request_id.value = '';
      form.reset();
    }
    swap(text);
    if (!form.matches('.composer')) content().querySelector('.note')?.scrollIntoView({block: 'nearest'});
    else if (alert) say(form, alert.textContent); // the field is far below the top of the page
  }
}

function swap(text) {
  const target = content();
  window.htmx.swap({sourceElement: target, target, select: '#content', selectOOB: '#menu:outerMorph', swap: 'outerMorph', text});
}

// While one types into the form of a task, show when the task would run, and what would change.
let typed = 0;
document.addEventListener('input', ({target}) => {
  const number = ++typed;
  if (target.form?.matches('[data-preview]')) setTimeout(() => number === typed && preview(target.form, number), TYPING_MS);
});

async function preview(form, number) {
  const body = new URLSearchParams([...new FormData(form), ['do', 'preview'], ['typing', 'yes']]);
  const answer = await fetch(form.action, {method: 'POST', body}).catch(() => null);
  const page = new DOMParser().parseFromString(answer?.ok ? await answer.text() : '', 'text/html');
  if (number !== typed || form.dataset.busy) return;
  for (const id of ['preview', 'ways']) {
    const [old, fresh] = [document, page].map((one) => one.getElementById(id));
    if (fresh && !old?.contains(document.activeElement)) old?.replaceWith(fresh);
  }
}

function say(form, text) {
  const place = form.isConnected ? form : content();
  const note = place.querySelector(':scope > .slow') ?? document.createElement('p');
  note.className = 'note warn slow';
  note.setAttribute('role', 'status');
  note.textContent = text;
  if (!note.isConnected) place[place === form ? 'append' : 'prepend'](note);
}

// When Turnkeeper answers again, the page shows the outcome of a decision that it did not answer.
document.addEventListener('htmx:after:settle', ({target}) => {
  if (!lost || target !== content() || content().querySelector('.away')) return;
  const {action, about} = lost;
  lost = null;
  const form = [...document.forms].find((one) => one.getAttribute('action') === action);
  if (form) say(form, 'Turnkeeper is back. Your decision was not recorded: decide again.');
  else say(content(), `Turnkeeper is back. This does not wait any more: ${about}`);
});
