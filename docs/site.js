// What screen readers and keyboards need and the theme leaves out: names, and ways into what scrolls.
let blocks = 0
function complete() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
  for (const nav of document.querySelectorAll(".md-code__nav:not([aria-label])"))
    nav.setAttribute("aria-label", `Code block ${++blocks}`)
  for (const wide of document.querySelectorAll("pre > code, .md-typeset__scrollwrap"))
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0
}
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true })
addEventListener("load", complete)
complete()
