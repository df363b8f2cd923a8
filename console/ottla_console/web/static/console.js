// The console's own script: "/" focuses the search; hidden pages do not refresh themselves.
"use strict";

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest && event.target.closest("input, textarea, select, [contenteditable]");
  const search = document.querySelector("[data-search]");
  if (event.key === "/" && !typing && search && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
    search.select();
  }
  if (event.key === "Escape" && typing && typing === search) search.blur();
});

// A refresh waits while the page is hidden, or while a person selects text or has a menu open in its live part.
document.addEventListener("htmx:before:request", (event) => {
  const live = document.getElementById("live");
  if (event.target !== live) return;
  const selection = document.getSelection();
  const selecting = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  if (document.hidden || selecting || live.querySelector("details[open]:not([data-keeps])")) event.preventDefault();
});

// A link to copy; where a browser does not let it be copied, the link opens, and the address bar has it.
document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest("a[data-copy]");
  if (!link || !navigator.clipboard || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  navigator.clipboard.writeText(link.href).then(
    () => { link.textContent = "Link copied"; },
    () => { location.href = link.href; },
  );
});

// A field beside a radio button chooses it.
document.addEventListener("input", (event) => {
  const choice = event.target.closest && event.target.closest("[data-choice]");
  const radio = choice && choice.querySelector('input[type="radio"]');
  if (radio && event.target !== radio) radio.checked = true;
});
