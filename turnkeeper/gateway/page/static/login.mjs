// Takes the one-time token out of the address bar and logs in with it.
const token = new URLSearchParams(location.hash.slice(1)).get('token');
history.replaceState(null, '', location.pathname);
const form = document.getElementById('login');
if (token && form) {
  form.elements.token.value = token;
  form.submit();
}
