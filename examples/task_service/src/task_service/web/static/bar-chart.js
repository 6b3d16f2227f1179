// Bars over time.

import { drawn } from "./dom.js";

const BAR = 8;
const GAP = 2;
const HEIGHT = 40;
const MARK = 3;

/** A picture of bars from left to right. Each is `{ title, parts, marked }`: its parts, `[state, value]`, overlap and have the
 *  colours of their states; a bar `marked` with a state also has a mark below. */
export function barChart(label, bars, axis = false) {
  const width = bars.length * (BAR + GAP) - GAP;
  const most = Math.max(...bars.flatMap(({ parts }) => parts.map(([, value]) => value))) || 1;
  const columns = bars.map(({ title, parts, marked }, index) => {
    const rect = (state, y, height) => drawn("rect", { class: state, x: index * (BAR + GAP), y, width: BAR, height });
    const drawnParts = parts.map(([state, value]) => {
      const height = Math.max(2, (HEIGHT * value) / most);
      return rect(state, HEIGHT - height, height);
    });
    return drawn("g", {}, drawn("title", {}, title), ...drawnParts, ...(marked ? [rect(marked, HEIGHT + 2, MARK)] : []));
  });
  const line = axis ? [drawn("path", { class: "axis", d: `M0 ${HEIGHT + 1}H${width}` })] : [];
  return drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT + 2 + MARK}`, width, role: "img", "aria-label": label }, ...columns, ...line);
}
