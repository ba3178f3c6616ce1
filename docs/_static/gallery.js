// Shows the cards of any chosen field that have every chosen property; the address keeps the choice (#only=quantisation,linear).
document.addEventListener("DOMContentLoaded", () => {
  const [fields, properties] = [...document.querySelectorAll(".gallery-filter")].map((row) =>
    Object.entries(JSON.parse(row.dataset.buttons)).map(([name, title]) => {
      const button = row.appendChild(document.createElement("button"));
      button.type = "button";
      button.textContent = title;
      button.dataset.only = name;
      return button;
    }));
  const buttons = [...fields, ...properties];
  const cards = [...document.querySelectorAll(".gallery .sd-col")];
  const none = Object.assign(document.createElement("p"), { textContent: "No op has all of these.", role: "status" });
  properties[0].parentElement.after(none);
  const chosen = new Set((location.hash.match(/only=([\w,]+)/) || ["", ""])[1].split(",").filter(Boolean));
  const show = () => {
    for (const button of buttons) button.setAttribute("aria-pressed", chosen.has(button.dataset.only));
    const [anyOf, allOf] = [fields, properties].map((row) => row.map((button) => button.dataset.only).filter((name) => chosen.has(name)));
    const has = (card) => (name) => card.classList.contains("is-" + name);
    for (const card of cards) card.hidden = !((!anyOf.length || anyOf.some(has(card))) && allOf.every(has(card)));
    none.hidden = cards.some((card) => !card.hidden);
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
