// Keeps an open page up to date: a hint makes htmx request the page again, the turns and speech of a conversation are
// inserted, and times count on. There is one connection, only while the page is visible.
const AGAIN_MS = 1000;
const SILENT_MS = 1300; // the server sends something each second
const ASK_MS = 750;
const LOOK_MS = 250;
let source = null;
let missed = false;
let heard = Date.now();
let asking = false;

export const content = () => document.getElementById('content');

// A proxy before the gateway answers for it while it is down; only the gateway's own answers have this header.
export const isOurs = (answer) => answer.headers.has('x-turnkeeper');

export function refresh() {
  window.htmx?.trigger(content(), 'refresh');
}

function listen() {
  if (source || document.hidden || !document.body.dataset.live) return;
  source = new EventSource(document.body.dataset.live);
  source.onopen = hear;
  source.onerror = () => { silence(); missed = true; setTimeout(listen, AGAIN_MS); ask(); };
  const on = (name, take) => source.addEventListener(name, ({data}) => { hear(); take(data); });
  on('beat', () => {});
  on('changed', (data) => {
    const topics = content().dataset.topics.split(' ');
    if (data.split(' ').some((topic) => topics.includes(topic))) refresh();
  });
  on('turn', (data) => showTurn(JSON.parse(data)));
  on('speech', (data) => showSpeech(JSON.parse(data)));
}

function hear() {
  heard = Date.now();
  if (missed) refresh();
  missed = false;
  document.getElementById('gone').hidden = true;
  delete document.body.dataset.gone;
}

// Finds out why no event arrives: the server is down or hangs, or the session of this browser is over.
async function ask() {
  if (asking) return;
  asking = true;
  const since = heard;
  const asked = {method: 'HEAD', signal: AbortSignal.timeout(ASK_MS)};
  const status = await fetch('/ui/alive', asked).then((answer) => isOurs(answer) ? answer.status : 'down', () => 'down');
  asking = false;
  const gone = document.getElementById('gone');
  if (status !== 'down') {
    gone.hidden = true;
    heard = Date.now();
  } else if (heard === since) {
    if (gone.hidden) gone.querySelector('time').textContent = new Date(since).toLocaleTimeString('en-GB', {timeZoneName: 'short'});
    gone.hidden = false;
    missed = true;
    document.body.dataset.gone = 'yes'; // the state of the daemons is not known either
  }
  document.getElementById('out').hidden = status !== 401;
}

function silence() {
  source?.close();
  source = null;
}

function atTheEnd() {
  return window.innerHeight + window.scrollY > document.documentElement.scrollHeight - 200;
}

function showTurn({id, html}) {
  const list = document.getElementById('turns');
  if (!list) return;
  const follow = atTheEnd();
  const present = document.getElementById(`turn-${id}`);
  if (present) {
    window.htmx.swap({sourceElement: present, target: present, swap: 'outerMorph', text: html});
  } else {
    window.htmx.swap({sourceElement: list, target: list, swap: 'beforeend', text: html});
  }
  document.querySelector('.empty')?.remove();
  if (follow) scrollTo(0, document.documentElement.scrollHeight);
}

// Does the same as turnkeeper/console/unseen.py, but here, because `offset` counts characters of the unescaped text.
const MEANT = /(?<=[^\0-\x7f\p{Cf}\p{DI}])(?:\p{VS}?[\u200c\u200d](?=[^\0-\x7f\p{Cf}\p{DI}])|\p{VS})/u;
const ANY = /[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u2800\ufffc\p{Cf}\p{DI}]/u;
const UNSEEN = new RegExp(`(${MEANT.source})|${ANY.source}`, 'gu');
const spoken = new WeakMap();

function written(text) {
  const code = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
  return text.replace(UNSEEN, (one, meant) => meant ?? one.split('').map(code).join(''));
}

function showSpeech({id, name, offset, text, calls}) {
  const speech = document.querySelector(`[data-turn="${CSS.escape(id)}"] .speech`);
  if (!speech) return;
  const follow = atTheEnd();
  const words = speech.querySelector('.words');
  const before = speech.dataset.name === name ? spoken.get(speech) ?? '' : '';
  speech.dataset.name = name;
  spoken.set(speech, [...before].slice(0, offset).join('') + text);
  words.textContent = written(spoken.get(speech));
  speech.querySelector('.steps').replaceChildren(...calls.map((call) => {
    const item = document.createElement('li');
    item.textContent = `${{running: '…', done: '✓', failed: '✗'}[call.state] ?? '…'} ${call.name}`;
    return item;
  }));
  speech.hidden = false;
  if (follow) scrollTo(0, document.documentElement.scrollHeight);
}

function inWords(seconds) {
  const parts = [];
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]]) {
    const amount = Math.floor(seconds / size);
    seconds -= amount * size;
    if (amount) parts.push(`${amount}${unit}`);
  }
  return parts.slice(0, 2).join(' ');
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function tick() {
  for (const one of document.querySelectorAll('[data-until]')) {
    const left = inWords(Math.max(0, (Date.parse(one.dataset.until) - Date.now()) / 1000));
    say(one, left ? `in ${left}` : 'now');
  }
  for (const one of document.querySelectorAll('[data-since]')) {
    const past = inWords(Math.max(0, (Date.now() - Date.parse(one.dateTime)) / 1000));
    say(one, past ? `${past} ago` : 'just now');
  }
}

document.addEventListener('htmx:before:response', (event) => {
  const answer = event.detail.ctx.response;
  if (isOurs(answer) && answer.headers.get('content-type')?.startsWith('text/html')) return;
  event.preventDefault(); // the page stays as it is
  missed = true;
  ask();
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) { silence(); missed = true; } else { heard = Date.now(); listen(); }
});
setInterval(tick, 1000);
setInterval(() => { if (!document.hidden && Date.now() - heard > SILENT_MS) ask(); }, LOOK_MS);
listen();
if (document.querySelector('.turns') && document.querySelector('.composer')) scrollTo(0, document.documentElement.scrollHeight);
