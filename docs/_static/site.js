// What the theme leaves out: names for its landmarks, levels for its captions, and the keyboard for menus and for what scrolls sideways.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  document.getElementById("search-results")?.before(Object.assign(document.createElement("h1"), { textContent: "Search" }));
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
  for (const icon of document.querySelectorAll("label[for^=__] .icon, label[for^=toctree] .icon")) {
    const box = document.getElementById(icon.closest("label").htmlFor);
    Object.assign(icon, { tabIndex: 0, role: "button", ariaLabel: box.getAttribute("aria-label") });
    icon.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      icon.click();
    });
  }
  const scrolled = document.querySelectorAll("article pre, article .table-wrapper, article table");
  const reach = () => {
    for (const block of scrolled) {
      if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
      else block.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", reach);
  addEventListener("load", reach);
  reach();
});
