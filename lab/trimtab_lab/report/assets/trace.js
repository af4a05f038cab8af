/* One rollout over its steps: what the schedule saw, where it projected, and where the others would have. */

const TRACES = { defects: 'defect at each step', state_error: 'distance from the stepwise path' };

function drawTrace(place, state, setStep) {
  const { domain } = state;
  const schedule = scheduleOf(state.schedule);
  const example = exampleOf(domain, state.schedule, state.budget, state.seed);
  const kind = example?.[state.trace]?.length ? state.trace : 'defects';
  const values = example?.[kind] ?? [];
  if (values.length === 0) return message(place, 'No example rollout was kept for this schedule.');

  const terminal = state.schedule === 'terminal' ? null : exampleOf(domain, 'terminal', '0.00', state.seed);
  const ghost = terminal?.[kind] ?? [];
  const rows = domain.schedules
    .filter((s) => s.key === state.schedule || !['terminal', 'stepwise'].includes(s.key))
    .map((s) => ({ schedule: s, example: exampleOf(domain, s.key, state.budget, state.seed) })).filter((r) => r.example);
  const phone = place.clientWidth < 440;
  const rugHeight = 20, rugTop = 26;
  const plotBottom = phone ? 210 : 226;
  const height = plotBottom + rugTop + rows.length * rugHeight + 44;

  picture(place, height, `${TRACES[kind]} under ${schedule.label}`, (root, width) => {
    const left = phone ? 70 : 132, right = width - 12, top = 30;
    const high = Math.max(...[...values, ...ghost].filter(isNumber), 1e-12);
    const yTicks = ticks(0, high, 4);
    const x = scale([-0.5, values.length - 0.5], [left, right]);
    const y = scale([0, Math.max(high, yTicks.at(-1))], [plotBottom, top]);
    axes(root, { x, y, width, top, bottom: plotBottom, left, right, yTicks, xTicks: [], xName: '', yName: TRACES[kind] });

    if (ghost.length) {
      root.append(svg('path', { class: 'ghost', d: line(ghost.map((v, t) => [x(t), y(v ?? 0)])) }));
      const peak = ghost.reduce((best, v, t) => (v > ghost[best] ? t : best), 0);
      const late = peak > ghost.length * 0.6;
      root.append(svg('text', { class: 'name', x: x(peak) + (late ? -8 : 8), y: y(ghost[peak]) + 9, 'text-anchor': late ? 'end' : 'start' }, 'never projected'));
    }
    if (kind === 'defects') drawDefects(root, example, schedule, x, y);
    else root.append(svg('path', { class: 'curve chosen', d: line(values.map((v, t) => [x(t), y(v ?? 0)])), style: `stroke:${schedule.colour}` }));

    rows.forEach((row, i) => drawRug(root, row, state, x, plotBottom + rugTop + i * rugHeight, left, right, phone));
    const foot = plotBottom + rugTop + rows.length * rugHeight;
    for (const t of ticks(0, values.length - 1, phone ? 4 : 8)) root.append(svg('text', { x: x(t), y: foot + 14, 'text-anchor': 'middle' }, String(t)));
    root.append(svg('text', { x: (left + right) / 2, y: foot + 32, 'text-anchor': 'middle' }, `step t, 0 to ${values.length - 1}`));

    const handle = stepHandle(state, values.length, setStep, place, example, kind);
    handle.append(svg('line', { class: 'step-line', x1: x(state.step), x2: x(state.step), y1: top, y2: foot }));
    handle.append(svg('circle', { class: 'now', cx: x(state.step), cy: y(values[Math.min(state.step, values.length - 1)] ?? 0), r: 4.5 }));
    root.append(handle);

    place.onpointermove = place.onpointerdown = (event) => {
      const [px] = pointIn(place.querySelector('svg'), event);
      const step = Math.min(Math.max(Math.round(x.back(px)), 0), values.length - 1);
      if (step !== state.step) setStep(step);
      tooltip.show(stepText(example, kind, step), event.clientX, event.clientY);
    };
    place.onpointerleave = () => tooltip.hide();
  });
}

/** The defect kept is a filled step curve, whose area is the path error; what a correction removed stands as a stem. */
function drawDefects(root, example, schedule, x, y) {
  const edge = example.residuals.flatMap((r, t) => [[x(t - 0.5), y(r ?? 0)], [x(t + 0.5), y(r ?? 0)]]);
  const floor = [[x(example.residuals.length - 0.5), y(0)], [x(-0.5), y(0)]];
  root.append(svg('path', { class: 'kept', d: `${line([...edge, ...floor])}Z`, style: `fill:${schedule.colour}` }));
  root.append(svg('path', { class: 'kept-edge', d: line(edge), style: `stroke:${schedule.colour}` }));
  for (const t of example.projected) {
    root.append(svg('line', { class: 'removed', x1: x(t), x2: x(t), y1: y(example.residuals[t] ?? 0), y2: y(example.defects[t] ?? 0), style: `stroke:${schedule.colour}` }));
    root.append(svg('circle', { cx: x(t), cy: y(example.defects[t] ?? 0), r: example.projected.size > 60 ? 1.6 : 2.8, style: `fill:${schedule.colour}` }));
  }
}

/** A mark for each correction. */
function drawRug(root, { schedule, example }, state, x, top, left, right, phone) {
  const chosen = schedule.key === state.schedule ? ' chosen' : '';
  const middle = top + 8;
  root.append(svg('line', { class: 'grid', x1: left, x2: right, y1: middle, y2: middle }));
  const marks = [...example.projected].map((t) => `M${round(x(t))} ${top + 14}v-12`).join('');
  root.append(svg('path', { class: `rug${chosen}`, d: marks || 'M0 0', fill: 'none', style: `stroke:${schedule.colour}` }));
  const label = phone ? shortLabel(schedule.label) : schedule.label;
  root.append(svg('text', { class: `name${chosen}`, x: left - 8, y: middle + 4, 'text-anchor': 'end', style: `fill:${schedule.colour}` }, label));
}

function stepHandle(state, length, setStep, place, example, kind) {
  const handle = svg('g', {
    class: 'handle', tabindex: 0, role: 'slider', 'data-keep': 'step', 'aria-label': 'Step', 'aria-valuemin': 0, 'aria-valuemax': length - 1,
    'aria-valuenow': state.step, 'aria-valuetext': stepText(example, kind, state.step).replaceAll('\n', ', '),
  });
  const show = (step) => {
    const box = place.querySelector('.now')?.getBoundingClientRect();
    if (box) tooltip.show(stepText(example, kind, step), box.left, box.top);
  };
  handle.addEventListener('keydown', (event) => {
    const to = { ArrowRight: state.step + 1, ArrowUp: state.step + 1, ArrowLeft: state.step - 1, ArrowDown: state.step - 1, PageUp: state.step + 10, PageDown: state.step - 10, Home: 0, End: length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const step = Math.min(Math.max(to, 0), length - 1);
    setStep(step);
    show(step);
  });
  handle.addEventListener('focus', () => { if (handle.matches(':focus-visible')) show(state.step); });
  handle.addEventListener('blur', () => tooltip.hide());
  return handle;
}

const stepText = (example, kind, step) => `step ${step}\n${TRACES[kind]} ${number(example[kind][step])}${correctionText(example, step)}`;

function correctionText(example, step) {
  return example.projected.has(step) ? '\nprojected' : '';
}
