// Saved filters of the records page: names and query strings, in the storage of this browser only.
"use strict";

(() => {
  const form = document.querySelector("[data-records]");
  // What is at its default is not in the URL.
  const defaults = { from: "newest", rows: "50", k: "auto", v: "auto" };
  if (form) {
    form.addEventListener("formdata", (event) => {
      const from = event.formData.get("from");
      for (const each of ["offset", "time"]) if (from !== each) event.formData.delete(each);
      for (const [each, value] of [...event.formData]) if (!value || defaults[each] === value) event.formData.delete(each);
    });
  }
  const box = form && form.querySelector("[data-saved]");
  if (!box) return;
  const place = `ottla-filters-${form.dataset.records}`;
  const list = box.querySelector("select");
  const name = box.querySelector("#saved-name");
  const forget = box.querySelector("[data-forget]");
  const kept = ["k", "v", "q", "in", "key", "header", "path", "equals"];

  const read = () => {
    try {
      const found = JSON.parse(localStorage.getItem(place) || "{}");
      return found && typeof found === "object" && !Array.isArray(found) ? found : {};
    } catch {
      return {};
    }
  };
  const write = (saved) => {
    try {
      localStorage.setItem(place, JSON.stringify(saved));
    } catch {
      // A browser without storage: nothing is saved.
    }
  };
  const current = () => {
    const all = new FormData(form);
    const query = new URLSearchParams();
    for (const each of kept) if (all.get(each) && all.get(each) !== "auto") query.set(each, all.get(each));
    return query.toString();
  };
  const show = () => {
    const saved = read();
    const now = current();
    const names = Object.keys(saved).sort();
    list.replaceChildren(new Option("–", ""), ...names.map((each) => new Option(each, each, false, saved[each] === now)));
    forget.hidden = !list.value;
  };

  list.addEventListener("change", () => {
    forget.hidden = !list.value;
    const saved = read()[list.value];
    if (typeof saved !== "string") return;
    const query = new URLSearchParams(saved);
    for (const each of kept) {
      const field = form.elements.namedItem(each);
      if (field) field.value = query.get(each) || (each === "k" || each === "v" ? "auto" : "");
    }
    form.requestSubmit();
  });
  box.querySelector("[data-save]").addEventListener("click", () => {
    const given = name.value.trim();
    if (!given) {
      name.focus();
      return;
    }
    write({ ...read(), [given]: current() });
    name.value = "";
    form.requestSubmit();
  });
  forget.addEventListener("click", () => {
    const saved = read();
    delete saved[list.value];
    write(saved);
    show();
  });
  box.hidden = false;
  show();
})();
