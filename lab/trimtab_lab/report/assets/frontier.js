/* Error against budget, one curve a schedule with its standard error, and a handle to drag the budget. */

function drawFrontier(place, state, setBudget) {
  const { domain, metric } = state;
  const curves = domain.schedules.map((schedule) => ({ schedule, points: curvePoints(domain, schedule.key, metric) }))
    .filter((curve) => curve.points.length > 0);
  const values = curves.flatMap((c) => c.points.flatMap((p) => [p.mean - p.se, p.mean + p.se]));
  if (values.length === 0) return message(place, `No ${metricLabel(metric)} was recorded here.`);

  const phone = place.clientWidth < 440;
  picture(place, phone ? 330 : 376, `${metricLabel(metric)} against budget on ${domain.label}`, (root, width, height) => {
    const left = 44, right = width - 12, top = 30, bottom = height - 48;
    const high = Math.max(...values), low = Math.min(0, ...values);
    const yTicks = ticks(low, high, 5);
    const x = scale([0, 1], [left, right]);
    const y = scale([low, Math.max(high, yTicks.at(-1))], [bottom, top]);
    axes(root, {
      x, y, width, top, bottom, left, right, yTicks, xTicks: [0, 0.25, 0.5, 0.75, 1], xText: (v) => percent(v),
      xName: 'budget: steps that may be projected', yName: axisName(metric),
    });

    const drawn = [...curves].sort((a, b) => (a.schedule.key === state.schedule) - (b.schedule.key === state.schedule));
    for (const { schedule, points } of drawn) {
      const chosen = schedule.key === state.schedule ? ' chosen' : '';
      const upper = points.map((p) => [x(p.budget), y(p.mean + p.se)]);
      const lower = points.map((p) => [x(p.budget), y(p.mean - p.se)]).reverse();
      root.append(svg('path', { class: `band${chosen}`, d: `${line([...upper, ...lower])}Z`, style: `fill:${schedule.colour}` }));
      root.append(svg('path', {
        class: `curve${chosen}`, 'data-key': schedule.key, d: line(points.map((p) => [x(p.budget), y(p.mean)])),
        'stroke-dasharray': schedule.dash || null, style: `stroke:${schedule.colour}`,
      }));
      if (points.length < 10 && !points.level) for (const p of points) root.append(svg('circle', { cx: x(p.budget), cy: y(p.mean), r: 2.6, style: `fill:${schedule.colour}` }));
    }

    const budget = Number(state.budget);
    drawLabels(root, drawn, state, { x, y, top, bottom, left, right, phone });
    const hit = svg('rect', { class: 'hit', x: left, y: top, width: right - left, height: bottom - top });
    root.append(hit, budgetHandle(state, x(budget), top, bottom, setBudget, place));

    root.addEventListener('pointerdown', (event) => {
      const [px, py] = pointIn(root, event);
      if (py > bottom + 30 || px < left - 12) return;
      place.setPointerCapture?.(event.pointerId);
      place.dragging = true;
      setBudget(nearestBudget(domain, x.back(px)));
    });
    place.onpointermove = (event) => {
      const now = place.querySelector('svg');
      const [px, py] = pointIn(now, event);
      if (place.dragging) return setBudget(nearestBudget(domain, x.back(px)));
      const near = nearestPoint(curves, x, y, px, py);
      if (near) tooltip.show(pointText(near, metric), event.clientX, event.clientY);
      else tooltip.hide();
    };
    place.onpointerup = place.onpointercancel = () => { place.dragging = false; };
    place.onpointerleave = () => tooltip.hide();
  });
}

/** Points of a curve; a schedule of one budget (terminal, stepwise) becomes a level line over all of them. */
function curvePoints(domain, key, metric) {
  const budgets = Object.keys(domain.numbers.schedules[key]).sort(byNumber);
  const points = budgets.map((budget) => ({ name: budget, budget: Number(budget), ...cell(domain, key, budget, metric) }))
    .filter((p) => isNumber(p.mean)).map((p) => ({ ...p, se: isNumber(p.se) ? p.se : 0 }));
  if (budgets.length > 1 || points.length === 0) return points;
  return Object.assign([{ ...points[0], budget: 0 }, { ...points[0], budget: 1 }], { level: true });
}

