// What a page must keep, whoever wrote it. Returns one line for each scrolling element that cannot be focused and has
// nothing to focus in it (WCAG 2.1.1), and for each text whose contrast with what is behind it is below 4.5, or 3 where
// it is large (WCAG 1.4.3).
() => {
  const found = new Set();
  const name = (element) => element.tagName.toLowerCase() + (element.className && element.className.split ? "." + element.className.split(/\s+/).join(".") : "");
  const focusable = "a[href], button:not([disabled]), input:not([type=hidden]), textarea, select, summary, [tabindex='0']";
  for (const element of document.querySelectorAll("body *")) {
    const style = getComputedStyle(element);
    const scrolls = (overflow, size, room) => /auto|scroll/.test(overflow) && size > room + 1;
    if (!scrolls(style.overflowX, element.scrollWidth, element.clientWidth) && !scrolls(style.overflowY, element.scrollHeight, element.clientHeight)) continue;
    if (!element.matches(focusable) && !element.querySelector(focusable)) found.add(`not focusable: ${name(element)}`);
  }
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.canvas.width = canvas.canvas.height = 1;
  const channels = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((each) => top[each] * top[3] + below[each] * (1 - top[3]));
  const light = (colour) => {
    const [r, g, b] = colour.map((each) => { const c = each / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reduceRight((below, layer) => over(layer, below), channels(getComputedStyle(document.documentElement).backgroundColor).slice(0, 3));
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || element.closest("[disabled], option, svg title")) continue;
    const style = getComputedStyle(element);
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= parseFloat(getComputedStyle(at).opacity);
    const ink = channels(element.closest("svg") ? style.fill : style.color);
    const ground = behind(element);
    const [one, two] = [light(over([...ink.slice(0, 3), ink[3] * opacity], ground)), light(ground)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.add(`contrast ${ratio.toFixed(2)}: ${name(element)}: ${text.data.trim().slice(0, 40)}`);
  }
  return [...found];
}
