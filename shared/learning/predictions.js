"use strict";
const images = [...document.querySelectorAll("section.image")];
const place = document.getElementById("place");
let at = 0;

function show(number) {
  at = Math.max(0, Math.min(images.length - 1, number));
  images.forEach((image, index) => { image.hidden = index !== at; });
  place.textContent = `${at + 1} of ${images.length}: ${images[at].getAttribute("aria-label")}`;
  if (images[at].getBoundingClientRect().top < 0) images[at].scrollIntoView();
}

const steps = { ArrowRight: 1, ArrowLeft: -1 };
document.addEventListener("keydown", (event) => {
  const step = steps[event.key];
  if (step === undefined || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(at + step);
});
document.getElementById("back").addEventListener("click", () => show(at - 1));
document.getElementById("on").addEventListener("click", () => show(at + 1));
document.getElementById("leaf").hidden = false;
show(0);
