/* Drawing: elements, axes, pictures that follow the width they are given, one tooltip. */

const SVG = 'http://www.w3.org/2000/svg';

/** An SVG element; attributes that are null are left out. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

/** An HTML element; data only ever enters as text, never as markup. */
function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

/** A linear scale from [a, b] to [x, y], with its inverse. */
function scale([a, b], [x, y]) {
  const span = b - a || 1;
  const to = (value) => x + ((value - a) / span) * (y - x);
  to.back = (pixel) => a + ((pixel - x) / (y - x || 1)) * span;
  return to;
}

/** About n round numbers between a and b. */
function ticks(a, b, n) {
  if (!(b > a)) return [a];
  const raw = (b - a) / n;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= raw * 0.999);
  const out = [];
  for (let i = Math.ceil(a / step - 1e-9); i * step <= b + step * 1e-9; i++) out.push(Math.abs(i * step) < step * 1e-9 ? 0 : i * step);
  return out;
}

const tickText = (value) => (Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(0) : String(Number(value.toPrecision(3)))).replace('-', MINUS);

const round = (x) => Math.round(x * 10) / 10;
const line = (points) => points.map(([x, y], i) => `${i ? 'L' : 'M'}${round(x)} ${round(y)}`).join('');

/** A short stroke in a schedule's colour and dashes: the same mark in pickers, legends and lists. */
function swatch(schedule) {
  return svg('svg', { viewBox: '0 0 22 10', 'aria-hidden': 'true' },
    svg('line', { x1: 0, x2: 22, y1: 5, y2: 5, 'stroke-width': 3, 'stroke-dasharray': schedule.dash || null, style: `stroke:${schedule.colour}` }));
}

/** Move texts apart: the nearest places to `wanted`, at least `gap` apart, within [low, high]. */
function spread(wanted, gap, low, high) {
  const order = wanted.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y);
  let edge = low - gap;
  for (const item of order) edge = item.place = Math.max(item.y, edge + gap);
  edge = high + gap;
  for (const item of order.reverse()) edge = item.place = Math.min(item.place, edge - gap);
  const out = [];
  for (const item of order) out[item.i] = item.place;
  return out;
}

/** Replace the drawing in a place; the drawing is told its width in pixels and gives its height. */
function picture(place, height, label, paint) {
  const width = Math.max(260, place.clientWidth);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'group', 'aria-label': label });
  const kept = document.activeElement?.closest?.('.plot') === place ? document.activeElement.dataset.keep : null;
  paint(root, width, height);
  place.replaceChildren(...place.querySelectorAll(':scope > canvas'), root);
  if (kept) root.querySelector(`[data-keep="${kept}"]`)?.focus({ preventScroll: true });
  return root;
}

function message(place, text) {
  place.replaceChildren(html('p', { class: 'empty' }, text));
}

/** Horizontal grid lines with numbers, and the axis names. */
function axes(root, { x, y, width, top, bottom, left, right, xTicks, yTicks, xText = tickText, yText = tickText, xName, yName }) {
  for (const value of yTicks) {
    root.append(svg('line', { class: 'grid', x1: left, x2: right, y1: y(value), y2: y(value) }));
    root.append(svg('text', { x: left - 8, y: y(value) + 4, 'text-anchor': 'end' }, yText(value)));
  }
  root.append(svg('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }));
  for (const value of xTicks) root.append(svg('text', { x: x(value), y: bottom + 21, 'text-anchor': 'middle' }, xText(value)));
  root.append(svg('text', { x: (left + right) / 2, y: bottom + 40, 'text-anchor': 'middle' }, xName));
  root.append(svg('text', { x: 0, y: top - 14 }, yName));
}

/* ------------------------------------------------------------------ tooltip */

const tooltip = {
  node: document.getElementById('tooltip'),
  show(text, clientX, clientY) {
    this.node.textContent = text;
    this.node.hidden = false;
    const { width, height } = this.node.getBoundingClientRect();
    const left = Math.min(Math.max(8, clientX + 14), innerWidth - width - 8);
    const top = clientY - height - 12 < 8 ? clientY + 16 : clientY - height - 12;
    this.node.style.transform = `translate(${left}px, ${top}px)`;
  },
  hide() {
    this.node.hidden = true;
  },
};
tooltip.node.style.left = tooltip.node.style.top = '0';

/** A pointer's place in the drawing's own coordinates. */
function pointIn(root, event) {
  const box = root.getBoundingClientRect();
  const unit = root.viewBox.baseVal.width / box.width;
  return [(event.clientX - box.left) * unit, (event.clientY - box.top) * unit];
}
