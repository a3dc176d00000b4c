// SPDX-License-Identifier: Apache-2.0
// Draws all charts. Their colours are variables of the style sheet, so that they follow the colour scheme and the print.
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const colour = (name) => `var(--${name})`;
  const paint = (node) => {
    if (typeof node === "string") return /^@[a-z]+\d*$/.test(node) ? colour(node.slice(1)) : node;
    if (Array.isArray(node)) return node.map(paint);
    if (node && typeof node === "object") return Object.fromEntries(Object.entries(node).map(([k, v]) => [k, paint(v)]));
    return node;
  };
  const ink = colour("ink"), soft = colour("soft"), line = colour("line"), font = getComputedStyle(document.body).fontFamily;
  const config = {
    font, background: "transparent", view: { stroke: null },
    axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 400, titlePadding: 10, labelSeparation: 9, labelOverlap: true, labelFont: font, titleFont: font },
    legend: { labelColor: soft, labelFontSize: 12.5, labelFont: font, rowPadding: 4, columnPadding: 18 },
    text: { font, fontSize: 12.5, color: ink }, bar: { discreteBandSize: 20 },
  };
  const narrow = (spec) => {
    // On a narrow screen, two legend columns would take half of the chart, so use one column.
    if (innerWidth > 640) return spec;
    return JSON.parse(JSON.stringify(spec).replaceAll('"columns":2', '"columns":1'));
  };
  // Screen readers get the caption as the name of the chart.
  const named = (spec, place) => {
    const caption = place.parentElement.querySelector("figcaption");
    return { description: caption ? caption.textContent : "Chart", ...spec };
  };
  const options = { actions: false, renderer: "svg", logLevel: 1, config, tooltip: { disableDefaultStyle: true } };
  Promise.all(Object.entries(specs).map(([name, spec]) => {
    const place = document.getElementById("chart-" + name);
    return place && vegaEmbed(place, named(paint(narrow(spec)), place), options);
  })).then(() => { performance.mark("charts-drawn"); document.documentElement.setAttribute("data-charts", "drawn"); })
    .catch((error) => document.documentElement.setAttribute("data-charts", "error: " + error));
})();
