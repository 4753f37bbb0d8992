"""The look of the pages: light and dark, wide and narrow, without anything from the network."""

DEFAULT_CSS = """\
:root {
  color-scheme: light dark;
  --lt-bg: #fbfbfa; --lt-card: #ffffff; --lt-fg: #1d2127; --lt-muted: #667080; --lt-line: #dfe2e7;
  --lt-soft: #f1f3f5; --lt-accent: #2a62c9; --lt-error: #b3261e; --lt-error-bg: #fdeceb;
  --lt-plus: 32, 110, 220; --lt-minus: 226, 98, 20;
  --lt-font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --lt-mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --lt-bg: #14171b; --lt-card: #1b1f25; --lt-fg: #e3e6ea; --lt-muted: #97a1ae; --lt-line: #323842;
    --lt-soft: #232830; --lt-accent: #86aef5; --lt-error: #ff9a91; --lt-error-bg: #3a1f1e;
    --lt-plus: 80, 150, 255; --lt-minus: 240, 130, 50;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 4rem; }
body {
  margin: 0 auto; max-width: 72rem; padding: 0 1.25rem 4rem; background: var(--lt-bg); color: var(--lt-fg);
  font: 15px/1.55 var(--lt-font); overflow-wrap: anywhere; overflow-x: clip;
}
a { color: var(--lt-accent); }
h1, h2, h3, h4, h5, h6 { line-height: 1.3; margin: 0; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.2rem; } h3 { font-size: 1.07rem; } h4, h5, h6 { font-size: 1rem; }
.lt-top {
  position: sticky; top: 0; z-index: 5; display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem 1rem;
  padding: .8rem 0 .6rem; margin-bottom: .8rem; background: var(--lt-bg); border-bottom: 1px solid var(--lt-line);
}
.lt-top h1 { flex: 1 1 auto; }
.lt-when { color: var(--lt-muted); font-size: .85rem; }
.lt-buttons { display: flex; gap: .4rem; }
.lt-buttons button {
  font: inherit; font-size: .8rem; padding: .15rem .6rem; color: var(--lt-fg); background: var(--lt-card);
  border: 1px solid var(--lt-line); border-radius: 99px; cursor: pointer;
}
.lt-buttons button:hover { border-color: var(--lt-accent); color: var(--lt-accent); }
.lt-toc { margin: 0 0 1rem; font-size: .9rem; }
.lt-toc ul { margin: .3rem 0; padding: 0; list-style: none; }
.lt-toc a { text-decoration: none; }
.lt-toc a:hover { text-decoration: underline; }
summary { cursor: pointer; }
.lt-section { margin: 1rem 0; }
.lt-section > details > summary {
  display: flex; gap: .5rem; align-items: baseline; list-style: none; padding: .15rem 0;
}
.lt-section > details > summary::-webkit-details-marker { display: none; }
.lt-section > details > summary::before {
  content: ""; flex: none; width: .42em; height: .42em; border: solid var(--lt-muted); border-width: 0 2px 2px 0;
  transform: rotate(-45deg); transition: transform .12s; align-self: center;
}
.lt-section > details[open] > summary::before { transform: rotate(45deg) translate(-.1em, -.1em); }
.lt-section > details > summary:hover > * { color: var(--lt-accent); }
.lt-section .lt-section { padding-left: .9rem; border-left: 2px solid var(--lt-line); }
.lt-section .lt-section:hover { border-left-color: var(--lt-muted); }
.lt-p { margin: .45rem 0; white-space: pre-wrap; }
pre {
  margin: .45rem 0; padding: .6rem .75rem; overflow: auto; white-space: pre-wrap; background: var(--lt-soft);
  border: 1px solid var(--lt-line); border-radius: 6px; font: 13px/1.5 var(--lt-mono); tab-size: 4;
}
.lt-details {
  margin: .5rem 0; padding: .35rem .7rem; background: var(--lt-card); border: 1px solid var(--lt-line);
  border-radius: 8px;
}
.lt-details > summary { font-weight: 500; }
.lt-formatter { margin: .5rem 0; }
.lt-html { margin: .5rem 0; overflow-x: auto; }
.lt-table-wrap { margin: .6rem 0; overflow-x: auto; }
.lt-table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.lt-table caption { text-align: left; font-weight: 600; padding: .2rem 0; }
.lt-table th, .lt-table td {
  padding: .28rem .7rem; border-bottom: 1px solid var(--lt-line); text-align: left; vertical-align: top;
  white-space: pre-wrap; overflow-wrap: normal; max-width: 40rem;
}
.lt-table th { color: var(--lt-muted); font-weight: 600; white-space: nowrap; }
.lt-table .lt-num { text-align: right; white-space: nowrap; }
.lt-table tbody tr:hover { background: var(--lt-soft); }
.lt-empty { color: var(--lt-muted); font-style: italic; }
.lt-error {
  margin: .6rem 0; padding: .35rem .7rem; border-left: 4px solid var(--lt-error); background: var(--lt-error-bg);
}
.lt-error > summary { color: var(--lt-error); font-weight: 600; }
@media (max-width: 40rem) {
  body { padding: 0 .7rem 3rem; font-size: 14px; }
  .lt-section .lt-section { padding-left: .5rem; }
  .lt-top { position: static; }
}
@media print {
  .lt-buttons { display: none; }
  .lt-top { position: static; }
}
"""

# Folding all sections at once is the one thing that HTML cannot do alone; without scripts the page lacks two buttons.
PAGE_SCRIPT = """\
(function () {
  var top = document.querySelector(".lt-top");
  if (!top) return;
  function all(open) {
    document.querySelectorAll("main details").forEach(function (box) { box.open = open; });
  }
  var buttons = document.createElement("div");
  buttons.className = "lt-buttons";
  [["Open all", true], ["Fold all", false]].forEach(function (pair) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = pair[0];
    button.onclick = function () { all(pair[1]); };
    buttons.append(button);
  });
  top.append(buttons);
  window.addEventListener("beforeprint", function () { all(true); });
})();
"""