const axisName = (metric) => (metric === 'nepe' ? 'NEPE, lower is better' : `${metricLabel(metric)}: ${METRICS[metric]?.unit ?? 'of final states'}`);

/** Dots at the handle, and names with values in the corner above the falling curves, so that no text lies on a line. */
function drawLabels(root, drawn, state, { x, y, top, left, right, phone }) {
  for (const { schedule, points } of drawn.filter((c) => c.points.level)) {
    const start = schedule.key === 'stepwise'; // where the other curves are far from the line
    root.append(svg('text', { class: `name${schedule.key === state.schedule ? ' chosen' : ''}`, x: start ? left + 6 : right, y: y(points[0].mean) - 6, 'text-anchor': start ? 'start' : 'end', style: `fill:${schedule.colour}` }, points[0].mean === 0 ? schedule.label : `${schedule.label} ${number(points[0].mean, 2)}`));
  }
  const here = drawn.filter((c) => !c.points.level).map(({ schedule }) => ({ schedule, value: cell(state.domain, schedule.key, state.budget, state.metric) })).filter((l) => l.value);
  here.sort((a, b) => b.value.mean - a.value.mean);
  const at = x(Number(state.budget));
  here.forEach(({ schedule, value }, i) => {
    const chosen = schedule.key === state.schedule ? ' chosen' : '';
    root.append(svg('circle', { class: 'dot', cx: at, cy: y(value.mean), r: chosen ? 6 : 4, style: `fill:${schedule.colour}` }));
    root.append(svg('text', {
      class: `name${chosen}`, x: right, y: top + 24 + 18 * i, 'text-anchor': 'end', style: `fill:${schedule.colour}`,
    }, `${phone && !chosen ? shortLabel(schedule.label) : schedule.label} ${number(value.mean, 2)}`));
  });
}

const shortLabel = (label) => label.replace(/^adaptive \((.*)\)$/, '$1');

function budgetHandle(state, at, top, bottom, setBudget, place) {
  const handle = svg('g', {
    class: 'handle', tabindex: 0, role: 'slider', 'data-keep': 'budget', 'aria-label': 'Budget', 'aria-valuemin': 0, 'aria-valuemax': 1,
    'aria-valuenow': state.budget, 'aria-valuetext': `${percent(Number(state.budget))} of the steps`, 'aria-orientation': 'horizontal',
  },
  svg('line', { x1: at, x2: at, y1: top, y2: bottom }),
  svg('rect', { class: 'grip', x: at - 11, y: bottom - 6, width: 22, height: 12, rx: 6 }));
  handle.addEventListener('keydown', (event) => {
    const budget = budgetAfterKey(state, event.key);
    if (budget === undefined) return;
    event.preventDefault();
    setBudget(budget);
    tipAtHandle(place, state);
  });
  handle.addEventListener('focus', () => { if (handle.matches(':focus-visible')) tipAtHandle(place, state); });
  handle.addEventListener('blur', () => tooltip.hide());
  return handle;
}

function tipAtHandle(place, state) {
  const box = place.querySelector('.handle .grip')?.getBoundingClientRect();
  const value = cell(state.domain, state.schedule, state.budget, state.metric);
  if (box && value) tooltip.show(pointText({ schedule: scheduleOf(state.schedule), point: { name: state.budget, ...value } }, state.metric), box.left, box.bottom + 30);
}

function nearestPoint(curves, x, y, px, py) {
  let best = null, least = 22;
  for (const { schedule, points } of curves) {
    for (const point of points) {
      const far = Math.hypot(x(point.budget) - px, y(point.mean) - py);
      if (far < least) [best, least] = [{ schedule, point }, far];
    }
  }
  return best;
}

const pointText = ({ schedule, point }, metric) => `${schedule.label} at ${percent(Number(point.name))}\n${metricLabel(metric)} ${plusMinus(point)}${isNumber(point.n) ? `, n = ${point.n}` : ''}`;
