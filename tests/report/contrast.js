// SPDX-License-Identifier: Apache-2.0
// Lists the texts whose contrast with what is drawn below them is under the limit (WCAG 2, relative luminance).
((limit) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = "#000";
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  const alpha = (style) => Number(style.opacity) * Number(style.fillOpacity || 1);
  const layer = (element) => {
    const style = getComputedStyle(element);
    if (element instanceof SVGElement) {
      if (!/^(path|rect|circle)$/i.test(element.tagName) || style.fill === "none") return null;
      const colour = rgba(style.fill);
      return [...colour.slice(0, 3), colour[3] * alpha(style)];
    }
    return rgba(style.backgroundColor);
  };
  const below = (element) => {
    const box = element.getBoundingClientRect();
    const stack = document.elementsFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    const layers = [];
    for (const one of stack.slice(stack.indexOf(element) + 1)) {
      const colour = layer(one);
      if (!colour || !colour[3]) continue;
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const found = [];
  let seen = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, style, noscript, .skip, #vg-tooltip-element")) continue;
    element.scrollIntoView({ block: "center", inline: "center" });
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    if (style.visibility === "hidden" || !box.width || alpha(style) === 0) continue;
    const isDrawn = element instanceof SVGElement, base = isDrawn ? rgba(style.fill) : rgba(style.color);
    const under = isDrawn ? below(element) : (() => {
      const layers = [];
      for (let e = element; e; e = e.parentElement) {
        const colour = rgba(getComputedStyle(e).backgroundColor);
        if (colour[3]) layers.push(colour);
        if (colour[3] === 1) break;
      }
      return layers.reverse().reduce((u, top) => over(top, u), [255, 255, 255, 1]);
    })();
    seen += 1;
    const ratio = contrast(over([...base.slice(0, 3), base[3] * (isDrawn ? alpha(style) : 1)], under), under);
    if (ratio < limit) found.push(`${ratio.toFixed(2)} ${element.tagName}.${element.getAttribute("class") || ""}: ${node.textContent.trim().slice(0, 40)} (${isDrawn ? style.fill : style.color} on ${under.map(Math.round)})`);
  }
  return { seen, found };
})(4.5)
