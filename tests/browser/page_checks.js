// Expression: what is wrong with the page that is open, as a list of sentences. It is for the
// DevTools protocol; a page itself may run nothing.
(() => {
  const wrong = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > window.innerWidth) wrong.push(`it is ${wide} px wide in ${window.innerWidth}`);
  const parse = (text) => {
    const found = text.match(/rgba?\(([^)]+)\)/);
    if (!found) return null;
    const [r, g, b, a = 1] = found[1].split(/[,/ ]+/).filter(Boolean).map(Number);
    return { r, g, b, a };
  };
  const light = ({ r, g, b }) => {
    const part = (value) => {
      const c = value / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color && color.a > 0.99) return color;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const seen = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("desc, svg > title, style")) continue;
    const style = getComputedStyle(element);
    if (style.userSelect === "none") wrong.push(`not selectable: ${node.data.slice(0, 40)}`);
    const box = element.getBoundingClientRect();
    if (box.width <= 1 || box.height <= 1) continue;
    if (box.right > window.innerWidth + 1) {
      wrong.push(`beyond the edge (${Math.round(box.right)} px): ${node.data.slice(0, 40)}`);
    }
    const inChart = element instanceof SVGElement;
    const front = parse(inChart ? style.fill : style.color);
    if (!front) continue;
    const [a, b] = [light(front), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const key = `${style.color}${style.fill}${large}${Math.round(ratio * 10)}`;
    if (ratio < (large ? 3 : 4.5) && !seen.has(key)) {
      seen.add(key);
      wrong.push(`contrast ${ratio.toFixed(2)}: ${node.data.trim().slice(0, 40)}`);
    }
  }
  getSelection().selectAllChildren(document.body);
  const whole = (text) => text.replace(/\s+/g, " ").trim();
  const chosen = whole(getSelection().toString());
  for (const heading of document.querySelectorAll("h1, h2, svg text")) {
    const words = whole(heading.textContent);
    if (words && !chosen.includes(words)) wrong.push(`not in the selection: ${words.slice(0, 40)}`);
  }
  getSelection().removeAllRanges();
  if (document.querySelector("script, iframe, object, embed, link, img, form, a[href]")) {
    wrong.push("it has an element that acts or loads");
  }
  for (const fold of document.querySelectorAll("details")) {
    const first = fold.children[1];
    const seen = first.checkVisibility({ contentVisibilityAuto: true });
    if (matchMedia("print").matches !== seen) wrong.push(`a fold is ${seen ? "open" : "closed"}`);
    const summary = fold.querySelector("summary");
    summary.focus();
    if (document.activeElement !== summary) wrong.push("the keyboard does not reach a fold");
    summary.click();
    if (!first.checkVisibility()) wrong.push("a fold does not open");
    summary.click();
    summary.blur();
  }
  for (const box of document.querySelectorAll(".rows")) {
    const cut = box.scrollWidth - box.clientWidth;
    if (cut > 1 && window.innerWidth >= 1024) wrong.push(`a table is cut by ${cut} px`);
    box.focus();
    if (document.activeElement !== box) wrong.push("the keyboard does not reach a table");
    box.blur();
  }
  if (!document.documentElement.lang) wrong.push("it has no language");
  if (document.querySelectorAll("h1").length !== 1) wrong.push("it has not one first heading");
  for (const svg of document.querySelectorAll("svg:not([aria-hidden])")) {
    const names = (svg.getAttribute("aria-labelledby") || "").split(" ");
    if (!names.every((id) => document.getElementById(id)?.textContent)) {
      wrong.push("a chart has no title or description");
    }
  }
  if (window.owned) wrong.push("a payload ran");
  return [...new Set(wrong)].slice(0, 20);
})()
