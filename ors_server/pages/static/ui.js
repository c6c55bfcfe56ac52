// Everything works without this file, except that lists do not renew themselves.
"use strict";
(() => {
  const root = document.documentElement.dataset.base || "/ui";

  // Lists that the server sends again when they change. A hidden page does not listen.
  let source = null;
  const listen = () => {
    const live = document.querySelector("[data-live]");
    if (source) source.close();
    source = null;
    if (!live || document.hidden) return;
    source = new EventSource(live.dataset.live);
    source.addEventListener("rows", (event) => {
      if (live.contains(document.activeElement) && document.activeElement !== live) return;
      if (live.innerHTML !== event.data) live.innerHTML = event.data;
      reach();
    });
  };
  document.addEventListener("visibilitychange", listen);
  document.addEventListener("DOMContentLoaded", listen);
  window.addEventListener("pagehide", () => source && source.close());

  // A part of a page that could not be had: why, above it.
  const complain = (event) => {
    const { target, xhr } = event.detail;
    const page = new DOMParser().parseFromString(xhr.responseText || "", "text/html");
    const said = [...page.querySelectorAll("h1, .lead")].map((part) => part.textContent.trim()).filter(Boolean).join(". ");
    let note = document.getElementById("trouble");
    if (!note) {
      note = document.createElement("p");
      note.id = "trouble";
      note.className = "problem";
      note.setAttribute("role", "alert");
      target.before(note);
    }
    note.textContent = said || (xhr.status ? `The server answers ${xhr.status}. Reload the page to look again.`
      : "The server cannot be reached. Reload the page once it is back.");
    note.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("htmx:responseError", complain);
  document.addEventListener("htmx:sendError", complain);
  document.addEventListener("htmx:afterSwap", () => document.getElementById("trouble")?.remove());

  // The playground shows its newest output, once when it is called and once when it is there.
  let shown = "";
  document.addEventListener("htmx:afterSettle", () => {
    const newest = document.getElementById("newest");
    if (!newest || newest.dataset.state === shown) return;
    shown = newest.dataset.state;
    newest.scrollIntoView({ block: "nearest" });
  });

  // The keyboard scrolls what can be scrolled: a part that overflows and has nothing to focus in it takes the focus.
  const overflowing = ".scroll, .message > .body, .side, pre, .readme table, nav.main";
  const focusable = "a[href], button, input, textarea, select, summary, [tabindex='0']";
  const reach = () => {
    for (const part of document.querySelectorAll(overflowing)) {
      const scrolls = part.scrollWidth > part.clientWidth + 1 || part.scrollHeight > part.clientHeight + 1;
      const clipped = getComputedStyle(part).overflow !== "visible";
      if (scrolls && clipped && !part.querySelector(focusable)) part.tabIndex = 0;
      else if (part.tabIndex === 0) part.removeAttribute("tabindex");
    }
  };
  for (const event of ["DOMContentLoaded", "htmx:afterSettle", "toggle"]) document.addEventListener(event, reach, true);
  window.addEventListener("resize", reach);

  // Shortcuts: "g" and a letter open a page; "j" and "k" step through messages; "?" lists them.
  const pages = { e: "/environments", s: "/sessions", b: "/sandboxes", r: "/runs", o: "/rollouts" };
  let going = false;
  const step = (by) => {
    const messages = [...document.querySelectorAll(".message, tbody tr")];
    if (!messages.length) return;
    const at = messages.indexOf(document.activeElement.closest(".message, tbody tr"));
    const next = messages[Math.max(0, Math.min(messages.length - 1, at < 0 ? (by > 0 ? 0 : messages.length - 1) : at + by))];
    const target = next.querySelector("a") && next.tagName === "TR" ? next.querySelector("a") : next;
    if (target === next) next.tabIndex = -1;
    target.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest && event.target.closest("input, textarea, select");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    if (going && pages[event.key]) location.href = root + pages[event.key];
    else if (event.key === "?") location.href = root + "/help";
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "n") document.querySelector("a[rel=next]")?.click();
    else if (event.key === "p") document.querySelector("a[rel=prev]")?.click();
    else if (event.key === "/") {
      const search = document.querySelector("input[type=search], form.play textarea, form.play input:not([type=hidden])");
      if (search) { search.focus(); event.preventDefault(); }
    }
    going = event.key === "g";
  });
  // Ctrl+Enter sends the form of a text field.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.form) event.target.form.requestSubmit();
  });
})();
