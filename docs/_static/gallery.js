// Shows the cards that have every chosen property; the address keeps the choice (#only=quantisation,linear).
document.addEventListener("DOMContentLoaded", () => {
  const buttons = [...document.querySelectorAll(".gallery-filter button")];
  const cards = [...document.querySelectorAll(".gallery .sd-col")];
  const chosen = new Set((location.hash.match(/only=([\w,]+)/) || ["", ""])[1].split(",").filter(Boolean));
  const show = () => {
    for (const button of buttons) button.setAttribute("aria-pressed", chosen.has(button.dataset.only));
    for (const card of cards) card.hidden = ![...chosen].every((one) => card.classList.contains("is-" + one));
    history.replaceState(null, "", chosen.size ? "#only=" + [...chosen].join(",") : location.pathname);
  };
  for (const button of buttons)
    button.addEventListener("click", () => {
      const one = button.dataset.only;
      chosen.has(one) ? chosen.delete(one) : chosen.add(one);
      show();
    });
  show();
});
