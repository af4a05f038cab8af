/* Improvement over even spacing against kappa, the pull back to the constraint: where timing helps and where it loses. */

const WORST = -1; // losses beyond this are drawn at the edge, lest one of them flatten everything else

function drawSweep(place, state) {
  const key = comparedKey(state.schedule);
  const measure = state.metric === 'endpoint' ? 'endpoint' : 'nepe'; // the two that are compared
  const strong = baseOf(state.domain.name); // flows are not swept: their base stands for them
  const curves = Object.entries(SUMMARY.kappa ?? {}).map(([name, kappas]) => ({
    name,
    points: Object.entries(kappas).map(([kappa, at]) => ({ kappa: Number(kappa), ...at.improvement?.[key]?.[measure], concentration: at.concentration?.mean }))
      .filter((p) => isNumber(p.mean)).sort((a, b) => a.kappa - b.kappa),
  })).filter((curve) => curve.points.length > 1);
  place.closest('.card').hidden = curves.length === 0; // before the width is asked for
  if (curves.length === 0) return '';

  const schedule = scheduleOf(key);
  const phone = place.clientWidth < 440;
  picture(place, 300, `Improvement of ${schedule.label} over periodic against kappa`, (root, width, height) => {
    const left = 52, right = width - (phone ? 12 : 130), top = 30, bottom = height - 48;
    const seen = curves.flatMap((c) => c.points.map((p) => Math.max(p.mean, WORST)));
    const [low, high] = [Math.min(0, ...seen), Math.max(0.2, ...seen)];
    const most = Math.max(...curves.flatMap((c) => c.points.map((p) => p.kappa)));
    const root2 = scale([0, Math.sqrt(most)], [left, right]);
    const x = (kappa) => root2(Math.sqrt(kappa)); // most happens at small kappa
    const y = scale([low, high], [bottom, top]);
    axes(root, {
      x, y, width, top, bottom, left, right, yTicks: ticks(low, high, 8), yText: (v) => percent(v), xTicks: [0, 0.02, 0.1, 0.3, 0.6, 0.95].filter((k) => k <= most),
      xName: phone ? 'kappa, the pull back to the constraint' : 'kappa: how strongly the sampler pulls back to the constraint by itself', yName: `improvement over periodic in ${METRICS[measure].label}`,
    });
    root.append(svg('line', { class: 'axis', x1: left, x2: right, y1: y(0), y2: y(0) }));

    const ordered = [...curves].sort((a, b) => (a.name === strong) - (b.name === strong));
    for (const { name, points } of ordered) {
      const chosen = name === strong;
      const spots = points.map((p) => [x(p.kappa), y(Math.max(p.mean, WORST))]);
      root.append(svg('path', { class: `curve${chosen ? ' chosen' : ''}`, d: line(spots), style: `stroke:${chosen ? schedule.colour : 'var(--faint)'}` }));
      if (chosen) drawSweepPoints(root, points, spots, y, schedule);
    }
    if (!phone) nameCurves(root, curves, state, x, y, top, bottom, right);
    place.onpointermove = (event) => {
      const [px, py] = pointIn(place.querySelector('svg'), event);
      let best = null, least = 18;
      for (const { name, points } of curves) for (const p of points) {
        const far = Math.hypot(x(p.kappa) - px, y(Math.max(p.mean, WORST)) - py);
        if (far < least) [best, least] = [{ name, p }, far];
      }
      if (best) tooltip.show(`${domainLabel(best.name)}, kappa ${best.p.kappa}\n${percent(best.p.mean)} ± ${percent(best.p.se)} against periodic\n${percent(best.p.concentration)} of the defect in the top 20% of steps`, event.clientX, event.clientY);
      else tooltip.hide();
    };
    place.onpointerleave = () => tooltip.hide();
  });
  return `${capital(schedule.label)} against periodic at budget ${percent(Number(PAGE.table_budget ?? 0.25))}, each domain over kappa; ${domainLabel(strong)}${strong === state.domain.name ? '' : ' (with Langevin dynamics, which alone were swept)'} is the strong line, with standard errors. Above zero it wins, below it loses${curves.some((c) => c.points.some((p) => p.mean < WORST)) ? `; losses beyond ${percent(WORST)} are drawn at the edge` : ''}.`;
}

function drawSweepPoints(root, points, spots, y, schedule) {
  points.forEach((p, i) => {
    const [px, py] = spots[i];
    if (p.mean >= WORST && isNumber(p.se)) { // a point at the edge has no bar: it would leave the picture
      root.append(svg('line', { class: 'removed', x1: px, x2: px, y1: y(Math.max(p.mean - p.se, WORST)), y2: y(p.mean + p.se), style: `stroke:${schedule.colour}` }));
    }
    root.append(svg('circle', { class: 'dot', cx: px, cy: py, r: 4.5, style: `fill:${schedule.colour}` }));
  });
}

function nameCurves(root, curves, state, x, y, top, bottom, right) {
  const ends = curves.map((c) => y(Math.max(c.points.at(-1).mean, WORST)));
  const places = spread(ends, 16, top, bottom);
  curves.forEach(({ name }, i) => {
    const chosen = name === baseOf(state.domain.name);
    root.append(svg('path', { class: 'leader', fill: 'none', d: line([[right + 3, ends[i]], [right + 12, places[i]]]), style: 'stroke:var(--faint)' }));
    root.append(svg('text', { class: `name${chosen ? ' chosen' : ''}`, x: right + 16, y: places[i] + 4, style: chosen ? `fill:${scheduleOf(comparedKey(state.schedule)).colour}` : null }, domainLabel(name)));
  });
}
