// Takes the one-time token out of the address bar and logs in with it, also if the address is pasted into an open tab.
// Without a token, a browser that is logged in goes to the page: its cookie is sent only below /ui.
async function login() {
  const token = new URLSearchParams(location.hash.slice(1)).get('token');
  const form = document.getElementById('login');
  history.replaceState(null, '', location.pathname);
  if (token && form) {
    form.elements.token.value = token;
    form.submit();
  } else if (location.pathname === '/' && (await fetch('/ui/', { method: 'HEAD' })).ok) {
    location.replace('/ui/');
  }
}

addEventListener('hashchange', login);
login();
