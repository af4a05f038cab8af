/* The tables: error at the chosen budget for every domain, and the paired comparisons. */

function table(caption, groups, heads, rows) {
  return html('table', {}, html('caption', { class: 'spoken' }, caption),
    html('thead', {},
      groups ? html('tr', { class: 'groups' }, groups.map(([text, span]) => html('th', { colspan: span, scope: text ? 'colgroup' : null }, text))) : null,
      html('tr', {}, heads.map((text) => html('th', { scope: 'col' }, text)))),
    html('tbody', {}, rows.map(({ name, chosen, cells }) => html('tr', { class: chosen ? 'chosen' : null },
      html('th', { scope: 'row' }, name), cells.map((c) => html('td', { class: c.class ?? null }, c.text, c.small ? html('small', {}, ` ${c.small}`) : null))))));
}

const valueCell = (value) => ({ text: value ? number(value.mean) : '–', small: value && isNumber(value.se) ? `± ${number(value.se)}` : null });

/** An improvement, coloured only where it is beyond two standard errors. */
function gainCell(gain) {
  if (!gain) return { text: '–' };
  const clear = isNumber(gain.se) && Math.abs(gain.mean) > 2 * gain.se;
  return { text: percent(gain.mean), small: isNumber(gain.se) ? `± ${percent(gain.se)}` : null, class: clear ? (gain.mean > 0 ? 'better' : 'worse') : null };
}

/** A figure the paper reports, [value, standard error], beside ours. */
const paperCell = (pair) => (Array.isArray(pair) ? { text: percent(pair[0]), small: isNumber(pair[1]) ? `± ${percent(pair[1])}` : null, class: 'said' } : { text: '–' });

function writeErrorTable(place, note, title, state) {
  const key = comparedKey(state.schedule);
  const label = scheduleOf(key)?.label ?? 'adaptive';
  const budget = state.budget;
  const withPaper = key === 'adaptive:paper' && Number(budget) === Number(PAGE.paper_budget) && Object.values(PAGE.domains ?? {}).some((d) => d.paper?.table1);
  const width = withPaper ? 4 : 3;
  const metrics = [['nepe', 'NEPE'], ['endpoint', 'Endpoint distance']];
  const heads = ['Domain', ...metrics.flatMap(() => ['periodic', label, 'improvement', ...(withPaper ? ['in the paper'] : [])])];
  const rows = domainsWith(state.dynamics).map((name) => {
    const domain = domainOf(name);
    const cells = metrics.flatMap(([metric]) => {
      const out = [...['periodic', key].map((k) => valueCell(cell(domain, k, budget, metric))), gainCell(improvementOf(domain, key, budget, metric))];
      if (withPaper) out.push(paperCell(domain.extra.paper?.table1?.[metric]?.improvement));
      return out;
    });
    return { name: domain.label, chosen: name === state.domain.name, cells };
  });
  title.textContent = `Error at ${percent(Number(budget))} of the projections, all domains`;
  place.replaceChildren(table(`Periodic and ${label} at budget ${budget}`, [['', 1], ...metrics.map(([, text]) => [text, width])], heads, rows));
  note.textContent = `Mean ± standard error over seeds. Improvement compares the means of the same seeds; it is coloured only where it is beyond two standard errors.${withPaper ? ' “In the paper” is the improvement the paper reports for its rule.' : ''}`;
}

function writeWinTable(place, note, state) {
  const key = comparedKey(state.schedule);
  const rate = (value) => ({ text: value && isNumber(value.mean) ? percent(value.mean) : '–', small: value && isNumber(value.se) ? `± ${percent(value.se, 1)}` : null });
  const withPaper = key === 'adaptive:paper' && Object.values(PAGE.domains ?? {}).some((d) => d.paper?.win_rates);
  const paperHead = withPaper ? ['in the paper'] : [];
  const rows = domainsWith(state.dynamics).map((name) => {
    const domain = domainOf(name);
    const wins = domain.numbers.win_rate?.[key] ?? {};
    const median = wins.median_improvement;
    const said = domain.extra.paper?.win_rates;
    return {
      name: domain.label, chosen: name === state.domain.name,
      cells: [rate(wins.pathwise), ...(withPaper ? [paperCell(said?.pathwise)] : []), rate(wins.endpoint), ...(withPaper ? [paperCell(said?.endpoint)] : []), { text: percent(isNumber(median) ? median : median?.mean) }, { text: isNumber(wins.pathwise?.n) ? String(wins.pathwise.n) : '–' },
        rate(domain.numbers.concentration), { text: isNumber(domain.numbers.degenerate) ? String(domain.numbers.degenerate) : '–' }],
    };
  });
  const label = scheduleOf(key)?.label ?? key;
  const q = percent(state.domain.numbers.concentration?.q ?? 0.2);
  place.replaceChildren(table(`How often ${label} beats periodic`, [['', 1], [`${label} against periodic, all budgets`, withPaper ? 6 : 4], ['the domain', 2]],
    ['Domain', 'path won', ...paperHead, 'endpoint won', ...paperHead, 'median gain', 'pairs', `defect in top ${q}`, 'degenerate'], rows));
  note.textContent = `A pair is one seed at one budget under both schedules; ± is the standard error over seeds. At budgets 0 and 1 all schedules are the same and a tie is not a win, so ${percent(winLimit(state.domain, key), 1)} is the highest rate possible here${withPaper ? ', and 90.5% on the paper’s grid' : ''}. `
    + `The defect in the top ${q} of the steps says how concentrated a domain’s trouble is.`;
}
