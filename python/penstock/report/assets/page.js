// SPDX-License-Identifier: Apache-2.0
// Draws all charts in the browser's colour scheme, and again when the scheme changes. CSS defines the named colours.
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const paint = (node) => {
    if (typeof node === "string") return /^@[a-z]+\d*$/.test(node) ? colour(node.slice(1)) : node;
    if (Array.isArray(node)) return node.map(paint);
    if (node && typeof node === "object") return Object.fromEntries(Object.entries(node).map(([k, v]) => [k, paint(v)]));
    return node;
  };
  const config = () => {
    const ink = colour("ink"), soft = colour("soft"), line = colour("line"), font = getComputedStyle(document.body).fontFamily;
    return {
      font, background: "transparent", view: { stroke: null },
      axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 400, titlePadding: 10, labelSeparation: 9, labelOverlap: true, labelFont: font, titleFont: font },
      legend: { labelColor: soft, labelFontSize: 12.5, labelFont: font, rowPadding: 4, columnPadding: 18 },
      text: { font, fontSize: 12.5, color: ink }, bar: { discreteBandSize: 20 },
    };
  };
  const narrow = (spec) => {
    // On a narrow screen, two legend columns would take half of the chart, so use one column.
    if (innerWidth > 640) return spec;
    return JSON.parse(JSON.stringify(spec).replaceAll('"columns":2', '"columns":1'));
  };
  const draw = () => Promise.all(Object.entries(specs).map(([name, spec]) => {
    const place = document.getElementById("chart-" + name);
    if (!place) return null;
    return vegaEmbed(place, paint(narrow(spec)), { actions: false, renderer: "svg", config: config(), tooltip: { theme: dark.matches ? "dark" : "light" } });
  })).then(() => document.documentElement.setAttribute("data-charts", "drawn"))
    .catch((error) => document.documentElement.setAttribute("data-charts", "error: " + error));
  draw();
  dark.addEventListener("change", draw);
})();
